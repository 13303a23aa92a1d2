"""Messages that are sent together, and the queue in which senders wait for their turns.

``send_many`` reads the caller's iterables in batches, column by column. ``send`` appends the frame of a message to an
open run while there is room, and the messages of the run are recorded together: recording each message alone would cost
a run, a check of the session's state and an entry in the resend buffer.
"""

from __future__ import annotations

import asyncio
import struct
import time
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise
from operator import add
from typing import Any, Literal

from wallaroo_spark.connector.arguments import bytes_of, event_time_of, id_of, key_of, wrong_type
from wallaroo_spark.connector.record import MessageColumns
from wallaroo_spark.connector.sending.resend_buffer import ID_BYTES, memory_cost
from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError, LocalProtocolError, WallarooError
from wallaroo_spark.protocol import HEAD_BYTES, LENGTH_BYTES, EncodedRun, PlainHead, Revision, encode_frame, plain_head

BATCH_MESSAGES = 4096
"""Most messages in a batch.

Measured with messages of 100 bytes (draft-be), processor time a message: 64 messages 1.10 µs, 256 0.79, 1024 0.70,
4096 0.64, 16384 0.64.
"""

BATCH_BYTES = 256 * 1024
"""Payload bytes after which a batch is complete.

A choice: four times ``COLLECTED_BYTES`` of a connection. It bounds the memory of payloads that are read ahead.
"""

BATCH_SECONDS = 0.001
"""Seconds after which a batch is complete, so that a slow iterable does not delay its messages.

A choice: it bounds the added delay to 1 ms.
"""

_OFFSETS: dict[str, Literal["i", "q"]] = {"binary": "i", "string": "i", "large_binary": "q", "large_string": "q"}


class SendBatch:
    """Messages to send together, and the number of those that were sent.

    ``before`` is the number of earlier messages from the same iterables. ``origin`` is the name of the call or the
    source, for error messages.
    """

    def __init__(self, columns: MessageColumns, before: int = 0, origin: str = "send_many") -> None:
        self._origin = origin
        self._columns = columns
        self._before = before
        self._at = 0
        sizes: Iterable[int] = map(len, columns.payloads)
        if columns.keys is not None:
            sizes = map(add, sizes, (len(key or b"") for key in columns.keys))
        self._ends = list(accumulate(map(HEAD_BYTES.__add__, sizes)))

    @property
    def left(self) -> int:
        """Number of messages that are not sent yet."""
        return len(self._ends) - self._at

    @property
    def index(self) -> int:
        """Index of the next message among all messages of the call, from 0."""
        return self._before + self._at

    @property
    def next_cost(self) -> int:
        """Greatest memory counted for keeping the next message."""
        return memory_cost(self._ends[self._at] - self._begin)

    def fitting(self, most: int, network: int, memory: int | None) -> int:
        """Number of the next ``most`` messages that fit into ``network`` and ``memory`` bytes; at least one.

        The last of them may exceed the bytes of the network, as a single message may.
        """
        begin, at = self._begin, self._at
        most = min(most, self.left)
        last = bisect_left(self._ends, begin + network, at, at + most)
        most = max(1, min(most, last - at + 1))
        if memory is None or memory_cost(self._ends[at + most - 1] - begin, most) <= memory:
            return most
        fits = bisect_right(range(1, most + 1), memory, key=lambda n: memory_cost(self._ends[at + n - 1] - begin, n))
        return max(1, fits)

    def take(self, count: int) -> MessageColumns:
        """The next ``count`` messages, without advancing; see :meth:`sent`."""
        return self._columns.part(self._at, self._at + count)

    def sent(self, count: int) -> None:
        """The next ``count`` messages were sent: advance."""
        self._at += count

    def located(self, error: WallarooError) -> WallarooError:
        """The error of the next message, with the message's index and id added."""
        ids = self._columns.ids
        return _located(error, self.index, self._origin, None if ids is None else ids[self._at])

    @property
    def _begin(self) -> int:
        return self._ends[self._at - 1] if self._at else 0


