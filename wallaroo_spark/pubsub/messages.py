"""The messages between publishers and subscribers, and their encoding.

A message is a u32 (big-endian) with the length of the rest, followed by MessagePack objects: ``[tag, []]``, then the
fields. Each frontier, list of changes and time is wrapped in an array of one element. The payload of :class:`Data` is a
separate object behind the time and stays encoded, so that rows which are filtered out are never decoded. Source:
``docs/pubsub/protocol.md#on-the-wire``. The tags and the wrapping are those of Strymon's own implementation.
:class:`Closed` and :class:`SubscriberHello` are additions of this project.

Rows on the wire: one MessagePack binary with an Arrow IPC stream of the schema and one record batch.

Every message contains the schema, so that each message can be decoded alone. Source:
``docs/pubsub/protocol.md#on-the-wire``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgpack
import pyarrow as pa

from wallaroo_spark.errors import PubSubError
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.pubsub.times import Time, check, pack, parse
from wallaroo_spark.sidecar.task_access import as_arrow_stream

VERSION = "1"
"""The protocol version in a subscriber's hello. It must be equal to the publisher's."""

MAX_MESSAGE_BYTES = 64 << 20
"""Default limit of a message in bytes, without its length field.

A choice: 16 messages of the size that publishers write (``MESSAGE_BYTES``, 4 MiB), so that only a single row can exceed
it. It bounds the memory that a peer can make a subscriber reserve.
"""

MAX_CONTROL_BYTES = 1 << 20
"""Limit in bytes of a message without data: a snapshot, an update or a close.

A choice. A frontier of this project's publishers has at most one time for each of the ``retain`` batches and column
values, a few bytes each; this limit leaves room for other publishers.
"""

MAX_HELLO_BYTES = 32 << 10
"""Limit in bytes of a hello, which a peer sends before it is authenticated.

A choice that follows from its fields: five texts of at most ``MAX_TEXT_BYTES`` (20 KiB together), a partition and a
time.
"""

MAX_TEXT_BYTES = 4096
"""Limit in bytes of a name, a cookie or a reason. A choice: longer than any file name or token."""

_LENGTH = struct.Struct(">I")
_TAG_BYTES = 3


class Why(StrEnum):
    """Reason code of a publisher's close."""

    REFUSED = "refused"
    """The hello is not acceptable: cookie, version, topic, partition or identity. Do not retry."""
    SLOW = "slow"
    """The subscriber is too slow: more bytes wait for it than the publisher keeps for one subscriber."""
    ENDED = "ended"
    """The topic has ended, and everything was sent."""
    NOT_KEPT = "not-kept"
    """The epoch to resume from is no longer retained."""
    LATER = "later"
    """The publisher shuts down or is full. Retry, with the same publisher or its successor."""


@dataclass(frozen=True)
class Snapshot:
    """Both frontiers of a publisher. It is the first message of a connection and is sent only once."""

    lower: tuple[Time, ...]
    """The lower frontier: the least times that may still arrive."""
    upper: tuple[Time, ...]
    """The upper frontier: the maximal times that the publisher has sent."""


@dataclass(frozen=True)
class Update:
    """A change of the lower frontier."""

    changes: tuple[tuple[Time, int], ...]
    """The times that left the frontier (-1) and the times that entered it (+1)."""


@dataclass(frozen=True)
class Data:
    """Rows at one time."""

    time: Time
    """Time of all rows of the message."""
    payload: bytes | memoryview = field(repr=False)
    """The rows, still encoded as MessagePack; see :mod:`wallaroo_spark.pubsub.messages`."""


@dataclass(frozen=True)
class Closed:
    """The publisher's last message before it closes the connection."""

    why: Why
    """Reason code."""
    reason: str
    """Reason as a sentence."""


@dataclass(frozen=True)
class SubscriberHello:
    """The only message that a subscriber sends."""

    version: str
    """Protocol version."""
    cookie: str = field(repr=False)
    """Cookie that authenticates the subscriber."""
    topic: str
    partition: int
    """The requested partition."""
    subscriber: str
    """Name of the subscriber, for the publisher's log."""
    identity: str | None = None
    """Identity of the history that the subscriber followed before; None on the first connection."""
    resume: tuple[Time, ...] = ()
    """The time to continue from, as a tuple of one element. Empty: begin with the next batch."""


Message = Snapshot | Update | Data | Closed | SubscriberHello
_TAGS: dict[type, int] = {Snapshot: 0, Update: 1, Data: 2, Closed: 3, SubscriberHello: 4}
_DATA = _TAGS[Data]


def encode(message: Message) -> bytes:
    """Encode a message, with its length field.

    Raises :class:`PubSubError` when a text or a time exceeds the limits of this module.
    """
    return b"".join(encode_parts(message))


