"""The planner of batches: an order, bounds, nothing lost, nothing repeated, and no batch without a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from wallaroo_spark.engine.source.plan import (
    MOST_VERSIONS,
    Calendar,
    InputOffset,
    Inputs,
    MadeRows,
    ReadFiles,
    carried_batches,
    declared,
    declared_versions,
    due_timers,
    holes,
    next_offset,
    read_files,
)
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.pipelines.controller.messages.events import PartitionDeclared
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.schema.declarations import (
    Declaration,
    PipelineDeclaration,
    StageDeclaration,
    StreamDeclaration,
)
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.streams.inbox import InboxFile, InboxPosition
from wallaroo_spark.streams.rows import Rank

NOW = 1_000_000
START = InputOffset({"g0": InboxPosition(1, 4)}, 6, NOW, 1, calendar=Calendar(NOW, 1))


def files(*sequences: int, rows: int = 1) -> tuple[InboxFile, ...]:
    return tuple(InboxFile(sequence, rows) for sequence in sequences)


def inputs(start: InputOffset = START, **values: Any) -> Inputs:
    return Inputs(**{"now": NOW, "schema": start.schema, **values})


def after(start: InputOffset, most: int = 100, **values: Any) -> InputOffset:
    return next_offset(start, inputs(start, **values), most)


def test_nothing_new_is_no_batch() -> None:
    assert after(START) is START
    assert after(START, now=NOW + 60_000) is START
    assert after(START, unread={"g0": {1: ()}}, carried={7: 0}, first_timer=NOW + 1) is START


def test_a_batch_takes_no_more_bytes_than_it_may_and_something_at_least() -> None:
    large = tuple(InboxFile(sequence, 1, 40) for sequence in range(5, 10))
    unread = {"g0": {1: large}}

    def read(most: int, **carried: Any) -> tuple[int, int]:
        end = next_offset(START, inputs(unread=unread, **carried), 100, most)
        return end.inbox["g0"].sequence - 4, end.batch - 6

    assert [read(most) for most in (1, 79, 80, 200)] == [(1, 0), (1, 0), (2, 0), (5, 0)]
    several = {"carried": {7: 1, 8: 1, 9: 0}, "carried_bytes": {7: 50, 8: 50}}
    # The carried messages come first, and one file of a gateway is read in any case.
    assert [read(most, **several) for most in (1, 99, 100, 180)] == [(1, 1), (1, 1), (1, 3), (2, 3)]


def test_files_of_a_gateway_are_read_in_their_order() -> None:
    end = after(START, unread={"g0": {1: files(5, 6)}}, carried={7: 0})

    assert end == InputOffset({"g0": InboxPosition(1, 6)}, 7, NOW, 1, calendar=Calendar(NOW, 1))
    assert read_files(START, end) == [ReadFiles("g0", 1, 5, 6)]
    assert list(carried_batches(START, end)) == [7]


def test_an_older_generation_is_finished_before_the_newer_one_begins() -> None:
    first = after(START, unread={"g0": {1: files(5), 2: files(1, 2)}})
    assert read_files(START, first) == [ReadFiles("g0", 1, 5, 5)]

    second = after(first, unread={"g0": {1: (), 2: files(1, 2)}})
    assert read_files(first, second) == [ReadFiles("g0", 2, 1, 2)]


def test_a_superseded_gateway_is_not_read_any_more() -> None:
    """Whatever it writes later, the offsets of the batch tell which files are read."""
    end = after(START, unread={"g0": {1: (), 2: (), 3: files(1)}})
    assert read_files(START, end) == [ReadFiles("g0", 3, 1, 1)]

    assert after(end, unread={"g0": {3: ()}}) is end


def test_a_generation_without_a_file_is_passed_with_the_next_one_only() -> None:
    assert after(START, unread={"g0": {1: (), 2: ()}}) is START


def test_a_batch_takes_files_until_its_limit_and_the_gateways_take_turns() -> None:
    unread = {gateway: {1: files(1, 2, 3, rows=10)} for gateway in ("g0", "g1", "g2")}
    start = InputOffset(schema=1)

    end = after(start, 40, unread=unread)

    assert sum(at.sequence for at in end.inbox.values()) == 4
    assert all(at.sequence >= 1 for at in end.inbox.values())
    firsts = {next(iter(after(InputOffset(batch=batch, schema=1), 10, unread=unread).inbox)) for batch in range(3)}
    assert firsts == {"g0", "g1", "g2"}


def test_a_file_above_the_limit_is_a_batch_of_its_own() -> None:
    end = after(START, 10, unread={"g0": {1: files(5, 6, rows=1000)}})
    assert read_files(START, end) == [ReadFiles("g0", 1, 5, 5)]


def test_a_hole_in_a_listing_is_waited_for() -> None:
    unread = {"g0": {1: files(5, 7)}, "g1": {1: files(2)}, "g2": {1: files(1, 2)}, "g3": {1: files(2), 2: files(1)}}

    assert holes(START, unread) == [("g0", 1, 6), ("g1", 1, 1), ("g3", 1, 1)]
    assert after(START, unread=unread).inbox == {"g0": InboxPosition(1, 5), "g2": InboxPosition(1, 2)}


def test_carried_messages_are_read_in_whole_batches_up_to_the_limit() -> None:
    carried = {7: 0, 8: 30, 9: 60, 10: 20, 11: 0}

    assert after(START, 100, carried=carried).batch == 9
    assert after(START, 10, carried=carried).batch == 8
    assert after(START, 1000, carried=carried).batch == 11


def test_carried_messages_do_not_shut_gateways_out() -> None:
    end = after(START, 10, carried={7: 1000}, unread={"g0": {1: files(5, 6)}})
    assert (end.batch, end.inbox) == (7, {"g0": InboxPosition(1, 5)})


def test_a_timer_is_due_once_its_time_has_come() -> None:
    assert after(START, first_timer=NOW + 10, now=NOW + 9) is START
    end = after(START, first_timer=NOW + 10, now=NOW + 10, carried={7: 0})
    assert (end.time, end.batch) == (NOW + 10, 7)

    timers = {"shop/orders/10": NOW + 10, "shop/orders/9": NOW, "shop/other/0": NOW + 11}
    assert list(due_timers(timers, end)) == [MadeRows("shop/orders", (9, 10), Rank.DUE, "time", NOW + 10, None)]


def test_a_timer_that_stays_armed_is_due_again_after_a_while() -> None:
    """The clock of the driver was set back, so the batch's time was before the timer's."""
    assert after(START, first_timer=NOW - 5) is START
    assert after(START, first_timer=NOW - 5, now=NOW + 99) is START
    assert after(START, first_timer=NOW - 5, now=NOW + 100) is not START


def test_a_clock_that_is_set_back_by_an_hour_delays_no_timer_that_is_armed_afterwards() -> None:
    """The offset's time stays an hour ahead, and the timer is between the two times."""
    hour = 3_600_000
    assert after(START, first_timer=NOW - hour + 200, now=NOW - hour + 199, carried={7: 0}) is START
    end = after(START, first_timer=NOW - hour + 200, now=NOW - hour + 200, carried={7: 0})

    assert (end.time, end.batch) == (NOW, 7)
    assert [row.partitions for row in due_timers({"shop/orders/3": NOW - hour + 200}, end)] == [(3,)]


