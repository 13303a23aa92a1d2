"""Encodes many messages of one stream as MESSAGE frames in bulk: the sender's counterpart of a MessageRun.

The result has the same bytes as the concatenated single frames. Source: ``docs/protocol.md#frame-bodies``;
``docs/decisions/runs.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from operator import add
from typing import NamedTuple, TypeVar, cast

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol.frames import Flags, Message, structs
from wallaroo_spark.protocol.framing import LENGTH_BYTES
from wallaroo_spark.protocol.revisions import Revision

HEAD_BYTES = 33
"""Greatest size of a MESSAGE frame without key and payload, in bytes; the length field is included."""

_TIME, _KEY = int(Flags.EVENT_TIME), int(Flags.KEY)
_ONE_BY_ONE = int(Flags.BOUNDARY | Flags.EOS)

T = TypeVar("T")


@dataclass(slots=True)
class EncodedRun:
    """Consecutive MESSAGE frames of one stream."""

    revision: Revision
    """Revision of the frames."""
    stream_id: int
    ids: Sequence[int]
    """Id of each message, in order."""
    data: bytes
    """The frames, one for each of ``ids``, in the same order."""

    def __repr__(self) -> str:
        if self.count == 1:
            return repr(self.revision.decode(self.data[LENGTH_BYTES], self.data[LENGTH_BYTES + 1 :]))
        shown = f"{self.count} messages, ids {self.first} to {self.last}, {len(self.data)} bytes"
        return f"EncodedRun(stream_id={self.stream_id}, {shown})"

    @property
    def count(self) -> int:
        """Number of messages, at least one."""
        return len(self.ids)

    @property
    def first(self) -> int:
        """Id of the first message."""
        return self.ids[0]

    @property
    def last(self) -> int:
        """Id of the last message."""
        return self.ids[-1]

    def frame_sizes(self) -> Iterator[int]:
        """Bytes of each frame with its length field. It steps from frame to frame; not for the hot path."""
        unpack, at = structs(self.revision.byte_order).u32.unpack_from, 0
        for _ in self.ids:
            size = LENGTH_BYTES + unpack(self.data, at)[0]
            yield size
            at += size

    def split(self, count: int) -> tuple[EncodedRun, EncodedRun]:
        """Split into the first ``count`` messages and the rest; both must have at least one message."""
        at = sum(size for size, _ in zip(self.frame_sizes(), range(count), strict=False))
        revision, stream_id, ids, data = self.revision, self.stream_id, self.ids, self.data
        return (
            EncodedRun(revision, stream_id, ids[:count], data[:at]),
            EncodedRun(revision, stream_id, ids[count:], data[at:]),
        )


class _Head(NamedTuple):
    """The head of a frame with certain flags: the length, a constant prefix, then the fields of each message."""

    prefix: Callable[..., bytes]
    """Packs (tag, flags, stream id)."""
    pack: Callable[..., bytes]
    """Packs (length, prefix, fields…)."""
    body: int
    """Length of the body without key and payload, in bytes."""
    has_id: bool
    """Whether the message id is a field."""
    has_time: bool
    """Whether the event time is a field."""
    has_key: bool
    """Whether the key's length is a field."""


def encode_run(
    revision: Revision,
    stream_id: int,
    ids: Sequence[int],
    payloads: Sequence[bytes],
    flags: int = 0,
    event_times: Sequence[int | None] | None = None,
    keys: Sequence[bytes | None] | None = None,
) -> EncodedRun:
    """Encode columns of equal length as MESSAGE frames with the same ``flags``.

    A missing column, or None in a column, means messages without event time or key. Raises :class:`LocalProtocolError`,
    as :meth:`Revision.encode` does, for the first message that the revision cannot carry. EOS must be sent alone.
    """
    if flags & Flags.EOS:
        raise LocalProtocolError(
            "a run of messages cannot end its stream; send the message with EOS alone", code="wrong-state"
        )
    if revision.layout.known_flags is None:
        # Every field is always present; 0 and the empty key mean that there is none.
        event_times = event_times and [time or 0 for time in event_times]
        keys = keys and [key or b"" for key in keys]
    try:
        data = _even(revision, stream_id, ids, payloads, int(flags), _column(event_times), _column(keys))
    except (struct.error, TypeError, _Uneven):
        columns = (ids, payloads, event_times or repeat(None), keys or repeat(None))
        data = b"".join(
            encode_frame(revision, stream_id, one, payload, int(flags), time, key)
            for one, payload, time, key in zip(*columns, strict=False)
        )
    return EncodedRun(revision, stream_id, ids, data)


def encode_single(
    revision: Revision,
    stream_id: int,
    message_id: int,
    payload: bytes | None,
    flags: int = 0,
    event_time: int | None = None,
    key: bytes | None = None,
) -> EncodedRun:
    """A run of one message. Raises as :meth:`Revision.encode` does."""
    data = encode_frame(revision, stream_id, message_id, payload, int(flags), event_time, key)
    return EncodedRun(revision, stream_id, (message_id,), data)


