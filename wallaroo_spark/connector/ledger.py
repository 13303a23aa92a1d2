"""What every kind of ledger has in common: which id may be sent, what an ACK settles, where a session goes on.

Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from operator import lt

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import U64_MAX, EncodedRun


class Ledger:
    """What a stream has sent and the worker has not acknowledged.

    ``reference`` is the last committed reference, None when there is none; ``start`` is what stands in for it as long
    as the worker has none. ``last`` is the id that the next one of ours follows. A stream that ``ended`` writes its end
    in every session (``end_written``) until an ACK that came after it has ``settled`` it.

    What a program sends must exceed the ``floor``: what it sent before, or what the stream had when it was opened. That
    may be less than ``reference``, for the worker may still commit what an earlier process of the program has sent.
    """

    def __init__(self, name: str, *, increasing: bool, start: int | None = None) -> None:
        self.name = name
        self.start = start
        self.reference: int | None = None
        self.last: int | None = start
        self.floor: int | None = start
        self.ended = False
        self.end_written = False
        self.settled = False
        self._increasing = increasing
        self._opened = False

    @property
    def kept(self) -> int:
        """Messages kept for sending again."""
        return 0

    @property
    def behind(self) -> bool:
        """Whether older messages have to be sent before any new one."""
        return False

    @property
    def done(self) -> bool:
        """Whether all that was sent is acknowledged, and the end, if there is one, is on its way."""
        return self.all_acknowledged and (not self.ended or self.end_written)

    @property
    def all_acknowledged(self) -> bool:
        """Whether no message that was sent is without its acknowledgement."""
        raise NotImplementedError

    def next_id(self, wanted: int | None) -> int:
        """The id of the next message: the wanted one if it is allowed, else one above the last.

        Raises :class:`LocalProtocolError` for an id that is not above the floor of an increasing-id stream, and for
        one that is not an unsigned 64-bit integer.
        """
        if wanted is None:
            wanted = self._following()
        elif self._increasing and self.floor is not None and wanted <= self.floor:
            raise self._not_above(wanted, self.floor)
        self._check_width(wanted)
        return wanted

    def next_ids(self, wanted: Sequence[int] | None, count: int) -> Sequence[int]:
        """The ids of the next ``count`` messages, under the rules of :meth:`next_id`; ``wanted`` is that many or None.

        Raises what :meth:`next_id` would raise for one of them in its turn.
        """
        if wanted is None:
            first = self.next_id(None)
            self._check_width(first + count - 1)
            return range(first, first + count)
        self.next_id(wanted[0])
        if not self._increasing:
            self._check_width(min(wanted))
            self._check_width(max(wanted))
        elif not _increases(wanted):
            raise next(self._not_above(other, one) for one, other in pairwise(wanted) if other <= one)
        self._check_width(wanted[-1])
        return wanted

    def _following(self) -> int:
        """The id of a message that is given none: the one after the last; the first is 1."""
        return 1 if self.last is None else self.last + 1

    def append(self, run: EncodedRun) -> None:
        """Messages were written."""
        raise NotImplementedError

    def acknowledge(self, ref: int) -> None:
        """An ACK: everything up to and including ``ref`` is committed."""
        raise NotImplementedError

    def resume(self, ref: int | None) -> None:
        """A session, or a NACK within one, goes on behind ``ref``: what is not committed is to be sent again.

        Raises :class:`ReplayError` when it cannot be had.
        """
        raise NotImplementedError

    def notified(self, ref: int | None) -> int:
        """The reference that a NOTIFY says, where the worker has committed up to ``ref``; 0 is the beginning."""
        return (self.start if ref is None else ref) or 0

    def state(self) -> str:
        """Where the stream stands, for messages to people."""
        return f"sent up to {shown(self.last)}, acknowledged up to {shown(self.reference)}"

    def validate(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        assert not self.settled or self.ended
        assert not self.end_written or self.ended

    def _open(self, ref: int | None) -> None:
        if not self._opened:
            self._opened, self.floor = True, ref

    def _not_above(self, wanted: int, floor: int) -> LocalProtocolError:
        return LocalProtocolError(
            f"stream {self.name!r}: message id {wanted} is not above {floor}, the last one sent or committed; "
            "send what follows stream.reference, with ids that increase",
            stream=self.name,
            id=wanted,
            last=floor,
        )

    def _check_width(self, wanted: int) -> None:
        if not 0 <= wanted <= U64_MAX:
            raise LocalProtocolError(
                f"stream {self.name!r}: message id {wanted} is not an unsigned 64-bit integer (0 to {U64_MAX})",
                stream=self.name,
                id=wanted,
            )

    def _advance(self, ref: int) -> None:
        if self._increasing and self.reference is not None:
            ref = max(ref, self.reference)
        self.reference = ref

    def _settle(self) -> None:
        if self.end_written and self.all_acknowledged:
            self.settled = True


def _increases(ids: Sequence[int]) -> bool:
    if isinstance(ids, range) and ids.step > 0:
        return True
    return all(map(lt, ids, islice(ids, 1, None)))


def shown(reference: int | None) -> str:
    """A reference as people are told it."""
    return "nothing" if reference is None else str(reference)
