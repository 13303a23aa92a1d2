"""Planning of one batch: the questions to the workers, and one plan within Spark's limits from all their answers.

Pure: the callers pass the workers' answers as values. Source: ``docs/options.md``.

:class:`SlotNews` and :class:`NothingToRead` decide when anybody is asked at all. A row that waits in a worker must be
planned although nobody asks twice for the same state: a worker is asked whether its buffer has changed since the last
*announcement*, each change that it announces raises the fleet's stamp, and a plan that finds nothing is not repeated
until the stamp has changed. The answer to a plan is no announcement, because that plan may be for a progress report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from wallaroo_spark import references
from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion, Starts, StreamOffer, shares

MOST_ROUNDS = 5
"""Most rounds of questions for one plan. A choice.

One round is enough when the workers know all starts, and a second one divides the limits. The others are needed when
workers assume another start for a stream, which may happen in each round while commits arrive.
"""


@dataclass(frozen=True)
class Limits:
    """The limits of one batch; None means that there is no such limit."""

    max_rows: int | None = None
    """Most rows of one batch."""
    max_bytes: int | None = None
    """Most bytes of one batch, as the workers count them in their buffers."""
    min_rows: int | None = None
    """Rows that must be available before a batch starts."""


@dataclass(frozen=True)
class Plan:
    """The ends, the size and the slots of a batch that could be read."""

    ends: dict[str, dict[str, references.Reference]]
    """The reference of each stream's last message in the batch, by scope and then by stream id as decimal text."""
    rows: int
    """Rows that the batch would read."""
    bytes: int
    """Bytes that the batch would read, as the workers count them in their buffers."""
    holders: dict[references.StreamKey, int]
    """The slot whose worker has the stream's rows, by stream."""
    complete: bool = True
    """Whether the plan has every stream in which a worker has something to read."""
    ended: Mapping[references.StreamKey, references.Reference] = field(default_factory=dict)
    """Streams that end at this reference, as workers say."""
    leaving: Mapping[int, str] = field(default_factory=dict)
    """The token of the leaving streams that each worker knows, by slot."""
    wanted: frozenset[references.StreamKey] = frozenset()
    """Leaving streams that some worker needs."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.ends


def combine(offers: Mapping[int, Mapping[references.StreamKey, StreamOffer]], *, complete: bool = True) -> Plan:
    """The offers of all slots as one plan. If two slots offer the same stream, the plan has the greater end.

    That happens while a stream moves to another slot. A range consists of message ids, so either slot reads the right
    messages.
    """
    ends: dict[str, dict[str, references.Reference]] = {}
    holders: dict[references.StreamKey, int] = {}
    rows = size = 0
    for slot in sorted(offers):
        for key, offer in offers[slot].items():
            rows, size = rows + offer.rows, size + offer.bytes
            streams = ends.setdefault(key.scope, {})
            stream_id = str(key.stream_id)
            other = streams.get(stream_id)
            if other is None or _further(offer.end, other):
                streams[stream_id] = offer.end
                holders[key] = slot
    return Plan(ends, rows, size, holders, complete)


def _further(end: references.Reference, other: references.Reference) -> bool:
    return isinstance(end, int) and isinstance(other, int) and end > other


def slot_of(
    planned: references.PlannedRange, holders: Mapping[references.StreamKey, int], assigned: Mapping[str, int]
) -> int:
    """The slot to ask first for a range: the one that offered the stream, the one in the reference, or a guess."""
    known = holders.get(planned.key)
    if known is not None:
        return known
    ephemeral = references.slot_of_ephemeral(planned.end)
    return assigned.get(planned.key.scope, 0) if ephemeral is None else ephemeral


class Uncommitted:
    """The streams whose start a worker may not know, because no commit notice has told it. Pure.

    This is a guess that saves a round of questions. A wrong guess does no harm: for a stream that is missing here, a
    worker assumes the committed reference, and the planner compares that with the batch's start.
    """

    def __init__(self) -> None:
        self._streams: dict[int, tuple[references.StreamKey, ...]] = {}

    def of(self, slot: int) -> Collection[references.StreamKey]:
        """The streams whose start a question to this slot's worker names."""
        return self._streams.get(slot, ())

    def answered(self, slot: int, answer: PlanAnswer) -> None:
        """Record a worker's answer: a batch may read the offered rows now, and the next one then starts behind them,
        before the worker is told of their commit.
        """
        self._streams[slot] = (*answer.offers, *(key for key in answer.uncommitted if key not in answer.offers))


