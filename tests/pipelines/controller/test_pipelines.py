"""Pipelines: one instance for each input, maxParallel, stages in their order, outputs once, retries, declarations."""

from __future__ import annotations

import pytest

from tests.pipelines.controller.one_key import (
    BEGINNING,
    LATEST,
    REPLY,
    SHIPMENTS,
    Key,
    fulfil,
    record,
    start_at,
)
from wallaroo_spark.pipelines.controller.context import KeyEntries
from wallaroo_spark.pipelines.controller.instances import AHEAD_BYTES
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import (
    IN_SPARK,
    OutputId,
    PartitionKey,
    StageDelivery,
    StreamOutput,
)
from wallaroo_spark.pipelines.controller.stored.key_state import QUICK_MILLIS, SLOW_MILLIS
from wallaroo_spark.pipelines.schema.cloud_event import INPUT_BYTES, CloudEvent, Payload

NAME = "shop/fulfil"
STAGES = ("charge", "reserve", "ship", "tidy")


def single(**changes: object) -> PipelinePlan:
    """A pipeline of one stage."""
    return PipelinePlan("shop/fulfil", (StagePlan("work", given_root=True),), start=BEGINNING)._replace(**changes)  # type: ignore[arg-type]  # any field


def staffed(*pipelines: PipelinePlan) -> Key:
    """A key whose stages have a member each, of the stage's name."""
    key = Key(*pipelines)
    for pipeline in pipelines:
        for stage in pipeline.stages:
            if not stage.function:
                key.serve(stage.name, stage.name, pipeline=pipeline.name)
    return key


def inputs(key: Key) -> dict[str, i.DeliverInputs]:
    """The stage deliveries of the last call, by stage."""
    return {one.delivery.stage: one for one in key.of(i.DeliverInputs)}


def shipment(*records: int) -> StreamOutput:
    return StreamOutput(SHIPMENTS, tuple(record(f"shipment-{number}") for number in records))


def test_stages_run_in_their_order_and_are_given_the_outputs_that_they_depend_on() -> None:
    key = staffed(fulfil())
    key.publish(record(1))
    assert key.one(i.InstanceBegan) == i.InstanceBegan(NAME, 1, 1, key.now, 1)
    assert inputs(key).keys() == {"charge", "reserve"}
    charge, reserve = inputs(key)["charge"], inputs(key)["reserve"]
    assert (charge.root, charge.outputs) == (record(1), ())

    key.ack("charge", charge.delivery, b"paid")
    assert key.one(i.StoreOutput).output == Payload(b"paid")
    assert not inputs(key)
    key.now += 50
    key.ack("reserve", reserve.delivery, b"kept")
    assert key.one(i.StoreOutput) == i.StoreOutput(reserve.delivery, Payload(b"kept"), key.now - 50, key.now)
    ship = inputs(key)["ship"]
    assert (ship.root, ship.outputs) == (None, (("charge", Payload(b"paid")), ("reserve", Payload(b"kept"))))

    key.ack("ship", ship.delivery, None, shipment())
    assert inputs(key)["tidy"].outputs == ()
    key.ack("tidy", inputs(key)["tidy"].delivery)
    ended = key.one(i.InstanceEnded)
    assert (ended.instance, ended.outcome, ended.began_at, ended.at) == (1, i.Outcome.DONE, key.now - 50, key.now)
    assert not key.active


def test_each_matching_record_begins_one_instance_with_its_offset() -> None:
    key = staffed(single(triggers=("shop.order.*",), max_parallel=100))
    key.publish(record(1), record(2, "shop.payment"), record(3), record(3))
    key.publish(record(4, "shop.order.created.v2"), record(5))

    assert key.active == [(NAME, 1), (NAME, 3), (NAME, 5)]


def test_max_parallel_is_not_exceeded_and_the_rest_waits_in_the_stream() -> None:
    key = staffed(single(max_parallel=2))
    key.publish(*(record(number) for number in range(1, 6)))
    assert key.active == [(NAME, 1), (NAME, 2)]
    assert key.head.pipelines[NAME].cursor == 2
    assert not key.of(i.ReadRecords)

    first = key.of(i.DeliverInputs)[0]
    key.ack("work", first.delivery)
    assert key.one(i.ReadRecords) == i.ReadRecords(NAME, 3, 3)
    assert key.active == [(NAME, 2), (NAME, 3)]
    assert inputs(key)["work"].root == record(3)


