"""Locates the fields of MESSAGE frames without a Python loop over messages or fields.

Each fixed field is one gather from a view of the buffer in which an integer begins at every byte. Optional fields shift
the fields behind them, so positions are arrays, too. When all messages carry the same flags, the presence of a field is
one truth value instead of an array, and the same expressions cost far less.

Source: ``docs/protocol.md#frame-bodies``; ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wallaroo_spark.protocol import Flags, Revision

Present = NDArray[np.bool_] | np.bool_
"""Whether a field is present: for each row, or for all rows at once."""
Positions = NDArray[np.int64]


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
    """Stream ids."""
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
