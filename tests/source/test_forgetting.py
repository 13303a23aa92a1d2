"""Which ended streams are recorded, leave and are forgotten, and which must not be: pure, with a clock by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import Options
from wallaroo_spark.references import Reference, References, StreamKey, VersionedReferences, endings_of, merge, ranges
from wallaroo_spark.sidecar.plan_files import NamedPlan, PlanFiles
from wallaroo_spark.source.forgetting import Decision, Forgetting, PlanClock
from wallaroo_spark.source.plan_book import PlanBook
from wallaroo_spark.source.planner import Plan

A, B = StreamKey("a", 1), StreamKey("b", 2)
KAFKA = "kafka/billing/0"
RETENTION, DWELL = 80.0, 10.0


class Query:
    """The plans of a query with two slots, as a source makes them."""

    def __init__(
        self,
        inline_bytes: int = 1 << 20,
        store: PlanFiles | None = None,
        wall: float = 5_000.0,
        retention: float = RETENTION,
        unused: float = 0.0,
    ) -> None:
        self.now = 1_000.0
        self.book = PlanBook("orders", "increasing", lambda: store, inline_bytes=inline_bytes, beside=lambda w: w())
        self.forgetting = Forgetting(retention, DWELL, PlanClock(lambda: wall, lambda: self.now), unused)
        self.value = self.book.begin({})
        self.known: dict[int, str] | None = None
        """The tokens that the workers know; None: that of the last plan."""

    @property
    def references(self) -> VersionedReferences:
        return self.book.references(self.value)

    @property
    def leaving(self) -> list[StreamKey]:
        endings = endings_of(self.references)
        return [] if endings is None else endings.leaving_streams()

    def plan(
        self,
        ends: References,
        ended: Mapping[StreamKey, Reference] | None = None,
        wanted: frozenset[StreamKey] = frozenset(),
    ) -> Decision:
        endings = endings_of(self.references)
        token = endings.leaving.token if endings is not None and endings.leaving is not None else ""
        known = {0: token, 1: token} if self.known is None else self.known
        plan = Plan({}, 0, 0, {}, ended=ended or {}, leaving=known, wanted=wanted)
        decision = self.forgetting.decide(self.references, plan, ends, 2)
        self.value = self.book.after(self.value, merge(ends, decision.forgotten), decision.endings)
        return decision

    def end_a(self) -> None:
        """Stream a ends, its batch is committed, and its retention passes."""
        self.plan({"a": {"1": 7}, "b": {"2": 2}}, {A: 7})
        self.plan({"b": {"2": 3}}, {A: 7})
        self.now += 2 * RETENTION


def test_an_ended_stream_is_forgotten_in_two_plans_and_an_open_one_never() -> None:
    query = Query()
    query.end_a()
    query.plan({"b": {"2": 4}})
    assert query.leaving == [A]
    assert query.references.of_scope("a").get("1") == 7
    query.now += DWELL
    before = query.references
    assert query.plan({}).due

    assert query.references == {"b": {"2": 4}}
    assert query.leaving == []
    assert ranges(before, query.references) == []
    for _ in range(5):
        query.now += 2 * RETENTION
        query.plan({})
    assert query.references == {"b": {"2": 4}}


def test_the_retention_begins_when_the_batch_of_the_end_is_committed() -> None:
    query = Query()
    query.plan({"a": {"1": 7}}, {A: 7})
    # The batch waits for a connector for long; the plan after it shows that it is committed.
    query.now += 5 * RETENTION
    query.plan({"b": {"2": 1}}, {A: 7})
    query.now += 0.9 * RETENTION
    query.plan({"b": {"2": 2}})
    assert query.leaving == []
    query.now += 2 * RETENTION
    query.plan({"b": {"2": 3}})
    assert query.leaving == [A]


def test_nothing_leaves_before_the_retention_is_over() -> None:
    query = Query()
    query.end_a()
    query.now -= 1.01 * RETENTION
    query.plan({"b": {"2": 4}})
    assert query.leaving == []


@pytest.mark.parametrize("known", [{}, {0: "another", 1: "another"}])
def test_a_leaving_stream_stays_until_every_worker_was_told(known: dict[int, str]) -> None:
    query = Query()
    query.end_a()
    query.plan({})
    query.now += 10 * DWELL
    query.known = known
    assert not query.plan({}).due
    assert query.references.of_scope("a").get("1") == 7
    token = endings_of(query.references).leaving.token  # type: ignore[union-attr]  # a group is leaving
    query.known = {0: token}
    assert not query.plan({}).due
    query.known = {0: token, 1: token}
    assert query.plan({}).due
    assert query.references.of_scope("a").get("1") is None


def test_a_worker_that_lost_its_slot_has_ended_before_a_stream_is_forgotten() -> None:
    query = Query()
    query.end_a()
    query.plan({})
    query.now += DWELL / 2
    assert not query.plan({}).due
    assert query.references.of_scope("a").get("1") == 7


def test_a_stream_that_a_connector_asks_for_stays_and_its_time_begins_again() -> None:
    query = Query()
    query.end_a()
    query.plan({})
    assert query.plan({}, wanted=frozenset({A})).due
    assert query.leaving == []
    query.now += DWELL
    query.plan({})
    assert query.references.of_scope("a").get("1") == 7
    query.now += RETENTION / 2
    query.plan({"b": {"2": 9}})
    assert query.leaving == []


def test_a_stream_with_new_rows_is_open_again() -> None:
    query = Query()
    query.end_a()
    query.plan({})
    query.plan({"a": {"1": 8}})
    for _ in range(3):
        query.now += 2 * RETENTION
        query.plan({})
    assert query.references.of_scope("a").get("1") == 8


def test_an_end_at_another_reference_than_the_plans_is_not_recorded() -> None:
    query = Query()
    query.plan({"a": {"1": 7}}, {A: 9, B: 3})
    query.now += 2 * RETENTION
    query.plan({})
    assert query.leaving == []


def test_a_driver_that_died_between_the_two_plans_goes_on(tmp_path: Path) -> None:
    store = PlanFiles(str(tmp_path / "checkpoint"), "orders")
    first = Query(0, store)
    first.end_a()
    first.plan({})
    second = Query(0, store)
    second.value, second.now = first.value, first.now
    assert NamedPlan.of(first.value) is not None
    assert second.leaving == [A]
    # Its clock is behind that of the plans, so it counts from there.
    assert not second.plan({}).due
    second.now += DWELL
    assert second.plan({}).due
    assert second.references == {"b": {"2": 3}}
    assert Query(0, store).book.references(second.value) == {"b": {"2": 3}}


def test_another_process_whose_clock_is_ahead_waits_for_lost_workers_too() -> None:
    first = Query()
    first.end_a()
    first.plan({})
    second = Query(wall=1e9)
    second.value = first.value
    assert not second.plan({}).due
    second.now += DWELL / 2
    assert not second.plan({}).due
    assert second.references.of_scope("a").get("1") == 7
    second.now += DWELL / 2
    assert second.plan({}).due
    assert second.references.of_scope("a").get("1") is None


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_a_driver_without_the_option_goes_on_and_forgets_nothing(tmp_path: Path, inline_bytes: int) -> None:
    query = Query(inline_bytes, PlanFiles(str(tmp_path / "checkpoint"), "orders"))
    query.end_a()
    query.plan({})
    value: dict[str, Any] = query.book.after(query.value, {"b": {"2": 5}})
    references = query.book.references(value)
    assert references == {"a": {"1": 7}, "b": {"2": 5}}
    assert references.endings is None


@pytest.mark.no_cover
def test_a_hundred_thousand_ended_streams_make_the_snapshot_small_again(tmp_path: Path) -> None:
    store = PlanFiles(str(tmp_path / "checkpoint"), "orders")
    query = Query(16_384, store)
    many: dict[str, dict[str, Reference]] = {f"shop-{n}": {str(s): 9 for s in range(100)} for n in range(1_000)}
    ended = {StreamKey(scope, int(s)): 9 for scope in many for s in many[scope]}
    query.plan({**many, "b": {"2": 0}}, ended)
    query.plan({"b": {"2": 1}}, ended)
    assert query.references.count == 100_001
    query.now += 2 * RETENTION
    query.plan({"b": {"2": 2}})
    query.now += DWELL
    query.plan({"b": {"2": 3}})

    assert query.references == {"b": {"2": 3}}
    assert NamedPlan.of(query.value) is None
    assert query.value["streams"] == {"b": {"2": 3}}


def test_the_clock_of_plans_never_goes_back_and_ignores_steps() -> None:
    wall, elapsed = [100.0], [0.0]
    clock = PlanClock(lambda: wall[0], lambda: elapsed[0])
    assert clock.after(0) == 100_000
    wall[0], elapsed[0] = 9e9, 1.0
    assert clock.after(0) == 101_000
    assert clock.after(500_000) == 500_000
    elapsed[0] = 2.0
    assert clock.after(500_000) == 501_000


def test_opaque_ids_and_forgetting_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="messageIds=increasing"):
        Options(message_ids="opaque", stream_retention=1.0)


class TestProducersOfTheKafkaDoor:
    """Their streams end without saying so."""

    def forget(self, query: Query, wanted: frozenset[StreamKey] = frozenset()) -> References:
        """Two plans behind each other, in which no stream is read; returns what is left."""
        query.plan({})
        query.now += DWELL
        query.plan({}, wanted=wanted)
        return query.references.plain()

    def test_a_stream_is_forgotten_when_no_batch_has_read_it_for_long(self) -> None:
        query = Query(retention=0.0, unused=RETENTION)
        query.plan({KAFKA: {"1": 5, "2": 5}, "a": {"1": 7}, "http/shop/0": {"1": 1}})
        query.now += 0.6 * RETENTION
        query.plan({KAFKA: {"2": 9}})
        query.now += 0.6 * RETENTION
        assert self.forget(query) == {KAFKA: {"2": 9}, "a": {"1": 7}, "http/shop/0": {"1": 1}}
        query.now += 2 * RETENTION
        assert self.forget(query) == {"a": {"1": 7}, "http/shop/0": {"1": 1}}

    def test_a_stream_that_a_worker_has_open_stays(self) -> None:
        query = Query(retention=0.0, unused=RETENTION)
        query.plan({KAFKA: {"1": 5}})
        query.now += 1.2 * RETENTION
        assert self.forget(query, frozenset([StreamKey(KAFKA, 1)])) == {KAFKA: {"1": 5}}
        query.now += 0.8 * RETENTION
        assert self.forget(query) == {KAFKA: {"1": 5}}
        query.now += 1.2 * RETENTION
        assert self.forget(query) == {}

    @pytest.mark.parametrize(("retention", "unused"), [(RETENTION, 5 * RETENTION), (5 * RETENTION, RETENTION)])
    def test_both_retentions_hold_beside_each_other(self, retention: float, unused: float) -> None:
        query = Query(retention=retention, unused=unused)
        query.plan({"a": {"1": 7}})
        query.plan({KAFKA: {"1": 5}, "b": {"2": 1}}, {A: 7})
        query.now += 1.7 * RETENTION
        left = {KAFKA: {"1": 5}} if unused > retention else {"a": {"1": 7}}
        assert self.forget(query) == {"b": {"2": 1}, **left}
        query.now += 5.7 * RETENTION
        assert self.forget(query) == {"b": {"2": 1}}

    def test_producers_that_come_and_go_take_no_more_and_more_room(self) -> None:
        query = Query(retention=0.0, unused=RETENTION)
        most = 0
        for number in range(600):
            query.now += RETENTION / 100
            query.plan({KAFKA: {str(number): 1}, f"kafka/{number}/0": {"1": 1}})
            query.plan({})
            most = max(most, query.references.count)
            assert str(number) in query.references.of_scope(KAFKA)
        # Two streams a step: for the retention, an eighth of it, and until the next group has left.
        assert 200 < most < 300
        endings = endings_of(query.references)
        assert endings is not None
        assert endings.times.count == query.references.count

    def test_streams_of_an_earlier_release_are_used_when_they_are_first_seen(self) -> None:
        query = Query(retention=0.0, unused=RETENTION)
        query.value = query.book.begin({KAFKA: {"1": 5}, "a": {"1": 7}})
        query.plan({"b": {"2": 1}})
        query.now += 0.8 * RETENTION
        assert self.forget(query) == {KAFKA: {"1": 5}, "a": {"1": 7}, "b": {"2": 1}}
        query.now += 1.2 * RETENTION
        assert self.forget(query) == {"a": {"1": 7}, "b": {"2": 1}}

    def test_a_stream_that_ended_stays_where_only_producers_are_forgotten(self) -> None:
        before = Query()
        before.plan({"a": {"1": 7}, KAFKA: {"1": 5}})
        before.plan({"b": {"2": 1}}, {A: 7})
        query = Query(retention=0.0, unused=RETENTION)
        query.value, query.book = before.value, before.book
        query.plan({"b": {"2": 2}})
        query.now += 3 * RETENTION
        assert self.forget(query) == {"a": {"1": 7}, "b": {"2": 2}}