def encode_parts(message: Message) -> tuple[bytes | memoryview, ...]:
    """Encode a message as pieces to be written in this order. A payload is a piece of its own and is not copied."""
    head = msgpack.packb([_TAGS[type(message)], []])
    payload: bytes | memoryview = b""
    match message:
        case Snapshot(lower, upper):
            head += msgpack.packb([_times(lower)]) + msgpack.packb([_times(upper)])
        case Update(changes):
            head += msgpack.packb([[[pack(check(time)), change] for time, change in changes]])
        case Data(time, payload):
            head += msgpack.packb([pack(check(time))])
        case Closed(why, reason):
            head += msgpack.packb([str(why), shortened(reason)])
        case SubscriberHello():
            head += msgpack.packb(_hello_fields(message))
    length = len(head) + len(payload)
    if length >= 1 << 32:
        raise PubSubError(
            f"a message of {length} bytes exceeds a length field of 4 bytes; split the rows into smaller batches",
            code="row-too-long",
            bytes=length,
        )
    return (_LENGTH.pack(length) + head, payload) if payload else (_LENGTH.pack(length) + head,)


def shortened(reason: str) -> str:
    """Cut a reason to ``MAX_TEXT_BYTES`` bytes."""
    raw = reason.encode("utf-8", "replace")
    return reason if len(raw) <= MAX_TEXT_BYTES else raw[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore") + "…"


def _times(times: Sequence[Time]) -> list[Any]:
    return [pack(check(time)) for time in times]


def _hello_fields(hello: SubscriberHello) -> list[Any]:
    for name in ("version", "cookie", "topic", "subscriber", "identity"):
        text = getattr(hello, name)
        if text is not None and len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
            raise PubSubError(
                f"the {name} of a subscriber is longer than {MAX_TEXT_BYTES} bytes; shorten it", code="name-too-long"
            )
    resume = _times(hello.resume) if hello.resume else None
    return [hello.version, hello.cookie, hello.topic, hello.partition, hello.subscriber, hello.identity, resume]


class Decoder:
    """Decodes messages from bytes that arrive in pieces of any size.

    ``max_message_bytes`` bounds the buffer for one message; it is checked before the body arrives. Messages without
    data are also bounded by :data:`MAX_CONTROL_BYTES`. With ``control_only``, for the bytes that subscribers send, data
    is refused, and so is every message longer than :data:`MAX_HELLO_BYTES`.
    """

    def __init__(self, *, max_message_bytes: int = MAX_MESSAGE_BYTES, control_only: bool = False) -> None:
        self._most = MAX_HELLO_BYTES if control_only else max_message_bytes
        self._control_only = control_only
        self._data = bytearray()
        self._at = 0

    @property
    def waiting(self) -> int:
        """Buffered bytes that are not yet part of a complete message."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self) -> Message | None:
        """Return the next message, or None when it is incomplete.

        Raises :class:`RemoteProtocolError` for a message that is too long, has an unknown tag or has malformed fields.
        """
        length = self._announced()
        begin = self._at + _LENGTH.size
        if length is None or len(self._data) < begin + length:
            return None
        body = bytes(memoryview(self._data)[begin : begin + length])
        self._at = begin + length
        return _decode(body)

    def finish(self) -> None:
        """The peer has ended its stream. Raises :class:`RemoteProtocolError` when a message is incomplete."""
        if self.waiting:
            raise broken(Fault.TRUNCATED_FRAME, f"the stream ends within a message, after {self.waiting} bytes of it")

    def _announced(self) -> int | None:
        """The length of the next message; None until its length and its tag have arrived."""
        if self.waiting < _LENGTH.size:
            return None
        length: int = _LENGTH.unpack_from(self._data, self._at)[0]
        if length < _TAG_BYTES:
            raise broken(Fault.EMPTY_FRAME, f"a message of {length} bytes is announced, which is less than its tag")
        if length > self._most:
            raise broken(Fault.FRAME_TOO_LONG, _too_long(length, self._most))
        if self.waiting < _LENGTH.size + _TAG_BYTES:
            return None
        tag = _tag(bytes(self._data[self._at + _LENGTH.size : self._at + _LENGTH.size + _TAG_BYTES]))
        if tag == _DATA and self._control_only:
            raise broken(Fault.WRONG_SIDE, "a subscriber sends no data")
        if tag != _DATA and length > MAX_CONTROL_BYTES:
            raise broken(Fault.FRAME_TOO_LONG, _too_long(length, MAX_CONTROL_BYTES))
        return length


def _too_long(length: int, most: int) -> str:
    return f"a message of {length} bytes is announced; {most} are accepted (publish smaller batches of rows)"


def _tag(head: bytes) -> int:
    if head[0] != 0x92 or head[1] not in _TAGS.values() or head[2] != 0x90:
        raise broken(Fault.UNKNOWN_TAG, f"a message begins with {head.hex()}, which is no known tag")
    return head[1]


def _decode(body: bytes) -> Message:
    tag = body[1]
    unpacker = msgpack.Unpacker(None, raw=False, strict_map_key=False, max_buffer_size=len(body))
    if tag == _DATA:
        # Only the time is decoded here; the payload stays encoded.
        head = body[_TAG_BYTES : _TAG_BYTES + 1024]
        unpacker.feed(head)
        time = parse(_only(_object(unpacker, "the time of data"), "the time of data"), "the time of data")
        return Data(time, memoryview(body)[_TAG_BYTES + unpacker.tell() :])
    unpacker.feed(memoryview(body)[_TAG_BYTES:])
    message = _READERS[tag](unpacker)
    if _TAG_BYTES + unpacker.tell() != len(body):
        left = len(body) - _TAG_BYTES - unpacker.tell()
        raise broken(Fault.OVERLONG_FRAME, f"a {type(message).__name__} message has {left} bytes more than its fields")
    return message


def _object(unpacker: msgpack.Unpacker, name: str) -> Any:
    try:
        return unpacker.unpack()
    except msgpack.OutOfData:
        raise broken(Fault.TRUNCATED_FRAME, f"a message ends within {name}") from None
    except (ValueError, msgpack.UnpackException, RecursionError, TypeError) as error:
        # The parser's own message may quote the peer's bytes, which may contain a cookie.
        raise broken(Fault.INVALID_TEXT, f"{name} is not MessagePack: {type(error).__name__}") from None


def _only(value: Any, name: str) -> Any:
    if not isinstance(value, list) or len(value) != 1:
        raise broken(Fault.INVALID_TEXT, f"{name} is not wrapped as an array of one")
    return value[0]


def _frontier(unpacker: msgpack.Unpacker, name: str) -> tuple[Time, ...]:
    times = _only(_object(unpacker, name), name)
    if not isinstance(times, list):
        raise broken(Fault.INVALID_TEXT, f"{name} is no array of times")
    return tuple(parse(time, name) for time in times)


def _snapshot(unpacker: msgpack.Unpacker) -> Message:
    return Snapshot(_frontier(unpacker, "the lower frontier"), _frontier(unpacker, "the upper frontier"))


def _update(unpacker: msgpack.Unpacker) -> Message:
    name = "a frontier update"
    changes = _only(_object(unpacker, name), name)
    found: list[tuple[Time, int]] = []
    for pair in changes if isinstance(changes, list) else (changes,):
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is int):
            raise broken(Fault.INVALID_TEXT, f"{name} is no array of (time, change)")
        found.append((parse(pair[0], name), pair[1]))
    return Update(tuple(found))


def _closed(unpacker: msgpack.Unpacker) -> Message:
    match _object(unpacker, "the reason of a close"):
        case [str(why), str(reason)] if why in tuple(Why):
            return Closed(Why(why), reason)
    raise broken(Fault.INVALID_TEXT, "the reason of a close is no array of a known code and a text")


def _hello(unpacker: msgpack.Unpacker) -> Message:
    # Errors do not quote a hello, because its second field is the cookie.
    fields = _object(unpacker, "a hello")
    match fields:
        case [str(version), str(cookie), str(topic), int(partition), str(name), str() | None as identity, resume]:
            texts = (version, cookie, topic, name, identity or "")
            if any(len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES for text in texts):
                raise broken(Fault.NAME_TOO_LONG, f"a hello has a text of more than {MAX_TEXT_BYTES} bytes")
            times = () if resume is None else (parse(_only(resume, "where to resume"), "where to resume"),)
            return SubscriberHello(version, cookie, topic, int(partition), name, identity, times)
    raise broken(Fault.INVALID_TEXT, "a hello is not an array of its seven fields")


_READERS = {0: _snapshot, 1: _update, 3: _closed, 4: _hello}


# First byte of a MessagePack binary → size in bytes of the length field behind it.
_BINARIES = {0xC4: 1, 0xC5: 2, 0xC6: 4}


def pack_rows(rows: pa.RecordBatch) -> bytes:
    """Encode a record batch as the payload of a data message."""
    packed: bytes = msgpack.packb(as_arrow_stream(rows))
    return packed


def unpack_rows(payload: bytes | memoryview) -> pa.RecordBatch:
    """Decode a payload without copying. Arrow's buffers are validated, because a peer has written them.

    Raises :class:`RemoteProtocolError` when the payload is not one binary with exactly one record batch.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(_binary(memoryview(payload)))) as reader:
            batches = list(reader)
            rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=reader.schema)
        rows.validate(full=True)
        # Arrow decodes column names only on access, so that access is part of the check.
        _ = rows.schema.names, str(rows.schema)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise broken(Fault.INVALID_TEXT, f"rows are not an Arrow IPC stream: {str(error)[:200]}") from None
    if len(batches) > 1:
        raise broken(Fault.OVERLONG_FRAME, f"a message has {len(batches)} record batches; expected exactly one")
    return rows


def _binary(payload: memoryview) -> memoryview:
    width = _BINARIES.get(payload[0]) if payload else None
    if width is None:
        raise broken(Fault.INVALID_TEXT, "the rows of a message are not one MessagePack binary")
    length = int.from_bytes(payload[1 : 1 + width], "big")
    begin = 1 + width
    if len(payload) != begin + length:
        raise broken(
            Fault.TRUNCATED_FRAME,
            f"a message has {len(payload) - begin} bytes of rows, and its binary announces {length}",
        )
    return payload[begin:]
