"""Credits and sockets: who may send when the buffer is empty, filling up, and full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.revisions import revisions
from tests.worker.bench import NOON, Bench, Connector
from wallaroo_spark.protocol import DRAFT_BE, REVISIONS, V3, Ack, Flags, Revision
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import Connection
from wallaroo_spark.worker.machine.pressure import pace
from wallaroo_spark.worker.machine.pressure.gates import Gates

BUDGET = 1 << 20


@pytest.fixture
def small(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(memory_budget=BUDGET)


def sender(bench: Bench, instance: str, revision: Revision = DRAFT_BE) -> Connector:
    """A connector with stream 1 open."""
    connector = bench.join(revision, instance)
    connector.open(1)
    return connector


def fill(connector: Connector, first: int, total: int, size: int = 50_000) -> int:
    """Send messages until so much is held; the id behind the last."""
    while connector.bench.state.buffer.used < total:
        connector.messages(1, [first], size=size)
        first += 1
    return first


@revisions
def test_a_connector_that_is_committed_never_runs_out_of_credits(small: Bench, revision: Revision) -> None:
    connector = sender(small, "shop-1", revision)
    sent = 0
    for _ in range(40):
        count = min(connector.session.credits.available, 300)
        connector.messages(1, range(sent + 1, sent + count + 1))
        sent += count
        small.run_batch()

    assert sent == 40 * 300
    assert connector.session.credits.available > 0
    assert connector.error == ""


@revisions
def test_a_message_without_a_credit_breaks_the_protocol(small: Bench, revision: Revision) -> None:
    connector, other = sender(small, "shop-1", revision), small.join(revision, "shop-2")
    other.open(2)
    credits = connector.session.credits.available
    message = connector.message(1, 1)
    connector.session.credits.grant(1 << 20)
    connector.send(message, *(connector.message(1, number) for number in range(2, credits + 2)))

    assert "with no credit left" in connector.error
    assert small.counts["fault:no-credit"] == 1
    assert small.counts["messages"] == credits
    other.messages(2, [5])
    assert [5] in small.run_batch().values()


def test_a_notify_may_overdraw_and_the_debt_is_made_good(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(memory_budget=BUDGET)
    bench.state.flow.observe(10_000, 10_000 * 200_000)
    connector = bench.join(V3)
    assert connector.session.credits.available == 3

    connector.send(*(connector.session.notify(number, "") for number in range(50)))
    assert connector.session.credits.available == 3
    connector.messages(7, [1, 2, 3])
    assert connector.error == ""


def test_pressure_that_ends_within_an_event_pauses_nobody(small: Bench) -> None:
    """A frame is counted as incomplete and as rows until its session's turn, which comes after that of another one."""
    filling, other, large = (sender(small, name) for name in ("filling", "other", "large"))
    soft = BUDGET * 3 // 4
    message = large.message(1, 1, size=60_000)
    large.send(message[:-10])
    fill(filling, 1, soft - 30_000, size=5_000)
    assert soft - 30_000 <= small.state.buffer.used < soft - 20_000
    parts = ((other.number, other.message(1, 1)), (large.number, message[-10:]))
    small.do(e.Received(parts, NOON))

    assert soft - 30_000 <= small.state.buffer.used < soft
    assert [connector.paused for connector in (filling, other, large)] == [False] * 3


