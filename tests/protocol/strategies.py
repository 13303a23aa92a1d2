"""Strategies for the tests of protocol/ and columnar/: messages that a revision can express, and frames with any
body."""

from __future__ import annotations

import struct

from hypothesis import settings
from hypothesis import strategies as st

from wallaroo_spark.protocol import U64_MAX, V3, Flags, FrameBuffer, Message, MessageRun, Revision

# The same examples on every run; and how long one takes says nothing on a machine that does other things as well.
steady = settings(derandomize=True, deadline=None)

EDGES = (0, 1, 2**31, 2**32, 2**63 - 1, 2**63, U64_MAX)
u64 = st.sampled_from(EDGES) | st.integers(0, U64_MAX)
i64 = st.sampled_from((0, 1, -1, 2**63 - 1, -(2**63))) | st.integers(-(2**63), 2**63 - 1)
DRAFT_FLAGS = (Flags.EPHEMERAL, Flags.BOUNDARY, Flags.EOS, Flags.UNSTABLE_REFERENCE)


def message_tag(revision: Revision) -> int:
    return revision.by_frame[Message].tag


def frame(revision: Revision, tag: int, body: bytes) -> bytes:
    """A frame with any body, sound or not."""
    return struct.pack(revision.byte_order + "IB", len(body) + 1, tag) + body


def stream_ids() -> st.SearchStrategy[int]:
    """Few enough that streams recur, with both ends of the range among them."""
    return st.sampled_from((0, 1, 7, 2**63, U64_MAX))


@st.composite
def messages(draw: st.DrawFn, revision: Revision, flags: st.SearchStrategy[Flags] | None = None) -> Message:
    """A message that the revision can say, as decoding gives it back."""
    stream_id, payload = draw(stream_ids()), draw(st.binary(max_size=40))
    keys = st.none() | st.binary(max_size=9)
    if revision is V3:
        return Message(stream_id, draw(u64), payload, Flags.NONE, draw(i64), draw(keys) or b"")
    bits = draw(flags if flags is not None else st.sets(st.sampled_from(DRAFT_FLAGS)).map(_joined))
    event_time = draw(st.none() | u64)
    key = draw(keys) if Flags.KEY in (revision.layout.known_flags or Flags.NONE) else None
    message_id = draw(u64) if revision.layout.ephemeral_has_id or not bits & Flags.EPHEMERAL else None
    if event_time is not None:
        bits |= Flags.EVENT_TIME
    if key is not None:
        bits |= Flags.KEY
    return Message(stream_id, message_id, None if bits & Flags.BOUNDARY else payload, bits, event_time, key)


def _joined(chosen: set[Flags]) -> Flags:
    bits = Flags.NONE
    for flag in chosen:
        bits |= flag
    return bits


def run_of(revision: Revision, frames: list[bytes], before: bytes = b"") -> MessageRun:
    """MESSAGE frames as the run that a frame buffer finds, behind whatever frames ``before`` holds."""
    buffer = FrameBuffer(8 << 20)
    buffer.feed(before + b"".join(frames))
    found = buffer.next(revision, message_tag(revision))
    while found is not None and not isinstance(found, MessageRun):
        found = buffer.next(revision, message_tag(revision))
    return found or MessageRun(revision, b"", [], 0)