class PlainHead(NamedTuple):
    """The constant parts of a frame's head, for messages of one stream without key and event time. ``pack(body +
    len(payload), prefix, message_id, *rest)`` returns the bytes before the payload; its first argument becomes the
    length field.

    ``pack`` raises ``struct.error`` for a value that does not fit its field.
    """

    pack: Callable[..., bytes]
    """Returns the frame's length field, the prefix, the id and the remaining fixed fields as bytes."""
    prefix: bytes
    """The bytes between length field and id: the frame's type, its flags where the revision has them, its stream id."""
    body: int
    """Length in bytes of the frame's fixed fields, without the length field and the payload."""
    rest: tuple[int, ...]
    """The fields behind the id: zeros for the event time and the key's length where the revision always has these
    fields, else empty."""


def plain_head(revision: Revision, stream_id: int, flags: int = 0) -> PlainHead:
    """The head of a stream's messages that all have these ``flags``; EOS and BOUNDARY cannot be among them."""
    head = _heads(revision)[flags]
    prefix = head.prefix(revision.message_tag, flags, stream_id)
    # Where the revision always has the fields of time and key, zeros mean that there is none.
    rest = (0,) * (head.has_time + head.has_key)
    pack = head.pack if head.has_id else lambda length, prefix, message_id: head.pack(length, prefix)
    return PlainHead(pack, prefix, head.body, rest)


def encode_frame(
    revision: Revision,
    stream_id: int,
    message_id: int,
    payload: bytes | None,
    flags: int,
    event_time: int | None,
    key: bytes | None,
) -> bytes:
    """One MESSAGE frame; raises as :meth:`Revision.encode` does."""
    bits = flags & ~(_TIME | _KEY) | (_TIME if event_time is not None else 0) | (_KEY if key is not None else 0)
    head = _heads(revision).get(bits)
    if head is not None:
        body, name = payload or b"", key or b""
        fields = [message_id] if head.has_id else []
        if head.has_time:
            fields.append(event_time or 0)
        if head.has_key:
            fields.append(len(name))
        try:
            prefix = head.prefix(revision.message_tag, bits, stream_id)
            return b"".join((head.pack(head.body + len(body) + len(name), prefix, *fields), name, body))
        except struct.error:
            # The slower encoder raises an error that names the field.
            pass
    return revision.encode(Message(stream_id, message_id, payload, Flags(flags), event_time, key))


class _Uneven(Exception):
    """Some of the messages have an event time or a key, and others do not."""


def _column(values: Sequence[T | None] | None) -> Sequence[T] | None:
    if values is None:
        return None
    missing = values.count(None)
    if missing and missing != len(values):
        raise _Uneven
    return None if missing else cast(Sequence[T], values)


def _even(
    revision: Revision,
    stream_id: int,
    ids: Sequence[int],
    payloads: Sequence[bytes],
    flags: int,
    event_times: Sequence[int] | None,
    keys: Sequence[bytes] | None,
) -> bytes:
    """Encode frames that all have the same fields, without a Python statement for each message."""
    flags = flags & ~(_TIME | _KEY) | (_TIME if event_times is not None else 0) | (_KEY if keys is not None else 0)
    head = _heads(revision).get(flags)
    if head is None:
        raise _Uneven
    key_sizes: Iterable[int] = repeat(0) if keys is None else list(map(len, keys))
    lengths: Iterable[int] = map(head.body.__add__, map(len, payloads))
    fields: list[Iterable[int]] = [ids] if head.has_id else []
    if head.has_time:
        fields.append(repeat(0) if event_times is None else event_times)
    if head.has_key:
        fields.append(key_sizes)
    if keys is not None:
        lengths = map(add, lengths, key_sizes)
    heads = map(head.pack, lengths, repeat(head.prefix(revision.message_tag, flags, stream_id)), *fields)
    columns = (heads, payloads) if keys is None else (heads, keys, payloads)
    parts = [b""] * (len(columns) * len(payloads))
    for at, column in enumerate(columns):
        parts[at :: len(columns)] = column
    return b"".join(parts)


@cache
def _heads(revision: Revision) -> dict[int, _Head]:
    """The heads by flags, with EVENT_TIME and KEY set where a message has these. Messages with other flags are encoded
    singly.
    """
    known = revision.layout.known_flags
    if known is None:
        head = _head(revision, flags_field=False, has_id=True, time="q", key="H")
        return dict.fromkeys((0, _TIME, _KEY, _TIME | _KEY), head)
    return {
        flags: _head(
            revision,
            flags_field=True,
            has_id=revision.layout.has_id(flags),
            time="Q" if flags & _TIME else "",
            key="H" if flags & _KEY else "",
        )
        for flags in range(int(known) + 1)
        if not flags & _ONE_BY_ONE
    }


def _head(revision: Revision, *, flags_field: bool, has_id: bool, time: str, key: str) -> _Head:
    order = revision.byte_order
    prefix = struct.Struct(order + ("BHQ" if flags_field else "BQ"))
    head = struct.Struct(f"{order}I{prefix.size}s{'Q' if has_id else ''}{time}{key}")
    write = prefix.pack if flags_field else lambda tag, flags, stream_id: prefix.pack(tag, stream_id)
    return _Head(write, head.pack, head.size - LENGTH_BYTES, has_id, bool(time), bool(key))
