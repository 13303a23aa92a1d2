"""What a stream has sent and the worker has not acknowledged: the bookkeeping of references, without I/O.

A ledger answers three questions: may this id be sent, what does an ACK settle, and what has to be sent again when a
session begins at some reference. :class:`Outbox` keeps the messages themselves, :class:`Trail` only where it is in a
source that can be read again, :class:`Fleeting` nothing, for EPHEMERAL messages.
Source: ``protocol.md``, section What a point of reference promises here; ``seeds/000``, Points of Reference.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from wallaroo_spark.errors import LocalProtocolError, ReplayError
from wallaroo_spark.protocol import U64_MAX, Message

OVERHEAD_BYTES = 256
"""What a kept message costs beside its payload and key: objects and their places, rounded up."""


@dataclass
class Budget:
    """Bytes that all outboxes of a connector may keep together. A message always fits where nothing else is kept."""

    limit: int
    held: int = 0

    def admits(self, size: int) -> bool:
        """Whether ``size`` more bytes may be kept."""
        return self.held == 0 or self.held + size <= self.limit


def cost(payload: bytes | None, key: bytes | None) -> int:
    """The bytes that keeping a message is counted as."""
    return OVERHEAD_BYTES + len(payload or b"") + len(key or b"")


class Ledger:
    """What all three kinds have in common.

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
        """The id of the next message: the wanted one if it is allowed, else the one after the last; the first is 1.

        Raises :class:`LocalProtocolError` for an id that is not above the floor of an increasing-id stream, and for
        one that is not an unsigned 64-bit integer.
        """
        if wanted is None:
            wanted = 1 if self.last is None else self.last + 1
        elif self._increasing and self.floor is not None and wanted <= self.floor:
            raise LocalProtocolError(
                f"stream {self.name!r}: message id {wanted} is not above {self.floor}, the last one sent or committed; "
                "send what follows stream.reference, with ids that increase",
                stream=self.name,
                id=wanted,
                last=self.floor,
            )
        if not 0 <= wanted <= U64_MAX:
            raise LocalProtocolError(
                f"stream {self.name!r}: message id {wanted} is not an unsigned 64-bit integer (0 to {U64_MAX})",
                stream=self.name,
                id=wanted,
            )
        return wanted

    def append(self, message: Message) -> None:
        """A message was written."""
        raise NotImplementedError

    def acknowledge(self, ref: int) -> None:
        """An ACK: everything up to and including ``ref`` is committed."""
        raise NotImplementedError

    def resume(self, ref: int | None) -> None:
        """A session, or a NACK within one, goes on behind ``ref``: what is not committed is to be sent again.

        Raises :class:`ReplayError` when it cannot be had.
        """
        raise NotImplementedError

    def state(self) -> str:
        """Where the stream stands, for messages to people."""
        return f"sent up to {_shown(self.last)}, acknowledged up to {_shown(self.reference)}"

    def validate(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        assert not self.settled or self.ended
        assert not self.end_written or self.ended

    def _open(self, ref: int | None) -> None:
        if not self._opened:
            self._opened, self.floor = True, ref

    def _advance(self, ref: int) -> None:
        if self._increasing and self.reference is not None:
            ref = max(ref, self.reference)
        self.reference = ref

    def _settle(self) -> None:
        if self.end_written and self.all_acknowledged:
            self.settled = True


class Outbox(Ledger):
    """Keeps every message until it is acknowledged.

    Its bytes are counted in ``budget``; whether a message fits there is for the caller to ask first.
    """

    def __init__(self, name: str, budget: Budget, *, increasing: bool = True, start: int | None = None) -> None:
        super().__init__(name, increasing=increasing, start=start)
        self._budget = budget
        self._bytes = 0
        self._sent: deque[Message] = deque()
        self._again: deque[Message] = deque()
        self._early: int | None = None

    @property
    def kept(self) -> int:
        """Messages that are not acknowledged."""
        return len(self._sent) + len(self._again)

    @property
    def behind(self) -> bool:
        """Whether messages of an earlier session have to be sent again first."""
        return bool(self._again)

    @property
    def all_acknowledged(self) -> bool:
        """Whether nothing is kept."""
        return not self._sent and not self._again

    def append(self, message: Message) -> None:
        """A message was written for the first time; nothing may be waiting to be sent again.

        One that is committed already, since an earlier process had sent it too, is not kept.
        """
        self.floor = message.message_id
        if self._increasing and self.reference is not None and (message.message_id or 0) <= self.reference:
            return
        self._sent.append(message)
        size = cost(message.payload, message.key)
        self._bytes += size
        self._budget.held += size
        self.last = message.message_id
        if not self._increasing and self._early == message.message_id is not None:
            self.acknowledge(message.message_id)

    def acknowledge(self, ref: int) -> None:
        """Forget what is committed. An ACK may be for messages that this session has not written again yet."""
        if self._increasing:
            self._commit_to(ref)
        elif self._holds(ref):
            self._forget_through(ref)
            self.reference, self._early = ref, None
        else:
            # Of what an earlier process has sent, or acknowledged before: known once the same is sent again.
            self._early = ref
        self._settle()

    def resume(self, ref: int | None) -> None:
        """Forget what is committed and line up the rest for sending again, in order, before anything new."""
        ref = self.start if ref is None else ref
        self._open(ref)
        self._early = None
        if self._increasing:
            self._resume_increasing(ref)
        else:
            self._resume_opaque(ref)
        self._sent.extend(self._again)
        self._sent, self._again = deque(), self._sent
        self.end_written = False

    def next_again(self) -> Message | None:
        """The next message to send again; :meth:`sent_again` once it is written."""
        return self._again[0] if self._again else None

    def sent_again(self) -> None:
        """What :meth:`next_again` returned was written."""
        self._sent.append(self._again.popleft())

    def clear(self) -> None:
        """Forget everything and give the bytes back."""
        self._budget.held -= self._bytes
        self._bytes = 0
        self._sent.clear()
        self._again.clear()

    def state(self) -> str:
        """Where the stream stands, for messages to people."""
        return f"{self.kept} messages unacknowledged, {super().state()}"

    def validate(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        super().validate()
        held = [*self._sent, *self._again]
        assert self._bytes == sum(cost(m.payload, m.key) for m in held)
        assert self._budget.held >= self._bytes >= 0
        ids = [m.message_id for m in held if m.message_id is not None]
        assert len(ids) == len(held)
        if self._increasing and ids:
            assert ids == sorted(set(ids))
            assert self.reference is None or self.reference < ids[0]
            assert self.last is not None
            assert self.last >= ids[-1]

    def _resume_increasing(self, ref: int | None) -> None:
        if self.reference is not None and (ref is None or ref < self.reference):
            raise self._gone(ref)
        if ref is not None:
            self._commit_to(ref)

    def _commit_to(self, ref: int) -> None:
        self._forget_to(ref)
        self._advance(ref)
        self.last = ref if self.last is None else max(self.last, ref)

    def _resume_opaque(self, ref: int | None) -> None:
        if ref is not None and self._holds(ref):
            self._forget_through(ref)
        elif ref != self.reference and (self.kept or self.reference is not None):
            raise self._gone(ref)
        elif self.last is None:
            self.last = ref
        self.reference = ref

    def _gone(self, ref: int | None) -> ReplayError:
        first = self._sent or self._again
        held = first[0].message_id if first else None
        where = "from the beginning" if ref is None else f"behind reference {ref}"
        return ReplayError(
            f"stream {self.name!r} is wanted again {where}, but the messages up to {_shown(self.reference)} were "
            f"acknowledged and are no longer kept (the first one kept is {_shown(held)}); "
            "feed the stream from a source that can be read again, or restore the checkpoint that acknowledged them",
            stream=self.name,
            reference=ref,
            first_held=held,
        )

    def _holds(self, ref: int) -> bool:
        return any(m.message_id == ref for kept in (self._sent, self._again) for m in kept)

    def _forget_to(self, ref: int) -> None:
        for kept in (self._sent, self._again):
            while kept and (kept[0].message_id or 0) <= ref:
                self._free(kept.popleft())

    def _forget_through(self, ref: int) -> None:
        for kept in (self._sent, self._again):
            while kept:
                message = kept.popleft()
                self._free(message)
                if message.message_id == ref:
                    return

    def _free(self, message: Message) -> None:
        size = cost(message.payload, message.key)
        self._bytes -= size
        self._budget.held -= size


class Trail(Ledger):
    """The place in a source that can be read again: nothing is kept, and a resume rewinds the reader.

    From :meth:`resume` until :meth:`take_rewind` the ledger is ``behind``, so that a reader that has not noticed yet
    cannot write from its old place.
    """

    def __init__(self, name: str, *, increasing: bool = True) -> None:
        super().__init__(name, increasing=increasing)
        self._rewound = False

    @property
    def behind(self) -> bool:
        """Whether the reader has still to go back."""
        return self._rewound

    @property
    def all_acknowledged(self) -> bool:
        """Whether the last message that was sent is committed."""
        if self._rewound:
            return False
        if self._increasing and self.last is not None and self.reference is not None:
            return self.last <= self.reference
        return self.last == self.reference or self.last is None

    def append(self, message: Message) -> None:
        """A message was written."""
        self.last = self.floor = message.message_id

    def acknowledge(self, ref: int) -> None:
        """Move the reference on; the id may be one that is not sent again yet."""
        self._advance(ref)
        self._settle()

    def resume(self, ref: int | None) -> None:
        """Ask the reader to go back to ``ref``; its end comes again too."""
        self.reference = ref
        self._rewound = True
        self.ended = self.end_written = self.settled = False

    def take_rewind(self) -> int | None:
        """The reader is about to start behind the returned reference; None is the beginning."""
        self._rewound = False
        self.last = self.floor = self.reference
        return self.reference


class Fleeting(Ledger):
    """An ephemeral stream: what is written is done with, and what a cut takes is lost."""

    @property
    def all_acknowledged(self) -> bool:
        """Always: nothing is ever acknowledged."""
        return True

    def append(self, message: Message) -> None:
        """A message was written."""
        self.last = (self.last or 0) + 1 if message.message_id is None else message.message_id

    def acknowledge(self, ref: int) -> None:
        """A worker acknowledges the end at most."""
        self._settle()

    def resume(self, ref: int | None) -> None:
        """Go on with what is new."""
        self.settled = self.settled or self.end_written
        self.end_written = False


def _shown(reference: int | None) -> str:
    return "nothing" if reference is None else str(reference)