def test_records_that_do_not_match_take_no_room() -> None:
    key = staffed(single(max_parallel=1, triggers=("order",)))
    key.publish(record(1, "order"), record(2, "other"), record(3, "order"))
    assert key.head.pipelines[NAME].cursor == 2
    key.ack("work", inputs(key)["work"].delivery)
    assert key.active == [(NAME, 3)]


def test_an_answer_that_was_asked_for_before_something_else_changed_is_ignored() -> None:
    key = staffed(single(max_parallel=1))
    key.publish(record(1), record(2))
    key.do(e.RecordsRead(NAME, 2, 2, (record(2),)))
    key.do(e.RecordsRead("shop/none", 2, 2, (record(2),)))

    assert key.active == [(NAME, 1)]


@pytest.mark.parametrize(("start", "begun"), [(BEGINNING, [1, 2, 3]), (LATEST, []), (start_at(3), [3])])
def test_a_new_pipeline_begins_at_its_start_point(start: object, begun: list[int]) -> None:
    key = Key()
    key.publish(record(1), record(2), record(3))
    key.declare(single(start=start))
    assert key.active == [(NAME, number) for number in begun]
    key.publish(record(4))
    assert (NAME, 4) in key.active


def test_a_pipeline_behind_the_retention_says_which_records_it_skipped() -> None:
    key = staffed(single(max_parallel=1))
    key.publish(*(record(number) for number in range(1, 6)))
    work = inputs(key)["work"]
    key.do(e.RecordsExpired(4))
    assert key.one(i.SkippedRecords) == i.SkippedRecords(NAME, 2, 3)
    assert work.root == record(1)
    key.ack("work", work.delivery)
    assert key.active == [(NAME, 4)]


def test_retention_while_records_are_read_skips_what_is_gone() -> None:
    key = staffed(single(max_parallel=1))
    key.publish(*(record(number) for number in range(1, 6)))
    question = i.ReadRecords(NAME, 2, 4)
    delivery = inputs(key)["work"].delivery
    key.answer = lambda one: e.RecordsRead(NAME, one.first, 5, (record(5),))  # type: ignore[method-assign, assignment]  # an answer after retention
    key.ack("work", delivery)

    assert key.one(i.ReadRecords) == question
    assert key.one(i.SkippedRecords) == i.SkippedRecords(NAME, 2, 4)
    assert key.active == [(NAME, 5)]


def test_a_stage_has_at_most_the_concurrency_of_its_members() -> None:
    key = Key(single())
    key.serve("anna", "work", concurrency=2)
    key.serve("berta", "work", concurrency=1)
    key.publish(*(record(number) for number in range(1, 6)))
    assert sorted(one.member for one in key.of(i.DeliverInputs)) == ["anna", "anna", "berta"]

    berta = next(one for one in key.of(i.DeliverInputs) if one.member == "berta")
    key.at(key.now + QUICK_MILLIS + 1)
    key.ack("berta", berta.delivery)
    assert [one.member for one in key.of(i.DeliverInputs)] == ["berta"]


def given_to(key: Key, member: str) -> list[StageDelivery]:
    return [one.delivery for one in key.of(i.DeliverInputs) if one.member == member]


def test_a_member_that_is_quick_has_more_at_its_gateway_and_one_that_is_slow_or_fails_less() -> None:
    key = Key(single(max_parallel=1_000))
    key.serve("anna", "work", concurrency=2)
    key.publish(*(record(number) for number in range(1, 201)))
    counts = []
    for took in (QUICK_MILLIS, 0, QUICK_MILLIS + 1, 0, SLOW_MILLIS + 1):
        mine = given_to(key, "anna")
        counts.append(len(mine))
        key.now += took
        key.do(*(e.DeliveryAcked(REPLY, "anna", one) for one in mine))
    assert counts == [2, 4, 8, 8, 16]
    assert len(given_to(key, "anna")) == 8

    mine = given_to(key, "anna")
    # The first halves the window, and the others of the batch do not.
    key.do(*(e.DeliveryNacked(REPLY, "anna", one, 0) for one in mine))
    assert len(given_to(key, "anna")) == 4
    # A member has its concurrency in any case.
    for _ in range(3):
        key.do(*(e.DeliveryNacked(REPLY, "anna", one, 0) for one in given_to(key, "anna")))
    assert len(given_to(key, "anna")) == 2


