"""Windows and gates out of the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import steady
from wallaroo_spark.options import Options
from wallaroo_spark.worker.machine.pressure.flow import LARGEST_WINDOW, FlowControl, Pressure

BUDGET = 10_000_000


def fixed(budget: int) -> FlowControl:
    """The windows of a worker with this budget."""
    return FlowControl(Options(memory_budget=budget, credits="fixed"))


@pytest.fixture
def flow() -> FlowControl:
    return fixed(BUDGET)


@pytest.mark.parametrize(
    ("used", "pressure"),
    [
        (0, Pressure.NONE),
        (7_499_999, Pressure.NONE),
        (7_500_000, Pressure.SOFT),
        (9_999_999, Pressure.SOFT),
        (10_000_000, Pressure.HARD),
        (90_000_000, Pressure.HARD),
    ],
)
def test_pressure_grows_with_the_used_bytes(flow: FlowControl, used: int, pressure: Pressure) -> None:
    assert flow.pressure(used) is pressure


def test_a_window_is_a_sessions_share_of_the_free_bytes(flow: FlowControl) -> None:
    assert flow.window(0, 1) == 7_500_000 // 256
    assert flow.window(0, 10) == 750_000 // 256
    assert flow.window(5_000_000, 10) == 250_000 // 256


def test_a_window_has_bounds(flow: FlowControl) -> None:
    assert fixed(1 << 40).window(0, 1) == LARGEST_WINDOW
    assert flow.window(0, 100_000) == 1
    assert flow.window(2 * BUDGET, 1) == 1
    assert flow.window(0, 0) == flow.window(0, 1)


def test_a_window_shrinks_when_messages_turn_out_large(flow: FlowControl) -> None:
    flow.observe(0, 0)
    before = flow.window(0, 1)
    flow.observe(20_000, 20_000 * 750_000)

    assert before == 7_500_000 // 256
    assert flow.window(0, 1) == 10


def test_a_few_messages_move_the_average_a_little(flow: FlowControl) -> None:
    flow.observe(100, 100 * 25_856)

    assert flow.window(0, 1) == 7_500_000 // (256 + 256)


def test_credits_come_when_half_of_the_window_is_spent(flow: FlowControl) -> None:
    window = flow.window(0, 1)

    assert flow.top_up(window, 0, 1, needed=False) == 0
    assert flow.top_up(window // 2 + 1, 0, 1, needed=False) == 0
    assert flow.top_up(window // 2, 0, 1, needed=False) == window - window // 2
    assert flow.top_up(0, 0, 1, needed=False) == window


def test_a_debt_is_made_good(flow: FlowControl) -> None:
    assert flow.top_up(-500, 0, 1, needed=False) == flow.window(0, 1) + 500


def test_the_last_credit_is_replaced_even_in_the_smallest_window(flow: FlowControl) -> None:
    assert flow.top_up(0, 0, 10_000_000, needed=False) == 1


@pytest.mark.parametrize(
    ("used", "needed", "some"), [(7_500_000, False, False), (7_500_000, True, True), (10_000_000, True, False)]
)
def test_under_pressure_only_what_is_needed_gets_credits(
    flow: FlowControl, used: int, needed: bool, some: bool
) -> None:
    assert (flow.top_up(0, used, 1, needed=needed) > 0) is some


@pytest.mark.parametrize(
    ("used", "streaming", "needed", "read"),
    [
        (0, True, False, True),
        (7_500_000, True, False, False),
        (7_500_000, True, True, True),
        (10_000_000, True, True, False),
        (10_000_000, False, False, True),
    ],
)
def test_under_pressure_only_what_is_needed_is_read(
    flow: FlowControl, used: int, streaming: bool, needed: bool, read: bool
) -> None:
    assert flow.may_read(used, streaming=streaming, needed=needed) is read


@steady
@given(st.integers(0, 2 * BUDGET), st.integers(1, 5000), st.integers(65, 100_000))
def test_all_windows_together_exceed_the_free_bytes_by_at_most_a_message_each(
    used: int, sessions: int, size: int
) -> None:
    flow = fixed(BUDGET)
    flow.observe(10_000, 10_000 * size)

    promised = flow.window(used, sessions) * sessions * size

    assert promised <= max(0, flow.soft_limit - used) + sessions * size
