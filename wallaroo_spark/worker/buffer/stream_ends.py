"""The ends of streams that the driver has not recorded yet, and the streams that it is about to forget. Pure.

Only where the receiver forgets streams. Source: ``docs/decisions/streams-are-forgotten.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from wallaroo_spark.inner.calls import PlanAnswer
from wallaroo_spark.references import Reference, StreamKey


class EndedStreams:
    """Collects ends until a notice confirms them; keeps connectors from a stream while it is leaving.

    Without a ``retention`` no ends are collected; with ``forgets`` there may be leaving streams all the same.
    """

    def __init__(self, retention: float, *, forgets: bool = False) -> None:
        self._records = retention > 0
        self._forgets = self._records or forgets
        self._unrecorded: dict[StreamKey, Reference] = {}
        self._token = ""
        self.leaving: frozenset[StreamKey] = frozenset()
        """The streams that are about to be forgotten, from which connectors are kept."""
        self._scopes: dict[str, list[StreamKey]] = {}
        self._asked: set[StreamKey] = set()
        self._read_with = ""
        """The token of the leaving streams in a batch that is read now; empty after the next plan."""
        self._asked_behind = 0
        """When the plan was made behind which a driver has asked for a plan last; 0 where none has in this query."""

    @property
    def any_unrecorded(self) -> bool:
        """Whether there are ends to report."""
        return bool(self._unrecorded)

    def ended(self, key: StreamKey, reference: Reference | None) -> None:
        """A stream has ended, and all of it is committed."""
        if self._records and reference is not None:
            self._unrecorded[key] = reference

    def opened(self, key: StreamKey) -> None:
        """A stream is open again."""
        self._unrecorded.pop(key, None)

    def told(self, leaving: tuple[str, frozenset[StreamKey]], recorded: Collection[StreamKey]) -> None:
        """A notice has named the leaving streams, and those whose end is recorded.

        A receiver without a retention forgets nothing, although its checkpoint may name leaving streams from before.
        """
        if not self._forgets:
            return
        self._token, self.leaving = leaving
        self._scopes = {}
        for key in self.leaving:
            self._scopes.setdefault(key.scope, []).append(key)
        self._asked &= self.leaving
        for key in recorded:
            self._unrecorded.pop(key, None)

    def gone(self, references: Mapping[StreamKey, Reference], scopes: Collection[str]) -> list[StreamKey]:
        """The leaving streams of these scopes that are not among all references of the scopes.

        They are forgotten, and the query did not go back.
        """
        if not self.leaving:
            return []
        leaving = [key for scope in scopes for key in self._scopes.get(scope, ())]
        return [key for key in leaving if key not in references]

    def restarted(self) -> None:
        """A query starts."""
        self._asked_behind = 0

    def rewound(self, references: Mapping[StreamKey, Reference], scopes: Collection[str]) -> None:
        """The streams of these scopes go on from these references; an end elsewhere has to come again."""
        if self._unrecorded:
            among, found = set(scopes), self._unrecorded.items()
            self._unrecorded = {
                key: reference for key, reference in found if key.scope not in among or references.get(key) == reference
            }

    def unrecorded_scopes(self) -> set[str]:
        """The scopes of the ends that are still to be reported."""
        return {key.scope for key in self._unrecorded}

    def forgotten(self, references: Mapping[StreamKey, Reference | None]) -> None:
        """Some of these streams are forgotten: those without a reference."""
        if self._unrecorded:
            for key, reference in references.items():
                if reference is None:
                    self._unrecorded.pop(key, None)

    def read(self, token: str, behind: int) -> None:
        """A batch is read whose plan still has the leaving streams of this token. It starts behind a plan of this time.

        So it forgets none of them, and a later plan cannot before this worker has answered it. Until then a connector
        may have such a stream with its reference, and the answer says that the stream is wanted. Else a batch that
        waits for messages of a connector, and the connector that waits for the next plan, would wait forever.

        A reading task whose executor is lost may go on for a while. Its batch starts behind an older plan than the last
        question, so it says nothing of the plan that follows from the answer.
        """
        if behind >= self._asked_behind:
            self._read_with = token

    def ask(self, key: StreamKey) -> bool:
        """A connector asks for a stream: whether it must ask again later, because the stream is leaving."""
        if key not in self.leaving:
            return False
        self._asked.add(key)
        return self._read_with != self._token

    def ask_all(self, scope: str) -> int:
        """A connector instance asks for all of its streams; the number of those for which it must ask again later."""
        found = self._scopes.get(scope, ())
        self._asked.update(found)
        return 0 if self._read_with == self._token else len(found)

    def report(self, answer: PlanAnswer, held: Collection[StreamKey], behind: int) -> PlanAnswer:
        """The answer to a planner, with the ends.

        ``held`` are the streams that are open here or of which rows are held. ``behind`` is the time of the plan behind
        which the planner plans.
        """
        self._read_with, self._asked_behind = "", behind
        wanted = [key for key in self.leaving if key in held or key in self._asked]
        return replace(answer, ended=self._unrecorded.copy(), leaving=self._token, wanted=wanted)
