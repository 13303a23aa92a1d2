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

    @property
    def repeating(self) -> bool:
        """Whether a sender has still to repeat what it sent before; what follows is told by what it repeats."""

    def select(self, ids: Ids, *, rising: bool = False) -> Mask | None:
        """Which of these messages are new; None when all are. They count as accepted from here on.

        ``rising`` is whether each id is known to be above the one before it.
        """

    def resume(self, notified: int, committed: int | None) -> None:
        """A NOTIFY: sending starts again, behind ``committed``; ``notified`` is what the NOTIFY says."""

    def commit(self, ref: int) -> None:
        """Everything up to and including ``ref`` is committed."""

    def rewind(self, ref: int | None) -> None:
        """Nothing behind ``ref``, which is committed or still held, counts as accepted any more."""


class IncreasingIds:
    """A message whose id is not above the last one accepted is a replay."""

    repeating = False

    def __init__(self, last: int | None = None) -> None:
        self.last = last

    def select(self, ids: Ids, *, rising: bool = False) -> Mask | None:
        """See :class:`ReferenceRule`."""
        if not len(ids):
            return None
        first_is_new = self.last is None or int(ids[0]) > self.last
        if first_is_new and (rising or bool(np.all(ids[1:] > ids[:-1]))):
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
    recognised and skipped. An id equal to the one before it is that message once more, such as the boundary that closes
    a stream. Raises :class:`RemoteProtocolError` when the repetition differs, and when an id comes back that is still
    needed to tell where the query stands.
    """

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self._committed = last
        self._accepted: deque[int] = deque()
        self._held: set[int] = set()
        self._replay: deque[int] = deque()
        self._skip_to: int | None = None
        self._echo: int | None = None

    @property
    def repeating(self) -> bool:
        """See :class:`ReferenceRule`."""
        return bool(self._replay) or self._skip_to is not None

    def select(self, ids: Ids, *, rising: bool = False) -> Mask | None:
        """See :class:`ReferenceRule`."""
        values: list[int] = ids.tolist()
        start = self._skip(values)
        start += self._repeat(values[start:])
        fresh = [at for at in range(start, len(values)) if self._accept(values[at])]
        if len(fresh) == len(values):
            return None
        new = np.zeros(len(ids), dtype=np.bool_)
        new[fresh] = True
        return new

    def _accept(self, value: int) -> bool:
        if value == self.last:
            return False
        if value in self._held or value == self._committed:
            reason = f"message {value} was sent before and is still needed to resume from"
            raise broken(
                Fault.REPLAY_DIFFERS, f"{reason}; opaque ids must differ, or be replayed in order after NOTIFY"
            )
        self._accepted.append(value)
        self._held.add(value)
        self.last = value
        return True

    def _skip(self, values: list[int]) -> int:
        echo, self._echo = self._echo, None if values else self._echo
        if self._skip_to is None:
            return int(bool(values) and values[0] == echo)
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
        """See :class:`ReferenceRule`. A sender behind ``committed`` is skipped up to and including it."""
        self._replay = deque(self._accepted)
        self._skip_to = self._echo = None
        if notified in self._held:
            while self._replay.popleft() != notified:
                pass
            self._echo = notified
        elif notified == committed:
            self._echo = notified
        else:
            self._skip_to = committed

    def commit(self, ref: int) -> None:
        """See :class:`ReferenceRule`. Where ``ref`` is not held, what is held is being sent once more, up to it."""
        if ref == self._committed:
            return
        self._committed = ref
        if ref not in self._held:
            self._forget(ref)
            self._skip_to = ref
            return
        while (value := self._accepted.popleft()) != ref:
            self._held.discard(value)
        self._held.discard(ref)

    def rewind(self, ref: int | None) -> None:
        """See :class:`ReferenceRule`. Where ``ref`` is not held, everything held is forgotten."""
        if ref not in self._held:
            self._forget(ref)
            return
        self._replay.clear()
        self._skip_to = None
        while self._accepted[-1] != ref:
            self._held.discard(self._accepted.pop())
        self.last = ref

    def _forget(self, last: int | None) -> None:
        self._accepted.clear()
        self._held.clear()
        self._replay.clear()
        self._skip_to = self._echo = None
        self.last = last


def rule_for(increasing: bool, last: int | None) -> ReferenceRule:
    """The rule of a stream whose ids increase, or are opaque."""
    return IncreasingIds(last) if increasing else OpaqueIds(last)
