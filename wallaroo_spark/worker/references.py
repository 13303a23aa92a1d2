"""Which messages of a stream are new: the point-of-reference rules, with increasing and with opaque ids.

Ids come in columns (numpy, uint64), a run at a time.
Source: ``protocol.md``, section What a point of reference promises here.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wallaroo_spark.protocol import Fault, broken

Ids = NDArray[np.uint64]
Mask = NDArray[np.bool_]


class ReferenceRule(Protocol):
    """Tells new messages of one stream from replayed ones."""

    def select(self, ids: Ids) -> Mask | None:
        """Which of these messages are new; None when all are. They count as accepted from here on."""

    def resume(self, notified: int, committed: int | None) -> None:
        """A NOTIFY: sending starts again, behind ``committed``; ``notified`` is what the NOTIFY says."""

    def commit(self, ref: int) -> None:
        """Everything up to and including ``ref`` is committed."""

    def rewind(self, ref: int | None) -> None:
        """Nothing behind ``ref`` counts as accepted any more."""


class IncreasingIds:
    """A message whose id is not above the last one accepted is a replay."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last

    def select(self, ids: Ids) -> Mask | None:
        """See :class:`ReferenceRule`."""
        if not len(ids):
            return None
        first_is_new = self.last is None or int(ids[0]) > self.last
        if first_is_new and bool(np.all(ids[1:] > ids[:-1])):
            self.last = int(ids[-1])
            return None
        highest = np.maximum.accumulate(ids)
        new = np.empty(len(ids), dtype=np.bool_)
        new[0] = True
        new[1:] = ids[1:] > highest[:-1]
        if self.last is not None:
            new &= ids > np.uint64(self.last)
        self.last = int(highest[-1]) if self.last is None else max(self.last, int(highest[-1]))
        return new

    def resume(self, notified: int, committed: int | None) -> None:
        """Nothing to do: what is accepted stays accepted, whoever sends it again."""

    def commit(self, ref: int) -> None:
        """See :class:`ReferenceRule`."""
        self.last = ref if self.last is None else max(self.last, ref)

    def rewind(self, ref: int | None) -> None:
        """See :class:`ReferenceRule`."""
        self.last = ref


class OpaqueIds:
    """Ids are compared for equality alone, so the order in which they were first sent tells what a replay repeats.

    After a resume the sender repeats, in the same order, what it sent behind the committed reference; that much is
    recognised and skipped. Raises :class:`RemoteProtocolError` when the repetition differs.
    """

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self._accepted: deque[int] = deque()
        self._replay: deque[int] = deque()
        self._skip_to: int | None = None

    def select(self, ids: Ids) -> Mask | None:
        """See :class:`ReferenceRule`."""
        values: list[int] = ids.tolist()
        start = self._skip(values)
        start += self._repeat(values[start:])
        if start < len(values) and values[start] == self.last:
            # A closing boundary repeats the id of the message before it.
            start += 1
        self._accepted.extend(values[start:])
        if values[start:]:
            self.last = values[-1]
        if start == 0:
            return None
        new = np.ones(len(ids), dtype=np.bool_)
        new[:start] = False
        return new

    def _skip(self, values: list[int]) -> int:
        if self._skip_to is None:
            return 0
        if self._skip_to not in values:
            return len(values)
        start = values.index(self._skip_to) + 1
        self._skip_to = None
        return start

    def _repeat(self, values: list[int]) -> int:
        for at, value in enumerate(values):
            if not self._replay:
                return at
            expected = self._replay.popleft()
            if value != expected:
                raise broken(
                    Fault.REPLAY_DIFFERS,
                    f"message {value} was sent where {expected} was sent before; opaque ids must be replayed in order",
                )
        return len(values)

    def resume(self, notified: int, committed: int | None) -> None:
        """See :class:`ReferenceRule`."""
        self._replay = deque(self._accepted)
        self._skip_to = committed if notified == 0 and committed else None

    def commit(self, ref: int) -> None:
        """See :class:`ReferenceRule`."""
        if ref not in self._accepted:
            return
        while self._accepted.popleft() != ref:
            pass

    def rewind(self, ref: int | None) -> None:
        """See :class:`ReferenceRule`. Where ``ref`` is not held, everything held is forgotten."""
        self._replay.clear()
        self._skip_to = None
        if ref is not None and ref in self._accepted:
            while self._accepted[-1] != ref:
                self._accepted.pop()
        else:
            self._accepted.clear()
        self.last = ref


def rule_for(message_ids: str, last: int | None) -> ReferenceRule:
    """The rule of the option ``messageIds``: ``increasing`` or ``opaque``."""
    return OpaqueIds(last) if message_ids == "opaque" else IncreasingIds(last)
