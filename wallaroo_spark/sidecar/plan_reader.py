"""The references of a named plan: from memory if it is one of the last plans, otherwise from its files."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.reference_versions import VersionedReferences
from wallaroo_spark.references import Changes, EndingChanges
from wallaroo_spark.sidecar.plan_files import PlanStore
from wallaroo_spark.sidecar.plan_names import Chain, NamedPlan, PlanName

_KEPT = 6
"""Plans in memory: the start and the end of a batch for each of the sources that a query has of one receiver."""
# A choice: a plan's file may appear a moment late on a file system that is mounted.
_retry = Retrying(
    stop=stop_after_attempt(3), wait=wait_fixed(0.1), retry=retry_if_exception_type(CheckpointError), reraise=True
)


class PlanReader:
    """Keeps the last plans in memory. If a plan's parent is in memory, only its changes are read. For one thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[PlanName, tuple[VersionedReferences, Chain]] = OrderedDict()

    def known(self, name: PlanName) -> tuple[VersionedReferences, Chain] | None:
        """The references of a plan in memory, with its chain; None if it is not in memory."""
        found = self._known.get(name)
        if found is not None:
            self._known.move_to_end(name)
        return found

    def remember(self, references: VersionedReferences, chain: Chain) -> None:
        """Keep a plan in memory, and forget the plan that was used least recently."""
        self._known[chain.named.plan] = references, chain
        self._known.move_to_end(chain.named.plan)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def read(self, named: NamedPlan, store: PlanStore) -> tuple[VersionedReferences, Chain]:
        """The references of a plan, with its chain. Raises :class:`CheckpointError` when its files do not exist."""
        behind: list[tuple[PlanName, Changes, EndingChanges | None]] = []
        at = named.plan
        while (found := self.known(at)) is None and at != named.base:
            parent, changes, endings = _retry(store.read_changes, at)
            behind.append((at, changes, endings))
            at = parent
        if found is None:
            snapshot = _retry(store.read_snapshot, named.base)
            found = VersionedReferences.of(snapshot), Chain(NamedPlan(named.base, named.base))
            self.remember(*found)
        references, chain = found
        for name, changes, endings in reversed(behind):
            references = references.with_changes(changes).with_endings(endings)
            chain = chain.then(name, sum(map(len, changes.values())))
            self.remember(references, chain)
        return references, replace(chain, named=named)
