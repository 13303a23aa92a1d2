"""The turn of a key: its order, the answers that it gives within a batch, its limits and its accesses to the state."""

from __future__ import annotations

import pytest

from tests.engine.operator.shells import Shell
from tests.pipelines.controller.one_key import BEGINNING, LATEST, record, reply
from wallaroo_spark.engine.operator.turn import InputRow, TurnLimits
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller.context import KeyEntries
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.streams.rows import Rank

UPPER = StagePlan("upper", given_root=True, output_required=True, function="shop.text:upper")


def in_spark(*stages: StagePlan, most: int = 50, name: str = "shop/text") -> PipelinePlan:
    return PipelinePlan(name, stages or (UPPER,), max_parallel=most, start=BEGINNING)


def declared(*pipelines: PipelinePlan, version: int = 1) -> e.PartitionDeclared:
    return e.PartitionDeclared(version, PartitionPlan(pipelines))


def published(*records: CloudEvent, request: int = 1) -> e.RecordsPublished:
    return e.RecordsPublished(reply(request), records)


def numbered(first: int, last: int) -> tuple[CloudEvent, ...]:
    return tuple(record(number) for number in range(first, last + 1))


def test_events_are_taken_in_the_order_of_rank_origin_sequence_and_place() -> None:
    shell = Shell()
    rows = [
        InputRow(Rank.RECEIVED, "g1/1", 1, 0, encode(published(record("d")))),
        InputRow(Rank.RECEIVED, "g0/1", 2, 0, encode(published(record("c")))),
        InputRow(Rank.RECEIVED, "g0/1", 1, 1, encode(published(record("b")))),
        InputRow(Rank.RECEIVED, "g0/1", 1, 0, encode(published(record("a")))),
        InputRow(Rank.DUE, "", 0, 0, None),
        InputRow(Rank.DECLARED, "", 1, 0, encode(declared())),
    ]

    shell.turn_of(rows)

    assert [one.id for one in shell.table.records] == ["a", "b", "c", "d"]


def test_instances_of_functions_begin_and_end_within_a_turn_however_few_may_be_active() -> None:
    shell = Shell()
    shell.turn(declared(in_spark(most=7)))

    shell.turn(published(*numbered(1, 20)))

    assert shell.functions.calls == [7, 7, 6]
    assert [(one.instance, one.outcome) for one in shell.of(i.InstanceEnded)] == [
        (number, i.Outcome.DONE) for number in range(1, 21)
    ]
    assert shell.of(i.StoreOutput)[0].output == Payload(b"DATA OF 1")
    assert [*KeyEntries(shell.entries.data).instances.all_keys()] == []


def test_maxparallel_is_kept_within_a_turn() -> None:
    shell, active = Shell(), 0
    shell.turn(declared(in_spark(most=3)))

    for one in shell.turn(published(*numbered(1, 20))):
        active += isinstance(one, i.InstanceBegan)
        active -= isinstance(one, i.InstanceEnded)
        assert active <= 3


def test_an_instance_that_begins_and_ends_within_a_turn_costs_no_access_to_the_state() -> None:
    shell = Shell()
    shell.turn(declared(in_spark()))

    shell.turn(published(*numbered(1, 200)))

    kinds = {key[:1] for key in (*shell.entries.reads, *shell.entries.writes)}
    assert not kinds & {b"i", b"I", b"w", b"W"}
    assert set(shell.entries.reads.values()) | set(shell.entries.writes.values()) == {1}


def test_instances_that_wait_share_accesses_to_the_state() -> None:
    shell = Shell()
    outside = PipelinePlan("shop/outside", (StagePlan("pack"),), max_parallel=1_000, start=BEGINNING)
    shell.turn(declared(outside), published(*numbered(1, 10)))

    # 320 instances, each with a waiting place: the head, one chunk of ids, and pages of 32 numbers.
    shell.turn(published(*numbered(11, 330)))

    assert sum(shell.entries.reads.values()) <= 2 * 12
    assert sum(shell.entries.writes.values()) <= 2 * 12


