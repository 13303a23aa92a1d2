"""Frames that are under way when the worker is full: they count, they wait, and they come to an end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.worker.bench import Bench, Connector, ids_of
from wallaroo_spark.protocol import DRAFT_BE, V3, Flags, faults
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e

BUDGET = 1 << 20
SECONDS = 10.0
"""The handshake timeout, which is also the time limit of a frame in its turn."""


@pytest.fixture
def small(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(memory_budget=BUDGET, handshake_timeout=SECONDS)


def joined(bench: Bench, count: int) -> list[Connector]:
    connectors = [bench.join(DRAFT_BE, f"i{number}") for number in range(count)]
    for connector in connectors:
        connector.open(1)
    return connectors


def begin(connector: Connector, size: int, missing: int, message_id: int = 1) -> bytes:
    """Send a frame but for its end; the end."""
    frame = connector.message(1, message_id, size=size)
    connector.send(frame[:-missing])
    return frame[-missing:]


def test_the_arrived_part_of_a_frame_counts_and_stops_reading(small: Bench) -> None:
    connectors = joined(small, 5)
    for connector in connectors[:4]:
        begin(connector, 200_000, 10)

    status = small.state.status()
    assert status["unfinished_bytes"] == status["memory_used"] == 4 * 200_013
    assert status["pressure"] == "soft"
    assert all(connector.paused for connector in connectors)


def test_frames_that_are_whole_or_whose_session_is_gone_do_not_count(small: Bench) -> None:
    whole, gone, cut_off = joined(small, 3)
    whole.send(begin(whole, 1000, 10))
    begin(gone, 1000, 10)
    gone.leave()
    begin(cut_off, 1000, 10)
    small.do(e.Stuck(cut_off.number, 5_000_000))

    assert small.state.status()["unfinished_bytes"] == 0


def test_where_nothing_drains_frames_get_a_turn_and_become_rows(small: Bench) -> None:
    connectors = joined(small, 5)
    rests = [begin(connector, 200_000, missing) for connector, missing in zip(connectors, (9, 7, 8, 5), strict=False)]
    small.do(e.Tick(1.0))

    assert [connector.paused for connector in connectors] == [False, False, False, False, True]
    connectors[3].send(rests[3])
    assert small.state.status()["pressure"] == "soft"
    assert connectors[3].paused
    assert small.run_batch() == {StreamKey("i3", 1): [1]}
    assert not connectors[4].paused


def test_no_more_get_a_turn_than_there_is_room_for_and_one_always(small: Bench) -> None:
    connectors = joined(small, 3)
    for connector, missing in zip(connectors, (400_000, 300_000, 350_000), strict=True):
        begin(connector, 700_000, missing)
    small.do(e.Tick(1.0))

    assert small.state.status()["pressure"] == "hard"
    assert [connector.paused for connector in connectors] == [True, False, True]


def test_a_paused_session_is_read_again_after_a_batch(small: Bench) -> None:
    full, under_way = joined(small, 2)
    full.messages(1, [1], size=500_000)
    begin(under_way, 400_000, 10)
    small.do(e.Tick(1.0))

    assert under_way.paused
    small.run_batch()
    assert not under_way.paused


def test_a_frame_that_does_not_come_to_its_end_in_its_turn_ends_its_session(small: Bench) -> None:
    hostile = joined(small, 5)
    for connector in hostile[:4]:
        begin(connector, 200_000, 10)
    small.do(e.Tick(1.0))
    small.do(e.Tick(1.0 + SECONDS))

    for connector in hostile[:4]:
        assert faults.is_later(connector.error)
        assert "200013 bytes of a frame have come, and the 10 that are missing did not come within 10 seconds" in (
            connector.error
        )
        assert "(handshakeTimeout)" in connector.error
        assert f"memoryBudget of {BUDGET}" in connector.error
    assert small.counts["unfinished-frames"] == 4
    assert small.state.status()["unfinished_bytes"] == 0
    assert not hostile[4].paused


def test_without_pressure_a_frame_may_take_as_long_as_it_takes(small: Bench) -> None:
    (slow,) = joined(small, 1)
    rest = begin(slow, 200_000, 10)
    for second in range(0, 100, 7):
        small.do(e.Tick(float(second)))
    slow.send(rest)

    assert small.run_batch() == {StreamKey("i0", 1): [1]}


def test_a_frame_that_a_read_waits_for_has_its_turn_first(small: Bench) -> None:
    connectors = joined(small, 5)
    for connector in connectors[:3]:
        begin(connector, 400_000, 10)
    needed = connectors[3]
    rest = begin(needed, 30_000, 20_000)
    planned = PlannedRange(StreamKey("i3", 1), None, 1)
    small.do(e.Wanted((planned,)))
    assert small.state.status()["pressure"] == "hard"
    assert needed.paused
    small.do(e.Tick(1.0))

    assert [connector.paused for connector in connectors] == [True, True, True, False, True]
    needed.send(rest)
    assert ids_of(small.state.buffer.find(planned)) == [1]


def test_unstable_rows_are_not_dropped_for_frames_of_others(small: Bench) -> None:
    unstable, *others = joined(small, 5)
    unstable.messages(1, [1], Flags.UNSTABLE_REFERENCE)
    for connector in others:
        begin(connector, 200_000, 10)

    assert unstable.error == ""


def test_peers_without_ok_cannot_fill_the_buffer(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(memory_budget=BUDGET)
    good = bench.join(DRAFT_BE, "good")
    strangers = [bench.connect(V3, f"s{number}") for number in range(20)]
    hello = (200_000).to_bytes(4) + b"\0" + bytes(100_000)
    for stranger in strangers:
        bench.do(e.Received(((stranger.number, hello),), 0))

    ended = [stranger for stranger in strangers if stranger.closed]
    assert len(ended) == 10
    assert "peers without OK have sent" in ended[0].error
    assert bench.state.status()["unfinished_bytes"] == 0
    assert not good.paused