def test_nothing_waits_at_one_gateway_while_another_member_could_begin_with_it() -> None:
    key = Key(single(max_parallel=1_000))
    key.serve("anna", "work", concurrency=2)
    key.publish(*(record(number) for number in range(1, 8)))
    key.do(*(e.DeliveryAcked(REPLY, "anna", one) for one in given_to(key, "anna")))
    assert len(given_to(key, "anna")) == 4
    key.serve("berta", "work", concurrency=10)
    assert len(given_to(key, "berta")) == 1
    key.publish(*(record(number) for number in range(8, 18)))
    assert (len(given_to(key, "anna")), len(given_to(key, "berta"))) == (0, 9)


def test_deliveries_that_wait_at_a_gateway_are_small() -> None:
    key = Key(single(max_parallel=1_000))
    key.serve("anna", "work", concurrency=2)
    large = record(1)._replace(data=bytes(AHEAD_BYTES // 4))
    key.publish(*(large._replace(id=str(number)) for number in range(10)))
    for _ in range(3):
        mine = given_to(key, "anna")
        assert len(mine) == 2
        key.do(*(e.DeliveryAcked(REPLY, "anna", one) for one in mine))


def test_the_works_of_a_stage_are_shared_among_its_members_at_random() -> None:
    key = Key(single(max_parallel=60))
    members = ("anna", "berta", "carla")
    for member in members:
        key.serve(member, "work", concurrency=60)
    key.publish(*(record(number) for number in range(1, 61)))
    got = [one.member for one in key.of(i.DeliverInputs)]

    assert len(got) == 60
    assert set(got) == set(members)
    assert got != sorted(got)
    assert got != [members[number % 3] for number in range(60)]


def test_the_deliveries_of_a_member_that_leaves_go_to_others() -> None:
    key = Key(single())
    key.serve("anna", "work")
    key.publish(record(1), record(2))
    key.leave("anna")
    key.serve("berta", "work")

    assert sorted(one.delivery.instance for one in key.of(i.DeliverInputs)) == [1, 2]
    key.leave("nobody")


def test_an_ack_without_the_required_output_is_a_nack_and_stores_nothing() -> None:
    key = staffed(fulfil())
    key.publish(record(1))
    charge = inputs(key)["charge"]
    key.ack("charge", charge.delivery)

    assert "requires an output" in key.one(i.RefuseRequest).reason
    assert not key.of(i.StoreOutput)
    assert inputs(key)["charge"].delivery != charge.delivery


@pytest.mark.parametrize("in_transaction", [False, True])
def test_an_output_with_which_a_later_stage_could_not_be_sent_its_inputs_is_a_nack(in_transaction: bool) -> None:
    key = staffed(fulfil())
    key.publish(record(1))
    charge, reserve = inputs(key)["charge"].delivery, inputs(key)["reserve"].delivery
    if in_transaction:
        key.do(e.TransactionBegun(REPLY, "charge", charge))
        key.do(e.StatementAdded(REPLY, "charge", charge, SHIPMENTS, (record("s"),)))
    key.ack("charge", charge, b"x" * (INPUT_BYTES - 10))
    key.ack("reserve", reserve, b"x" * 11)

    reason = key.one(i.RefuseRequest).reason
    assert f"stage ship could not be run: its inputs (charge, reserve) have {INPUT_BYTES + 1} bytes together" in reason
    again = inputs(key)["reserve"].delivery
    key.ack("reserve", again, b"x" * 10)
    assert not key.of(i.RefuseRequest)


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ((), "requires a stream output for shop/shipments"),
        ((shipment(1), StreamOutput(PartitionKey("shop/other", 0), ())), "does not declare the stream output"),
        ((StreamOutput(SHIPMENTS, (record(""),)),), "record 0 has no id"),
    ],
)
def test_an_ack_whose_stream_outputs_are_not_the_declared_ones_is_a_nack(
    outputs: tuple[StreamOutput, ...], problem: str
) -> None:
    key = staffed(PipelinePlan(NAME, (StagePlan("ship", stream_outputs=("shop/shipments",)),), start=BEGINNING))
    key.publish(record(1))
    key.ack("ship", inputs(key)["ship"].delivery, None, *outputs)

    assert problem in key.one(i.RefuseRequest).reason
    assert not key.of(i.CarryOut)
    assert "ship" in inputs(key)


