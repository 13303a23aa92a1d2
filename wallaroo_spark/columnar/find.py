"""Finds many MESSAGE frames at once, where :func:`~wallaroo_spark.protocol.framing.walk` steps from frame to frame.

Frames of one size are found by their headers, which are equally far apart. For frames of other sizes, all candidates
for a header are checked together: offsets where the tag occurs and the length in front of it leads to an offset inside
the data. In most data the end of each candidate's frame is the next candidate. Where it is not, a payload looks like a
header, and the chain of frames is followed past it. Where frames are long, or many payloads look like headers,
:func:`walk` is used, because it is cheaper.

Source: ``docs/protocol.md#framing``; ``docs/decisions/runs.md``.

Locates the fields of MESSAGE frames without a Python loop over messages or fields.

Each fixed field is one gather from a view of the buffer in which an integer begins at every byte. Optional fields shift
the fields behind them, so positions are arrays, too. When all messages carry the same flags, the presence of a field is
one truth value instead of an array, and the same expressions cost far less.

Source: ``docs/protocol.md#frame-bodies``; ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wallaroo_spark.protocol import Flags, Revision
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


Present = NDArray[np.bool_] | np.bool_
"""Whether a field is present: for each row, or for all rows at once."""


class Unsound(Exception):
    """The message at ``index`` is invalid. The messages in front of it have passed the checks so far."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


@dataclass(frozen=True, eq=False)
class Fields:
    """Positions of the fields of messages in ``data``, and the values of fixed-size fields; an entry per message."""

    data: bytes
    """The buffer."""
    flags: NDArray[np.uint16]
    """Flags; all 0 in v3."""
    stream_ids: NDArray[np.uint64]
    has_id: Present
    """Whether there is a message id."""
    message_ids: NDArray[np.uint64]
    """Message ids; 0 where there is none."""
    has_time: Present
    """Whether there is an event time."""
    event_times: NDArray[np.int64]
    """Event times in the connectors' unit; 0 where there is none."""
    has_key: Present
    """Whether there is a key."""
    key_starts: Positions
    """Start of the key, which ends at ``value_starts``."""
    value_starts: Positions
    """Start of the payload."""
    ends: Positions
    """End of the body, and with it of the payload."""
    boundary: Present
    """Whether the message is a BOUNDARY."""


def locate(data: bytes, starts: Positions, ends: Positions, revision: Revision) -> Fields:
    """Check every message and locate its fields. Bodies are from ``starts`` to ``ends``. Raises :class:`Unsound`."""
    layout, count = revision.layout, len(starts)
    read = _Reader(data, starts, revision.byte_order)
    flags, at = np.zeros(count, dtype=np.uint16), _ZERO
    if layout.known_flags is not None:
        _refuse(ends - starts < 2)
        flags, at = read.integers(at, "u2"), at + 2
        _refuse(any_flag(flags, 0xFFFF & ~int(layout.known_flags)))
    form: Any = flags[0] if count and (flags == flags[0]).all() else flags
    always = np.True_
    has_id = always if layout.ephemeral_has_id else ~any_flag(form, Flags.EPHEMERAL)
    has_time = always if layout.known_flags is None else any_flag(form, Flags.EVENT_TIME)
    has_key = always if layout.known_flags is None else any_flag(form, Flags.KEY)
    ids_at = at + 8
    times_at = ids_at + has_id * np.int64(8)
    keys_at = times_at + has_time * np.int64(8)
    key_starts = starts + (keys_at + has_key * np.int64(2))
    _refuse(ends < key_starts)
    value_starts = key_starts
    if has_key.any():
        key_sizes = read.where(has_key, keys_at, "u2").astype(np.int64)
        value_starts = key_starts + key_sizes
        _refuse(ends < value_starts)
    boundary = any_flag(form, Flags.BOUNDARY)
    _refuse(boundary & (ends > value_starts))
    event_times = read.where(has_time, times_at, "u8").view(np.int64)
    if layout.known_flags is None:
        # Without flags, an event time of 0 and an empty key mean that there is none.
        has_time, has_key = event_times != 0, value_starts > key_starts
    return Fields(
        data,
        flags,
        read.integers(at, "u8"),
        has_id,
        read.where(has_id, ids_at, "u8"),
        has_time,
        event_times,
        has_key,
        key_starts,
        value_starts,
        ends,
        boundary,
    )


_ZERO = np.int64(0)


def any_flag(flags: Any, bits: int) -> Any:
    """Whether at least one of these flags is set: for each row, or for a single value."""
    return (flags & np.uint16(bits)) != 0


def stride_of(positions: Positions) -> int | None:
    """The distance between positions; None where it varies, 0 for a single position."""
    if len(positions) < 2:
        return 0
    stride = int(positions[1] - positions[0])
    # Most varying positions are recognised by the first and last one, which costs nothing.
    even = positions[-1] - positions[0] == (len(positions) - 1) * stride and (np.diff(positions) == stride).all()
    return stride if even else None


def _refuse(unsound: NDArray[np.bool_]) -> None:
    if unsound.any():
        raise Unsound(int(unsound.argmax()))


class _Reader:
    """Reads integers from bodies that begin at ``starts``. Evenly spaced bodies need no gather."""

    def __init__(self, data: bytes, starts: Positions, byte_order: str) -> None:
        self._data = data
        self._starts = starts
        self._byte_order = byte_order
        self._stride = stride_of(starts) or 0

    def integers(self, shift: Any, code: str, rows: Present | None = None) -> NDArray[Any]:
        """The integers at offset ``shift`` in each body, or in the bodies of ``rows``, in native byte order."""
        kind = np.dtype(self._byte_order + code)
        if not len(self._starts):
            return np.zeros(0, dtype=kind.newbyteorder("="))
        if self._stride and rows is None and not np.ndim(shift):
            offset = int(self._starts[0] + shift)
            found = np.ndarray(len(self._starts), kind, buffer=self._data, offset=offset, strides=(self._stride,))
            return found.astype(kind.newbyteorder("="))
        every_byte = np.ndarray(len(self._data) - kind.itemsize + 1, dtype=kind, buffer=self._data, strides=(1,))
        at = self._starts + shift
        gathered: NDArray[Any] = every_byte[at if rows is None else at[rows]]
        return gathered.astype(kind.newbyteorder("="), copy=False)

    def where(self, present: Present, shift: Any, code: str) -> NDArray[Any]:
        """:meth:`integers` for the rows that have the field, and 0 for the others."""
        if present.all():
            return self.integers(shift, code)
        found = np.zeros(len(self._starts), dtype=code)
        if present.any():
            found[present] = self.integers(shift, code, present)
        return found
