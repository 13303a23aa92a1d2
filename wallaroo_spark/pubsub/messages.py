"""The messages between publishers and subscribers, and their bytes.

A message is a u32 (big-endian) with the length of what follows, and MessagePack objects: ``[tag, []]``, then its
fields. Each frontier, list of changes and time is wrapped as an array of one. The payload of :class:`Data` is an object
of its own behind the time, and is left as it came, so that what is filtered is never decoded. Source:
``docs/pubsub.md#on-the-wire``; the tags and the wrapping are those of Strymon's own implementation. :class:`Closed` and
:class:`SubscriberHello` are this project's additions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgpack

from wallaroo_spark.errors import PubSubError
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.pubsub.times import Time, check, pack, parse

VERSION = "1"
"""The version of the protocol that a subscriber's hello names; compared whole."""

MAX_MESSAGE_BYTES = 64 << 20
"""Bytes of a message behind its length, at most, unless told otherwise."""

MAX_CONTROL_BYTES = 1 << 20
"""The same for every message that carries no data."""

MAX_HELLO_BYTES = 32 << 10
"""The same for a hello, which any peer may send."""

MAX_TEXT_BYTES = 4096
"""Bytes of a name, a cookie or a reason, at most."""

_LENGTH = struct.Struct(">I")
_TAG_BYTES = 3


class Why(StrEnum):
    """Why a publisher closed a connection."""

    REFUSED = "refused"
    """The hello does not fit: cookie, version, topic, partition or identity. Coming back is pointless."""
    SLOW = "slow"
    """More waits for the subscriber than the publisher keeps for one."""
    ENDED = "ended"
    """The topic has come to its end; everything was sent."""
    NOT_KEPT = "not-kept"
    """The epoch to go on from is no longer kept."""
    LATER = "later"
    """The publisher goes away or is full; come back, to it or to its successor."""


@dataclass(frozen=True)
class Snapshot:
    """Both frontiers of a publisher, the first message of a connection and only that."""

    lower: tuple[Time, ...]
    upper: tuple[Time, ...]


@dataclass(frozen=True)
class Update:
    """Changes of the lower frontier: (time, +1 or -1)."""

    changes: tuple[tuple[Time, int], ...]


@dataclass(frozen=True)
class Data:
    """Rows at a time. ``payload`` is MessagePack objects that nobody has decoded yet."""

    time: Time
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True)
class Closed:
    """The publisher's last message: it closes, and why, as a code and in words."""

    why: Why
    reason: str


@dataclass(frozen=True)
class SubscriberHello:
    """The subscriber's only message."""

    version: str
    """Version of the protocol, compared as a whole."""
    cookie: str = field(repr=False)
    """The topic's cookie."""
    topic: str
    """Name of the topic."""
    partition: int
    """Partition that is asked for."""
    subscriber: str
    """Name of the subscriber, for logs."""
    identity: str | None = None
    """History that was followed before; None at first."""
    resume: tuple[Time, ...] = ()
    """The time to go on from, as a tuple of one; empty: from the next batch."""


Message = Snapshot | Update | Data | Closed | SubscriberHello
_TAGS: dict[type, int] = {Snapshot: 0, Update: 1, Data: 2, Closed: 3, SubscriberHello: 4}
_DATA = _TAGS[Data]


def encode(message: Message) -> bytes:
    """The bytes of a message, its length included.

    Raises :class:`PubSubError` for what no message can carry: a text or a time beyond the limits of this module.
    """
    return b"".join(encode_parts(message))


def encode_parts(message: Message) -> tuple[bytes | memoryview, ...]:
    """The bytes of a message as pieces to be written in order; a payload is one of them, without a copy."""
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
            f"a message of {length} bytes does not fit a length of 4; split the rows into smaller batches", bytes=length
        )
    return (_LENGTH.pack(length) + head, payload) if payload else (_LENGTH.pack(length) + head,)


