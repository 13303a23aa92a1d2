"""The offsets of one source and their references: an offset contains a small plan, and has the name of a large plan.

The cost of a call follows the number of changes, not of known streams. A named plan is durable before its offset is
returned to Spark. Source: ``docs/decisions/plans-beside-the-checkpoint.md``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from wallaroo_spark.errors import CheckpointError, WallarooError, one_line
from wallaroo_spark.references import Changes, EndingChanges, VersionedReferences, flatten, merge, nest
from wallaroo_spark.sidecar import plan_files
from wallaroo_spark.sidecar.plan_files import Chain, NamedPlan, PlanFiles, PlanName, PlanReader
from wallaroo_spark.source.offsets import offset, references_of
from wallaroo_spark.steps import Step, passed

log = one_line(logging.getLogger("wallaroo_spark.source"))

RETRY_SECONDS = 60.0
"""Pause before the next attempt to write plans to a place that refused them; until then offsets contain the plans."""
Offset = Mapping[str, Any]


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="wallaroo-snapshot", daemon=True).start()


class PlanBook:
    """The plans of one source. ``store`` returns the place of large plans, or None while that place is not known.

    ``beside`` runs the writing of a snapshot, for which nobody waits, in another thread. Apart from that, only one
    thread may use a plan book.
    """

    def __init__(
        self,
        receiver: str,
        message_ids: str,
        store: Callable[[], PlanFiles | None],
        *,
        inline_bytes: int | None = None,
        beside: Callable[[Callable[[], None]], None] = _start_thread,
    ) -> None:
        self._receiver = receiver
        self._message_ids = message_ids
        self._store = store
        self._inline_bytes = plan_files.INLINE_BYTES if inline_bytes is None else inline_bytes
        self._beside = beside
        self._named = PlanReader()
        self._inline: deque[tuple[Offset, VersionedReferences]] = deque(maxlen=3)
        self._number = -1
        self._not_before = 0.0
        self._newest: PlanName | None = None
        self._branch = 0
        self._snapshot: tuple[int, Chain] | None = None
        self._snapshot_under_way = False

    def knows(self, value: Offset) -> bool:
        """Whether the references of an offset can be found now: not while the place of its plan is unknown."""
        named = _named_plan(value)
        return named is None or self._named.known(named.plan) is not None or self._store() is not None

    def references(self, value: Offset) -> VersionedReferences:
        """The references of an offset. Raises :class:`CheckpointError` when its plan does not exist."""
        return self._find(value)[0]

    def begin(self, references: Any) -> dict[str, Any]:
        """The offset of references to which no earlier plan leads; the offset contains them."""
        return self._write_inline(VersionedReferences.of(references))

    def after(self, start: Offset, changes: Changes, endings: EndingChanges | None = None) -> dict[str, Any]:
        """The offset that follows ``start`` with these changes; its plan is durable when this returns.

        ``endings`` are the changes of the ended streams; with None, the plan has no ended streams. Raises
        :class:`CheckpointError` when the plan can neither be written nor be contained in the offset.
        """
        before, chain = self._find(start)
        if endings is not None:
            changes = _with_ended(changes, endings, before)
        references = before.with_changes(changes).with_endings(endings)
        store = self._store() if references.longer_than(self._inline_bytes) else None
        if store is None or (chain is None and time.monotonic() < self._not_before):
            return self._write_inline(references)
        try:
            chain = self._write(store, references, chain, changes, endings)
        except CheckpointError as error:
            if chain is not None:
                raise
            log.warning("plans stand in the offsets, and a place beside the checkpoint is tried again: %s", error)
            self._not_before = time.monotonic() + RETRY_SECONDS
            return self._write_inline(references)
        passed(Step.PLAN_WRITTEN)
        self._named.remember(references, chain)
        self._snapshot_if_due(store, references, chain)
        return chain.named.offset(self._receiver, self._message_ids)

    def shown(self, start: Offset, changes: Changes) -> dict[str, Any]:
        """An offset for display, behind ``start``; a copy of ``start`` if that names its plan. It is not stored."""
        if _named_plan(start) is not None:
            return dict(start)
        after = VersionedReferences.of(self.references(start).plain()).with_changes(changes)
        return offset(self._receiver, after.plain(), self._message_ids)

    def _find(self, value: Offset) -> tuple[VersionedReferences, Chain | None]:
        named = _named_plan(value)
        if named is None:
            for known, references in self._inline:
                if known is value or known == value:
                    return references, None
            references = VersionedReferences.of(references_of(value))
            self._inline.append((value, references))
            return references, None
        known_plan = self._named.known(named.plan)
        if known_plan is not None:
            return known_plan
        store = self._store()
        if store is None:
            raise CheckpointError(
                f"the plan {named.plan} of receiver {self._receiver!r} lies beside the checkpoint, which this source "
                "cannot find or not reach: check that Redis is reachable, that the query was started with "
                "receiver.start_query, and that the driver's environment has the credentials of the file system",
                code="plan-missing",
                plan=str(named.plan),
            )
        return self._named.read(named, store)

    def _write_inline(self, references: VersionedReferences) -> dict[str, Any]:
        value = offset(self._receiver, references, self._message_ids)
        self._inline.append((value, references))
        return value

    def _write(
        self,
        store: PlanFiles,
        references: VersionedReferences,
        chain: Chain | None,
        changes: Changes,
        endings: EndingChanges | None,
    ) -> Chain:
        if self._number < 0:
            # A process that died may have written plans that no offset names. New numbers must be above theirs.
            self._number = max((number for number, _ in store.files()), default=0)
        self._number = max(self._number, chain.named.plan.number if chain is not None else 0)
        name = PlanName.after(self._number)
        self._number = name.number
        if chain is None or chain.named.plan != self._newest:
            # Spark goes on from another plan than the last one, so a snapshot of the last may not be in this chain.
            self._branch += 1
        self._newest = name
        if chain is None or chain.full:
            self._branch += 1
            store.write_snapshot(name, references)
            return Chain(NamedPlan(name, name))
        store.write_changes(name, chain.named.plan, changes, endings)
        after = chain.then(name, sum(map(len, changes.values())))
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None and snapshot[0] == self._branch:
            after = after.from_snapshot(snapshot[1])
        return after

    def _snapshot_if_due(self, store: PlanFiles, references: VersionedReferences, chain: Chain) -> None:
        """Begin to write a snapshot of a plan in another thread; later chains start there once it is written."""
        if self._snapshot_under_way or self._snapshot is not None or not chain.snapshot_is_due(references.count):
            return
        self._snapshot_under_way = True
        branch = self._branch

        def write() -> None:
            try:
                store.write_snapshot(chain.named.plan, references)
                self._snapshot = branch, chain
            except (WallarooError, LookupError) as error:
                log.warning("a snapshot of plan %s is tried again: %s", chain.named.plan, error)
            finally:
                self._snapshot_under_way = False

        self._beside(write)


def _with_ended(changes: Changes, endings: EndingChanges, before: VersionedReferences) -> Changes:
    """The changes, with the references of the streams whose end alone has changed."""
    return merge(nest(before.references_of(flatten(endings.times))), changes)


def _named_plan(value: Offset) -> NamedPlan | None:
    try:
        return NamedPlan.of(value)
    except ValueError as error:
        raise CheckpointError(
            f"an offset of the checkpoint is damaged: {error}; restore the checkpoint", code="checkpoint-damaged"
        ) from None
