"""Connections between connectors and workers: bytes keep their order within one; a cut may deliver half of a write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from proving.simulator.engine.core import Part, Promise, Simulation
from wallaroo_spark.errors import TransportError
from wallaroo_spark.protocol import WorkerSession

HALF_OPEN_SECONDS = 12.0
"""Seconds until a side that is not told of a cut notices it, as by keep-alive probes."""


class Taker(Protocol):
    """The reader of one side of a connection."""

    def take(self, end: End, data: bytes) -> None:
        """Bytes have arrived."""

    def gone(self, end: End, reason: str) -> None:
        """The connection has ended; the reason is empty when the peer closed it."""

    def session_of(self, end: End) -> WorkerSession | None:
        """The worker's session on this connection."""


class End:
    """One side of a connection: bytes that are written here arrive at the other side."""

    def __init__(self, network: Network, part: Part, number: int) -> None:
        self.part = part
        self.number = number
        self.taker: Taker | None = None
        self.peer: End = self
        self.closed = False
        self._network = network
        self._arrives = 0.0
        self._lost = False
        self._over = False

    def write(self, data: bytes) -> None:
        """Send bytes; they vanish once the connection is closed or cut."""
        if self.closed or self._lost or not data:
            return
        sim = self._network.sim
        pieces = [data]
        if len(data) > 1 and not sim.calm and sim.random.random() < 0.3:
            at = sim.random.randrange(1, len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            self._post(partial(self.peer._take, piece))

    def close(self) -> None:
        """Close in good order: written bytes arrive before the end does."""
        if not self.closed:
            self.closed = True
            if not self._lost:
                self._post(lambda: self.peer._end(""))

    def abort(self) -> None:
        """Close at once; bytes under way may be lost."""
        if not self.closed:
            self.closed = True
            self.cut()

    def cut(self, *, told: bool = True) -> None:
        """Break the connection: a part of the bytes under way may still arrive, then nothing."""
        self._network.cut(self, told=told)

    def lose(self, reason: str, told: bool) -> None:
        """This side can send no more; it notices when the network tells it, or much later."""
        sim = self._network.sim
        self._lost = True
        # Bytes that would arrive here later are not delivered.
        last = sim.now + sim.random.choice((0.0, sim.latency(), sim.latency()))
        sim.after(last - sim.now, self.part, self._stop_reading)
        delay = sim.latency() if told else HALF_OPEN_SECONDS * sim.random.uniform(0.3, 1.0)
        sim.after(last - sim.now + delay, self.part, lambda: self._end(reason))

    _deaf = False

    def _stop_reading(self) -> None:
        self._deaf = True

    def _post(self, action: Callable[[], None]) -> None:
        sim = self._network.sim
        self._arrives = max(self._arrives, sim.now + sim.latency())
        sim.at(self._arrives, self.peer.part, action)

    def _take(self, data: bytes) -> None:
        if not self.closed and not self._deaf and not self._over:
            assert self.taker is not None, "bytes arrive before the connection does"
            self.taker.take(self, data)

    def _end(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self._network.open.pop(self.number, None)
            if self.taker is not None:
                self.taker.gone(self, reason)


class Network:
    """The listeners by address, and the connections: ``open`` has the connectors' ends by number."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.listeners: dict[str, tuple[Part, Callable[[End], None]]] = {}
        self.open: dict[int, End] = {}
        self._number = 0

    def connect(self, part: Part, address: str) -> Promise:
        """Connect to the listener at an address: the promise is an :class:`End`, or :class:`TransportError`."""
        sim, answer = self.sim, Promise()
        found = self.listeners.get(address)
        if found is None or not found[0].alive or sim.chance(0.02):
            error = TransportError(f"{address} refuses", address=address)
            sim.after(sim.latency(), part, lambda: answer.fail(error))
            return answer
        listener, accept = found
        self._number += 1
        ours, theirs = End(self, part, self._number), End(self, listener, self._number)
        ours.peer, theirs.peer = theirs, ours
        self.open[self._number] = ours

        def arrive() -> None:
            if self.listeners.get(address) == found:
                accept(theirs)
            else:
                theirs.abort()

        # The kernel accepts connections for a stopped process, too; no bytes arrive before the connection does.
        arrival = sim.latency()
        sim.after(arrival, listener, arrive)
        theirs._arrives = ours._arrives = sim.now + arrival
        sim.after(sim.latency(), part, lambda: answer.resolve(ours))
        return answer

    def cut(self, end: End, *, told: bool) -> None:
        """Break a connection; a side that is not told notices much later."""
        for side in (end, end.peer):
            if not side._lost:
                side.lose("the connection was cut", told or side is end)

    def kill(self, part: Part, *, silent: bool = False) -> None:
        """A part has died: its machine tells its peers, or with ``silent`` nothing does."""
        for end in list(self.open.values()):
            for side in (end, end.peer):
                if side.part is part and not side._lost:
                    side._lost = True
                    side.peer.lose("the connection was reset", not silent)
