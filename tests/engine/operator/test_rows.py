"""The instructions of a turn as rows of OUTPUT."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.engine.operator.shells import Shell
from tests.engine.operator.test_turn import declared, in_spark, numbered, published
from tests.pipelines.controller.one_key import BEGINNING, ORDERS, SHIPMENTS, record, reply, start_at
from wallaroo_spark.engine.operator import rows
from wallaroo_spark.engine.operator.rows import OutputRow, output_rows
from wallaroo_spark.engine.operator.turn import TurnResult
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.events import AppendOutput
from wallaroo_spark.pipelines.controller.messages.values import OutputId, ReplyTo, StageDelivery
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.controller.stored.key_state import Head
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.streams.rows import HISTORY, INPUT, OUTBOX, RECORDS, OutputKind

DELIVERY = StageDelivery("shop/fulfil", 4, "charge", 9)


def of_kind(found: list[OutputRow], kind: OutputKind) -> list[dict[str, Any]]:
    """The rows in the bodies of a kind."""
    return [row for one in found if one.kind is kind for row in table_of(one).to_pylist()]


def table_of(one: OutputRow) -> pa.Table:
    assert one.body is not None
    table = pa.ipc.open_stream(one.body).read_all()
    assert table.num_rows == one.rows
    return table


def rows_of(*said: i.Instruction) -> list[OutputRow]:
    return [*output_rows(ORDERS, 5_000, TurnResult([*said], None, 1, (), {}, Head()))]


def test_each_kind_of_body_has_its_schema() -> None:
    shell = Shell()
    shell.turn(declared(in_spark()))
    shell.turn(
        published(*numbered(1, 3)),
        e.GroupJoined(reply(1, gateway="g0"), "g0.1.1", "audit", True, BEGINNING, 9),
    )

    found = [
        *output_rows(ORDERS, 5_000, shell.result),
        *rows_of(i.CarryOut(SHIPMENTS, 1, AppendOutput(OutputId(DELIVERY, 0), ()))),
    ]

    schemas = {
        OutputKind.RECORDS: RECORDS,
        OutputKind.HISTORY: HISTORY,
        OutputKind.CARRIED: INPUT,
        OutputKind.OUTBOX: OUTBOX,
    }
    bodies = {one.kind: table_of(one).schema for one in found if one.kind is not OutputKind.TIMER}
    assert bodies == schemas


def test_the_history_has_a_row_for_each_step() -> None:
    found = of_kind(
        rows_of(
            i.InstanceBegan("shop/fulfil", 4, 2, 1_000),
            i.StoreOutput(DELIVERY, Payload(b"x", "text/plain"), 1_000, 1_500),
            i.StoreOutput(DELIVERY._replace(stage="ship"), None, 1_500, 2_000),
            i.DeliveryFailed(DELIVERY, 2, "no stock"),
            i.StorePointer(OutputId(DELIVERY, 0), SHIPMENTS, (5, 6)),
            i.InstanceEnded("shop/fulfil", 4, i.Outcome.FAILED, 1_000, 2_000, "too late"),
            i.SkippedRecords("shop/fulfil", 8, 12),
        ),
        OutputKind.HISTORY,
    )

    assert {(row["pipeline"], row["partition"]) for row in found} == {("shop/fulfil", 0)}
    assert [(row["kind"], row["instance"], row["at"].timestamp()) for row in found] == [
        ("began", 4, 1.0),
        ("output", 4, 1.5),
        ("output", 4, 2.0),
        ("nacked", 4, 5.0),
        ("pointer", 4, 5.0),
        ("ended", 4, 2.0),
        ("skipped", 8, 5.0),
    ]
    output, without, nacked, pointer, ended, skipped = found[1:]
    assert (output["stage"], output["output"], output["content_type"]) == ("charge", b"x", "text/plain")
    assert (without["output"], without["content_type"]) == (None, None)
    assert (nacked["stage"], nacked["attempts"], nacked["reason"]) == ("charge", 2, "no stock")
    assert (pointer["target_stream"], pointer["target_partition"], pointer["offsets"]) == ("shop/shipments", 1, [5, 6])
    assert (ended["outcome"], ended["reason"], ended["began_at"].timestamp()) == ("failed", "too late", 1.0)
    assert skipped["offsets"] == [8, 12]


def test_carried_messages_are_input_of_a_later_batch() -> None:
    message = AppendOutput(OutputId(DELIVERY, 0), (record(1),))

    (row,) = of_kind(rows_of(i.CarryOut(SHIPMENTS, 7, message)), OutputKind.CARRIED)

    assert (row["stream"], row["partition"], row["rank"], row["origin"]) == ("shop/shipments", 1, 1, "shop/orders/0")
    assert (row["sequence"], row["place"]) == (7, 0)
    assert decode(row["event"]) == e.CarriedIn(ORDERS, 7, message)


def test_messages_go_to_the_gateway_of_their_request_or_member_and_those_of_the_driver_to_nobody() -> None:
    found = rows_of(
        i.AnswerRequest(ReplyTo("g1", 1, 1)),
        i.RefuseRequest(ReplyTo("driver", 1, 2), "no"),
        i.WarnClient(ReplyTo("g0", 1, 3), "late"),
        i.EndSubscription("g2.1.5", "gone"),
        i.WithdrawDelivery("g1.4.2", DELIVERY, "gone"),
    )

    messages = [one for one in found if one.kind is OutputKind.OUTBOX]
    outbox = {one.target: [decode(row["instruction"]) for row in table_of(one).to_pylist()] for one in messages}
    assert {gateway: [type(one) for one in messages] for gateway, messages in outbox.items()} == {
        "g0": [i.WarnClient],
        "g1": [i.AnswerRequest, i.WithdrawDelivery],
        "g2": [i.EndSubscription],
    }


def test_records_stand_beside_their_delivery_if_the_batch_has_all_of_them() -> None:
    shell = Shell()
    shell.turn(declared(), published(*numbered(1, 2)))
    shell.turn(
        published(*numbered(3, 5)),
        e.GroupJoined(reply(1), "g0.1.1", "old", True, BEGINNING, 9),
        e.GroupJoined(reply(2), "g0.1.2", "new", True, start_at(4), 1),
    )

    messages = of_kind([*output_rows(ORDERS, 5_000, shell.result)], OutputKind.OUTBOX)

    attached = {
        decoded.delivery.group: row["records"] and [one.id for one in decode(row["records"])]
        for row in messages
        if isinstance(decoded := decode(row["instruction"]), i.DeliverRecords)
    }
    assert attached == {"old": None, "new": ["4"]}


def test_the_copies_of_records_for_groups_have_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wallaroo_spark.engine.operator.rows.ATTACHED_BYTES", 25_000)
    shell = Shell()
    joins = [e.GroupJoined(reply(n), f"g0.1.{n}", f"group-{n}", True, BEGINNING, 9) for n in range(1, 21)]
    large = CloudEvent("1", "s", "t", None, (("note", "x" * 10_000),))
    shell.turn(declared(), *joins, published(large))

    messages = of_kind([*output_rows(ORDERS, 5_000, shell.result)], OutputKind.OUTBOX)

    deliveries = [row["records"] for row in messages if isinstance(decode(row["instruction"]), i.DeliverRecords)]
    assert (len(deliveries), sum(one is not None for one in deliveries)) == (20, 2)


def test_the_timer_of_the_key_is_always_told() -> None:
    without = [*output_rows(ORDERS, 5_000, TurnResult([], None, 1, (), {}, Head()))]
    armed = [*output_rows(ORDERS, 5_000, TurnResult([], 6_000, 1, (), {}, Head()))]

    assert [(one.kind, one.first) for one in without] == [(OutputKind.TIMER, None)]
    assert [(one.kind, one.first) for one in armed] == [(OutputKind.TIMER, 6_000)]


def test_large_outputs_are_several_rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BODY_BYTES", 1_000)
    records = tuple(CloudEvent(str(number), "tests", "t", b"x" * 300) for number in range(1, 11))

    found = [*output_rows(ORDERS, 5_000, TurnResult([], None, 21, records, {}, Head()))]

    ranges = [(one.first, one.last) for one in found if one.kind is OutputKind.RECORDS]
    assert ranges == [(21, 22), (23, 24), (25, 26), (27, 28), (29, 30)]
    assert [row["offset"] for row in of_kind(found, OutputKind.RECORDS)] == [*range(21, 31)]