def test_the_time_never_goes_back() -> None:
    end = after(START, now=NOW - 5000, unread={"g0": {1: files(5)}})
    assert end.time == NOW


def test_the_schema_comes_before_the_events_that_need_it() -> None:
    start = InputOffset(schema=1)
    unread = {"g0": {1: files(1)}}

    end = after(start, schema=3, unread=unread)
    assert (end.schema, end.inbox) == (3, {})
    assert declared_versions(start, end) == [(1, 2), (2, 3)]
    assert after(end, unread=unread, carried={0: 0}).inbox == {"g0": InboxPosition(1, 1)}

    far = after(start, schema=1 + 2 * MOST_VERSIONS, unread=unread)
    assert (far.schema, far.inbox) == (1 + MOST_VERSIONS, {})


def test_events_wait_until_the_partitions_have_heard_what_the_others_know() -> None:
    """What the others carry in the batch that applies the version may come behind other messages."""
    unread = {"g0": {1: files(5)}}
    end = after(START, 10, schema=2, carried={7: 10, 8: 10}, unread=unread)
    assert (end.batch, end.schema, end.applied) == (7, 2, 9)
    late = after(end, 10, carried={8: 10, 9: 10}, unread=unread)
    assert (late.batch, late.inbox) == (8, START.inbox)
    last = after(late, 10, carried={9: 10, 10: 0}, unread=unread)
    assert (last.batch, last.inbox) == (10, {"g0": InboxPosition(1, 5)})
    assert InputOffset.from_json(last.to_json()) == last


