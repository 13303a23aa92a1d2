"""The record batches of requests to produce: checked, numbered, and passed on to the worker one by one. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from wallaroo_spark.doors.client import DoorClient, DoorStream, Messages
from wallaroo_spark.doors.kafka.apis import Code
from wallaroo_spark.doors.kafka.nodes import Layout
from wallaroo_spark.doors.kafka.positions import epoch_of, fence, number, place
from wallaroo_spark.doors.kafka.record_batch import BatchHead, BatchRefused, check
from wallaroo_spark.doors.senders import Senders
from wallaroo_spark.doors.tickets import Ticket, answered_when_received
from wallaroo_spark.references import StreamKey

ANSWER_BEFORE = 0.8
"""The part of a request's own time-out after which it is answered that its time is over. A choice."""
GAP_TIME_OUTS, GAP_SECONDS = 2, 5.0
"""How long the records before the first batch of an unknown stream are waited for: so many time-outs of the request,
and so many seconds. Requests to a machine that was lost without a word end in that time (librdkafka's after 60 s, and
its request's time-out is 30 s)."""
LEAST_PATIENCE, MOST_PATIENCE = 1.0, 300.0
"""The bounds of that time-out, in seconds."""
UNNUMBERED = -1
"""The id of producers that do not number their batches."""
NO_TRANSACTIONS = "transactions are not served; use an idempotent producer"
_NOT_THE_FIRST = "records before these may be under way; these are sent again"


@dataclass(frozen=True)
class ServerSettings:
    """The settings of the server of one slot."""

    slot: int
    layout: Layout
    max_batch: int
    """The most bytes of a record batch."""
    cluster: str
    """The name that clients see as that of the cluster."""
    senders: Senders = field(default_factory=lambda: Senders(""))
    """Who may send; the secret is the password, and the name of who has one is the user."""
    received: tuple[str, ...] = ()
    """The topics whose records are answered when they are received, as patterns."""
    session_seconds: float = float("inf")
    """How long a client's session lasts. A new one knows the producers alone that the commit log remembers."""


class ProducerSessions(Protocol):
    """What the server needs of the worker."""

    def client(self, instance: str) -> DoorClient:
        """The session of an instance; it is opened by the first call."""

    def given_up(self, key: StreamKey) -> tuple[int, int]:
        """The references of a stream that were given up: above the first, up to the second; 0 and 0: none."""

    def resend_waits(self, prefix: str) -> Mapping[str, float]:
        """By instance of a door: the seconds for which a read has waited for what its client has to send again."""


@dataclass(slots=True)
class SoundBatch:
    """One partition's batch that was checked."""

    stream: str
    """The name of the stream of its producer in its partition."""
    head: BatchHead
    batch: bytes
    numbered: bool
    """Whether its producer numbers its batches."""
    received: bool
    """Whether it is answered when it is received."""


@dataclass(slots=True)
class BatchOutcome:
    """What became of one partition's batch."""

    code: Code
    reason: str
    first: int = -1
    """The message id of its first record."""
    ticket: Ticket | None = None
    """What its answer waits for; None where it was refused."""
    numbered: bool = False
    """Whether it was accepted of a producer that numbers its batches."""