def test_stream_outputs_are_carried_and_their_offsets_complete_the_instance() -> None:
    key = staffed(PipelinePlan(NAME, (StagePlan("ship", stream_outputs=("shop/shipments",)),), start=BEGINNING))
    target = Key(key=SHIPMENTS)
    key.publish(record(1))
    ship = inputs(key)["ship"]
    key.ack("ship", ship.delivery, None, shipment(1, 2))
    out = key.one(i.CarryOut)
    assert (out.target, out.sequence) == (SHIPMENTS, 1)
    assert key.active == [(NAME, 1)]

    target.carried(out.message, key.key)
    assert target.fresh == [record("shipment-1"), record("shipment-2")]
    key.carried(target.one(i.CarryOut).message)
    pointer = i.StorePointer(OutputId(ship.delivery, 0), SHIPMENTS, (1, 2))
    assert key.one(i.StorePointer) == pointer
    assert key.one(i.InstanceEnded).outcome is i.Outcome.DONE

    target.do(e.CarriedIn(key.key, 1, out.message))
    assert not target.said


def test_stages_do_not_wait_for_the_offsets_of_stream_outputs() -> None:
    key = staffed(fulfil())
    key.publish(record(1))
    for stage, found in inputs(key).items():
        key.ack(stage, found.delivery, b"")
    key.ack("ship", inputs(key)["ship"].delivery, None, shipment(1))
    assert "tidy" in inputs(key)


def test_a_target_that_is_gone_refuses_and_the_instance_ends_all_the_same() -> None:
    key = staffed(PipelinePlan(NAME, (StagePlan("ship", stream_outputs=("shop/shipments",)),), start=BEGINNING))
    key.publish(record(1))
    ship = inputs(key)["ship"]
    key.ack("ship", ship.delivery, None, shipment(1))
    gone = Key(key=SHIPMENTS, declared=False)
    gone.carried(key.one(i.CarryOut).message, key.key)
    key.carried(gone.one(i.CarryOut).message)

    assert key.one(i.StorePointer).reason == "there is no stream shop/shipments with a partition 1"
    assert key.one(i.InstanceEnded).outcome is i.Outcome.DONE


def test_outputs_are_held_while_a_stage_needs_them_and_no_longer() -> None:
    key = staffed(fulfil())
    key.publish(record(1))
    deliveries = inputs(key)
    key.ack("charge", deliveries["charge"].delivery, b"c" * 1000)
    key.ack("reserve", deliveries["reserve"].delivery, b"r" * 1000)
    ship = inputs(key)["ship"]
    assert sum(map(len, key.stored.values())) > 2000
    key.ack("ship", ship.delivery, b"s" * 1000, shipment())

    assert sum(map(len, key.stored.values())) < 1000


def test_the_state_of_finished_instances_is_gone() -> None:
    key = staffed(single(max_parallel=1000))
    key.declare(single(max_parallel=1000), window_records=1)
    sizes = []
    for number in range(1, 40):
        key.publish(record(number))
        key.ack("work", inputs(key)["work"].delivery, b"x" * 100)
        sizes.append(sum(map(len, key.stored.values())))

    assert sizes[-1] <= sizes[5] + 20


def test_a_function_runs_in_spark_and_its_result_is_an_ack() -> None:
    plan = PipelinePlan(
        NAME,
        (
            StagePlan("stock", given_root=True, output_required=True, function="shop.stock:reserve"),
            StagePlan("ship", dependencies=("stock",)),
        ),
        start=BEGINNING,
    )
    key = staffed(plan)
    key.publish(record(1))
    run = key.one(i.RunFunction)
    assert (run.function, run.root) == ("shop.stock:reserve", record(1))

    key.do(e.DeliveryNacked(None, IN_SPARK, run.delivery))
    again = key.one(i.RunFunction)
    assert again.delivery != run.delivery
    key.do(e.DeliveryAcked(None, IN_SPARK, run.delivery, Payload(b"late")))
    assert not key.said
    key.do(e.DeliveryAcked(None, IN_SPARK, again.delivery, Payload(b"12")))
    assert inputs(key)["ship"].outputs == (("stock", Payload(b"12")),)

    key.serve("anna", "stock")
    assert "runs in Spark" in key.one(i.RefuseRequest).reason


