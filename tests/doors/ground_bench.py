"""The ground of a worker's doors on a worker's state, without a socket, a thread or a clock."""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.worker.bench import COOKIE, NOON, Bench
from wallaroo_spark.doors.client import DoorClient, DoorStream, Messages, stream_id
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.pressure.flow import Pressure


class _Peer:
    """A door's client as the bench sees a connector."""

    def __init__(self, client: DoorClient) -> None:
        self.client = client
        self.paused = False

    def take(self, data: bytes) -> None:
        self.client.write(data)

    @property
    def closed(self) -> None:
        return None

    @closed.setter
    def closed(self, close: e.Close) -> None:
        self.client.abort()


REPLAY_SECONDS = 10.0
"""How long a range that nobody sends again is waited for."""


class GroundBench:
    """A worker's state with the ground of its doors. What the ground asks of the worker is done by :meth:`settle`."""

    def __init__(self, slot: int = 0, ready: bool = True, now: float = 0.0, **options: Any) -> None:
        self.bench = Bench(slot=slot, ready=ready, **options)
        self.counted: dict[str, int] = {}
        self.logged: list[str] = []
        self.noted: list[tuple[str, str, str]] = []
        self._due: deque[e.Event] = deque()
        self._numbers = 0
        given: dict[str, Any] = {"cookie": COOKIE, "door_replay_timeout": REPLAY_SECONDS, **options}
        self.ground = Ground(self, Options(**given), COOKIE, slot, self.logged.append, now)

    # The host.

    def connect(self, client: DoorClient) -> int:
        number = 1000 + self._numbers
        self._numbers += 1
        self.bench.connectors[number] = _Peer(client)  # type: ignore[assignment]  # it has what the bench uses
        self._due.append(e.Connected(number, client.peer, 0.0, door=True))
        return number

    def receive(self, number: int, data: bytes) -> None:
        self._due.append(e.Received(((number, data),), NOON))

    def hold(self, number: int, size: int) -> None:
        self.bench.do(e.Holding(number, size))

    def disconnect(self, number: int) -> None:
        self._due.append(e.Disconnected(number))

    def reference(self, key: StreamKey) -> int | None:
        return self.bench.state.buffer.reference(key)

    def leaves(self, key: StreamKey) -> bool:
        return self.bench.state.connections.ends.ask(key)

    def holds(self, key: StreamKey) -> bool:
        stream = self.bench.state.buffer.streams.get(key)
        return stream is not None and not stream.empty

    def give_up(self, planned: PlannedRange) -> None:
        self._due.append(e.GiveUp(planned))

    def given_up(self, key: StreamKey) -> PlannedRange | None:
        return self.bench.state.connections.following.given_up.get(key)

    def count(self, name: str, more: int) -> None:
        self.counted[name] = self.counted.get(name, 0) + more

    def refuse(self, code: str, peer: str, instance: str, reason: str) -> None:
        self.noted.append((code, instance, reason))

    def note(self, code: str, instance: str, reason: str) -> None:
        self.noted.append((code, instance, reason))

    def eases(self) -> bool:
        return self._pressure() is Pressure.NONE

    def grows(self) -> bool:
        return self._pressure() is not Pressure.HARD

    def _pressure(self) -> Pressure:
        return self.bench.state.flow.pressure(self.bench.state.buffer.used)

    # What a test does.

    def settle(self) -> None:
        """Do what the ground has asked for."""
        while self._due:
            self.bench.do(self._due.popleft())

    def client(self, instance: str = "http/shop-1") -> DoorClient:
        """The open session of an instance."""
        client = self.ground.client(instance)
        self.settle()
        assert client.opening.kept, client.ended
        return client

    def stream(self, instance: str = "http/shop-1", name: str = "orders") -> DoorStream:
        """An announced stream."""
        stream = self.client(instance).stream(name)
        assert stream is not None
        self.settle()
        return stream

    def tick(self, now: float) -> None:
        """Time passes."""
        self.bench.do(e.Tick(now))
        self.ground.tick(now)
        self.settle()

    def want(self, *ranges: PlannedRange) -> None:
        """Reads wait for these ranges."""
        self.ground.wanted(ranges)
        self.bench.do(e.Wanted(ranges))


def key(instance: str = "http/shop-1", name: str = "orders") -> StreamKey:
    """The key of a door's stream."""
    return StreamKey(instance, stream_id(name))


def messages(*values: str) -> Messages:
    """The messages of a request."""
    return Messages([value.encode() for value in values])
