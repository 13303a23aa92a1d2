"""The messages of a stream that are kept until they are acknowledged, within the connector's memory limit.

Messages without an id are numbered. An earlier process of the same program may have left uncommitted messages in the
worker that this process does not know. Numbering therefore begins at the current time in nanoseconds, above every
number of an earlier process. With a repeated id, the worker would take the new message for a replay. Source:
``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wallaroo_spark.connector.sending.unacknowledged import UnacknowledgedMessages, describe_reference
from wallaroo_spark.errors import LocalProtocolError, ReplayError
from wallaroo_spark.protocol import EncodedRun

OVERHEAD_BYTES = 256
"""Memory counted for a kept run of messages beside its frames and ids: its Python objects, rounded up.

Measured with tracemalloc (CPython 3.11): 190 bytes for a run of one message, 225 to 262 for one of many.
"""

ID_BYTES = 16
"""Memory counted for the id of each kept message; it takes 8 in an array."""


@dataclass
class MemoryBudget:
    """Bytes that all resend buffers of a connector may keep together. One message always fits into an empty budget."""

    limit: int
    """Limit in bytes."""
    held: int = 0
    """Bytes that are kept now."""

    @property
    def room(self) -> int:
        """Bytes that are free."""
        return self.limit - self.held

    def admits(self, size: int) -> bool:
        """Whether ``size`` more bytes may be kept."""
        return self.held == 0 or self.held + size <= self.limit


def memory_cost(size: int, count: int = 1) -> int:
    """The memory counted for ``count`` messages that are kept together; their frames have ``size`` bytes."""
    return OVERHEAD_BYTES + ID_BYTES * count + size


class ResendBuffer(UnacknowledgedMessages):
    """Keeps every message until it is acknowledged, in the runs in which they were sent.

    Their bytes are counted in ``budget``; the caller checks first whether messages fit. ``clock`` returns nanoseconds
    since 1970; messages without an id are numbered from there.
    """

    def __init__(
        self,
        name: str,
        budget: MemoryBudget,
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
        self._sent: deque[EncodedRun] = deque()
        """Sent in this session."""
        self._to_resend: deque[EncodedRun] = deque()
        """Sent in an earlier session, and to be sent again in this one."""
        self._dropped = False
        """Whether messages that this process has sent were acknowledged, and are no longer kept."""
        self._early_ack: int | None = None
        """With opaque ids: an acknowledged id that this process has not sent yet."""

    @property
    def resend_pending(self) -> bool:
        """Whether messages of an earlier session must be resent first."""
        return bool(self._to_resend)

    @property
    def all_acknowledged(self) -> bool:
        """Whether no message is kept."""
        return not self.kept

    def _following(self) -> int:
        following = super()._following()
        if self._given_ids:
            return following
        if self._numbered_from is None:
            self._numbered_from = max(following, self._clock())
        return max(following, self._numbered_from)

    def append(self, run: EncodedRun) -> None:
        """Record messages that were sent for the first time; no resend may be pending.

        Messages that are committed already, because an earlier process has sent them too, are not kept.
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
        if not self._increasing and self._early_ack is not None and self._early_ack in run.ids:
            self.acknowledge(self._early_ack)

    def acknowledge(self, ref: int) -> None:
        """Drop the committed messages. An ACK may be for messages that were not resent yet in this session."""
        if self._increasing:
            self._commit_to(ref)
        elif self._holds(ref):
            self._drop_to(ref)
            self.reference, self._early_ack = ref, None
        else:
            # The id is of an earlier process, or was acknowledged before. If it is sent again, append recognises it.
            self._early_ack = ref
        self._settle()

    def resume(self, ref: int | None) -> None:
        """Drop the committed messages; the others are resent in order, before any new message."""
        if ref is None and self._may_be_forgotten:
            # The kept messages follow the forgotten ones, and are the first of the new stream. Their ids stay as they
            # are.
            self.begun_anew = True
            self.reference = self.reference if self.all_acknowledged else None
            ref = self.reference
        ref = self.start if ref is None else ref
        begins_before = self._begins_before(ref)
        self._open(ref)
        self._early_ack = ref if begins_before else None
        if self._increasing:
            self._resume_increasing(ref)
        elif not begins_before:
            self._resume_opaque(ref)
        self._sent.extend(self._to_resend)
        self._sent, self._to_resend = deque(), self._sent
        self.end_written = False

    @property
    def _may_be_forgotten(self) -> bool:
        """Whether a worker without a reference of the stream may have forgotten it (``streamRetention``).

        A worker forgets a stream only after the stream's end. So either this process has not sent the missing messages,
        because an earlier process sent them and ended the stream, or all messages of this process are committed.
        """
        return self._increasing and self.reference is not None and (self.ended or not self._dropped)

    def notify_reference(self, ref: int | None) -> int:
        """The reference for NOTIFY; 0 if the program will send messages of an earlier process again."""
        return 0 if self._begins_before(ref) else super().notify_reference(ref)

    def next_resend(self, most: int) -> EncodedRun | None:
        """The next run to resend, with 1 to ``most`` messages; call :meth:`resent` after sending it."""
        if self._to_resend and self._to_resend[0].count > most > 0:
            run = self._to_resend.popleft()
            self._count(run, -1)
            for part in reversed(run.split(most)):
                self._to_resend.appendleft(part)
                self._count(part, 1)
        return self._to_resend[0] if self._to_resend else None

    def resent(self) -> None:
        """Record that the run returned by :meth:`next_resend` was sent."""
        self._sent.append(self._to_resend.popleft())

    def clear(self) -> None:
        """Drop all messages and release their bytes in the budget."""
        self._budget.held -= self._bytes
        self._bytes = self.kept = 0
        self._sent.clear()
        self._to_resend.clear()

    def describe(self) -> str:
        """The progress of the stream, for error messages."""
        return f"{self.kept} messages unacknowledged, {super().describe()}"

    def validate(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        super().validate()
        held = [*self._sent, *self._to_resend]
        assert self._bytes == sum(memory_cost(len(run.data), run.count) for run in held)
        assert self._budget.held >= self._bytes >= 0
        assert all(sum(run.frame_sizes()) == len(run.data) for run in held)
        ids = [message_id for run in held for message_id in run.ids]
        assert len(ids) == self.kept
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
            # Numbers of an earlier process are below all numbers of this one.
            raise LocalProtocolError(
                f"stream {self.name!r}: reference {ref} is committed, but this program has sent nothing above "
                f"{describe_reference(self.last)}; so another program sends this stream under the same instance name, "
                f"and the worker may have dropped messages of one as replays of the other's; {self.kept} messages of "
                "this program are not acknowledged; give each program an instance name of its own, and set their "
                "clocks right",
                code="instance-shared",
                stream=self.name,
                reference=ref,
                last=self.last,
            )
        self._drop_to(ref)
        self._advance(ref)
        self.last = ref if self.last is None else max(self.last, ref)

    def _resume_opaque(self, ref: int | None) -> None:
        if ref is not None and self._holds(ref):
            self._drop_to(ref)
        elif ref != self.reference and (self.kept or self.reference is not None):
            raise self._gone(ref)
        elif self.last is None:
            self.last = ref
        self.reference = ref

    def _begins_before(self, ref: int | None) -> bool:
        """Whether the program will send messages of an earlier process again, up to ``ref`` and beyond.

        That is the case when the stream was opened without a reference, has sent no message yet, and messages of the
        earlier process were committed meanwhile.
        """
        told = not self._opened or self.start is not None or self.reference is not None or self.last is not None
        return not self._increasing and not told and ref is not None

    def _gone(self, ref: int | None) -> ReplayError:
        first = self._sent or self._to_resend
        held = first[0].first if first else None
        where = "from the beginning" if ref is None else f"behind reference {ref}"
        kept = "no message is kept" if held is None else f"the first kept message is {held}"
        return ReplayError(
            f"stream {self.name!r} must be sent again {where}, but the messages up to "
            f"{describe_reference(self.reference)} were acknowledged and are no longer kept ({kept}); feed the stream "
            "from a source that can be read again, or restore the checkpoint whose commits acknowledged them",
            code="messages-not-kept",
            stream=self.name,
            reference=ref,
            first_held=held,
        )

    def _holds(self, ref: int) -> bool:
        return any(ref in run.ids for kept in (self._sent, self._to_resend) for run in kept)

    def _drop_to(self, ref: int) -> None:
        """Drop the messages up to ``ref``; with opaque ids it is the id of a kept one."""
        for kept in (self._sent, self._to_resend):
            while kept:
                run = kept[0]
                if self._increasing:
                    count = bisect_right(run.ids, ref)
                else:
                    count = run.ids.index(ref) + 1 if ref in run.ids else run.count
                if count:
                    self._dropped = True
                    self._count(kept.popleft(), -1)
                    if count < run.count:
                        kept.appendleft(run.split(count)[1])
                        self._count(kept[0], 1)
                if count < run.count or run.last == ref:
                    return

    def _count(self, run: EncodedRun, sign: int) -> None:
        count = sign * len(run.ids)
        size = sign * (OVERHEAD_BYTES + len(run.data)) + ID_BYTES * count
        self.kept += count
        self._bytes += size
        self._budget.held += size
