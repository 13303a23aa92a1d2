"""A load generator: a process that writes frames that are encoded once, over real sessions with credits.

``python -m proving.bench.load_generator JSON`` with the fields of :class:`Load`. It prints a line of JSON when every
stream is open and sending begins, and another with its figures when it has ended.
"""

from __future__ import annotations

import heapq
import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from wallaroo_spark.protocol import (
    REVISIONS,
    Ack,
    ConnectorSession,
    Error,
    Nack,
    NotifyAck,
    Ok,
    Restart,
    Revision,
    SessionState,
    encode_run,
)

CHUNK_BYTES = 256 * 1024
OPEN_SECONDS = 60.0
DRAIN_SECONDS = 60.0
LOOK_SECONDS = 0.05
IDS_FROM = 2**62
"""Ids in the template; their bytes must occur in it only once, because their places are searched."""


@dataclass(frozen=True)
class Load:
    """The parameters of one load."""

    address: str
    """The worker's address, host:port."""
    cookie: str
    """The receiver's cookie."""
    program: str
    """The program's name in HELLO."""
    prefix: str
    """The start of instance and stream names."""
    seconds: float
    """How long to send."""
    size: int = 100
    """Bytes of a payload."""
    connectors: int = 1
    """Connectors in this process."""
    streams: int = 1
    """Streams of each connector."""
    base: int = 0
    """The number before the first stream id."""
    rate: float = 0.0
    """Messages a second of all connectors together; 0 sends as fast as credits allow."""
    burst: float = 0.005
    """Seconds between two writes of a connector when ``rate`` is set."""
    revision: str = "draft-be"
    """The protocol revision."""
    drain: float = DRAIN_SECONDS
    """Seconds to wait for the last acknowledgements."""


