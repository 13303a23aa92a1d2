"""The session of a door's client: a connector within the worker's own process, without a socket.

It speaks draft-be to the worker's machine, with the connector's side of a session. So the slot of an instance, its
committed references, replays, acknowledgements from the commit log and rewinds are those of every connector, and the
buffer, the planner and the source know nothing of doors. It resends nothing: when its session ends, the client of the
door is told to send again.

Pure: no socket, thread or clock. Source: ``docs/protocol.md#session-states``; ``docs/architecture.md#doors``.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wallaroo_spark.doors.tickets import Ticket
from wallaroo_spark.protocol import (
    DRAFT_BE,
    Ack,
    ConnectorSession,
    Error,
    Flags,
    Frame,
    Ok,
    Restart,
    encode_run,
    encode_single,
)
from wallaroo_spark.references import PlannedRange, StreamKey

PIECE = 16_384
"""Messages of one request that are encoded at once, so that its memory becomes that of rows piece by piece."""
REMEMBERED = 4096
"""The last tokens of a stream that are known one by one. A choice; an older one is refused when it comes again."""


class Host(Protocol):
    """The worker, as a door sees it. No call is answered within itself: what follows from it comes later."""

    def connect(self, client: DoorClient) -> int:
        """Begin a session of the machine with this peer; returns its number."""

    def receive(self, number: int, data: bytes) -> None:
        """The peer has sent bytes."""

    def hold(self, number: int, size: int) -> None:
        """The door holds so many bytes of incomplete requests for this session."""

    def disconnect(self, number: int) -> None:
        """The session has ended."""

    def reference(self, key: StreamKey) -> int | None:
        """The committed reference of a stream of a session that is open; None: there is none, or it is forgotten."""

    def leaves(self, key: StreamKey) -> bool:
        """Whether a stream must not be opened now, because it is about to be forgotten; asking may keep it."""

    def holds(self, key: StreamKey) -> bool:
        """Whether the worker holds rows of a stream, in whatever session they came."""

    def give_up(self, planned: PlannedRange) -> None:
        """Have the driver record that a range was given up; :meth:`given_up` tells when it has."""

    def given_up(self, key: StreamKey) -> PlannedRange | None:
        """The range of a stream that was given up last, as far as the driver has recorded it."""

    def count(self, name: str, more: int) -> None:
        """Add to one of the worker's counters, which ``observe.receiver.WorkerCounts`` declares."""

    def refuse(self, code: str, peer: str, instance: str, reason: str) -> None:
        """A request is refused; ``instance`` is empty where it is not known. Codes: ``docs/errors.md``."""

    def note(self, code: str, instance: str, reason: str) -> None:
        """Messages of a client are not read; people are shown the last time of each code."""

    def eases(self) -> bool:
        """Whether there is memory for a new request."""

    def grows(self) -> bool:
        """Whether there is memory for more of a request under way."""


@dataclass(frozen=True)
class Greeting:
    """The fields of a door's HELLO, which are those of the receiver's options."""

    version: str
    cookie: bytes = field(repr=False)
    max_frame_bytes: int


@dataclass
class Messages:
    """The messages of one request, in columns."""

    values: list[bytes]
    """The payload of each."""
    keys: Sequence[bytes | None] | None = None
    """One for each message, None where it has none; None: no message has one."""
    event_times: Sequence[int | None] | None = None
    """The event time of each, in the unit of the option ``eventTimeUnit``; None: none has one."""

    def __len__(self) -> int:
        return len(self.values)