def test_past_the_soft_limit_nobody_is_read(small: Bench) -> None:
    one, two = sender(small, "one"), sender(small, "two")
    fill(one, 1, BUDGET * 3 // 4)

    assert one.paused
    assert two.paused
    assert small.state.status()["pressure"] == "soft"
    small.run_batch()
    assert not one.paused
    assert not two.paused
    assert small.state.status()["pressure"] == "none"


def test_a_session_that_ran_out_of_credits_gets_new_ones(small: Bench) -> None:
    connector = sender(small, "one")
    fill(connector, 1, BUDGET * 3 // 4, size=200_000)
    connector.session.credits.spend(connector.session.credits.available)
    small.state.connections.by_number[0].protocol.credits.spend(1 << 20)
    acks = len(connector.said(Ack))
    small.run_batch()

    assert connector.said(Ack)[acks].refs != ()
    assert connector.session.credits.available > 0


def test_handshakes_are_read_whatever_the_buffer_holds(small: Bench) -> None:
    fill(sender(small, "one"), 1, BUDGET)
    late = small.connect(DRAFT_BE, "late")

    assert not late.paused
    late.hello()
    assert late.paused
    assert late.session.credits.available == 1


def wanted(*instances: str, end: int = 100) -> e.Wanted:
    return e.Wanted(tuple(PlannedRange(StreamKey(instance, 1), None, end) for instance in instances))


def test_past_the_soft_limit_awaited_rows_are_read(small: Bench) -> None:
    one, two = sender(small, "one"), sender(small, "two")
    fill(one, 1, BUDGET * 3 // 4)
    small.do(wanted("two"))
    assert one.paused
    assert not two.paused
    two.messages(1, range(1, 11))
    assert two.session.credits.available > 0

    small.do(e.Wanted(()))
    assert two.paused


def test_a_session_without_streams_may_have_the_rows_that_a_read_waits_for(small: Bench) -> None:
    fill(sender(small, "one"), 1, BUDGET * 3 // 4)
    late = small.join(DRAFT_BE, "two")
    assert not late.paused

    late.open(1)
    assert late.paused
    small.do(wanted("two"))
    assert not late.paused


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=str)
def test_a_session_whose_next_notify_may_bring_awaited_rows_is_read(small: Bench, revision: Revision) -> None:
    fill(sender(small, "one"), 1, BUDGET * 3 // 4)
    two = small.join(revision, "two")
    two.open(1)
    assert two.paused

    key = StreamKey("two" if revision.stream_scope == "instance" else "", 2)
    small.do(e.Wanted((PlannedRange(key, None, 5),)))
    assert not two.paused
    two.open(2)
    for message_id in range(1, 6):
        two.messages(2, [message_id])
    assert small.state.buffer.find(PlannedRange(key, None, 5)) is not None


def test_a_session_that_is_told_to_go_is_read_to_its_end(small: Bench) -> None:
    one = sender(small, "one")
    fill(one, 1, BUDGET * 3 // 4)
    assert one.paused

    small.do(e.Stopping("the receiver stops"))
    assert not one.paused


def test_a_session_that_is_paused_may_go(small: Bench) -> None:
    one, two = sender(small, "one"), sender(small, "two")
    fill(one, 1, BUDGET * 3 // 4)
    one.leave()
    assert two.paused

    small.run_batch()
    assert not two.paused


@pytest.mark.no_cover
def test_windows_of_thousands_of_sessions_stay_within_what_is_free(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(memory_budget=64 << 20, max_sessions=5000)
    connectors = [bench.connect(DRAFT_BE, f"shop-{number}") for number in range(1500)]
    with monkeypatch.context() as patched:
        patched.setattr(bench, "validate", lambda: None)  # It is quadratic here.
        for connector in connectors:
            connector.hello()

    latest = [connector.session.credits.available for connector in connectors[-500:]]
    assert max(latest) <= (64 << 20) // (1000 * 256)
    assert min(latest) >= 1


@pytest.fixture
def paced(make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A worker that lets in 50 kB at first, of 786 kB that it may."""
    monkeypatch.setattr(pace, "SMALLEST_BATCH", 25_000)
    monkeypatch.setattr(pace, "START_PART", 100)
    return make_bench(memory_budget=BUDGET)


def spend(connector: Connector, first: int, stable: bool = True) -> int:
    """Send for as long as there are credits, as many at a time; the id behind the last."""
    flags = Flags.NONE if stable else Flags.UNSTABLE_REFERENCE
    while (credits := connector.session.credits.available) > 0:
        connector.messages(1, range(first, first + credits), flags, size=150)
        first += credits
    return first


def test_credits_end_with_the_need_of_the_next_batch(paced: Bench) -> None:
    connector = sender(paced, "one")
    spend(connector, 1)

    assert 50_000 <= paced.state.buffer.used < 100_000
    assert not connector.paused
    paced.run_batch()
    assert connector.session.credits.available > 0


def test_a_session_that_waits_for_credits_gets_them_when_another_s_rows_are_committed(paced: Bench) -> None:
    one, two = sender(paced, "one"), sender(paced, "two")
    spend(one, 1)
    spend(two, 1)
    assert two.session.credits.available <= 0

    paced.run_batch()
    assert one.session.credits.available > 0
    assert two.session.credits.available > 0


def test_a_message_larger_than_the_need_of_a_batch_may_come(paced: Bench) -> None:
    connector = sender(paced, "one")
    connector.messages(1, [1], size=400_000)

    assert list(paced.run_batch().values()) == [[1]]
    assert connector.session.credits.available > 0


def test_rows_that_cannot_be_planned_use_no_credits(paced: Bench) -> None:
    connector = sender(paced, "one")
    first = spend(connector, 1, stable=False)
    paced.do(e.Tick(0.25))
    assert connector.session.credits.available > 0

    connector.messages(1, range(first, first + 1_500), Flags.UNSTABLE_REFERENCE, size=150)
    assert paced.state.buffer.used > 300_000
    assert connector.error == ""


def test_rows_that_a_read_waits_for_may_come_beyond_the_need_of_a_batch(paced: Bench) -> None:
    connector = sender(paced, "one")
    first = spend(connector, 1)
    paced.do(wanted("one", end=100_000))
    assert connector.session.credits.available > 0

    connector.messages(1, range(first, first + 1_500), size=150)
    assert paced.state.buffer.used > 300_000
    assert connector.error == ""


def test_a_query_that_starts_again_is_not_known(paced: Bench) -> None:
    connector = sender(paced, "one")
    for moment in range(1, 5):
        spend(connector, 1000 * moment)
        paced.do(e.Tick(float(moment)))
        paced.run_batch()
    assert paced.state.flow.pace is not None
    grown = paced.state.flow.pace.batch

    paced.rewind(paced.offsets, paced.batch)
    assert paced.state.flow.pace.batch == 25_000 < grown


def test_fixed_credits_are_for_all_that_the_budget_has_room_for(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SMALLEST_BATCH", 25_000)
    bench = make_bench(memory_budget=BUDGET, credits="fixed")
    spend(sender(bench, "one"), 1)

    assert bench.state.flow.pace is None
    assert bench.state.buffer.used > 700_000


def test_awaited_ranges_are_examined_once_and_not_for_every_session(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(memory_budget=1 << 20)
    senders = [bench.join(V3, f"shop-{number}") for number in range(20)]
    for number, sender in enumerate(senders):
        sender.open(number)
    senders[0].messages(0, range(1, 9), size=100_000)
    looked: list[StreamKey] = []
    unsent = Gates._unsent

    def look(self: Gates, key: StreamKey) -> bool:
        looked.append(key)
        return unsent(self, key)

    monkeypatch.setattr(Gates, "_unsent", look)
    ranges = tuple(PlannedRange(StreamKey("", number), None, 9) for number in range(10))
    bench.do(e.Wanted(ranges))

    assert [sender.paused for sender in senders] == [False] * 10 + [True] * 10
    assert len(looked) <= len(ranges)
    senders[3].leave()
    bench.do(e.Wanted(ranges))
    assert not any(sender.paused for sender in senders[10:])


def test_a_commit_looks_at_the_sessions_it_concerns_and_at_no_other(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    connectors = [bench.join(DRAFT_BE, f"shop-{number}") for number in range(50)]
    for number, connector in enumerate(connectors):
        connector.open(number + 1)
    connectors[7].messages(8, [1, 2])
    looked_at: list[int] = []
    acknowledge = Gates.acknowledge

    def count(gates: Gates, connection: Connection, *references: Any) -> None:
        looked_at.append(connection.number)
        acknowledge(gates, connection, *references)

    monkeypatch.setattr(Gates, "acknowledge", count)
    bench.run_batch()
    assert looked_at == [connectors[7].number]
    assert connectors[7].said(Ack)[-1].refs == ((8, 2),)
