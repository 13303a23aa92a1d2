"""The doors of one worker: their common ground on the worker's machine, and the servers that its options ask for.

A door's module is imported only when its port is given. Source: ``docs/architecture.md#doors``.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from wallaroo_spark.doors.client import DoorClient
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.pressure.flow import Pressure
from wallaroo_spark.worker.machine.state import WorkerState

log = one_line(logging.getLogger("wallaroo_spark.worker"))

MOST_CLIENTS = 100
"""Clients of a door that are named with their requests in a status. A choice: as many as instances."""


class Shell(Protocol):
    """What the doors need of the worker's shell."""

    def enter(self, client: DoorClient) -> int:
        """Register a peer; returns the number of its session."""

    def gather(self, number: int, data: bytes) -> None:
        """A peer has sent bytes."""

    def depart(self, number: int) -> None:
        """A peer has gone."""

    def handle(self, event: e.Event) -> None:
        """Pass an event to the machine."""


class Door(Protocol):
    """A server of another protocol."""

    @property
    def url(self) -> str:
        """Where it is reached."""

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their answer."""

    @property
    def ports(self) -> list[int]:
        """The ports on which it listens."""

    @property
    def connections(self) -> int | None:
        """The number of its connections; None when it is not known."""

    @property
    def requests(self) -> Mapping[str, int]:
        """The requests that wait for their commit, by the instance of their client."""

    async def close(self, reason: str, seconds: float) -> None:
        """Answer what waits, and end within some seconds."""


@contextlib.contextmanager
def option_named(option: str) -> Iterator[None]:
    """The error of a port at which a worker cannot listen names its option."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"option {option}: {error.message}", code=error.code, **error.fields) from error


class WorkerDoors:
    """The ground and the open doors of a worker; it is the ground's :class:`~wallaroo_spark.doors.client.Host`.

    ``hosts`` returns the addresses for connectors of the slots that are served now.
    """

    def __init__(
        self,
        shell: Shell,
        state: WorkerState,
        options: Options,
        cookie: str,
        hosts: Callable[[], Awaitable[Mapping[int, str]]],
    ) -> None:
        self._shell = shell
        self._state = state
        self._options = options
        self._slot = state.connections.slot
        self._hosts = hosts
        self._open: dict[str, Door] = {}
        self._connecting: set[int] = set()
        self._ticks: list[Callable[[float], None]] = []
        self.ground = Ground(self, options, cookie, self._slot, self._warn, time.monotonic())

    async def open(self, stopped: asyncio.Event) -> None:
        """Open the doors whose port is given, unless ``stopped`` is set meanwhile."""
        if self._options.http_port is not None:
            from wallaroo_spark.doors.http.door import open_door

            with option_named("http.port"):
                door = await open_door(self.ground, self._options, stopped)
            if door is not None:
                self._open["http"] = door
                log.info("slot %d: the HTTP door is at %s", self._slot, door.url)

        if self._options.kafka_port is not None:
            from wallaroo_spark.doors.kafka.door import open_door as open_kafka

            with option_named("kafka.port"):
                kafka = await open_kafka(self.ground, self._options, stopped, self._hosts)
            if kafka is not None:
                self._open["kafka"] = kafka
                self._ticks.append(kafka.tick)
                log.info("slot %d: the Kafka door is at %s", self._slot, kafka.url)

        if self._options.otlp_port is not None:
            from wallaroo_spark.doors.otlp.door import open_door as open_otlp

            with option_named("otlp.port"):
                otlp = await open_otlp(self.ground, self._options, stopped)
            if otlp is not None:
                self._open["otlp"] = otlp
                log.info("slot %d: the OTLP door is at %s", self._slot, otlp.url)

    def tick(self, now: float) -> None:
        """Time has passed."""
        self.ground.tick(now)
        for tick in self._ticks:
            tick(now)

    async def close(self, reason: str, seconds: float) -> None:
        """Close all doors."""
        await asyncio.gather(*(door.close(reason, seconds) for door in self._open.values()))

    def status(self) -> dict[str, Any]:
        """The open doors, by the names of ``observe.receiver.SlotStatus`` and ``DoorStatus``."""
        return {
            "door_received": self._options.door_received,
            "door_list": [self._status_of(name, door) for name, door in self._open.items()],
        }

    def _status_of(self, name: str, door: Door) -> dict[str, Any]:
        requests = door.requests
        return {
            "door": name,
            "address": door.url,
            "ports": door.ports,
            "connections": door.connections,
            "clients": sum(one.startswith(f"{name}/") for one in self.ground.clients),
            "waiting": door.waiting,
            "waiting_by": dict(heapq.nlargest(MOST_CLIENTS, requests.items(), key=lambda one: one[1])),
        }

    def _warn(self, text: str) -> None:
        log.warning("slot %d: %s", self._slot, text)

    # As the host of the ground.

    def connect(self, client: DoorClient) -> int:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        number = self._shell.enter(client)
        self._connecting.add(number)
        self._soon(self._connected, number, client)
        return number

    def _connected(self, number: int, client: DoorClient) -> None:
        self._connecting.discard(number)
        self._shell.handle(e.Connected(number, client.peer, time.monotonic(), door=True))

    def receive(self, number: int, data: bytes) -> None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        if number in self._connecting:
            # Bytes of others may be handled before this connection is known, and these must come behind that.
            self._soon(self._shell.gather, number, data)
        else:
            self._shell.gather(number, data)

    def hold(self, number: int, size: int) -> None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        self._shell.handle(e.Holding(number, size))

    def disconnect(self, number: int) -> None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        self._soon(self._shell.depart, number)

    def reference(self, key: StreamKey) -> int | None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        return self._state.buffer.reference(key)

    def leaves(self, key: StreamKey) -> bool:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        return self._state.connections.ends.ask(key)

    def holds(self, key: StreamKey) -> bool:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        stream = self._state.buffer.streams.get(key)
        return stream is not None and not stream.empty

    def give_up(self, planned: PlannedRange) -> None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        self._shell.handle(e.GiveUp(planned))

    def given_up(self, key: StreamKey) -> PlannedRange | None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        return self._state.connections.following.given_up.get(key)

    def count(self, name: str, more: int) -> None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        self._state.connections.counts[name] += more

    def refuse(self, code: str, peer: str, instance: str, reason: str) -> None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        self.count(f"door-refused:{code}", 1)
        self._state.connections.note(code, peer, instance, reason)

    def note(self, code: str, instance: str, reason: str) -> None:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        self._state.connections.note(code, "", instance, reason)

    def eases(self) -> bool:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        return self._pressure() is Pressure.NONE

    def grows(self) -> bool:
        """See :class:`~wallaroo_spark.doors.client.Host`."""
        return self._pressure() is not Pressure.HARD

    def _pressure(self) -> Pressure:
        return self._state.flow.pressure(self._state.buffer.used)

    def _soon(self, work: Callable[..., None], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(work, *args)
