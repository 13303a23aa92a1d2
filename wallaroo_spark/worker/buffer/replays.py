"""The rules that tell new messages of a stream from replayed ones, for increasing and for opaque ids.

Ids are columns (numpy, uint64), one for each run.
Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from wallaroo_spark.protocol import Fault, Flags, broken

Ids = NDArray[np.uint64]
FlagsOf = NDArray[np.uint16]
Mask = NDArray[np.bool_]


class NotIncreasing(Exception):
    """Message ``message_id``, at index ``at`` of a column, was sent after ``highest`` and is not a replay."""

    def __init__(self, at: int, message_id: int, highest: int) -> None:
        super().__init__(at, message_id, highest)
        self.at = at
        self.message_id = message_id
        self.highest = highest


class IncreasingIds:
    """The rule for increasing ids: a message whose id is not above the last accepted id is a replay, until the sender
    has repeated all accepted messages.

    From then on ids must increase, because a message with a lower id would be lost without notice. Messages may share
    an id if all of them but the last are UNSTABLE_REFERENCE, and a BOUNDARY may repeat the id before it.

    A sender that ``may_go_back`` may repeat messages at any time. Wallaroo's SDK does so without a NOTIFY, when an ACK
    has a lower reference than an earlier ACK. Every message whose id is not above the last one is then a replay.
    """

    repeating = False
    """Whether the sender still has to repeat messages, so that later new messages can be recognised."""

    def __init__(self, last: int | None = None, *, may_go_back: bool = False) -> None:
        self.last = last
        self._may_go_back = may_go_back
        self._replay_to = last
        self._repeated = last is None
        self._sent_unstable = False

    def select(self, ids: Ids, flags: FlagsOf | None = None, *, rising: bool = False) -> Mask | None:
        """Return a mask of the messages that are new, or None when all are new. They are accepted from now on.

        ``rising`` says that each id is known to be above the id before it. Raises :class:`NotIncreasing`, after which
        the rule is unchanged.
        """
        if not len(ids):
            return None
        first_is_new = self.last is None or int(ids[0]) > self.last
        if first_is_new and (rising or bool(np.all(ids[1:] > ids[:-1]))):
            self._sent(ids, flags)
            return None
        if flags is None:
            flags = np.zeros(len(ids), dtype=np.uint16)
        # The highest id before each message. Before the first message of a stream there is none: every id is above.
        none = self.last is None
        highest = np.maximum.accumulate(np.append(np.uint64(self.last or 0), ids))[:-1]
        above, same = ids > highest, ids == highest
        if none:
            above[0], same[0] = True, False
        follows_unstable = np.append(self._sent_unstable, flags[:-1] & np.uint16(Flags.UNSTABLE_REFERENCE) != 0)
        if not self._may_go_back:
            self._check(ids, highest, above | (same & (follows_unstable | (flags & np.uint16(Flags.BOUNDARY) != 0))))
        if self._replay_to is not None:
            # Every message that was accepted in earlier sessions has been repeated now.
            same &= highest > np.uint64(self._replay_to)
        # A final boundary with the id of the last message is not a message of its own.
        end = np.uint16(Flags.BOUNDARY | Flags.EOS)
        new: Mask = above | (same & follows_unstable & (flags & end != end))
        self._sent(ids, flags)
        return new

    def _check(self, ids: Ids, highest: Ids, sound: Mask) -> None:
        repeated = np.full(len(ids), self._repeated)
        if not self._repeated:
            assert self._replay_to is not None
            repeated[1:] = np.logical_or.accumulate(ids >= np.uint64(self._replay_to))[:-1]
        wrong = np.flatnonzero(repeated & ~sound)
        if len(wrong):
            at = int(wrong[0])
            raise NotIncreasing(at, int(ids[at]), int(highest[at]))

    def _sent(self, ids: Ids, flags: FlagsOf | None) -> None:
        highest = int(ids.max())
        self._repeated = self._repeated or self._replay_to is None or highest >= self._replay_to
        self._sent_unstable = flags is not None and bool(int(flags[-1]) & Flags.UNSTABLE_REFERENCE)
        self.last = highest if self.last is None else max(self.last, highest)

    def accepted(self, highest: int) -> None:
        """Record that new messages up to ``highest`` are accepted, without :meth:`select`, because none is a replay."""
        self.last, self._repeated, self._sent_unstable = highest, True, False

    def resume(self, notified: int, committed: int | None) -> None:
        """Handle a NOTIFY: the sender starts again behind ``committed``; ``notified`` is the NOTIFY's reference.

        The sender repeats the accepted messages first; they stay accepted.
        """
        self._replay_to, self._repeated, self._sent_unstable = self.last, self.last is None, False

    def commit(self, ref: int) -> None:
        """Record that all messages up to and including ``ref`` are committed.

        The sender may still send committed messages that were never accepted here.
        """
        if self.last is None or ref > self.last:
            self.rewind(ref)

    def rewind(self, ref: int | None) -> None:
        """Forget all accepted messages behind ``ref``, which is committed or still held."""
        self.last = ref
        self.resume(0, ref)


class OpaqueIds:
    """The rule for opaque ids, which are only compared for equality: the order of sending tells which messages are
    replayed.

    After a resume the sender repeats, in the same order, the messages that it sent behind the committed reference.
    They are recognised and skipped. An id equal to the id before it is the same message again, such as the boundary
    that closes a stream. Raises :class:`RemoteProtocolError` when the repetition differs, and when an id is used again
    that is still needed to locate the query's position.
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
        """See :class:`IncreasingIds`."""
        return bool(self._replay) or self._skip_to is not None

    def select(self, ids: Ids, flags: FlagsOf | None = None, *, rising: bool = False) -> Mask | None:
        """See :class:`IncreasingIds`. After a :class:`RemoteProtocolError` the caller must call :meth:`rewind`."""
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
        """See :class:`IncreasingIds`. Messages up to and including ``committed`` are skipped if they are sent again."""
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
        """See :class:`IncreasingIds`. If ``ref`` is not held, the repeated messages up to it are skipped."""
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
        """See :class:`IncreasingIds`. If ``ref`` is not held, all held ids are forgotten."""
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


ReferenceRule = IncreasingIds | OpaqueIds


def rule_for(increasing: bool, last: int | None, *, may_go_back: bool = False) -> ReferenceRule:
    """The rule for a stream with increasing or with opaque ids; ``may_go_back`` is for :class:`IncreasingIds`."""
    return IncreasingIds(last, may_go_back=may_go_back) if increasing else OpaqueIds(last)