def test_schedules_wait_until_the_partitions_have_heard_what_the_others_know() -> None:
    """A time that comes again, because a clock or the schedule was changed, is known where it was written first."""
    due = NOW + 10
    end = after(START, 10, schema=2, carried={7: 10, 8: 10}, first_occurrence=due, now=due)
    late = after(end, 10, carried={8: 10, 9: 10}, first_occurrence=due, now=due + 1)
    assert [(one.batch, one.applied, one.calendar) for one in (end, late)] == [
        (7, 9, START.calendar),
        (8, 9, START.calendar),
    ]
    last = after(late, 10, carried={9: 10, 10: 0}, first_occurrence=due, now=due + 2)
    assert (last.batch, last.calendar) == (10, Calendar(due + 2, 2))
    # What waits does not make batches while there is nothing to hear of.
    assert after(end, 10, first_occurrence=due, now=due + 1) is end


def test_a_new_application_begins_with_the_newest_version() -> None:
    end = after(InputOffset(), schema=700)
    assert end.schema == 700
    assert declared_versions(InputOffset(), end) == [(0, 700)]
    assert declared_versions(end, end) == declared_versions(InputOffset(), InputOffset()) == []


def schema(version: int, *objects: Declaration) -> StoredSchema:
    return StoredSchema(version, {one.key: one for one in objects})


def orders(partitions: int, window: float = 60.0, name: str = "orders") -> StreamDeclaration:
    return StreamDeclaration(name=name, namespace="shop", partitions=partitions, idempotency_window=window)


def changes(before: StoredSchema, later: StoredSchema) -> Mapping[str, tuple[tuple[int, ...], bool]]:
    """For each declared stream its partitions, and whether it is removed."""
    found = {}
    for row in declared(before, later):
        assert (row.rank, row.sequence) == (Rank.DECLARED, later.version)
        event = decode(row.event or b"")
        assert isinstance(event, PartitionDeclared)
        assert event.version == later.version
        found[row.stream] = row.partitions, event.plan is None
    return found


def test_only_changed_partitions_are_declared() -> None:
    assert changes(schema(0), schema(1, orders(2))) == {"shop/orders": ((0, 1), False)}
    assert changes(schema(1, orders(2)), schema(2, orders(2))) == {}
    assert changes(schema(1, orders(2)), schema(2, orders(4))) == {"shop/orders": ((0, 1, 2, 3), False)}
    assert changes(schema(1, orders(2)), schema(2, orders(3, 61.0))) == {"shop/orders": ((0, 1, 2), False)}
    assert changes(schema(1, orders(2)), schema(2)) == {"shop/orders": ((0, 1), True)}


def test_a_pipeline_declares_the_partitions_of_its_input() -> None:
    piped = PipelineDeclaration(
        name="fulfil", namespace="shop", input_stream="orders", stages=(StageDeclaration(name="charge"),)
    )
    other = orders(1, name="other")
    assert changes(schema(1, orders(2), other), schema(2, orders(2), other, piped)) == {"shop/orders": ((0, 1), False)}


def test_an_offset_is_the_same_text_whatever_its_order() -> None:
    one = InputOffset({"g1": InboxPosition(1, 2), "g0": InboxPosition(3, 4)}, 5, 6, 7)
    assert list(one.to_json()["inbox"]) == ["g0", "g1"]
    assert InputOffset.from_json(one.to_json()) == one


@pytest.mark.parametrize("value", [None, {}, {"inbox": {"g0": 1}, "batch": 0, "time": 0, "schema": 0, "applied": 0}])
def test_an_offset_of_another_source_is_an_error(value: Any) -> None:
    with pytest.raises(CheckpointError, match="not one of the source wallaroo_pipelines"):
        InputOffset.from_json(value)


def test_keys_are_found_in_the_names_of_timers() -> None:
    assert str(PartitionKey("shop/orders", 3)) == "shop/orders/3"
