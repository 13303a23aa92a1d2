"""A notice arrives as it was sent, whatever references it is of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.inner.calls import COMMITTED, Notice, decode
from wallaroo_spark.references import Reference, StreamKey, nest

KEYS = st.builds(StreamKey, st.sampled_from(["", "shop-1", "läden"]), st.integers(0, 2**64 - 1))
REFERENCES = st.dictionaries(KEYS, st.integers(0, 2**64 - 1) | st.just("e:3:7:12"), max_size=8)


@given(st.integers(0, 2**60), st.integers(-1, 2**60), REFERENCES)
def test_a_notice_arrives_as_it_was_sent(epoch: int, batch: int, references: dict[StreamKey, Reference]) -> None:
    notice = Notice(COMMITTED, epoch, batch, nest(references))

    assert decode(notice.body)[:3] == (epoch, batch, references)
    assert notice.body is notice.body
