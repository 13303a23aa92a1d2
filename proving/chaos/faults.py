"""Carries out a schedule: one fault after the other, on the processes that run at that moment."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import redis

from proving.chaos.processes import Supervised, Victim
from proving.chaos.schedule import KILLS, Fault, Kind
from proving.chaos.stage import Stage

VICTIM_SECONDS = 90.0
"""How long a fault waits for a victim: after a driver's death there are no workers for a while."""
LOOK_SECONDS = 0.05
WITH_STANDBY = "while a standby waits"
"""The end of the name of a driver that was killed while another one waited to take over."""


@dataclass(frozen=True)
class Blow:
    """A fault that was carried out."""

    fault: Fault
    """The fault as the schedule has it."""
    time: float
    """When it was carried out, in seconds of the wall clock."""
    until: float
    """When it was over, in seconds of the wall clock."""
    hit: str
    """The process or server that was hit; empty when there was none."""

    @property
    def kills(self) -> bool:
        """Whether it ended a process."""
        return bool(self.hit) and self.fault.kind in KILLS

    def to_json(self) -> dict[str, Any]:
        """Its entry in the report."""
        return {**asdict(self.fault), "time": self.time, "until": self.until, "hit": self.hit}


class Hand:
    """Carries out the faults. ``blows`` has those carried out so far."""

    def __init__(self, stage: Stage, began: float) -> None:
        self.blows: list[Blow] = []
        self._stage = stage
        self._began = began
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._stopped: list[Victim] = []

    def deal(self, schedule: list[Fault], tell: Callable[[Blow], None], idle: Callable[[], None]) -> None:
        """Carry out the whole schedule; ``idle`` is called in between. At the end, also after an error, processes
        that were stopped for a while continue."""
        try:
            for fault in schedule:
                while time.time() < self._began + fault.at:
                    self._pass(idle)
                blow = self._strike(fault, idle)
                self.blows.append(blow)
                tell(blow)
            while self._later:
                self._pass(idle)
        finally:
            for _, _, mend in self._later:
                mend()

    def end_stopped(self) -> list[Victim]:
        """After the run, kill the processes that were stopped for good; returns those that still lived."""
        return [one for one in self._stopped if one.send(signal.SIGKILL)]

    def _pass(self, idle: Callable[[], None]) -> None:
        idle()
        while self._later and self._later[0][0] <= time.time():
            heapq.heappop(self._later)[2]()
        time.sleep(LOOK_SECONDS)

    def _strike(self, fault: Fault, idle: Callable[[], None]) -> Blow:
        until = time.time() + VICTIM_SECONDS
        while not (hit := self._hit(fault)) and time.time() < until:
            self._pass(idle)
        now = time.time()
        return Blow(fault, now, now + (fault.seconds if hit else 0), hit)

    def _hit(self, fault: Fault) -> str:
        """The victim's name; empty when there was none."""
        match fault.kind:
            case Kind.CONNECTOR:
                running = [known for known in self._stage.senders.values() if known.pid is not None]
                return _kill(running[int(fault.pick * len(running))]) if running else ""
            case Kind.DRIVER:
                return self._kill_driver()
            case Kind.WORKER:
                return _signal(self._stage.workers(), fault, signal.SIGKILL)
            case Kind.EXECUTOR:
                return _signal(self._stage.executors(), fault, signal.SIGKILL)
            case Kind.STOP:
                return self._stop(fault)
            case Kind.STOP_FOR_GOOD:
                return self._stop_for_good(fault)
            case Kind.FLUSH:
                return self._flush()
            case Kind.REDIS:
                return self._kill_redis(fault)

    def _kill_driver(self) -> str:
        active = self._stage.active_driver()
        if active is None:
            return ""
        hit = _kill(active[0])
        return f"{hit}, {WITH_STANDBY}" if hit and active[1] else hit

    def _stop_for_good(self, fault: Fault) -> str:
        chosen = self._stop_one(fault)
        if chosen is None:
            return ""
        self._stopped.append(chosen)
        return f"{chosen.name}, process {chosen.pid}"

    def _stop_one(self, fault: Fault) -> Victim | None:
        """Stop a worker that is not stopped for good already; None when there is none."""
        workers = [one for one in self._stage.workers() if one not in self._stopped]
        chosen = workers[int(fault.pick * len(workers))] if workers else None
        return chosen if chosen is not None and chosen.send(signal.SIGSTOP) else None

    def _stop(self, fault: Fault) -> str:
        chosen = self._stop_one(fault)
        if chosen is None:
            return ""
        self._mend(fault.seconds, lambda: chosen.send(signal.SIGCONT))
        return f"{chosen.name}, process {chosen.pid}"

    def _flush(self) -> str:
        server = self._stage.redis
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(server.url, socket_timeout=2.0) as client:
            client.flushall()
            return "all keys"
        return ""

    def _kill_redis(self, fault: Fault) -> str:
        server = self._stage.redis
        pid = server.pid
        if pid is None or not server.running:
            return ""
        os.kill(pid, signal.SIGKILL)
        self._mend(fault.seconds, server.start)
        return f"process {pid}, away for {fault.seconds:g} s"

    def _mend(self, seconds: float, mend: Callable[[], object]) -> None:
        heapq.heappush(self._later, (time.time() + seconds, next(self._numbers), mend))


def _kill(program: Supervised) -> str:
    pid = program.pid
    return f"{program.name}, process {pid}" if program.kill() else ""


def _signal(victims: list[Victim], fault: Fault, number: signal.Signals) -> str:
    if not victims:
        return ""
    chosen = victims[int(fault.pick * len(victims))]
    return f"{chosen.name}, process {chosen.pid}" if chosen.send(number) else ""