def test_a_nacked_stage_waits_longer_each_time_and_at_last_its_instance_has_failed() -> None:
    stage = StagePlan("work", given_root=True, attempts=3, delay=100, longest_delay=150, dead_letter="shop/dead")
    key = staffed(single(stages=(stage._replace(dead_letter_partitions=2), StagePlan("other"))))
    key.publish(record(1))
    other = inputs(key)["other"]
    for delay in (100, 150):
        key.nack("work", inputs(key)["work"].delivery, reason=f"{delay} pieces are missing")
        assert key.one(i.DeliveryFailed).reason == f"{delay} pieces are missing"
        assert not inputs(key)
        assert key.head.delayed[0][0] == key.now + delay
        key.at(key.now + delay)
    last = inputs(key)["work"]
    key.nack("work", last.delivery, reason="no \ud800 stock\0" + "!" * 2000)

    ended = key.one(i.InstanceEnded)
    reason = ("no \\ud800 stock\\x00" + "!" * 1000)[:1000]
    assert ended.outcome is i.Outcome.FAILED
    assert ended.reason == f"stage work did not succeed in 3 deliveries; the last one: {reason}"
    assert key.one(i.DeliveryFailed) == i.DeliveryFailed(last.delivery, 3, reason, 1_000)
    assert key.one(i.WithdrawDelivery).delivery == other.delivery
    out = key.one(i.CarryOut)
    assert out.target == PartitionKey("shop/dead", 1)
    assert isinstance(out.message, e.AppendOutput)
    (letter,) = out.message.records
    assert (letter.data, letter.source) == (record(1).data, record(1).source)
    assert letter.id == f"{record(1).id}:{NAME}@1:0/1"
    assert dict(letter.attributes) == {
        "failedreason": reason,
        "failedattempts": "3",
        "failedtime": "1970-01-01T00:00:01.250Z",
        "failedstream": "shop/orders",
        "failedpartition": "0",
        "failedoffset": "1",
        "failedpipeline": NAME,
        "failedbirth": "1",
        "failedstage": "work",
    }
    assert all(name.isalnum() and name.islower() and len(name) <= 20 for name in dict(letter.attributes))
    key.ack("other", other.delivery)
    assert key.one(i.WarnClient)
    key.carried(e.OutputAppended(out.message.output, (7,)), out.target)
    assert key.one(i.StorePointer).offsets == (7,)


def test_an_instance_is_cancelled_once() -> None:
    key = staffed(single())
    key.publish(record(1))
    delivery = inputs(key)["work"].delivery
    key.do(e.InstanceCancelled(REPLY, NAME, 1))
    assert key.one(i.InstanceEnded).outcome is i.Outcome.CANCELLED
    assert key.one(i.WithdrawDelivery).delivery == delivery
    assert key.head.members["work"].open == 0

    key.do(e.InstanceCancelled(REPLY, NAME, 1))
    assert "no active instance 1" in key.one(i.RefuseRequest).reason
    key.ack("work", delivery)
    assert key.one(i.WarnClient)


def test_an_instance_ends_with_the_plan_that_it_began_with() -> None:
    key = staffed(fulfil())
    key.publish(record(1))
    deliveries = inputs(key)
    key.declare(single())
    key.serve("work", "work")
    key.publish(record(2))
    assert inputs(key)["work"].delivery.instance == 2
    key.ack("charge", deliveries["charge"].delivery, b"")
    key.ack("reserve", deliveries["reserve"].delivery, b"")
    key.ack("ship", inputs(key)["ship"].delivery, None, shipment())
    key.ack("tidy", inputs(key)["tidy"].delivery)

    assert key.one(i.InstanceEnded).instance == 1
    assert sorted(one.member for one in key.of(i.EndSubscription)) == [*STAGES]
    assert [*key.head.pipelines[NAME].plans] == [2]