def stream_id(name: str) -> int:
    """The id of a door's stream: it follows from the name alone, because ids belong to their instance."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


@dataclass
class Accepted:
    """The references of a stream that this worker has accepted, in whatever session.

    Rows of a session that has ended may still be held, so a later session must not use their references for others.
    """

    highest: int = 0
    """The greatest of them; 0: there is none."""
    tokens: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """The last ones, each that of the last message of a request."""


class DoorStream:
    """One stream of a door's client in one session.

    ``committed`` is the committed reference, ``accepted`` the last one that was sent in this session; None: there is
    none.
    """

    def __init__(self, client: DoorClient, number: int, name: str, committed: int | None, accepted: Accepted) -> None:
        self.name = name
        self.id = number
        self.committed = committed
        self.accepted: int | None = None
        self._client = client
        self._before = accepted
        self._floor = committed or 0
        self._tokens: deque[int] = deque(maxlen=REMEMBERED)
        self._waiting: list[tuple[int, int, Ticket]] = []
        self._count = itertools.count()
        self.planned: Callable[[int], None] = lambda reference: None
        """Called with a reference when a batch of Spark has the messages up to it, and none behind it."""

    @property
    def last(self) -> int:
        """The greatest reference that is committed or was sent; 0: there is none."""
        return max(self.accepted or 0, self.committed or 0)

    @property
    def waits(self) -> int:
        """The number of its tickets that wait."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """Whether its session goes on."""
        return not self._client.ended

    def has(self, reference: int) -> bool:
        """Whether a reference is committed."""
        return self.committed is not None and reference <= self.committed

    def knows(self, token: int) -> bool | None:
        """Whether the messages of a token were accepted in this session: True for those that were.

        False: they are to be sent, because the token is above all others, or an earlier session has sent it and may
        have lost it. None: a later token was accepted and this one was not, as far as is known.
        """
        if token <= self._floor or token in self._tokens:
            return True
        if token > self.last and (token > self._before.highest or token in self._before.tokens):
            return False
        return None

    def next_reference(self, now_ns: int) -> int:
        """A reference for a message that its client does not number: the time, and above all before."""
        return max(now_ns, self.last + 1, self._before.highest + 1)

    def send(self, messages: Messages, first: int, step: int = 1) -> Ticket:
        """Send the messages of one request; the ticket is kept when all of them are committed.

        Their ids are ``first``, ``first + step``, …; with step 0 all have the same one. They must be above
        :attr:`last`. All messages but the last are UNSTABLE_REFERENCE, so no batch has only some of them.
        """
        values, count = messages.values, len(messages)
        assert count
        assert first > self.last, (first, self.last)
        reference = first + step * (count - 1)
        for begin in range(0, count, PIECE):
            end = min(count, begin + PIECE)
            stable = end == count
            unstable_end = end - 1 if stable else end
            if unstable_end > begin:
                self._encode(messages, begin, unstable_end, first, step, Flags.UNSTABLE_REFERENCE)
            if stable:
                self._encode(messages, end - 1, end, first, step, 0)
            if count > PIECE:
                values[begin:end] = [b""] * (end - begin)
        self._tokens.append(reference)
        self._before.tokens.append(reference)
        return self._accept(reference)

    def _encode(self, messages: Messages, begin: int, end: int, first: int, step: int, flags: int) -> None:
        keys, times = messages.keys, messages.event_times
        if end - begin == 1:
            # A run has a price of its own, which one message need not pay.
            time, key = times[begin] if times is not None else None, keys[begin] if keys is not None else None
            one = encode_single(DRAFT_BE, self.id, first + step * begin, messages.values[begin], flags, time, key)
            self._client.transmit(one.data)
            return
        ids = range(first + step * begin, first + step * end, step) if step else [first] * (end - begin)
        run = encode_run(
            DRAFT_BE,
            self.id,
            ids,
            messages.values[begin:end],
            flags,
            times[begin:end] if times is not None else None,
            keys[begin:end] if keys is not None else None,
        )
        self._client.transmit(run.data)

    def close_range(self, reference: int) -> Ticket:
        """Send a BOUNDARY with this id: the range up to it is as complete as it will be."""
        run = encode_single(DRAFT_BE, self.id, reference, None, Flags.BOUNDARY)
        self._client.transmit(run.data)
        return self._accept(reference)

    def _accept(self, reference: int) -> Ticket:
        self.accepted = reference
        self._before.highest = max(self._before.highest, reference)
        return self.wait(reference)

    def wait(self, reference: int) -> Ticket:
        """A ticket that is kept when the commit log has this reference."""
        ticket = Ticket(reference)
        if self._client.ended:
            ticket.lose(self._client.ended)
        elif self.has(reference):
            ticket.keep()
        else:
            heapq.heappush(self._waiting, (reference, next(self._count), ticket))
        return ticket

    def commit(self, reference: int) -> None:
        """The commit log has this reference."""
        self.committed = reference
        while self._waiting and self._waiting[0][0] <= reference:
            heapq.heappop(self._waiting)[2].keep()

    def lose(self, reason: str) -> None:
        """The session has ended."""
        waiting, self._waiting = self._waiting, []
        for _, _, ticket in waiting:
            ticket.lose(reason)


class DoorClient:
    """The session of one instance. It is a peer of the worker's shell, as a connection is: it is written to and closed.

    ``peer`` names it in logs, ``program`` is the name of its door. ``accepted`` has the references that the worker has
    accepted of the instance's streams, by their ids. ``gone`` is called when the session ends.
    """

    queued = 0
    certificate_names: tuple[str, ...] = ()

    def __init__(
        self,
        host: Host,
        greeting: Greeting,
        instance: str,
        program: str,
        accepted: dict[int, Accepted],
        gone: Callable[[DoorClient], None],
    ) -> None:
        self.instance = instance
        self.peer = f"the door {program}"
        self.ended = ""
        """Why the session has ended; empty before."""
        self.slot: int | None = None
        """The slot that the instance belongs to, where the registry has named another one."""
        self.address: str | None = None
        """The address for connectors of that slot's worker; None while it has none."""
        self.opening = Ticket()
        """Kept when the session is open."""
        self.used_at = 0.0
        """When it was last asked for, in monotonic seconds."""
        self.began_at = 0.0
        """When it began, in monotonic seconds."""
        self.held = 0
        """Bytes of incomplete requests that the door holds for it."""
        self.streams: dict[int, DoorStream] = {}
        self._host = host
        self._accepted = accepted
        self._gone = gone
        self._session = ConnectorSession(max_frame_bytes=greeting.max_frame_bytes)
        self.number = host.connect(self)
        hello = self._session.hello(
            version=greeting.version, cookie=greeting.cookie, program=program, instance=instance
        )
        host.receive(self.number, hello)

    @property
    def busy(self) -> bool:
        """Whether something waits for it."""
        return bool(self.held) or self.opening.kept is None or self.waits

    @property
    def waits(self) -> bool:
        """Whether messages of it are not committed."""
        return any(stream.waits for stream in self.streams.values())

    def waits_in(self, number: int) -> bool:
        """Whether messages of the stream with this id are not committed."""
        return number in self.streams and bool(self.streams[number].waits)

    @property
    def requests(self) -> int:
        """The number of its requests that wait for their commit."""
        return sum(stream.waits for stream in self.streams.values())

    def stream(self, name: str) -> DoorStream | None:
        """The stream of this name; it is announced when it is new to the session. None when the session has ended.

        A stream whose name was not known before ends the session, because an open stream is not announced again.
        """
        number = stream_id(name)
        found = self.streams.get(number)
        if found is not None and found.name != name:
            self.end(f"stream {name!r} begins again")
        return None if self.ended else found or self._open(number, name)

    def stream_of_id(self, number: int) -> DoorStream:
        """The stream of this id, with an empty name unless it is known."""
        return self.streams.get(number) or self._open(number, "")

    def committed(self, name: str) -> int | None:
        """The committed reference of a stream, also of one that this session has not announced."""
        number = stream_id(name)
        stream = self.streams.get(number)
        return self._host.reference(StreamKey(self.instance, number)) if stream is None else stream.committed

    def leaves(self, name: str) -> bool:
        """Whether a stream must not be opened now, because it is about to be forgotten."""
        number = stream_id(name)
        return number not in self.streams and self._host.leaves(StreamKey(self.instance, number))

    def _open(self, number: int, name: str) -> DoorStream:
        committed = self._host.reference(StreamKey(self.instance, number))
        accepted = self._accepted.setdefault(number, Accepted())
        stream = self.streams[number] = DoorStream(self, number, name, committed, accepted)
        self._host.receive(self.number, self._session.notify(number, name, committed or 0))
        return stream

    def transmit(self, data: bytes) -> None:
        """Pass encoded messages to the worker."""
        if not self.ended:
            self._host.receive(self.number, data)

    def hold(self, change: int) -> None:
        """The door holds so many more bytes of incomplete requests for it; fewer when it is negative."""
        self.held += change
        if not self.ended:
            self._host.hold(self.number, self.held)

    def end(self, reason: str) -> None:
        """End the session; what waits for it is lost."""
        if self.ended:
            return
        self.ended = reason
        self._host.disconnect(self.number)
        self._gone(self)
        self.opening.lose(reason)
        for stream in self.streams.values():
            stream.lose(reason)

    # As a peer of the worker's shell.

    def write(self, data: bytes) -> None:
        """The worker has sent frames."""
        self._session.receive(data)
        while not self.ended and (frame := self._session.next_event()) is not None:
            self._take(frame)

    def abort(self) -> None:
        """The worker cuts the connection."""
        self.end("the worker has ended the session")

    async def close(self) -> None:
        """The worker closes the connection."""
        self.abort()

    def set_delivering(self, delivering: bool) -> None:
        """The worker reads or does not read; a door asks for the memory itself."""

    def _take(self, frame: Frame) -> None:
        match frame:
            case Ok():
                self.opening.keep()
            case Ack():
                self._commit(frame.refs)
            case Restart():
                self.end("the messages must be sent again")
            case Error():
                self.end(frame.reason)

    def _commit(self, references: Iterable[tuple[int, int]]) -> None:
        for number, reference in references:
            stream = self.streams.get(number)
            if stream is not None:
                stream.commit(reference)
