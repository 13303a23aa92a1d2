"""What a stream has sent and the worker has not acknowledged: the bookkeeping of references, without I/O.

A ledger answers three questions: may this id be sent, what does an ACK settle, and what has to be sent again when a
session begins at some reference. :class:`Outbox` keeps the messages themselves, in the runs of frames as written;
:class:`Trail` only where it is in a source that can be read again; :class:`Fleeting` nothing, for EPHEMERAL messages.
What is given no id is numbered. An earlier process of the same program may have left messages with the worker that are
not committed and that nobody tells us of, so an outbox begins at the present time in nanoseconds: above all that any
earlier process has numbered. With ids that could come twice the worker would take new messages for replays.
Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wallaroo_spark.connector.ledger import Ledger, shown
from wallaroo_spark.errors import LocalProtocolError, ReplayError
from wallaroo_spark.protocol import EncodedRun

OVERHEAD_BYTES = 256
"""What a kept run of messages costs beside its frames and ids: objects and their places, rounded up."""

ID_BYTES = 16
"""What the id of each kept message costs, likewise."""


@dataclass
class Budget:
    """Bytes that all outboxes of a connector may keep together. A message always fits where nothing else is kept."""

    limit: int
    held: int = 0

    @property
    def room(self) -> int:
        """Bytes that are left."""
        return self.limit - self.held

    def admits(self, size: int) -> bool:
        """Whether ``size`` more bytes may be kept."""
        return self.held == 0 or self.held + size <= self.limit


def cost(size: int, count: int = 1) -> int:
    """The bytes that keeping ``count`` messages together is counted as, with frames of ``size`` bytes in all."""
    return OVERHEAD_BYTES + ID_BYTES * count + size


class Outbox(Ledger):
    """Keeps every message until it is acknowledged, in the runs in which they were written.

    Their bytes are counted in ``budget``; whether messages fit there is for the caller to ask first. ``clock`` tells
    the nanoseconds since 1970, from which on messages without an id are numbered.
    """

    def __init__(
        self,
        name: str,
        budget: Budget,
        *,
        increasing: bool = True,
        start: int | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(name, increasing=increasing, start=start)
        self._budget = budget
        self._clock = clock
        self._numbered_from: int | None = None
        self._given_ids = False
        self._bytes = 0
        self._kept = 0
        self._sent: deque[EncodedRun] = deque()
        self._again: deque[EncodedRun] = deque()
        self._early: int | None = None

    @property
    def kept(self) -> int:
        """Messages that are not acknowledged."""
        return self._kept

    @property
    def behind(self) -> bool:
        """Whether messages of an earlier session have to be sent again first."""
        return bool(self._again)

    @property
    def all_acknowledged(self) -> bool:
        """Whether nothing is kept."""
        return not self._kept

    def _following(self) -> int:
        following = super()._following()
        if self._given_ids:
            return following
        if self._numbered_from is None:
            self._numbered_from = max(following, self._clock())
        return max(following, self._numbered_from)

    def append(self, run: EncodedRun) -> None:
        """Messages were written for the first time; nothing may be waiting to be sent again.

        What is committed already, since an earlier process had sent it too, is not kept.
        """
        self.floor = run.last
        self._given_ids |= self._numbered_from is None or run.first < self._numbered_from
        if self._increasing and self.reference is not None:
            if run.last <= self.reference:
                return
            committed = bisect_right(run.ids, self.reference)
            run = run.split(committed)[1] if committed else run
        self._sent.append(run)
        self._count(run, 1)
        self.last = run.last
        if not self._increasing and self._early is not None and self._early in run.ids:
            self.acknowledge(self._early)

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
        begins_before = self._begins_before(ref)
        self._open(ref)
        self._early = ref if begins_before else None
        if self._increasing:
            self._resume_increasing(ref)
        elif not begins_before:
            self._resume_opaque(ref)
        self._sent.extend(self._again)
        self._sent, self._again = deque(), self._sent
        self.end_written = False

    def notified(self, ref: int | None) -> int:
        """See :class:`Ledger`."""
        return 0 if self._begins_before(ref) else super().notified(ref)

    def next_again(self, most: int) -> EncodedRun | None:
        """The next up to ``most`` messages to send again, at least one; :meth:`sent_again` once they are written."""
        if self._again and self._again[0].count > most > 0:
            run = self._again.popleft()
            self._count(run, -1)
            for part in reversed(run.split(most)):
                self._again.appendleft(part)
                self._count(part, 1)
        return self._again[0] if self._again else None

    def sent_again(self) -> None:
        """What :meth:`next_again` returned was written."""
        self._sent.append(self._again.popleft())

    def clear(self) -> None:
        """Forget everything and give the bytes back."""
        self._budget.held -= self._bytes
        self._bytes = self._kept = 0
        self._sent.clear()
        self._again.clear()

    def state(self) -> str:
        """Where the stream stands, for messages to people."""
        return f"{self.kept} messages unacknowledged, {super().state()}"

    def validate(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        super().validate()
        held = [*self._sent, *self._again]
        assert self._bytes == sum(cost(len(run.data), run.count) for run in held)
        assert self._budget.held >= self._bytes >= 0
        assert all(sum(run.frame_sizes()) == len(run.data) for run in held)
        ids = [message_id for run in held for message_id in run.ids]
        assert len(ids) == self._kept
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
        if self._numbered_from is not None and self.last is not None and ref > self.last >= self._numbered_from:
            # What an earlier process has sent lies below all that this one has numbered.
            raise self._overtaken(ref)
        self._forget_to(ref)
        self._advance(ref)
        self.last = ref if self.last is None else max(self.last, ref)

    def _overtaken(self, ref: int) -> LocalProtocolError:
        return LocalProtocolError(
            f"stream {self.name!r}: reference {ref} is committed, and this program has sent nothing above "
            f"{shown(self.last)}, so another one sends this stream under the same instance name, and the worker may "
            f"have taken messages of one for replays of the other's; {self.kept} messages of this one are not "
            "acknowledged; give each program an instance name of its own, and set their clocks right",
            stream=self.name,
            reference=ref,
            last=self.last,
        )

    def _resume_opaque(self, ref: int | None) -> None:
        if ref is not None and self._holds(ref):
            self._forget_through(ref)
        elif ref != self.reference and (self.kept or self.reference is not None):
            raise self._gone(ref)
        elif self.last is None:
            self.last = ref
        self.reference = ref

    def _begins_before(self, ref: int | None) -> bool:
        """Whether the program, which was told of no reference when it opened the stream and has sent nothing yet, will
        send what an earlier process of it has sent, up to ``ref`` and more: that was committed meanwhile.
        """
        told = not self._opened or self.start is not None or self.reference is not None or self.last is not None
        return not self._increasing and not told and ref is not None

    def _gone(self, ref: int | None) -> ReplayError:
        first = self._sent or self._again
        held = first[0].first if first else None
        where = "from the beginning" if ref is None else f"behind reference {ref}"
        return ReplayError(
            f"stream {self.name!r} is wanted again {where}, but the messages up to {shown(self.reference)} were "
            f"acknowledged and are no longer kept (the first one kept is {shown(held)}); "
            "feed the stream from a source that can be read again, or restore the checkpoint that acknowledged them",
            stream=self.name,
            reference=ref,
            first_held=held,
        )

    def _holds(self, ref: int) -> bool:
        return any(ref in run.ids for kept in (self._sent, self._again) for run in kept)

    def _forget_to(self, ref: int) -> None:
        for kept in (self._sent, self._again):
            while kept and kept[0].first <= ref:
                self._forget_first(kept, bisect_right(kept[0].ids, ref))

    def _forget_through(self, ref: int) -> None:
        for kept in (self._sent, self._again):
            while kept:
                ids = kept[0].ids
                if ref in ids:
                    self._forget_first(kept, ids.index(ref) + 1)
                    return
                self._forget_first(kept, len(ids))

    def _forget_first(self, kept: deque[EncodedRun], count: int) -> None:
        """Forget the first messages of the first run."""
        run = kept.popleft()
        self._count(run, -1)
        if count < run.count:
            rest = run.split(count)[1]
            kept.appendleft(rest)
            self._count(rest, 1)

    def _count(self, run: EncodedRun, sign: int) -> None:
        count = sign * len(run.ids)
        size = sign * (OVERHEAD_BYTES + len(run.data)) + ID_BYTES * count
        self._kept += count
        self._bytes += size
        self._budget.held += size


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

    def append(self, run: EncodedRun) -> None:
        """Messages were written."""
        self.last = self.floor = run.last

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

    def append(self, run: EncodedRun) -> None:
        """Messages were written."""
        self.last = run.last

    def acknowledge(self, ref: int) -> None:
        """A worker acknowledges the end at most."""
        self._settle()

    def resume(self, ref: int | None) -> None:
        """Go on with what is new."""
        self.settled = self.settled or self.end_written
        self.end_written = False