def test_records_behind_a_cursor_are_read_from_the_table_within_the_turn() -> None:
    shell = Shell(most=4)
    shell.turn(declared(), published(*numbered(1, 10)))

    shell.turn(declared(in_spark(), version=2), published(*numbered(11, 12)))

    assert shell.table.reads == [(1, 10), (5, 10), (9, 10)]
    assert [one.instance for one in shell.of(i.InstanceEnded)] == [*range(1, 13)]
    assert not shell.of(i.ReadRecords)


def test_a_record_that_the_table_does_not_have_is_an_error_that_names_it() -> None:
    shell = Shell()
    shell.turn(declared(), published(*numbered(1, 10)))
    shell.table.most = 0

    with pytest.raises(PipelineError, match="records 1 to 10 are not in the table of shop/orders") as caught:
        shell.turn(declared(in_spark(), version=2))

    assert caught.value.code == "pipeline-records-missing"


def test_a_turn_ends_at_its_limit_and_the_rest_goes_on_in_later_turns() -> None:
    shell = Shell(limits=TurnLimits(records=8), most=4)
    shell.turn(declared(), published(*numbered(1, 20)))
    ended: list[int] = []

    shell.turn(declared(in_spark(), version=2))
    turns = 1
    ended += [one.instance for one in shell.of(i.InstanceEnded)]
    while shell.result.armed is not None:
        assert shell.result.armed == shell.now + 1
        shell.turn()
        turns += 1
        ended += [one.instance for one in shell.of(i.InstanceEnded)]

    assert ended == [*range(1, 21)]
    assert turns == 3


def test_the_limit_counts_bytes_too() -> None:
    shell = Shell(limits=TurnLimits(bytes=1), most=4)
    shell.turn(declared(), published(*numbered(1, 20)))

    shell.turn(declared(in_spark(), version=2))

    assert len(shell.of(i.InstanceEnded)) == 1
    assert shell.result.armed == shell.now + 1


def test_a_turn_reads_no_more_bytes_than_its_limit_however_large_the_records_and_their_extensions_are() -> None:
    shell = Shell(limits=TurnLimits(bytes=100_000))
    large = [CloudEvent(str(n), "s", "t", b"x" * 5_000, (("note", "y" * 4_800),)) for n in range(1, 41)]
    shell.turn(declared(), published(*large))

    shell.turn(declared(in_spark(most=1000), version=2))
    ended = [len(shell.of(i.InstanceEnded))]
    while shell.result.armed is not None:
        shell.turn()
        ended.append(len(shell.of(i.InstanceEnded)))

    # Ten records of 10 kB in a turn, and the results of the function count, too.
    assert sum(ended) == 40
    assert max(ended) <= 11


def test_a_held_up_pipeline_without_room_needs_no_timer() -> None:
    shell = Shell(limits=TurnLimits(records=1), most=4)
    outside = StagePlan("pack", given_root=True)
    shell.turn(declared(), published(*numbered(1, 20)))

    shell.turn(declared(in_spark(outside, most=4), version=2))

    assert len(shell.of(i.InstanceBegan)) == 4
    assert shell.result.armed is None


def test_a_turn_that_is_taken_again_has_the_same_result() -> None:
    results = []
    for _ in range(2):
        shell = Shell(most=4)
        shell.turn(declared(), published(*numbered(1, 10)))
        shell.turn(declared(in_spark(), version=2), published(*numbered(11, 30)))
        results.append(shell.result)

    assert results[0] == results[1]


def test_a_turn_says_the_same_as_separate_calls_of_the_controller() -> None:
    together, apart = Shell(), Shell()
    events: list[e.Event] = [
        declared(in_spark(UPPER, StagePlan("pack", ("upper",)), most=5)),
        published(*numbered(1, 9)),
        e.StageJoined(reply(2), "g0.1.1", "shop/text", "pack", 3),
        e.GroupJoined(reply(3), "g0.1.2", "audit", True, LATEST, 5),
    ]

    together.turn(*events)
    said: list[i.Instruction] = []
    fresh: list[object] = []
    for event in events:
        apart.turn(event)
        said += apart.result.instructions
        fresh += apart.result.fresh

    assert [*together.result.fresh] == fresh
    kinds = (i.InstanceBegan, i.StoreOutput)
    for kind in kinds:
        strip = [one for one in together.result.instructions if isinstance(one, kind)]
        assert len(strip) == len([one for one in said if isinstance(one, kind)]), kind
