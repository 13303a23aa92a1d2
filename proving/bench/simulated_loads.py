"""Loads on a worker in simulated time: senders with credits, the worker's flow control, and a query in micro-batches.

Nothing sleeps and nothing is random: the same load gives the same figures. All rows have one size. A batch costs a
fixed time and a time for each byte; a sink may change its speed or stand still for a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proving.bench.results.figures import percentile
from wallaroo_spark.options import Options
from wallaroo_spark.worker.machine.pressure.flow import FlowControl

ROW_BYTES = 200
TICK_SECONDS = 0.25
MEBIBYTE = 1 << 20
WIRE = 400.0
"""MiB a second that one sender can send at most."""


@dataclass(frozen=True)
class SimulatedLoad:
    """The senders and the query of one simulated load. MiB are of the worker's memory."""

    name: str
    """Its name in tables and pictures."""
    supply: Callable[[float], float]
    """MiB a second that all senders offer together, at a time in seconds."""
    sink: Callable[[float], float] = lambda _: 100.0
    """MiB a second that the query processes, at a time in seconds; 0 while it stands still."""
    fixed: float = 0.3
    """Seconds that each batch takes beside its rows."""
    seconds: float = 300.0
    """The simulated time in seconds."""
    senders: int = 1
    """Connected senders."""
    busy: int = 0
    """Senders that send; 0 for all."""
    budget: int = 256 * MEBIBYTE
    """The worker's memory budget in bytes."""
    interval: float = 0.0
    """The trigger's interval in seconds; 0 for none."""
    least: int = 0
    """Rows from which a batch is planned; 0 for any number."""
    most: int = 0
    """Rows that a batch has at most; 0 without a limit."""
    delay: float = 900.0
    """Seconds after which a batch with fewer than ``least`` rows is planned."""
    stable: int = 1
    """A batch ends at a multiple of so many rows."""
    noise: float = 0.0
    """The fraction by which batches are shorter or longer."""

    def options(self, credits: str) -> Options:
        """The worker's options."""
        return Options(
            credits=credits,
            memory_budget=self.budget,
            min_offsets_per_trigger=self.least or None,
            max_offsets_per_trigger=self.most or None,
        )


@dataclass
class Batch:
    """A running batch."""

    rows: int
    began: float
    """When it was planned, in seconds."""
    fixed: float
    """Seconds of its fixed price that remain."""
    bytes: float
    """Bytes of rows that remain to be processed."""


@dataclass
class Outcome:
    """The results of a load. Times are in seconds, sizes in MiB."""

    times: list[float] = field(default_factory=list)
    """The time of each step in seconds."""
    held: list[float] = field(default_factory=list)
    """MiB in the buffer after each step."""
    limits: list[float] = field(default_factory=list)
    """The flow control's limit after each step, in MiB."""
    commits: list[tuple[float, int, float]] = field(default_factory=list)
    """Each commit: its time, its rows, and the seconds that the batch took."""
    waits: list[tuple[float, int]] = field(default_factory=list)
    """Seconds from arrival to commit, with the number of rows."""
    sent: list[int] = field(default_factory=list)
    """Rows that each sender has sent."""

    def rate(self, begin: float = 0.0, end: float = math.inf) -> float:
        """MiB a second that were committed."""
        end = min(end, self.times[-1])
        rows = sum(rows for time, rows, _ in self.commits if begin < time <= end)
        return rows * ROW_BYTES / MEBIBYTE / (end - begin)

    def mean_held(self, begin: float = 0.0, end: float = math.inf) -> float:
        """MiB in the buffer, on average."""
        found = [held for time, held in zip(self.times, self.held, strict=True) if begin < time <= end]
        return sum(found) / len(found)

    def peak(self, begin: float = 0.0, end: float = math.inf) -> float:
        """The most MiB in the buffer."""
        return max(held for time, held in zip(self.times, self.held, strict=True) if begin < time <= end)

    def wait(self, share: float) -> float:
        """The time from arrival to commit that a fraction ``share`` of the rows did not exceed."""
        return percentile(self.waits, share)


