"""How far a batch may go: which worker is asked what, and the ends of all slots together, within Spark's limits.

Pure: the answers of the slots come in as values. Source: ``docs/options.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from wallaroo_spark.inner.plan_call import PlanAnswer, PlanQuestion, Starts, StreamOffer
from wallaroo_spark.reference_versions import reference_of
from wallaroo_spark.references import PlannedRange, Reference, References, StreamKey, slot_of_ephemeral

MOST_ROUNDS = 5
"""Rounds of questions in one plan. One is enough while nothing is unknown, one more divides limits; the others are for
streams of which workers assume another start, which may come up in each round while commits arrive."""


@dataclass(frozen=True)
class Limits:
    """The most that one batch may have, and the rows that it waits for. None means no such limit."""

    max_rows: int | None = None
    """Most rows of one batch."""
    max_bytes: int | None = None
    """Most bytes of one batch, as the workers count them in their buffers."""
    min_rows: int | None = None
    """Rows that must be available before a batch starts."""


@dataclass(frozen=True)
class Plan:
    """Where a batch would end, what it would read, and which slot has which stream."""

    ends: dict[str, dict[str, Reference]]
    """The reference of each stream's last message in the batch, by scope and then by stream id as decimal text."""
    rows: int
    """Rows that the batch would read."""
    bytes: int
    """Bytes that the batch would read, as the workers count them in their buffers."""
    holders: dict[StreamKey, int]
    """The slot whose worker has the stream's rows, by stream."""
    complete: bool = True
    """Whether the plan has every stream in which a worker has something to read."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.ends


def combine(offers: Mapping[int, Mapping[StreamKey, StreamOffer]], *, complete: bool = True) -> Plan:
    """What the slots offer as one plan. Where two have the same stream the further end counts.

    That happens while a stream moves to another slot. Ids name the messages, so that either slot reads the right ones.
    """
    ends: dict[str, dict[str, Reference]] = {}
    holders: dict[StreamKey, int] = {}
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


def _further(end: Reference, other: Reference) -> bool:
    return isinstance(end, int) and isinstance(other, int) and end > other


def shares(offered: Mapping[int, tuple[int, int]], limits: Limits) -> dict[int, tuple[int | None, int | None]]:
    """The rows and bytes that each slot may give, in proportion to the rows and bytes that it has offered.

    Only slots that have offered rows have a share; no slot has one when everything fits.
    """
    rows, size = (sum(column) for column in zip(*offered.values(), strict=True)) if offered else (0, 0)
    rows_over = limits.max_rows is not None and rows > limits.max_rows
    bytes_over = limits.max_bytes is not None and size > limits.max_bytes
    if not rows_over and not bytes_over:
        return {}
    return {
        slot: (
            _share(limits.max_rows, mine, rows) if rows_over else None,
            _share(limits.max_bytes, my_bytes, size) if bytes_over else None,
        )
        for slot, (mine, my_bytes) in offered.items()
        if mine
    }


def _share(limit: int | None, part: int, whole: int) -> int:
    assert limit is not None
    return max(1, limit * part // max(1, whole))


def slot_of(planned: PlannedRange, holders: Mapping[StreamKey, int], assigned: Mapping[str, int]) -> int:
    """The slot to ask first for a range: that of the stream, the only one that can have it, or a guess."""
    known = holders.get(planned.key)
    if known is not None:
        return known
    ephemeral = slot_of_ephemeral(planned.end)
    return assigned.get(planned.key.scope, 0) if ephemeral is None else ephemeral


class Uncommitted:
    """The streams whose start each worker may not know by itself, because no commit notice has told it. Pure.

    It is a guess that saves a round of questions, and nothing is wrong when it is: of a stream that is missing here a
    worker assumes the committed reference, which the planner finds out.
    """

    def __init__(self) -> None:
        self._streams: dict[int, tuple[StreamKey, ...]] = {}

    def of(self, slot: int) -> Collection[StreamKey]:
        """The streams to name to a slot's worker."""
        return self._streams.get(slot, ())

    def answered(self, slot: int, answer: PlanAnswer) -> None:
        """What a worker has offered may be planned now, and then the next batch starts where no commit is yet."""
        self._streams[slot] = (*answer.offers, *(key for key in answer.uncommitted if key not in answer.offers))