class SendBatches:
    """Cuts the iterables of ``send_many`` into batches. They are read in the thread that calls :meth:`next`."""

    def __init__(
        self,
        payloads: Iterable[Any],
        ids: Iterable[int] | None,
        event_times: Iterable[Any] | None,
        keys: Iterable[Any] | None,
    ) -> None:
        _check_lengths(payloads, ids=ids, event_times=event_times, keys=keys)
        self.slow = False
        """Whether the last batch was completed early because the payloads are slow."""
        self._at_once = isinstance(payloads, list | tuple)
        self._payloads = _payloads(payloads)
        columns = (("ids", ids, id_of), ("event_times", event_times, event_time_of), ("keys", keys, key_of))
        self._columns = [_Column(name, values, convert) for name, values, convert in columns if values is not None]
        self._count = 0
        self._error: Exception | None = None

    def next(self) -> SendBatch | None:
        """The next batch; None at the end. After the last batch it raises the error of the message or the iterable."""
        if self._error is not None:
            raise self._error
        payloads = self._read_payloads()
        columns = {column.name: column.read(len(payloads)) for column in self._columns}
        count = min([len(payloads), *map(len, columns.values())])
        if count < len(payloads):
            self._fail(count)
            payloads = payloads[:count]
            columns = {name: values[:count] for name, values in columns.items()}
        if payloads:
            self._count += count
            return SendBatch(MessageColumns(payloads, **columns), self._count - count)
        if self._error is not None:
            raise self._error
        return None

    def _read_payloads(self) -> list[bytes]:
        if self._at_once:
            first = list(islice(self._payloads, BATCH_MESSAGES))
            if set(map(type, first)) <= {bytes}:
                return first
            self._payloads = chain(first, self._payloads)
        payloads: list[bytes] = []
        size, until, now = 0, time.monotonic() + BATCH_SECONDS, time.monotonic
        self.slow = False
        try:
            for payload in self._payloads:
                payloads.append(payload if type(payload) is bytes else bytes_of(payload))
                size += len(payload)
                if size > BATCH_BYTES or len(payloads) >= BATCH_MESSAGES:
                    break
                if now() > until:
                    self.slow = True
                    break
        except Exception as error:
            self._error = self._located(error, len(payloads))
        return payloads

    def _fail(self, at: int) -> None:
        """Report the first column that has ended before the payloads or has raised an error."""
        column = next(column for column in self._columns if column.count == self._count + at)
        error = column.error or LocalProtocolError(
            f"{column.name} has {column.count} items, and payloads has more", code="columns-uneven"
        )
        self._error = self._located(error, at)

    def _located(self, error: Exception, at: int) -> Exception:
        return _located(error, self._count + at, "send_many") if isinstance(error, WallarooError) else error


class _Column:
    """A column beside the payloads, which is read as far as the payloads were read."""

    def __init__(self, name: str, values: Iterable[Any], convert: Callable[[Any], Any]) -> None:
        self.name = name
        self.error: Exception | None = None
        """The error that has ended the column."""
        self.count = 0
        """Values read so far."""
        values = values.to_pylist() if hasattr(values, "to_pylist") else values
        self._values = values if isinstance(values, range) else map(convert, values)

    def read(self, count: int) -> Sequence[Any]:
        """The next ``count`` values; fewer when the column has ended or the next value cannot be used."""
        values: Sequence[Any]
        if isinstance(self._values, range):
            values = self._values[self.count : self.count + count]
        else:
            values = []
            try:
                # The values before an error stay in the list.
                values.extend(islice(self._values, count))
            except Exception as error:
                self.error = error
        self.count += len(values)
        return values if self.name != "ids" else _compact(values)


def _compact(ids: Sequence[int]) -> Sequence[int]:
    if isinstance(ids, range):
        return ids
    try:
        return array("Q", ids)
    except OverflowError:
        # One of them is not an unsigned 64-bit integer; next_ids raises the error that names it.
        return ids


