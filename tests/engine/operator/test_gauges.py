"""The gauges of a key after its turn, and their way into the manifest of the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.engine.operator.shells import Shell
from tests.engine.operator.test_turn import declared, numbered, published
from tests.pipelines.controller.one_key import BEGINNING, SHIPMENTS, fulfil, reply
from wallaroo_spark.engine.operator.gauges import turn_gauges
from wallaroo_spark.engine.operator.rows import output_rows
from wallaroo_spark.engine.operator.turn import TurnResult
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import StagePlan
from wallaroo_spark.pipelines.controller.messages.values import Payload
from wallaroo_spark.streams.batch_outputs.files import Manifest, manifest_of
from wallaroo_spark.streams.batch_outputs.writing import write_outputs
from wallaroo_spark.streams.rows import OUTPUT, OutputKind


def gauges(shell: Shell) -> dict[str, Any]:
    body = turn_gauges(shell.now, shell.result)
    assert body is not None
    found: dict[str, Any] = json.loads(body)
    return found


def test_gauges_have_offsets_groups_and_the_queues_of_stages() -> None:
    shell = Shell()
    shell.turn(declared(fulfil(max_parallel=3)))
    shell.turn(
        e.GroupJoined(reply(1, gateway="g0"), "g0.1.1.0", "audit", True, BEGINNING, 9),
        e.StageJoined(reply(2, gateway="g0"), "g0.1.2.0", "shop/fulfil", "charge", 2),
        published(*numbered(1, 5)),
    )

    found = gauges(shell)

    assert (found["last"], found["first"], found["at"]) == (5, 1, shell.now)
    audit = {"cursor": 0, "members": 1, "durable": True, "open": True, "since": shell.now, "attempts": 1}
    assert found["groups"]["audit"] == audit
    pipeline = found["pipelines"]["shop/fulfil"]
    assert (pipeline["cursor"], pipeline["active"], pipeline["most"]) == (3, 3, 3)
    assert pipeline["stages"] == {
        "charge": {"waiting": 1, "running": 2, "members": 1},
        "reserve": {"waiting": 3, "running": 0, "members": 0},
    }
    assert found["did"] == {"records": 5, "pipelines": {"shop/fulfil": {"began": 3}}}


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

    assert gauges(shell)["did"] == {
        "pipelines": {"shop/fulfil": {"stages": {"charge": 1}, "done": 1, "dead_letters": 1, "failed": 1}}
    }


def test_gauges_stand_in_the_manifest_of_their_batch_and_in_no_file(tmp_path: Path) -> None:
    shell = Shell()
    shell.turn(published(*numbered(1, 2)))
    (timer,) = (one for one in output_rows(shell.key, shell.now, shell.result) if one.kind is OutputKind.TIMER)
    row = dict(zip(OUTPUT.names, (*shell.key, timer.kind, *timer[1:]), strict=True))

    files = list(write_outputs(str(tmp_path), 3, [pa.RecordBatch.from_pylist([row], OUTPUT)]))
    manifest = Manifest.from_json(manifest_of(3, files, None).to_json())

    assert manifest.gauges == {str(shell.key): gauges(shell)}
    assert manifest.files == ()
    assert b"gauges" in manifest.to_json()


def test_a_manifest_of_an_earlier_release_has_no_gauges() -> None:
    assert Manifest.from_json(b'{"version": 1, "batch": 3, "files": [], "timers": {"shop/orders/0": 5}}').gauges == {}
    assert turn_gauges(5, TurnResult([], None, 1, (), {})) is None
    assert str(SHIPMENTS) == "shop/shipments/1"
