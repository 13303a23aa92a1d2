"""The sent and unacknowledged messages of a stream: the bookkeeping of references, without I/O.

It decides whether an id may be sent, which messages an ACK settles, and where a session resumes. There are three kinds:
:class:`~wallaroo_spark.connector.sending.resend_buffer.ResendBuffer` keeps the messages themselves;
:class:`SourcePosition` keeps the position in a source that can be read again; :class:`EphemeralMessages` keeps nothing.
Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice, pairwise
from operator import lt

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import U64_MAX, EncodedRun


class Due(StrEnum):
    """The kind of message that a stream sends next. Each kind waits for the ones above it."""

    REWIND = "none, until the reader of the source has gone back"
    RESEND = "messages of an earlier session, or those before a NACK"
    NEW = "messages that were never sent"
    END = "the end"
    NOTHING = "none, because the end was sent"


class UnacknowledgedMessages(ABC):
    """The messages of one stream that were sent and are not acknowledged."""

    ephemeral = False
    """Whether they are ephemeral."""
    _pending = Due.RESEND
    """The kind of messages that precedes new ones while :attr:`resend_pending` is true."""

    def __init__(self, name: str, *, increasing: bool, start: int | None = None) -> None:
        self.name = name
        """The stream's name, for error messages."""
        self.start = start
        """The reference to begin at if the worker has none."""
        self.reference: int | None = None
        """The last committed reference; None when there is none."""
        self.last: int | None = start
        """The id of the last message sent or committed; a message without an id gets the next one."""
        self.floor: int | None = start
        """Ids that the program gives must be above this: the last id sent, or the reference at which the stream was
        opened. It may be below ``reference``, because the worker may commit messages of an earlier process later.
        """
        self.ended = False
        """Whether the program has ended the stream."""
        self.end_written = False
        """Whether the end was sent in this session; it is sent again in each session until it is settled."""
        self.settled = False
        """Whether an ACK that came after the end has acknowledged everything."""
        self.begun_anew = False
        """Whether a worker no longer knew a reference that this process was told, and may have forgotten it."""
        self.kept = 0
        """Number of messages kept for resending."""
        self._increasing = increasing
        self._opened = False

    @property
    def resend_pending(self) -> bool:
        """Whether older messages must be resent before any new one."""
        return False

    @property
    def due(self) -> Due:
        """The kind of message that may be sent now, if the session and the credits allow it."""
        if self.resend_pending:
            return self._pending
        if not self.ended:
            return Due.NEW
        return Due.NOTHING if self.end_written else Due.END

    @property
    def done(self) -> bool:
        """Whether every message is acknowledged, and the end, if there is one, is sent."""
        return self.all_acknowledged and (not self.ended or self.end_written)

    @property
    @abstractmethod
    def all_acknowledged(self) -> bool:
        """Whether every sent message is acknowledged."""

    def next_id(self, wanted: int | None) -> int:
        """The id of the next message: ``wanted`` if it is allowed, or one above the last id.

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
        """The ids of the next ``count`` messages, as by :meth:`next_id`; ``wanted`` has ``count`` ids or is None.

        Raises the error that :meth:`next_id` would raise for one of them.
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

    @abstractmethod
    def append(self, run: EncodedRun) -> None:
        """Messages were sent for the first time; no resend may be pending."""

    @abstractmethod
    def acknowledge(self, ref: int) -> None:
        """An ACK has arrived: everything up to and including ``ref`` is committed."""

    @abstractmethod
    def resume(self, ref: int | None) -> None:
        """A session, or a NACK within one, resumes after ``ref``: uncommitted messages must be resent.

        Raises :class:`ReplayError` when they are no longer available.
        """

    def notify_reference(self, ref: int | None) -> int:
        """The reference for NOTIFY when the worker has committed up to ``ref``; 0 is the beginning."""
        return (self.start if ref is None else ref) or 0

    def describe(self) -> str:
        """The progress of the stream, for error messages."""
        return f"sent up to {describe_reference(self.last)}, acknowledged up to {describe_reference(self.reference)}"

    def validate(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        assert not self.settled or self.ended
        assert not self.end_written or self.ended

    def _following(self) -> int:
        """The id of a message without one: one above the last; the first is 1."""
        return 1 if self.last is None else self.last + 1

    def _open(self, ref: int | None) -> None:
        if not self._opened:
            self._opened, self.floor = True, ref

    def _not_above(self, wanted: int, floor: int) -> LocalProtocolError:
        return LocalProtocolError(
            f"stream {self.name!r}: message id {wanted} is not above {floor}, the last one sent or committed; "
            "send the messages after stream.reference, with increasing ids",
            code="ids-not-increasing",
            stream=self.name,
            id=wanted,
            last=floor,
        )

    def _check_width(self, wanted: int) -> None:
        if not 0 <= wanted <= U64_MAX:
            raise LocalProtocolError(
                f"stream {self.name!r}: message id {wanted} is not an unsigned 64-bit integer (0 to {U64_MAX})",
                code="id-out-of-range",
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


class SourcePosition(UnacknowledgedMessages):
    """The position in a source that can be read again: no message is kept, and a resume rewinds the reader.

    From :meth:`resume` until :meth:`take_rewind` a resend is pending, so that a reader that has not noticed the rewind
    cannot send from its old position.
    """

    _pending = Due.REWIND

    def __init__(self, name: str, *, increasing: bool = True) -> None:
        super().__init__(name, increasing=increasing)
        self._rewound = False

    @property
    def resend_pending(self) -> bool:
        """Whether the reader must still go back."""
        return self._rewound

    @property
    def all_acknowledged(self) -> bool:
        """Whether the last message that was sent is committed."""
        if self._rewound:
            return False
        if self._increasing and self.last is not None and self.reference is not None:
            return self.last <= self.reference
        return self.last == self.reference or self.last is None

    def append(self, run: EncodedRun) -> None:
        """Messages were sent."""
        self.last = self.floor = run.last

    def acknowledge(self, ref: int) -> None:
        """Advance the reference. The id may be one that was not sent again yet."""
        self._advance(ref)
        self._settle()

    def resume(self, ref: int | None) -> None:
        """Request that the reader goes back to ``ref``. The end must be sent again, too."""
        self.reference = ref
        self._rewound = True
        self.ended = self.end_written = self.settled = False

    def take_rewind(self) -> int | None:
        """Start reading after the returned reference; None is the beginning."""
        self._rewound = False
        self.last = self.floor = self.reference
        return self.reference


class EphemeralMessages(UnacknowledgedMessages):
    """The messages of an ephemeral stream: none is kept, and those in a lost connection are lost."""

    ephemeral = True

    @property
    def all_acknowledged(self) -> bool:
        """True, because ephemeral messages are never acknowledged."""
        return True

    def append(self, run: EncodedRun) -> None:
        """Messages were sent."""
        self.last = run.last

    def acknowledge(self, ref: int) -> None:
        """The worker has acknowledged the end; it acknowledges nothing else."""
        self._settle()

    def resume(self, ref: int | None) -> None:
        """Continue with new messages."""
        self.settled = self.settled or self.end_written
        self.end_written = False


def _increases(ids: Sequence[int]) -> bool:
    if isinstance(ids, range) and ids.step > 0:
        return True
    return all(map(lt, ids, islice(ids, 1, None)))


def describe_reference(reference: int | None) -> str:
    """A reference in an error message."""
    return "nothing" if reference is None else str(reference)