def test_the_same_declaration_in_a_new_version_and_an_older_version_change_nothing() -> None:
    key = staffed(single())
    key.declare(single())
    key.do(e.PartitionDeclared(1, None))

    assert [*key.head.pipelines[NAME].plans] == [1]
    assert key.head.declared


def test_a_pipeline_that_is_deleted_ends_with_its_instances_and_members() -> None:
    key = staffed(single())
    key.publish(record(1), record(2))
    key.declare()
    assert [one.outcome for one in key.of(i.InstanceEnded)] == [i.Outcome.CANCELLED] * 2
    assert key.one(i.EndSubscription).member == "work"
    assert not key.head.pipelines
    key.serve("anna", "work")
    assert "there is no pipeline" in key.one(i.RefuseRequest).reason


def test_a_pipeline_of_an_old_name_is_a_new_one() -> None:
    key = staffed(single(stages=(StagePlan("work", stream_outputs=("shop/shipments",)),)))
    key.publish(record(1))
    key.ack("work", inputs(key)["work"].delivery, None, shipment(1))
    late = key.one(i.CarryOut).message
    assert isinstance(late, e.AppendOutput)
    key.declare()
    key.declare(single(stages=(StagePlan("work", stream_outputs=("shop/shipments",)),)))
    key.serve("work", "work")
    key.ack("work", inputs(key)["work"].delivery, None, shipment(2))
    key.carried(e.OutputAppended(late.output, (5,)))

    assert key.one(i.StorePointer).offsets == (5,)
    assert key.active == [(NAME, 1)]


def test_a_pipeline_that_is_declared_anew_from_the_beginning_has_other_deliveries_history_and_dead_letters() -> None:
    plan = single(stages=(StagePlan("work", given_root=True, attempts=1, dead_letter="shop/dead"),))
    key = staffed(plan)
    key.publish(record(1))
    births: list[tuple[int, int, int]] = []
    letters: list[CloudEvent] = []
    for _ in range(2):
        given = inputs(key)["work"]
        key.nack("work", given.delivery)
        ended, out = key.one(i.InstanceEnded), key.one(i.CarryOut)
        assert isinstance(out.message, e.AppendOutput)
        assert isinstance(out.message.output, OutputId)
        births.append((given.delivery.birth, ended.birth, out.message.output.delivery.birth))
        letters += out.message.records
        key.declare()
        key.declare(plan)
        key.serve("work", "work")
    assert births == [(1, 1, 1), (3, 3, 3)]
    dead = Key(key=PartitionKey("shop/dead", 0))
    dead.publish(*letters)
    assert [one.id for one in dead.log] == [f"1:{NAME}@1:0/1", f"1:{NAME}@3:0/1"]


def test_subscriptions_that_cannot_work_are_refused() -> None:
    key = Key(fulfil())
    key.serve("anna", "pack")
    assert "has no stage pack; it has charge, reserve, ship, tidy" in key.one(i.RefuseRequest).reason
    key.serve("anna", "ship", concurrency=0)
    assert "ask for 1 or more" in key.one(i.RefuseRequest).reason
    key.ack("anna", StageDelivery(NAME, 1, "ship", 1))
    assert key.one(i.WarnClient)


def test_members_may_join_a_stage_that_only_instances_of_an_older_plan_have() -> None:
    key = Key(fulfil())
    key.publish(record(1))
    key.declare(single())
    key.serve("anna", "charge")

    assert inputs(key)["charge"].delivery.instance == 1
    key.do(e.InstanceCancelled(REPLY, NAME, 1))
    assert key.one(i.EndSubscription).member == "anna"
    key.serve("berta", "charge")
    assert "has no stage charge" in key.one(i.RefuseRequest).reason


def test_the_waiting_places_of_an_instance_end_with_it() -> None:
    key = Key(fulfil())
    key.publish(record(1), record(2))
    key.do(e.InstanceCancelled(REPLY, NAME, 1))
    assert len([*KeyEntries(key.stored).waiting.all_keys()]) == 2
    key.serve("anna", "charge")
    assert inputs(key)["charge"].delivery.instance == 2