def _check_lengths(payloads: Any, **columns: Any) -> None:
    if isinstance(payloads, str | bytes | bytearray | memoryview):
        raise ArgumentTypeError(
            "send_many takes an iterable of payloads, and this is a single one; use send for it", code="argument-type"
        )
    for name, column in {"payloads": payloads, **columns}.items():
        wanted = name == "payloads" or column is not None
        if wanted and (not isinstance(column, Iterable) or isinstance(column, str | bytes)):
            expected = f"{name} is an iterable with one item for each message"
            raise wrong_type(expected, column, name, "give a list of them, or use send for a single message")
    for name, column in columns.items():
        if isinstance(payloads, Sized) and isinstance(column, Sized) and len(payloads) != len(column):
            raise ArgumentValueError(
                f"{name} has {len(column)} items and payloads {len(payloads)}; give one for each, or none at all",
                code="columns-uneven",
            )


def _located(error: WallarooError, at: int, origin: str, message_id: int | None = None) -> WallarooError:
    where = f"item {at} of {origin}" if message_id is None else f"item {at} of {origin}, id {message_id}"
    fields = {**error.fields, "index": at}
    if message_id is not None:
        fields["id"] = message_id
    return type(error)(f"{error.message} ({where}; those before it were sent)", code=error.code, **fields)


def _payloads(payloads: Any) -> Iterator[Any]:
    """The payloads one by one; an Arrow array, or a chunked one, is read from its buffers."""
    if hasattr(payloads, "chunks"):
        return chain.from_iterable(map(_arrow_payloads, payloads.chunks))
    return _arrow_payloads(payloads) if hasattr(payloads, "buffers") else iter(payloads)


def _arrow_payloads(values: Any) -> Iterator[bytes | None]:
    width = _OFFSETS.get(str(values.type))
    if width is None:
        raise LocalProtocolError(
            f"an Arrow array of {values.type} holds no payloads; cast it to binary", code="argument-type"
        )
    if not len(values):
        return
    _, offsets, data = values.buffers()
    ends = memoryview(offsets).cast("B").cast(width)[values.offset : values.offset + len(values) + 1]
    data_bytes = memoryview(data if data is not None else b"").cast("B")
    valid = values.is_valid().to_pylist() if values.null_count else None
    for at in range(0, len(values), BATCH_MESSAGES):
        places = ends[at : at + BATCH_MESSAGES + 1].tolist()
        begin = places[0]
        block = bytes(data_bytes[begin : places[-1]])
        found = (block[one - begin : other - begin] for one, other in pairwise(places))
        yield from found if valid is None else (one if ok else None for one, ok in zip(found, valid[at:], strict=False))


