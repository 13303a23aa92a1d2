"""Credits that follow the rate of the query: whole loads in simulated time, beside a fixed window."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from proving.bench.simulated_loads import LOADS, MEBIBYTE, Outcome, SimulatedLoad, Simulation, always, compared
from proving.bench.simulated_loads import step as steps
from wallaroo_spark.worker.machine.pressure.pace import WORTH

# Minutes of simulated time go through the same lines as single rules do.
pytestmark = pytest.mark.no_cover

MOST = 192 * MEBIBYTE
SMALL = 100_000
BY_NAME = {load.name: load for load in LOADS}


@functools.cache
def run(load: SimulatedLoad, credits: str = "adaptive") -> Outcome:
    """The result of a load. It is the same each time, so it is computed once."""
    return Simulation(load, credits).run()


def both(name: str) -> tuple[Outcome, Outcome]:
    """A load with fixed and with adaptive credits."""
    return run(BY_NAME[name], "fixed"), run(BY_NAME[name])


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_throughput_is_the_fixed_window_s_within_a_twentieth(load: SimulatedLoad) -> None:
    begin = 300.0 if load.interval else 0.0
    fixed, adaptive = run(load, "fixed"), run(load)

    assert adaptive.rate(begin) >= 0.95 * fixed.rate(begin)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_buffer_never_holds_more_than_with_a_fixed_window(load: SimulatedLoad) -> None:
    fixed, adaptive = run(load, "fixed"), run(load)

    assert adaptive.peak() <= fixed.peak() + 1e-9
    assert adaptive.mean_held() <= fixed.mean_held() * 1.001
    assert max(adaptive.limits) <= MOST / MEBIBYTE


def test_a_light_load_meets_no_limit() -> None:
    fixed, adaptive = both("light")

    assert adaptive.held == fixed.held
    assert adaptive.waits == fixed.waits


def test_with_a_slow_sink_an_eighth_is_held_and_waits_an_eighth() -> None:
    fixed, adaptive = both("at full speed, slow sink")

    assert adaptive.mean_held() < fixed.mean_held() / 8
    assert adaptive.wait(0.5) < fixed.wait(0.5) / 8
    assert adaptive.rate() > 0.97 * fixed.rate()


def test_batches_of_a_slow_sink_last_twenty_times_their_fixed_cost() -> None:
    load = BY_NAME["at full speed, slow sink"]
    lengths = sorted(length for time, _, length in run(load).commits if time > 60)

    assert lengths[len(lengths) // 2] == pytest.approx(WORTH * load.fixed, rel=0.1)


def test_batches_that_vary_cost_twice_the_buffer_and_no_throughput() -> None:
    _, adaptive = both("at full speed, slow sink, batches vary by half")
    _, even = both("at full speed, slow sink")

    assert adaptive.mean_held() < 2.5 * even.mean_held()


def test_a_step_up_is_followed_within_so_many_batches() -> None:
    load = BY_NAME["step up, 5 to 80"]
    after = [(time, rows) for time, rows, _ in run(load).commits if time > 60]
    full = [rows for _, rows, _ in run(load, "fixed").commits][-1]

    assert next(index for index, (_, rows) in enumerate(after) if rows > 0.9 * full) <= 12


def test_a_stalled_sink_fills_no_more_than_some_creeping() -> None:
    fixed, adaptive = both("sink stalls for 60 s")

    assert fixed.peak(100, 160) == pytest.approx(192, abs=0.1)
    assert adaptive.peak(100, 160) < 80


def test_after_a_stall_the_rate_is_back_within_so_many_batches() -> None:
    load = BY_NAME["sink stalls for 60 s"]
    adaptive = run(load)
    after = [(time, rows, length) for time, rows, length in adaptive.commits if time > 160]

    speeds = [rows / length for _, rows, length in after]
    best = max(speeds)
    assert next(index for index, speed in enumerate(speeds) if speed > 0.9 * best) <= 8
    assert adaptive.rate(160, 400) > 0.95 * run(load, "fixed").rate(160, 400)


def test_a_sink_that_gets_slower_is_followed_within_so_many_batches() -> None:
    adaptive = run(BY_NAME["sink ten times as slow from 100 s on"])
    settled = adaptive.limits[-1]
    after = [time for time, _, _ in adaptive.commits if time > 100]

    assert settled < 60
    index = next(index for index, time in enumerate(after) if adaptive.peak(time, time + 1) < 1.5 * settled)
    assert index <= 6


def test_a_sink_that_gets_faster_is_followed_within_so_many_batches() -> None:
    adaptive = run(BY_NAME["sink ten times as fast from 200 s on"])
    after = [length for time, _, length in adaptive.commits if time > 200]
    rates = [rows / length for time, rows, length in adaptive.commits if time > 200]

    assert next(index for index, rate in enumerate(rates) if rate > 0.9 * max(rates)) <= 8
    assert max(after) <= 8


def test_a_long_trigger_interval_is_no_slow_sink() -> None:
    fixed, adaptive = both("a batch a minute")

    assert adaptive.rate(360) == pytest.approx(fixed.rate(360), rel=0.001)


@pytest.mark.parametrize(
    ("senders", "busy"), [(10, 0), (1000, 1)], ids=["all of ten are busy", "one of a thousand is busy"]
)
def test_connectors_with_data_share_the_credits(senders: int, busy: int) -> None:
    load = dataclasses.replace(BY_NAME["at full speed, slow sink"], senders=senders, busy=busy, seconds=40)
    if busy:
        load = dataclasses.replace(load, supply=always(20), sink=always(100), seconds=3)
    fixed, adaptive = run(load, "fixed"), run(load)

    sent = adaptive.sent[: busy or senders]
    assert min(sent) > 0.95 * max(sent)
    assert sum(sent) > 0.95 * sum(fixed.sent) or adaptive.rate() > 0.95 * fixed.rate()


@pytest.mark.parametrize("rows", [20_000, 500_000, 900_000])
def test_a_planner_that_waits_for_rows_is_not_starved(rows: int) -> None:
    load = SimulatedLoad("fewest rows", always(50), least=rows, seconds=200)

    assert run(load).rate() > 0.95 * run(load, "fixed").rate()


def test_a_stream_with_few_places_where_a_batch_may_end_is_not_starved() -> None:
    load = SimulatedLoad("rare stable references", always(50), stable=800_000, seconds=200)

    assert run(load).rate() > 0.95 * run(load, "fixed").rate()


def test_of_a_query_that_takes_few_rows_only_some_batches_are_held() -> None:
    load = SimulatedLoad("most rows", always(50), most=20_000, seconds=200)
    fixed, adaptive = run(load, "fixed"), run(load)

    assert adaptive.rate() > 0.95 * fixed.rate()
    assert adaptive.mean_held(60) < fixed.mean_held(60) / 10


def test_a_price_that_grows_is_seen_at_the_next_small_batches() -> None:
    slow = Simulation(SimulatedLoad("dearer", always(300), sink=always(8), seconds=1500), "adaptive")
    dearer = dataclasses.replace(slow.load, fixed=0.9)
    cheap = slow.outcome
    for count in range(1, round(1500 / slow.step) + 1):
        if count == round(300 / slow.step):
            slow.load = dearer
        slow.advance(count * slow.step)

    lengths = [length for time, _, length in cheap.commits if time > 1400]
    assert max(lengths) == pytest.approx(WORTH * 0.9, rel=0.35)


def test_the_comparison_has_both_and_every_figure() -> None:
    found = compared(SimulatedLoad("short", steps(5, 50, 2), seconds=6))

    assert found["load"] == "short"
    assert found["fixed"].keys() == found["adaptive"].keys()
    assert all(value >= 0 for value in found["fixed"].values())
