"""The network between two machines.

A stream's bytes arrive complete and in order, divided at any byte; streams and datagrams overtake each other. A reset
may arrive before bytes that were sent earlier. Datagrams are lost and doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Protocol

from proving.aqueduct.profile import Profile
from proving.simulator.engine.core import Part, Simulation, Violation
from wallaroo_spark.aqueduct.frames import Side

LONGEST_PIECES = 4
"""The most pieces into which one write is divided."""


class Node(Protocol):
    """One side as the network sees it."""

    side: Side
    part: Part

    def stream_arrives(self, stream: int, data: bytes, ended: bool) -> None:
        """Bytes of a stream arrive."""

    def reset_arrives(self, stream: int, code: int) -> None:
        """The reset of a stream arrives."""

    def datagram_arrives(self, data: bytes) -> None:
        """A datagram arrives."""

    def connection_ends(self, code: int, reason: str) -> None:
        """The connection has ended."""


class Lane:
    """One direction of a stream, as its sender and the network know it."""

    def __init__(self, network: Network, stream: int, to: Node) -> None:
        self.stream = stream
        self.to = to
        self.ended = False
        """Whether the sender has sent its last byte."""
        self.reset = False
        """Whether the sender has reset it."""
        self._network = network
        self._dead = False
        self._done = False
        self._pieces: list[bytes] = []
        self._arrived: set[int] = set()
        self._lost: set[int] = set()
        self._next = 0

    def send(self, data: bytes, end: bool) -> None:
        """Send bytes; each piece takes a time of its own, and the reader gets those without a gap."""
        sim = self._network.sim
        if self.ended or self.reset:
            raise Violation(f"bytes are sent on stream {self.stream} after its {'reset' if self.reset else 'end'}")
        self.ended = end
        pieces = 1 if len(data) < 2 else sim.random.randint(1, min(len(data), LONGEST_PIECES))
        cuts = [0, *sorted(sim.random.sample(range(1, len(data)), pieces - 1)), len(data)] if data else [0, 0]
        for begin, until in pairwise(cuts):
            number = len(self._pieces)
            self._pieces.append(data[begin:until])
            self._network.post(self.to, partial(self._arrive, number), self.stream)

    def send_reset(self, code: int) -> None:
        """Reset it: bytes under way arrive before the reset or never."""
        sim = self._network.sim
        if self.reset:
            raise Violation(f"stream {self.stream} is reset a second time")
        self.reset = True
        for number in range(self._next, len(self._pieces)):
            if number not in self._arrived and sim.random.random() < 0.5:
                self._lost.add(number)
        self._network.post(self.to, lambda: self._arrive_reset(code), self.stream)

    def _arrive(self, number: int) -> None:
        if self._dead or number in self._lost:
            return
        self._arrived.add(number)
        data = b""
        began = self._next
        while self._next in self._arrived:
            data += self._pieces[self._next]
            self._next += 1
        if self._next > began:
            self._done = self.ended and self._next == len(self._pieces)
            self.to.stream_arrives(self.stream, data, self._done)

    def _arrive_reset(self, code: int) -> None:
        # A reader that has all bytes ignores a reset (RFC 9000, section 3.2).
        if not self._done and not self._dead:
            self._dead = True
            self.to.reset_arrives(self.stream, code)


class Network:
    """The streams and datagrams of one connection."""

    def __init__(self, sim: Simulation, profile: Profile) -> None:
        self.sim = sim
        self.profile = profile
        self.over = False
        self.lanes: dict[tuple[Side, int], Lane] = {}
        self._nodes: dict[Side, Node] = {}
        self._newest: dict[tuple[Side, int], int] = {}

    def join(self, *nodes: Node) -> None:
        """Join the two sides."""
        self._nodes = {node.side: node for node in nodes}

    def lane(self, sender: Side, stream: int) -> Lane:
        """A stream in the direction away from a side; the first use opens it."""
        found = self.lanes.get((sender, stream))
        if found is None:
            self._may_open(sender, stream)
            found = self.lanes[sender, stream] = Lane(self, stream, self._nodes[sender.other])
        return found

    def _may_open(self, sender: Side, stream: int) -> None:
        opener, one_way = Side(stream & 1), bool(stream & 2)
        if opener is not sender:
            if one_way:
                raise Violation(f"the {sender.name.lower()} sends on stream {stream}, which only its peer may send on")
            if (opener, stream) not in self.lanes:
                raise Violation(f"the {sender.name.lower()} answers on stream {stream}, which is not open")
            return
        newest = self._newest.get((sender, stream & 2), (stream & 3) - 4)
        if stream != newest + 4:
            raise Violation(f"the {sender.name.lower()} opens stream {stream} behind stream {newest}")
        self._newest[sender, stream & 2] = stream

    def datagram(self, sender: Side, data: bytes) -> None:
        """Send a datagram; it arrives never, once or twice."""
        sim, profile = self.sim, self.profile
        if len(data) > profile.datagram_bytes:
            raise Violation(f"a datagram of {len(data)} bytes is sent; {profile.datagram_bytes} are allowed")
        if sim.random.random() < profile.loss:
            sim.history.counts["datagrams lost"] += 1
            return
        node = self._nodes[sender.other]
        copies = 1 + (sim.random.random() < profile.doubling)
        sim.history.counts["datagrams doubled"] += copies - 1
        for _ in range(copies):
            self.post(node, lambda: node.datagram_arrives(data))

    def end(self, code: int, reason: str, by: Side | None) -> None:
        """End the connection: nothing arrives any more, and each side but ``by`` is told at some time."""
        if not self.over:
            self.over = True
            for node in self._nodes.values():
                if node.side is not by:
                    self.sim.after(self.sim.latency(), node.part, partial(node.connection_ends, code, reason))

    def post(self, node: Node, action: Callable[[], None], stream: int | None = None) -> None:
        """Let something arrive at a side some time from now. The stream with the headers is never very late."""
        sim, profile = self.sim, self.profile
        seconds = sim.latency()
        if stream != 0 and sim.random.random() < profile.late:
            seconds += sim.random.uniform(0.0, profile.latest)
            sim.history.counts["late"] += 1
        sim.after(seconds, node.part, lambda: None if self.over else action())