def shortened(reason: str) -> str:
    """A reason that fits a message."""
    raw = reason.encode("utf-8", "replace")
    return reason if len(raw) <= MAX_TEXT_BYTES else raw[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore") + "…"


def _times(times: Sequence[Time]) -> list[Any]:
    return [pack(check(time)) for time in times]


def _hello_fields(hello: SubscriberHello) -> list[Any]:
    for name in ("version", "cookie", "topic", "subscriber", "identity"):
        text = getattr(hello, name)
        if text is not None and len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
            raise PubSubError(f"the {name} of a subscriber is longer than {MAX_TEXT_BYTES} bytes; shorten it")
    resume = _times(hello.resume) if hello.resume else None
    return [hello.version, hello.cookie, hello.topic, hello.partition, hello.subscriber, hello.identity, resume]


class Decoder:
    """Takes messages out of bytes that come in any pieces.

    ``max_message_bytes`` bounds what is set aside for one message, and is looked at before its body has come; messages
    without data are bounded by :data:`MAX_CONTROL_BYTES` as well. With ``control_only``, for what subscribers send, no
    data is let in, and nothing longer than :data:`MAX_HELLO_BYTES`.
    """

    def __init__(self, *, max_message_bytes: int = MAX_MESSAGE_BYTES, control_only: bool = False) -> None:
        self._most = MAX_HELLO_BYTES if control_only else max_message_bytes
        self._control_only = control_only
        self._data = bytearray()
        self._at = 0

    @property
    def waiting(self) -> int:
        """Bytes that are held and belong to no whole message yet."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Take in what was received."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self) -> Message | None:
        """The next message; None when it has not come whole.

        Raises :class:`RemoteProtocolError` for one that is too long, of no known kind, or not as its kind must be.
        """
        length = self._announced()
        begin = self._at + _LENGTH.size
        if length is None or len(self._data) < begin + length:
            return None
        body = bytes(memoryview(self._data)[begin : begin + length])
        self._at = begin + length
        return _decode(body)

    def finish(self) -> None:
        """The peer has ended: raises :class:`RemoteProtocolError` when it did so within a message."""
        if self.waiting:
            raise broken(Fault.TRUNCATED_FRAME, f"the stream ends within a message, after {self.waiting} bytes of it")

    def _announced(self) -> int | None:
        """The length of the next message, once enough has come to judge it."""
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
        raise broken(Fault.UNKNOWN_TAG, f"a message begins with {head.hex()}, which is the tag of none")
    return head[1]


def _decode(body: bytes) -> Message:
    tag = body[1]
    unpacker = msgpack.Unpacker(None, raw=False, strict_map_key=False, max_buffer_size=len(body))
    if tag == _DATA:
        # The time is small; the payload stays as it is.
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


def _object(unpacker: msgpack.Unpacker, what: str) -> Any:
    try:
        return unpacker.unpack()
    except msgpack.OutOfData:
        raise broken(Fault.TRUNCATED_FRAME, f"a message ends within {what}") from None
    except (ValueError, msgpack.UnpackException, RecursionError, TypeError) as error:
        # The parser's message may repeat the peer's bytes, which may contain a cookie.
        raise broken(Fault.INVALID_TEXT, f"{what} is not MessagePack: {type(error).__name__}") from None


def _only(value: Any, what: str) -> Any:
    if not isinstance(value, list) or len(value) != 1:
        raise broken(Fault.INVALID_TEXT, f"{what} is not wrapped as an array of one")
    return value[0]


def _frontier(unpacker: msgpack.Unpacker, what: str) -> tuple[Time, ...]:
    times = _only(_object(unpacker, what), what)
    if not isinstance(times, list):
        raise broken(Fault.INVALID_TEXT, f"{what} is no array of times")
    return tuple(parse(time, what) for time in times)


def _snapshot(unpacker: msgpack.Unpacker) -> Message:
    return Snapshot(_frontier(unpacker, "the lower frontier"), _frontier(unpacker, "the upper frontier"))


def _update(unpacker: msgpack.Unpacker) -> Message:
    what = "a frontier update"
    changes = _only(_object(unpacker, what), what)
    found: list[tuple[Time, int]] = []
    for pair in changes if isinstance(changes, list) else (changes,):
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is int):
            raise broken(Fault.INVALID_TEXT, f"{what} is no array of (time, change)")
        found.append((parse(pair[0], what), pair[1]))
    return Update(tuple(found))


def _closed(unpacker: msgpack.Unpacker) -> Message:
    match _object(unpacker, "the reason of a close"):
        case [str(why), str(reason)] if why in tuple(Why):
            return Closed(Why(why), reason)
    raise broken(Fault.INVALID_TEXT, "the reason of a close is no array of a known code and a text")


def _hello(unpacker: msgpack.Unpacker) -> Message:
    # Nothing of it is repeated in an error: its second field is the cookie.
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