class Inquiry:
    """The questions of one plan. Ask all :attr:`questions`, pass each answer to :meth:`answer`, and repeat that until
    there are no more questions.

    ``start`` has the references at which Spark starts the batch. Raises no error. A stream that is not settled after
    ``MOST_ROUNDS`` rounds is left to a later plan, and :attr:`Plan.complete` is false.
    """

    def __init__(
        self, slots: Iterable[int], start: references.References, limits: Limits, uncommitted: Uncommitted
    ) -> None:
        self._start = start
        endings = references.endings_of(start)
        self._behind = 0 if endings is None else endings.at
        self._limits = limits
        self._uncommitted = uncommitted
        self._rounds = 0
        self._divided = False
        self._asked: dict[int, PlanQuestion] = {}
        self._answers: dict[int, PlanAnswer] = {}
        self._differing: dict[int, Starts] = {}
        self.questions: dict[int, PlanQuestion] = {}
        """The questions that have no answer yet, by slot; empty when the plan is ready."""
        # The first question has the limits already: when only one worker has rows, it need not be asked again.
        self._ask({slot: self._question(uncommitted.of(slot)) for slot in slots})

    def answer(self, slot: int, answer: PlanAnswer) -> None:
        """Take a worker's answer to its question. The last answer of a round begins the next round if one is needed."""
        del self.questions[slot]
        self._answers[slot] = answer
        self._differing[slot] = self._compare(self._asked[slot].starts, answer)
        if not self.questions and self._rounds < MOST_ROUNDS:
            self._ask(self._corrections() or self._divisions())

    def plan(self) -> Plan:
        """The answers as one plan; call it once there are no more questions."""
        agreed = {}
        for slot, answer in self._answers.items():
            differing = self._differing[slot]
            agreed[slot] = {key: offer for key, offer in answer.offers.items() if key not in differing}
            self._uncommitted.answered(slot, answer)
        plan = combine(agreed, complete=not any(self._differing.values()))
        return replace(
            plan,
            ended={key: reference for answer in self._answers.values() for key, reference in answer.ended.items()},
            leaving={slot: answer.leaving for slot, answer in self._answers.items()},
            wanted=frozenset(key for answer in self._answers.values() for key in answer.wanted),
        )

    def _ask(self, questions: dict[int, PlanQuestion]) -> None:
        self._rounds += 1
        self._asked.update(questions)
        self.questions = questions

    def _question(self, keys: Iterable[references.StreamKey]) -> PlanQuestion:
        return PlanQuestion(self._starts(keys), self._limits.max_rows, self._limits.max_bytes, self._behind)

    def _starts(self, keys: Iterable[references.StreamKey]) -> dict[references.StreamKey, references.Reference | None]:
        return references.references_of(self._start, keys)

    def _compare(self, told: Starts, answer: PlanAnswer) -> Starts:
        """The streams for which a worker has assumed another start than the batch's, or could assume none."""
        if not answer.unknown and answer.offers.keys() <= told.keys():
            return {}
        here = self._starts(key for key in answer.offers if key not in told)
        differing = {key: start for key, start in here.items() if start != answer.offers[key].start}
        return differing | self._starts(key for key in answer.unknown if key not in told)

    def _corrections(self) -> dict[int, PlanQuestion]:
        """Repeated questions, now with the start, to the workers that have assumed another start."""
        found = {}
        for slot, differing in self._differing.items():
            if differing:
                asked = self._asked[slot]
                found[slot] = replace(asked, starts={**asked.starts, **differing})
        return found

    def _divisions(self) -> dict[int, PlanQuestion]:
        """Questions that limit each worker to its share, if the rows of all workers together exceed the limits."""
        if self._divided:
            return {}
        self._divided = True
        offered = {slot: (one.rows, one.size) for slot, one in self._answers.items()}
        divided = shares(offered, self._limits.max_rows, self._limits.max_bytes)
        if len(divided) < 2:
            return {}
        return {slot: PlanQuestion(self._asked[slot].starts, *share, self._behind) for slot, share in divided.items()}


class NextCall(Enum):
    """How long a worker is not asked again after an announcement."""

    NONE = "it has announced nothing new, and the call itself waits for changes"
    STANDSTILL = "the shortest time between two calls"
    UNTIL_PLANNED = "until it is asked for a plan, because further changes make no difference before that"


class SlotNews:
    """The last announcement of one worker."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        """The worker's last answer to ``available``; empty while the worker does not answer."""
        self.version = -1
        """The version of the worker's buffer in that answer; the next call waits for another one."""

    def announced(self, answer: dict[str, Any], *, watching: bool = False) -> NextCall:
        """The worker has answered ``available``. The result is not :attr:`NextCall.NONE` where that is news.

        ``watching``: every change of its connectors is of interest.
        """
        news = answer["version"] != self.version or not self.answer
        self.answer, self.version = answer, answer["version"]
        if not news:
            return NextCall.NONE
        return NextCall.STANDSTILL if watching or not answer["buffered_bytes"] else NextCall.UNTIL_PLANNED

    def lost(self) -> None:
        """The worker does not answer: it is left out of plans until it does."""
        self.answer = {}

    @property
    def may_tell(self) -> bool:
        """Whether a plan may learn something from the worker: it holds rows, or has ends of streams to report."""
        return bool(self.answer.get("buffered_bytes", 1) or self.answer.get("ends"))


class NothingToRead:
    """The last plan that found nothing: until the fleet's stamp or the batch's start changes, no worker is asked."""

    def __init__(self) -> None:
        self._at: tuple[int, Any] | None = None

    def holds(self, stamp: int, start: Any) -> bool:
        """Whether a plan would find nothing again."""
        return self._at == (stamp, start)

    def found(self, stamp: int, start: Any, plan: Plan | None) -> None:
        """A plan was made; ``stamp`` was read before the workers were asked. None: a worker did not answer."""
        self._at = (stamp, start) if plan is not None and plan.empty and plan.complete else None

    def clear(self) -> None:
        """A batch was planned."""
        self._at = None