class Inquiry:
    """The questions of one plan. Ask all of :attr:`questions`, hand in each answer, and go on until there are none.

    ``start`` is where Spark lets the batch start. Raises nothing; what cannot be settled within ``MOST_ROUNDS`` is left
    to a later plan, and the plan is not :attr:`Plan.complete`.
    """

    def __init__(self, slots: Iterable[int], start: References, limits: Limits, uncommitted: Uncommitted) -> None:
        self._start = start
        self._limits = limits
        self._uncommitted = uncommitted
        self._rounds = 0
        self._divided = False
        self._asked: dict[int, PlanQuestion] = {}
        self._answers: dict[int, PlanAnswer] = {}
        self._differing: dict[int, Starts] = {}
        self.questions: dict[int, PlanQuestion] = {}
        """The questions that wait for answers, by slot; empty when the plan is made."""
        # A worker that alone has rows need not be asked a second time, when it knows the limits from the first.
        self._ask({slot: self._question(uncommitted.of(slot)) for slot in slots})

    def answer(self, slot: int, answer: PlanAnswer) -> None:
        """A worker's answer to its question; the last one of a round begins the next."""
        del self.questions[slot]
        self._answers[slot] = answer
        self._differing[slot] = self._compare(self._asked[slot].starts, answer)
        if not self.questions and self._rounds < MOST_ROUNDS:
            self._ask(self._corrections() or self._divisions())

    def plan(self) -> Plan:
        """The answers as one plan; call it once there are no more questions."""
        complete = True
        agreed = {}
        for slot, answer in self._answers.items():
            differing = self._differing[slot]
            complete = complete and not differing
            offers = {key: offer for key, offer in answer.offers.items() if key not in differing}
            agreed[slot] = offers if differing else answer.offers
            self._uncommitted.answered(slot, answer)
        return combine(agreed, complete=complete)

    def _ask(self, questions: dict[int, PlanQuestion]) -> None:
        self._rounds += 1
        self._asked.update(questions)
        self.questions = questions

    def _question(self, keys: Iterable[StreamKey]) -> PlanQuestion:
        return PlanQuestion(self._starts(keys), self._limits.max_rows, self._limits.max_bytes)

    def _starts(self, keys: Iterable[StreamKey]) -> dict[StreamKey, Reference | None]:
        return {key: reference_of(self._start, key) for key in keys}

    def _compare(self, told: Starts, answer: PlanAnswer) -> Starts:
        """The streams of which a worker has assumed another start than that of the batch, or could assume none."""
        if not answer.unknown and answer.offers.keys() <= told.keys():
            return {}
        differing = {
            key: here
            for key, offer in answer.offers.items()
            if key not in told and (here := reference_of(self._start, key)) != offer.start
        }
        return differing | self._starts(key for key in answer.unknown if key not in told)

    def _corrections(self) -> dict[int, PlanQuestion]:
        """Workers that have assumed another start are asked the same again, with the start."""
        found = {}
        for slot, differing in self._differing.items():
            if differing:
                asked = self._asked[slot]
                found[slot] = PlanQuestion({**asked.starts, **differing}, asked.max_rows, asked.max_bytes)
        return found

    def _divisions(self) -> dict[int, PlanQuestion]:
        """Where the rows of all are more than the limits, each worker is asked for its share."""
        if self._divided:
            return {}
        self._divided = True
        divided = shares({slot: (one.rows, one.size) for slot, one in self._answers.items()}, self._limits)
        if len(divided) < 2:
            return {}
        return {slot: PlanQuestion(self._asked[slot].starts, *share) for slot, share in divided.items()}
