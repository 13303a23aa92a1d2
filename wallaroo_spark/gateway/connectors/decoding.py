"""The messages of a run as plain values: fast where a message has no flags. Pure.

``columnar`` decodes to Arrow columns, which would be taken apart here again. Source: ``docs/protocol.md#frame-bodies``.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import Message, MessageRun, Revision


class PlainMessage(NamedTuple):
    """A message without its key and its event time."""

    stream_id: int
    """Id of its stream."""
    flags: int
    """Its flags."""
    id: int | None
    """Its id; None for an ephemeral message of draft-be."""
    payload: bytes | None
    """Its payload; None for a boundary."""


def messages_of(run: MessageRun) -> tuple[list[PlainMessage], RemoteProtocolError | None]:
    """The messages of a run up to the first one that is not valid, and the error of that one."""
    found: list[PlainMessage] = []
    data, revision = run.data, run.revision
    head = _head(revision)
    unpack, size, has_flags = head.unpack_from, head.size, revision.layout.known_flags is not None
    starts = [int(start) for start in run.starts]
    ends = [start - 5 for start in starts[1:]] + [int(run.end)]
    for start, end in zip(starts, ends, strict=True):
        if end - start >= size:
            # In the drafts the flags come first, in v3 the length of the key comes last.
            fields = unpack(data, start)
            if has_flags and not fields[0]:
                found.append(PlainMessage(fields[1], 0, fields[2], data[start + size : end]))
                continue
            if not has_flags and start + size + fields[3] <= end:
                found.append(PlainMessage(fields[0], 0, fields[1], data[start + size + fields[3] : end]))
                continue
        try:
            one = revision.decode(revision.by_frame[Message].tag, data[start:end])
        except RemoteProtocolError as error:
            return found, error
        assert isinstance(one, Message)
        found.append(PlainMessage(one.stream_id, int(one.flags), one.message_id, one.payload))
    return found, None


@cache
def _head(revision: Revision) -> struct.Struct:
    """The fixed fields of a message without flags."""
    return struct.Struct(revision.byte_order + ("QQqH" if revision.layout.known_flags is None else "HQQ"))
