"""Times of one shape each, for Hypothesis: integers, pairs, pairs within pairs, and the unit."""

from __future__ import annotations

from hypothesis import strategies as st

from wallaroo_spark.pubsub.times import Time

small = st.integers(0, 6)
SHAPES: tuple[st.SearchStrategy[Time], ...] = (
    small,
    st.tuples(small, small),
    st.tuples(small, st.tuples(small, small)),
    st.tuples(small, small, small),
    st.none(),
)


def lists_of_times(most: int = 12) -> st.SearchStrategy[list[Time]]:
    """Lists of times that can be compared with each other."""
    return st.sampled_from(SHAPES).flatmap(lambda times: st.lists(times, min_size=1, max_size=most))
