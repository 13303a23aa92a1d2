"""Questions and answers of the call ``plan`` arrive as they were sent, whatever streams and references they are of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.inner.calls import (
    PlanAnswer,
    PlanQuestion,
    StreamOffer,
    decode_starts,
    encode_starts,
)
from wallaroo_spark.references import StreamKey

IDS = st.integers(0, 2**64 - 1)
KEYS = st.builds(StreamKey, st.sampled_from(["", "shop-1", 'sh"op', "läden"]), IDS)
ENDS = IDS | st.just("e:3:7:12")
STARTS = st.dictionaries(KEYS, ENDS | st.none(), max_size=6)
OFFERS = st.dictionaries(KEYS, st.builds(StreamOffer, ENDS | st.none(), ENDS, IDS, IDS), max_size=6)


@given(STARTS, st.none() | IDS, st.none() | IDS, IDS)
def test_a_question_arrives_as_it_was_asked(
    starts: dict[StreamKey, int | str | None], rows: int | None, size: int | None, behind: int
) -> None:
    question = PlanQuestion(starts, rows, size, behind)

    assert PlanQuestion.decode(question.encode()) == question
    assert decode_starts(encode_starts(starts)) == starts


@given(OFFERS, st.lists(KEYS, max_size=4), st.lists(KEYS, max_size=4))
def test_an_answer_arrives_as_it_was_given(
    offers: dict[StreamKey, StreamOffer], unknown: list[StreamKey], uncommitted: list[StreamKey]
) -> None:
    answer = PlanAnswer(offers, 10, 2000, unknown, uncommitted)

    assert PlanAnswer.decode(answer.encode()) == answer


def test_an_instance_is_named_once_for_all_its_streams() -> None:
    starts = {StreamKey("an instance with a long name", number): number for number in range(1000)}

    assert len(encode_starts(starts)) < 10 * len(starts)