@dataclass(slots=True, eq=False)
class OpenRun:
    """Frames of one stream, and the limits for further frames.

    It is open from :meth:`open` to :meth:`close`. Code that reads or changes credits, memory or the state of the stream
    must close it first.
    """

    revision: Revision
    stream_id: int
    flags: int
    """The flags of every message of the stream."""
    increasing: bool
    """Whether message ids increase within the stream."""
    _head: PlainHead = field(init=False)
    _frames: list[bytes] = field(default_factory=list)
    """The parts of the frames, in order."""
    _ids: list[int] = field(default_factory=list)
    _following: int = 0
    """The id of the next message if the caller gives none."""
    _floor: int = 0
    """The id of the last message sent."""
    _longest: int = 0
    """The most bytes of a frame after its length field."""
    _room: int = -1
    """Bytes of frames and counted memory of ids that may still be added; -1 while closed."""
    _messages: int = 0
    """Number of messages that may still be added."""

    def __post_init__(self) -> None:
        self._head = plain_head(self.revision, self.stream_id, self.flags)

    @property
    def count(self) -> int:
        """The number of messages that are not recorded yet."""
        return len(self._ids)

    @property
    def last(self) -> int:
        """Id of the last message that was added; only while there are messages."""
        return self._following - 1

    def open(self, floor: int, following: int, messages: int, room: int, longest: int) -> None:
        """Accept up to ``messages`` messages behind the one with the id ``floor``.

        All of them together may have ``room`` bytes of frames and counted memory of ids, and each frame ``longest``
        bytes after its length field. A message without an id gets ``following``, and the next one an id above that.
        """
        self._floor = floor
        self._following = following
        self._messages = messages
        self._room = room
        self._longest = longest

    def add(self, payload: bytes, wanted: int | None) -> int | None:
        """Append a message without key, event time and flags of its own; return its id.

        Returns None, and changes nothing, when the message does not fit or is invalid. The caller then sends it as a
        single message, which raises the error if there is one.
        """
        pack, prefix, body, rest = self._head
        size = body + len(payload)
        room = self._room - size - (LENGTH_BYTES + ID_BYTES)
        if room < 0 or size > self._longest or not self._messages:
            return None
        try:
            if wanted is None:
                wanted = self._following
            elif wanted <= self._floor or not self.increasing:
                return None
            head = pack(size, prefix, wanted, *rest)
        except (struct.error, TypeError):
            return None
        self._frames.append(head)
        self._frames.append(payload)
        self._added(wanted, room)
        return wanted

    def add_any(
        self, payload: bytes | None, wanted: int | None, flags: int, event_time: int | None, key: bytes | None
    ) -> int | None:
        """As :meth:`add`, for any message. Raises :class:`LocalProtocolError` for values that a frame cannot carry."""
        if self._room < 0 or not self._messages:
            return None
        if wanted is None:
            wanted = self._following
        elif wanted <= self._floor or not self.increasing:
            return None
        frame = encode_frame(self.revision, self.stream_id, wanted, payload, flags | self.flags, event_time, key)
        room = self._room - len(frame) - ID_BYTES
        if room < 0 or len(frame) - LENGTH_BYTES > self._longest:
            return None
        self._frames.append(frame)
        self._added(wanted, room)
        return wanted

    def close(self) -> EncodedRun | None:
        """Accept no more messages; return the messages that were added, or None when there are none."""
        self._room = -1
        if not self._ids:
            return None
        ids, frames = self._ids, self._frames
        self._ids, self._frames = [], []
        return EncodedRun(self.revision, self.stream_id, _compact_run(ids), b"".join(frames))

    def _added(self, message_id: int, room: int) -> None:
        self._ids.append(message_id)
        self._floor = message_id
        if message_id >= self._following:
            self._following = message_id + 1
        self._messages -= 1
        self._room = room


def _compact_run(ids: list[int]) -> Sequence[int]:
    first, last = ids[0], ids[-1]
    # Ids with gaps come here only if they increase, and then this difference shows the gaps.
    return range(first, last + 1) if last - first + 1 == len(ids) else array("Q", ids)


@dataclass(eq=False)
class _Waiter:
    may_pass: Callable[[], bool]
    ticket: int
    woken: asyncio.Future[None] = field(default_factory=asyncio.Future)


class FairQueue:
    """Serves waiters in order of arrival, and skips those whose own condition does not hold.

    One waiter is woken at a time, so that the next one sees the credits and memory that are left.
    """

    def __init__(self) -> None:
        self._waiters: list[_Waiter] = []
        self._woken: _Waiter | None = None
        self._tickets = 0

    @property
    def contended(self) -> bool:
        """Whether any waiter is in the queue."""
        return bool(self._waiters) or self._woken is not None

    def wake_next(self) -> None:
        """Wake the first waiter whose condition holds. Call it after every change."""
        if self._woken is not None:
            return
        for waiter in self._waiters:
            if not waiter.woken.done() and waiter.may_pass():
                self._waiters.remove(waiter)
                self._woken = waiter
                waiter.woken.set_result(None)
                return

    async def wait(self, may_pass: Callable[[], bool], ticket: int | None = None) -> int:
        """Wait for a turn. On return ``may_pass()`` holds, until the caller awaits something.

        Returns the waiter's ticket. A waiter that needs to wait again within its turn passes the ticket, and is served
        before all who arrived after it.
        """
        if ticket is None:
            self._tickets = ticket = self._tickets + 1
        while True:
            waiter = _Waiter(may_pass, ticket)
            insort(self._waiters, waiter, key=lambda other: other.ticket)
            # Perhaps no waiter ahead may pass.
            self.wake_next()
            try:
                await waiter.woken
            except asyncio.CancelledError:
                if self._woken is waiter:
                    self._woken = None
                    self.wake_next()
                else:
                    self._waiters.remove(waiter)
                raise
            self._woken = None
            if may_pass():
                # The next waiter is woken once this one has used its turn.
                asyncio.get_running_loop().call_soon(self.wake_next)
                return ticket
