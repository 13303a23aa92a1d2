"""The credit window of a session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import steady
from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import CreditWindow


def test_a_window_starts_with_nothing() -> None:
    window = CreditWindow()
    assert (window.available, window.granted, window.spent) == (0, 0, 0)
    assert window.spend(1) == 0


def test_only_as_many_messages_are_charged_as_there_are_credits() -> None:
    window = CreditWindow()
    window.grant(5)
    assert (window.spend(3), window.spend(3), window.spend(3)) == (3, 2, 0)
    assert (window.available, window.spent) == (0, 5)


def test_a_notify_overdraws_and_the_next_grants_make_it_good() -> None:
    window = CreditWindow()
    window.overdraw()
    window.overdraw()
    assert window.available == -2
    assert window.spend(1) == 0
    window.grant(3)
    assert window.spend(5) == 1


@pytest.mark.parametrize("credits", [-1, 2**32])
def test_a_grant_that_no_frame_can_carry_is_refused(credits: int) -> None:
    window = CreditWindow()
    with pytest.raises(LocalProtocolError, match=f"a grant of {credits} credits"):
        window.grant(credits)
    assert window.available == window.granted == 0


@steady
@given(st.lists(st.tuples(st.sampled_from(("grant", "spend", "overdraw")), st.integers(0, 2**32 - 1))))
def test_available_credits_are_granted_minus_spent(steps: list[tuple[str, int]]) -> None:
    window, notifies = CreditWindow(), 0
    for step, number in steps:
        if step == "grant":
            window.grant(number)
        elif step == "spend":
            before = window.available
            assert 0 <= window.spend(number) <= number
            assert window.available >= min(before, 0)
        else:
            window.overdraw()
            notifies += 1
        assert window.available == window.granted - window.spent
        assert window.available >= -notifies
    assert f"available={window.available}" in repr(window)