class Template:
    """Encoded frames of one size; only their ids are overwritten."""

    def __init__(self, revision: Revision, size: int) -> None:
        frame = len(encode_run(revision, 1, (1,), (b"x" * size,)).data)
        self.most = max(1, CHUNK_BYTES // frame)
        self._kind = np.dtype(revision.byte_order + "u8")
        one = encode_run(revision, IDS_FROM + 1, (IDS_FROM + 2,), (b"x" * size,)).data
        self._stream_at, self._id_at = (
            one.index(np.array([IDS_FROM + number], dtype=self._kind).tobytes()) for number in (1, 2)
        )
        self._rows = np.frombuffer(bytearray(one * self.most), dtype=np.uint8).reshape(self.most, frame)

    def frames(self, base: int, streams: int, first: int, count: int) -> bytes:
        """``count`` messages of a connector from ``first`` on; message n has number n // streams in its stream."""
        rows, numbers = self._rows[:count], np.arange(first, first + count, dtype=np.uint64)
        ids = numbers // np.uint64(streams) + np.uint64(1)
        stream_ids = numbers % np.uint64(streams) + np.uint64(base + 1)
        for at, values in ((self._stream_at, stream_ids), (self._id_at, ids)):
            rows[:, at : at + 8] = values.astype(self._kind).view(np.uint8).reshape(count, 8)
        return rows.tobytes()


class Sender:
    """One connector."""

    def __init__(self, load: Load, number: int, template: Template) -> None:
        self.load = load
        self.number = number
        self.sent = 0
        self.acknowledged = 0
        self.pending = memoryview(b"")
        self.chunks: list[tuple[int, float]] = []
        self.first_chunk = 0
        self.until = 0.0
        self.latencies: list[tuple[float, float, int]] = []
        self._base = load.base + number * load.streams
        self._references: dict[int, int] = {}
        self._template = template
        self.session = ConnectorSession(REVISIONS[load.revision])
        host, _, port = load.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = self.session.hello(
            version="0.0.1", cookie=load.cookie.encode(), program=load.program, instance=f"{load.prefix}-{number}"
        )
        self.socket.sendall(hello)
        self.socket.setblocking(False)

    @property
    def ready(self) -> bool:
        """Whether all streams are open and the connector has credits."""
        session, ids = self.session, range(self._base + 1, self._base + self.load.streams + 1)
        if session.state is not SessionState.STREAMING or session.credits.available < 1 or self.pending:
            return False
        return all(session.is_open(stream_id) for stream_id in ids)

    def received(self) -> int:
        """Read the available frames; returns how many messages they acknowledge."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the worker has closed a connection")
        before = self.acknowledged
        self.session.receive(data)
        while (frame := self.session.next_event()) is not None:
            match frame:
                case Ok():
                    self._notify()
                case Ack():
                    for stream_id, reference in frame.refs:
                        self._acknowledged(stream_id, reference)
                case NotifyAck(success=False) | Nack() | Restart() | Error():
                    raise ConnectionError(f"the worker has sent {frame}")
        return self.acknowledged - before

    def _notify(self) -> None:
        ids = range(self._base + 1, self._base + self.load.streams + 1)
        notes = (self.session.notify(stream_id, f"{self.load.prefix} {stream_id}") for stream_id in ids)
        self.pending = memoryview(bytes(self.pending) + b"".join(notes))

    def _acknowledged(self, stream_id: int, reference: int) -> None:
        self.acknowledged += max(0, reference - self._references.get(stream_id, 0))
        self._references[stream_id] = max(reference, self._references.get(stream_id, 0))
        if self.load.streams > 1:
            return
        now = time.monotonic()
        while self.first_chunk < len(self.chunks) and self.chunks[self.first_chunk][0] <= reference:
            end, due = self.chunks[self.first_chunk]
            count = end - (self.chunks[self.first_chunk - 1][0] if self.first_chunk else 0)
            self.latencies.append((round(due, 4), round(now - due, 5), count))
            self.first_chunk += 1

    def write(self) -> bool:
        """Write as much of the pending bytes as the socket takes; returns whether none are left."""
        if self.pending:
            try:
                self.pending = self.pending[self.socket.send(self.pending) :]
            except BlockingIOError:
                return False
        return not self.pending

    def fill(self, most: int, due: float) -> bool:
        """Make the next messages pending, limited by ``most``, credits and a chunk; returns whether there were any."""
        count = min(most, self.session.credits.available, self._template.most)
        if count < 1:
            return False
        self.session.credits.spend(count)
        self.pending = memoryview(self._template.frames(self._base, self.load.streams, self.sent, count))
        self.sent += count
        self.chunks.append((self.sent, due))
        return True


class Generator:
    """All connectors of a load, in one thread."""

    def __init__(self, load: Load) -> None:
        self.load = load
        template = Template(REVISIONS[load.revision], load.size)
        self.senders = [Sender(load, number, template) for number in range(load.connectors)]
        self.points: list[tuple[float, int]] = []
        self._acknowledged = 0
        self._selector = selectors.DefaultSelector()
        for sender in self.senders:
            self._selector.register(sender.socket, selectors.EVENT_READ, sender)
        self._masks = dict.fromkeys(range(load.connectors), selectors.EVENT_READ)

    def open(self) -> None:
        """Wait until every stream of every connector is open."""
        until = time.monotonic() + OPEN_SECONDS
        waiting = list(self.senders)
        while waiting:
            self._turn(0.02)
            for sender in waiting:
                sender.write()
            waiting = [sender for sender in waiting if not sender.ready]
            if time.monotonic() > until:
                raise TimeoutError(f"{len(waiting)} of {len(self.senders)} connectors were not ready")

    def _turn(self, timeout: float) -> list[Sender]:
        """Wait for sockets, handle received frames; returns the connectors that can write or have got credits."""
        writable = []
        for key, mask in self._selector.select(timeout):
            sender: Sender = key.data
            if mask & selectors.EVENT_WRITE:
                writable.append(sender)
            if mask & selectors.EVENT_READ:
                before = sender.session.credits.available
                if count := sender.received():
                    self._acknowledged += count
                    self.points.append((time.monotonic(), self._acknowledged))
                if sender.session.credits.available > before and not mask & selectors.EVENT_WRITE:
                    writable.append(sender)
        return writable

    def _watch(self, sender: Sender, mask: int) -> None:
        if self._masks[sender.number] != mask:
            self._masks[sender.number] = mask
            self._selector.modify(sender.socket, mask, sender)

    def flood(self, until: float) -> None:
        """Send as fast as credits allow."""
        while (now := time.monotonic()) < until:
            for sender in self.senders:
                wanted = bool(sender.pending) or sender.session.credits.available > 0
                self._watch(sender, selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0))
            for sender in self._turn(LOOK_SECONDS):
                if sender.write() and sender.fill(sys.maxsize, now):
                    sender.write()

    def pace(self, until: float) -> None:
        """Send the due messages, connector by connector, spread over the burst.

        A connector whose socket is full continues when it can be written, and one without credits when they arrive.
        """
        load, began = self.load, time.monotonic()
        turns = [(began + load.burst * (1 + s.number / load.connectors), s.number) for s in self.senders]
        heapq.heapify(turns)
        while (now := time.monotonic()) < until:
            while turns and turns[0][0] <= now:
                when, number = heapq.heappop(turns)
                heapq.heappush(turns, (max(when + load.burst, now - 1.0), number))
                self.senders[number].until = now
                self._send_due(self.senders[number], began)
            for sender in self._turn(min(LOOK_SECONDS, max(0.0, turns[0][0] - time.monotonic()))):
                self._send_due(sender, began)

    def _send_due(self, sender: Sender, began: float) -> None:
        """Send the messages of a connector that were due at its last turn, as far as its socket and credits allow."""
        each = self.load.rate / self.load.connectors
        while sender.write():
            # The latency of a chunk that is late because of missing credits counts from when it was due.
            due = int((sender.until - began) * each) - sender.sent
            if due < 1 or not sender.fill(due, self._due(sender, began, each)):
                break
        self._watch(sender, selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.pending else 0))

    def _due(self, sender: Sender, began: float, each: float) -> float:
        """The time at which the burst with a connector's next message is due."""
        return min(time.monotonic(), began + sender.sent / each + self.load.burst)

    def drain(self) -> None:
        """Wait until all messages are acknowledged or the time is over."""
        until = time.monotonic() + self.load.drain
        while time.monotonic() < until and any(s.pending or s.acknowledged < s.sent for s in self.senders):
            for sender in self.senders:
                sender.write()
                self._watch(sender, selectors.EVENT_READ)
            self._turn(0.02)

    def report(self) -> dict[str, Any]:
        """The figures of the load."""
        return {
            "sent": sum(sender.sent for sender in self.senders),
            "acknowledged": self._acknowledged,
            "points": thinned(self.points),
            "latencies": [entry for sender in self.senders for entry in sender.latencies],
        }


def thinned(points: list[tuple[float, int]], seconds: float = 0.01) -> list[tuple[float, int]]:
    """The points without those that another follows within ``seconds``."""
    kept: list[tuple[float, int]] = []
    for index, point in enumerate(points):
        last = index + 1 == len(points)
        if last or not kept or points[index + 1][0] - point[0] > seconds or point[0] - kept[-1][0] > seconds:
            kept.append(point)
    return kept


def main() -> None:
    """Run one load."""
    load = Load(**json.loads(sys.argv[1]))
    generator = Generator(load)
    generator.open()
    now = time.monotonic()
    print(json.dumps({"began": now}), flush=True)
    (generator.pace if load.rate else generator.flood)(now + load.seconds)
    stopped = time.monotonic()
    generator.drain()
    print(json.dumps({"stopped": stopped, **generator.report()}), flush=True)


if __name__ == "__main__":
    main()