class Batches:
    """The record batches of all producers of the door.

    ``count`` adds to one of the worker's counts; ``sees`` says whether a topic may exist.
    """

    def __init__(
        self,
        settings: ServerSettings,
        ground: ProducerSessions,
        count: Callable[[str, int], None],
        sees: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._ground = ground
        self._count = count
        self._sees = sees
        self._queues: dict[DoorStream, _BatchQueue] = {}
        self._gaps: dict[tuple[str, str], float] = {}
        """By instance and name of an unknown stream that did not begin with its first record: until when that is waited
        for, in monotonic seconds."""

    def tick(self, now: float) -> None:
        """Time has passed: forget what is not waited for any more."""
        if self._gaps:
            self._gaps = {stream: until for stream, until in self._gaps.items() if now < until + MOST_PATIENCE}

    def checked(
        self, version: int, request: dict[str, Any], name: str, partition: dict[str, Any]
    ) -> SoundBatch | BatchOutcome:
        """One partition's batch when it is sound; otherwise what is answered."""
        index, batch = partition["index"], partition["records"]
        try:
            if request["acks"] not in (-1, 0, 1):
                raise BatchRefused(Code.INVALID_REQUIRED_ACKS, f"acks is {request['acks']}; it is all, 1 or 0")
            if request["transactional_id"] is not None:
                raise BatchRefused(Code.UNSUPPORTED_VERSION, NO_TRANSACTIONS)
            if not self._sees(name):
                raise BatchRefused(Code.INVALID_TOPIC, "the name of the topic is not one of Kafka's")
            slot = self._settings.layout.slot_of(index)
            if slot is None:
                raise BatchRefused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index}")
            if slot != self._settings.slot:
                raise BatchRefused(Code.NOT_LEADER_OR_FOLLOWER, f"partition {index} belongs to slot {slot}")
            head = check(batch, version, self._settings.max_batch)
        except BatchRefused as error:
            return BatchOutcome(error.code, error.reason)
        received = answered_when_received(name, self._settings.received)
        # What nobody waits for is not sent again, so the producer's numbers would have gaps behind a death.
        producer = UNNUMBERED if received or head.producer < 0 else head.producer
        return SoundBatch(stream_name(name, index, producer), head, batch, producer != UNNUMBERED, received)

    def take(self, client: DoorClient, part: SoundBatch, timeout: int, now: float, time_ns: int) -> BatchOutcome | None:
        """Accept a batch, or refuse it; None when the session has ended.

        ``timeout`` is its request's, in ms; ``now`` is in monotonic seconds, ``time_ns`` in nanoseconds since 1970 UTC.
        """
        stream = client.stream(part.stream)
        if stream is None:
            return None
        try:
            position = self._position(client, stream, part.head)
            if part.numbered and position is None and part.head.sequence:
                self._await_first(client.instance, part.stream, timeout, now)
            outcome = self._accept(client, stream, part, position, time_ns)
        except BatchRefused as error:
            return BatchOutcome(error.code, error.reason)
        if part.received:
            outcome.ticket = Ticket(outcome.first)
            outcome.ticket.keep()
        return outcome

    def _position(self, client: DoorClient, stream: DoorStream, head: BatchHead) -> int | None:
        """The reference behind which a producer's next batch belongs; None for a stream that is not known."""
        queue = self._queues.get(stream)
        position = (queue.position if queue is not None else stream.last) or None
        _, until = self._ground.given_up(StreamKey(client.instance, stream.id))
        # A producer that goes on in the next epoch knows of it, and may have been forgotten since.
        if until and (position or 0) <= until and (position is not None or head.epoch < epoch_of(fence(until))):
            return fence(until)
        return position

    def _await_first(self, instance: str, stream: str, timeout: int, now: float) -> None:
        """Refuse a batch behind records that this worker and the commit log do not know.

        They may be under way to a worker that was lost, and come later; if this batch were accepted, they would count
        as repeated. When they have not come in time, their producer was forgotten, or its checkpoint is another one.
        """
        until = now + GAP_TIME_OUTS * patience(timeout) / ANSWER_BEFORE + GAP_SECONDS
        if now < self._gaps.setdefault((instance, stream), until):
            raise BatchRefused(Code.REQUEST_TIMED_OUT, _NOT_THE_FIRST)

    def _accept(
        self, client: DoorClient, stream: DoorStream, part: SoundBatch, position: int | None, time_ns: int
    ) -> BatchOutcome:
        head, batch, numbered = part.head, part.batch, part.numbered
        placed = place(head, position) if numbered else number(head.count, stream.next_reference(time_ns))
        if placed.repeated:
            return BatchOutcome(Code.NONE, "", placed.first, stream.wait(placed.last), numbered)
        self._count("door-messages", head.count)
        self._count("door-bytes", len(batch))
        if not numbered:
            return BatchOutcome(Code.NONE, "", placed.first, stream.send(Messages([batch]), placed.last))
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = _BatchQueue(client, stream, self._queues.pop)
        return BatchOutcome(Code.NONE, "", placed.first, queue.send(batch, placed.last), numbered)


class _BatchQueue:
    """The batches of one numbered stream that are not committed: one that no plan has yet is in the worker's buffer.

    So a batch of Spark has one record batch of a stream. When it runs again after the worker's death, it needs what
    the client sends again first, and some clients send nothing behind that until it is answered. Once a batch of Spark
    reads the record batch, the next one follows, so that the next plan finds it. ``ended`` is called with the stream
    when nothing is left.
    """

    def __init__(self, client: DoorClient, stream: DoorStream, ended: Callable[[DoorStream, None], object]) -> None:
        self.position = stream.last
        """The reference of the last batch."""
        self._client = client
        self._stream = stream
        self._ended = ended
        self._queue: deque[tuple[bytes, Ticket]] = deque()
        self._unplanned = 0
        """The reference of the batch in the buffer that no plan has yet; 0: there is none."""
        self._uncommitted: list[Ticket] = []
        """The tickets of the clients for the batches in the buffer."""
        stream.planned = self._planned

    def send(self, batch: bytes, reference: int) -> Ticket:
        """Pass on a batch, or keep it until those before it are planned."""
        self.position = reference
        ticket = Ticket(reference)
        self._queue.append((batch, ticket))
        self._client.hold(len(batch))
        self._go_on()
        return ticket

    def _planned(self, reference: int) -> None:
        if reference >= self._unplanned:
            self._unplanned = 0
            self._go_on()

    def _go_on(self) -> None:
        if self._unplanned or not self._queue:
            return
        batch, ticket = self._queue.popleft()
        self._client.hold(-len(batch))
        self._unplanned = ticket.reference
        self._uncommitted.append(ticket)
        under_way = self._stream.send(Messages([batch]), ticket.reference)
        under_way.when_done(lambda: self._done(under_way))

    def _done(self, under_way: Ticket) -> None:
        if under_way.kept:
            self._planned(under_way.reference)
            ticket = self._uncommitted.pop(0)
            if not self._uncommitted:
                self._end()
            ticket.keep()
        elif self._uncommitted:
            self._end()
            lost, self._uncommitted = self._uncommitted, []
            for batch, ticket in self._queue:
                self._client.hold(-len(batch))
                lost.append(ticket)
            self._queue.clear()
            for ticket in lost:
                ticket.lose(under_way.reason)

    def _end(self) -> None:
        self._stream.planned = lambda reference: None
        self._ended(self._stream, None)


def stream_name(topic: str, partition: int, producer: int) -> str:
    """The name of the stream of one producer in one partition; a producer without an id is one for all of its kind."""
    return f"{topic}/{partition}/{'-' if producer == UNNUMBERED else producer}"


def patience(milliseconds: int) -> float:
    """The seconds after which a request with this time-out is answered that its time is over."""
    return min(max(ANSWER_BEFORE * milliseconds / 1000, LEAST_PATIENCE), MOST_PATIENCE)
