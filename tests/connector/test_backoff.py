"""Back-off without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.connector import Backoff
from wallaroo_spark.errors import ConfigurationError

A, B, C = ("a", 1), ("b", 2), ("c", 3)


class TestBackoff:
    def test_delays_grow_up_to_the_maximum(self) -> None:
        backoff = Backoff(initial=0.2, multiplier=2, maximum=1.0)
        assert [backoff.delay(n, 0.0) for n in (1, 2, 3, 4, 5)] == [0.2, 0.4, 0.8, 1.0, 1.0]

    @given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
    def test_a_delay_is_bounded_however_many_failures_there_were(self, failures: int, chance: float) -> None:
        backoff = Backoff()
        assert 0 < backoff.delay(failures, chance) <= backoff.maximum

    def test_chance_takes_its_part_off_a_delay(self) -> None:
        assert Backoff(initial=1, jitter=0.5).delay(1, 0.5) == 0.75

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("initial", -1),
            ("multiplier", 0.5),
            ("maximum", 0.1),
            ("jitter", 2),
            ("attempts", 0),
            ("give_up_after", 0),
        ],
    )
    def test_values_that_cannot_work_are_refused_by_name(self, field: str, value: float) -> None:
        with pytest.raises(ConfigurationError, match=f"^retry.{field}: {value} is "):
            Backoff(**{field: value})  # type: ignore[arg-type]  # one field of several types
