"""The gauges of a key after its turn, and their way into the manifest of the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from tests.engine.operator.shells import Shell
from tests.engine.operator.test_turn import declared, numbered, published
from tests.pipelines.controller.one_key import BEGINNING, SHIPMENTS, fulfil, reply
from wallaroo_spark.engine.operator.gauges import turn_gauges
from wallaroo_spark.engine.operator.rows import output_rows
from wallaroo_spark.observe.application import GroupStatus, KeyGauges, PartitionState, PipelineStatus, StageStatus
from wallaroo_spark.observe.faces.records import record_from_json
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import StagePlan
from wallaroo_spark.pipelines.schema.cloud_event import Payload
from wallaroo_spark.streams.batch_outputs import Manifest, manifest_of, write_outputs
from wallaroo_spark.streams.rows import OUTPUT, OutputKind


def gauges(shell: Shell) -> KeyGauges:
    body = turn_gauges(shell.key, shell.now, shell.result)
    assert body is not None
    return record_from_json(KeyGauges, json.loads(body))


def test_gauges_have_offsets_groups_and_the_queues_of_stages() -> None:
    shell = Shell()
    shell.turn(declared(fulfil(max_parallel=3)))
    shell.turn(
        e.GroupJoined(reply(1, gateway="g0"), "g0.1.1.0", "audit", True, BEGINNING, 9),
        e.StageJoined(reply(2, gateway="g0"), "g0.1.2.0", "shop/fulfil", "charge", 2),
        published(*numbered(1, 5)),
    )

    found = gauges(shell)

    now = shell.now / 1000
    audit = GroupStatus("audit", 0, 5, 1, durable=True, attempts=1, since=now)
    assert found.partition == PartitionState("shop/orders", 0, 1, 5, records=5, groups=(audit,))
    charge = StageStatus("charge", waiting=1, running=2, members=1, places=2)
    reserve = StageStatus("reserve", waiting=3)
    assert found.pipelines == (PipelineStatus("shop/fulfil", active=3, lag=2, began=3, stages=(charge, reserve)),)
    assert found.at == now


def test_gauges_tell_what_members_of_a_group_have_not_ended_and_letters_that_were_refused() -> None:
    shell = Shell()
    shell.turn(declared(fulfil(max_parallel=3)))
    shell.turn(
        e.GroupJoined(reply(1, gateway="g0"), "g0.1.1.0", "audit", True, BEGINNING, 9), published(*numbered(1, 5))
    )
    delivery = shell.of(i.DeliverRecords)[0].delivery
    shell.turn(
        e.DeliveriesTaken(reply(2, gateway="g0"), group="audit"),
        e.CarriedIn(SHIPMENTS, 1, e.OutputRefused(delivery, "it is gone")),
    )

    [audit] = gauges(shell).partition.groups

    assert (audit.overdue, audit.letters_refused, audit.refused_reason) == (1, 1, "it is gone")


def test_gauges_count_outputs_ends_and_dead_letters_of_the_turn() -> None:
    stage = StagePlan("charge", given_root=True, attempts=1, dead_letter="shop/dead", dead_letter_partitions=1)
    shell = Shell()
    shell.turn(declared(fulfil(stages=(stage,))))
    shell.turn(
        e.StageJoined(reply(1, gateway="g0"), "g0.1.1.0", "shop/fulfil", "charge", 2), published(*numbered(1, 2))
    )
    first, second = (one.delivery for one in shell.of(i.DeliverInputs))
    shell.turn(
        e.DeliveryAcked(None, "g0.1.1.0", first, Payload(b"")),
        e.DeliveryNacked(None, "g0.1.1.0", second, 0, "no stock"),
    )

    [found] = gauges(shell).pipelines
    assert (found.began, found.done, found.failed, found.dead_letters) == (0, 1, 1, 1)
    assert (found.done_at, found.failed_at) == (shell.now / 1000, shell.now / 1000)
    assert found.reason == "stage charge did not succeed in 1 deliveries; the last one: no stock"
    [charge] = found.stages
    assert (charge.done, charge.failed, charge.retrying, charge.reason) == (1, 1, 0, "no stock")


def test_gauges_tell_which_deliveries_fail_since_when_and_why_and_how_many_wait_for_their_next_attempt() -> None:
    stage = StagePlan("charge", given_root=True, delay=50, longest_delay=50)
    shell = Shell()
    shell.turn(declared(fulfil(stages=(stage,))))
    shell.turn(
        e.StageJoined(reply(1, gateway="g0"), "g0.1.1.0", "shop/fulfil", "charge", 2), published(*numbered(1, 2))
    )
    began = shell.now
    first, second = (one.delivery for one in shell.of(i.DeliverInputs))
    shell.turn(
        e.DeliveryNacked(None, "g0.1.1.0", first, 0, "no stock"),
        e.DeliveryNacked(None, "g0.1.1.0", second, 0, "no ledger"),
    )

    [charge] = gauges(shell).pipelines[0].stages
    assert (charge.failed, charge.retrying, charge.running, charge.attempts) == (2, 2, 0, 1)
    assert (charge.failing_since, charge.failed_at, charge.reason) == (began / 1000, shell.now / 1000, "no stock")


def test_gauges_stand_in_the_manifest_of_their_batch_and_in_no_file(tmp_path: Path) -> None:
    shell = Shell()
    shell.turn(published(*numbered(1, 2)))
    (timer,) = (one for one in output_rows(shell.key, shell.now, shell.result) if one.kind is OutputKind.TIMER)
    row = dict(zip(OUTPUT.names, (*shell.key, timer.kind, *timer[1:]), strict=True))

    files = list(write_outputs(str(tmp_path), 3, [pa.RecordBatch.from_pylist([row], OUTPUT)]))
    manifest = Manifest.from_json(manifest_of(3, files, None).to_json())

    assert record_from_json(KeyGauges, manifest.gauges[str(shell.key)]) == gauges(shell)
    assert manifest.files == ()
    assert b"gauges" in manifest.to_json()


def test_a_manifest_of_an_earlier_release_has_no_gauges() -> None:
    assert Manifest.from_json(b'{"version": 1, "batch": 3, "files": [], "timers": {"shop/orders/0": 5}}').gauges == {}
    assert str(SHIPMENTS) == "shop/shipments/1"
