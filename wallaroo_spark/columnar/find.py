"""Finds many MESSAGE frames at once, where :func:`~wallaroo_spark.protocol.framing.walk` steps from frame to frame.

Frames of one size are found by their headers, which are equally far apart. For frames of other sizes, all candidates
for a header are checked together: offsets where the tag occurs and the length in front of it leads to an offset inside
the data. In most data the end of each candidate's frame is the next candidate. Where it is not, a payload looks like a
header, and the chain of frames is followed past it. Where frames are long, or many payloads look like headers,
:func:`walk` is used, because it is cheaper.

Source: ``docs/protocol.md#framing``; ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from wallaroo_spark.protocol.framing import HEADER_BYTES, LENGTH_BYTES, FrameRules, walk

Positions = NDArray[np.int64]

LOOK = 24
"""Number of frames that are walked before numpy is used, and whose sizes decide how.

A walk of 24 frames costs about as much CPU time as one call of :func:`_alike` (both 5 to 6 µs).
"""
STRIDE_LIMIT = 600
"""From this average frame size on, in bytes, frames are walked.

In a microbenchmark with 2 MiB of frames of mixed sizes, :func:`_chained` took 0.4 times the CPU time of :func:`walk` at
50 bytes and 0.6 at 100, about as much from 200 to 800, and 3.5 times at 1,200.
"""
WALK = 1024
"""Number of long frames that are walked before the sizes are checked again.

A choice: 40 times ``LOOK``, so that checking costs little where it does not help.
"""


def find_messages(data: bytes, at: int, rules: FrameRules) -> tuple[Positions, int]:
    """Return the starts of the bodies of the complete MESSAGE frames from offset ``at`` on, and the last body's end."""
    found: list[Positions] = []
    most = LOOK
    while True:
        starts, end = walk(data, at, rules, most)
        found.append(np.array(starts, dtype=np.int64))
        begin, at = at, end
        if len(starts) < most:
            return found[0] if len(found) == 1 else np.concatenate(found), at
        short, most = (at - begin) // most < STRIDE_LIMIT, WALK
        more = _alike(data, at, rules, starts) if _even(starts) else _chained(data, at, rules) if short else None
        if more is not None and len(more[0]):
            found.append(more[0])
            at, most = more[1], LOOK


def _even(starts: list[int]) -> bool:
    return starts[-1] - starts[0] == (len(starts) - 1) * (starts[1] - starts[0])


def _alike(data: bytes, at: int, rules: FrameRules, starts: list[int]) -> tuple[Positions, int]:
    """The frames from ``at`` on that have the size of the frames at ``starts``."""
    stride = starts[1] - starts[0]
    count = (len(data) - at) // stride
    if not count:
        return np.empty(0, dtype=np.int64), at
    lengths = np.ndarray(count, dtype=f"{rules.byte_order}u4", buffer=data, offset=at, strides=(stride,))
    tags = np.ndarray(count, dtype=np.uint8, buffer=data, offset=at + LENGTH_BYTES, strides=(stride,))
    same = (lengths == stride - LENGTH_BYTES) & (tags == rules.tag)
    if not same.all():
        count = int(same.argmin())
    first = at + HEADER_BYTES
    return np.arange(first, first + count * stride, stride, dtype=np.int64), at + count * stride


def _chained(data: bytes, at: int, rules: FrameRules) -> tuple[Positions, int] | None:
    """The frames from ``at`` on, of any size; None when too many candidates are not headers."""
    size = len(data)
    heads = np.flatnonzero(np.frombuffer(data, dtype=np.uint8)[at + LENGTH_BYTES :] == rules.tag) + at
    every_byte = np.ndarray(size - LENGTH_BYTES + 1, dtype=f"{rules.byte_order}u4", buffer=data, strides=(1,))
    lengths = every_byte[heads].astype(np.int64)
    ends = heads + LENGTH_BYTES + lengths
    possible = (ends <= size) & (lengths > 0) & (lengths <= rules.max_frame_bytes)
    heads, ends = heads[possible], ends[possible]
    if not len(heads) or heads[0] != at:
        return np.empty(0, dtype=np.int64), at
    breaks = np.flatnonzero(ends[:-1] != heads[1:])
    if not len(breaks):
        return heads + HEADER_BYTES, int(ends[-1])
    if len(breaks) > len(heads) // 16:
        return None
    return _followed(heads, ends, breaks.tolist())


def _followed(heads: Positions, ends: Positions, breaks: list[int]) -> tuple[Positions, int]:
    """Follow the chain of frames from the first header on. ``breaks`` are indexes where the next candidate is not its
    header.
    """
    pieces, at, count = [], 0, len(heads)
    breaks.append(count - 1)
    while True:
        last = breaks[bisect_left(breaks, at)]
        pieces.append(heads[at : last + 1])
        end = ends[last]
        at = int(np.searchsorted(heads, end))
        if at == count or heads[at] != end:
            return np.concatenate(pieces) + HEADER_BYTES, int(end)