class Simulation:
    """One worker of one query."""

    def __init__(self, load: SimulatedLoad, credits: str, step: float = 0.01) -> None:
        self.load = load
        self.flow = FlowControl(load.options(credits))
        self.flow.restart(-1)
        self.step = step
        self.now = 0.0
        self.credits = [self.flow.window(0, load.senders)] * load.senders
        self.backlog = [0.0] * load.senders
        self.rows = 0
        self.arrived: deque[tuple[float, int]] = deque()
        self.batch: Batch | None = None
        self.number = -1
        self.outcome = Outcome(sent=[0] * load.senders)
        self._trigger = 0.0
        self._since: float | None = None
        self._last_tick = 0.0

    @property
    def used(self) -> int:
        """Bytes in the buffer."""
        return self.rows * ROW_BYTES

    def run(self) -> Outcome:
        """Run the whole load."""
        steps = round(self.load.seconds / self.step)
        for count in range(1, steps + 1):
            self.advance(count * self.step)
        return self.outcome

    def advance(self, now: float) -> None:
        """Simulate one step of time, which ends at ``now``."""
        self.now = now
        if self.now - self._last_tick >= TICK_SECONDS:
            self._last_tick = self.now
            busy = self.load.busy or self.load.senders
            self.flow.active = busy if self.load.supply(self.now) or max(self.backlog) >= 1 else 0
            self.flow.tick(self.now, self.used, lambda: self.rows >= self.load.stable)
        self._send()
        self._query()
        self._grant()
        self.outcome.times.append(self.now)
        self.outcome.held.append(self.used / MEBIBYTE)
        self.outcome.limits.append(self.flow.limit / MEBIBYTE)

    def _send(self) -> None:
        load = self.load
        busy = load.busy or load.senders
        due = load.supply(self.now) * MEBIBYTE / ROW_BYTES * self.step / busy
        came = 0
        for sender in range(busy):
            self.backlog[sender] += due
            wire = int(WIRE * MEBIBYTE / ROW_BYTES * self.step)
            rows = min(int(self.backlog[sender]), self.credits[sender], wire)
            if self.flow.may_read(self.used + came * ROW_BYTES, streaming=True, needed=False):
                self.backlog[sender] -= rows
                self.credits[sender] -= rows
                self.outcome.sent[sender] += rows
                came += rows
        if came:
            self.flow.observe(came, came * ROW_BYTES)
            self.rows += came
            self.arrived.append((self.now, came))

    def _grant(self) -> None:
        self.flow.full(self.used)
        for sender, left in enumerate(self.credits):
            self.credits[sender] += self.flow.top_up(left, self.used, self.load.senders, needed=False)

    def _query(self) -> None:
        if self.batch is None:
            self._plan()
        elif (speed := self.load.sink(self.now)) > 0:
            batch, left = self.batch, self.step
            spent = min(left, batch.fixed)
            batch.fixed -= spent
            batch.bytes -= (left - spent) * speed * MEBIBYTE
            if batch.fixed <= 0 and batch.bytes <= 0:
                self._commit(batch)
                self._plan()

    def _plan(self) -> None:
        load = self.load
        rows = self.rows - self.rows % load.stable
        rows = min(rows, load.most) if load.most else rows
        if not rows or self.now < self._trigger:
            return
        self._since = self.now if self._since is None else self._since
        if rows < load.least and self.now - self._since < load.delay:
            return
        self._since = None
        self._trigger = self.now - self.now % load.interval + load.interval if load.interval else 0.0
        # Multiples of the golden ratio are spread evenly and are not in order.
        factor = 1 + load.noise * (2 * (self.number * 0.618034 % 1) - 1)
        self.batch = Batch(rows, self.now, load.fixed * factor, rows * ROW_BYTES * factor)

    def _commit(self, batch: Batch) -> None:
        self.batch = None
        self.number += 1
        self.rows -= batch.rows
        self.outcome.commits.append((self.now, batch.rows, self.now - batch.began))
        left = batch.rows
        while left:
            time, rows = self.arrived.popleft()
            taken = min(left, rows)
            left -= taken
            self.outcome.waits.append((self.now - time, taken))
            if taken < rows:
                self.arrived.appendleft((time, rows - taken))
        self.flow.committed(self.now, self.number, batch.rows * ROW_BYTES, self.used)


def step(before: float, after: float, at: float) -> Callable[[float], float]:
    """One rate until a time, another from then on."""
    return lambda time: before if time < at else after


def bursts(quiet: float, loud: float, every: float, length: float) -> Callable[[float], float]:
    """The rate ``quiet``, and ``loud`` for ``length`` of every ``every`` seconds."""
    return lambda time: loud if time % every < length else quiet


def stall(speed: float, at: float, length: float) -> Callable[[float], float]:
    """A sink that stands still for a while."""
    return lambda time: 0.0 if at <= time < at + length else speed


def always(rate: float) -> Callable[[float], float]:
    """The same all the time."""
    return lambda _: rate


LOADS = (
    SimulatedLoad("light", always(5)),
    SimulatedLoad("at full speed", always(300)),
    SimulatedLoad("at full speed, ten senders", always(300), senders=10),
    SimulatedLoad("at full speed, slow sink", always(300), sink=always(2), seconds=600),
    SimulatedLoad(
        "at full speed, slow sink, batches vary by half", always(300), sink=always(2), noise=0.5, seconds=600
    ),
    SimulatedLoad("step up, 5 to 80", step(5, 80, 60)),
    SimulatedLoad("bursts of 40 s each 60 s", bursts(2, 80, 60, 40), sink=always(60)),
    SimulatedLoad("sink stalls for 60 s", always(8), sink=stall(10, 100, 60), seconds=400),
    SimulatedLoad("sink ten times as slow from 100 s on", always(300), sink=step(40, 4, 100), seconds=600),
    SimulatedLoad("sink ten times as fast from 200 s on", always(300), sink=step(4, 40, 200), seconds=400),
    SimulatedLoad("a batch a minute", always(300), interval=60, seconds=1200),
)


def compared(load: SimulatedLoad) -> dict[str, Any]:
    """Fixed and adaptive credits beside one another, as JSON-ready values."""
    found: dict[str, Any] = {"load": load.name}
    for credits in ("fixed", "adaptive"):
        outcome = Simulation(load, credits).run()
        found[credits] = {
            "MiB_per_second": outcome.rate(),
            "mean_MiB": outcome.mean_held(),
            "peak_MiB": outcome.peak(),
            "p50_seconds": outcome.wait(0.5),
            "p99_seconds": outcome.wait(0.99),
        }
    return found
