"""Functions of stages: the values that they are given and return, and their failures."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.engine.operator import stage_functions
from tests.engine.operator.shells import Shell
from tests.engine.operator.test_turn import declared, in_spark, published
from tests.pipelines.controller.one_key import record
from wallaroo_spark.engine.operator.functions import StageFunctions, import_problem
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import StagePlan
from wallaroo_spark.pipelines.controller.messages.values import StageDelivery
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload, partition_of

MODULE = "tests.engine.operator.stage_functions"
TARGETS = (("shop/shipments", 3), ("other/letters", 1))


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    stage_functions.calls.clear()


def runs(function: str, *roots: CloudEvent | str, **changes: Any) -> list[i.RunFunction]:
    """A run for each root event."""
    events = [root if isinstance(root, CloudEvent) else record(root) for root in roots]
    return [
        i.RunFunction(
            StageDelivery("shop/text", number, "work", 100 + number), f"{MODULE}:{function}", event, ()
        )._replace(**changes)
        for number, event in enumerate(events, 1)
    ]


def results(function: str, *roots: CloudEvent | str, **changes: Any) -> list[e.Event]:
    return list(StageFunctions().run(runs(function, *roots, **changes), 1_000))


def acks(found: list[e.Event]) -> list[e.DeliveryAcked]:
    assert all(isinstance(one, e.DeliveryAcked) for one in found), found
    return [one for one in found if isinstance(one, e.DeliveryAcked)]


def reasons(found: list[e.Event]) -> list[str]:
    return [one.reason if isinstance(one, e.DeliveryNacked) else "" for one in found]


def test_a_pipeline_that_is_declared_anew_gives_events_with_other_ids() -> None:
    (first,) = runs("emit", "a", targets=TARGETS)
    second = first._replace(delivery=first.delivery._replace(birth=7))
    found = acks(list(StageFunctions().run([first, first, second], 1_000)))
    written = [{event.id for output in one.stream_outputs for event in output.records} - {"b1"} for one in found]
    assert written[0] == written[1]
    assert not written[0] & written[2]


def test_instances_of_one_number_in_two_partitions_give_events_with_different_ids() -> None:
    found = acks([one for partition in (0, 1) for one in results("emit", "a", targets=TARGETS, partition=partition)])

    written = [event.id for one in found for output in one.stream_outputs for event in output.records]
    assert sorted(one for one in written if one.endswith("shipments:0")) == [
        "shop/text@0:0/1:work:shop/shipments:0",
        "shop/text@0:1/1:work:shop/shipments:0",
    ]


def test_a_function_is_called_once_for_all_deliveries_and_its_results_are_in_their_order() -> None:
    found = acks(results("upper", "a", "b", "c"))

    assert stage_functions.calls == [3]
    assert [one.delivery.number for one in found] == [101, 102, 103]
    assert [one.output for one in found][:2] == [Payload(b"DATA OF A"), Payload(b"DATA OF B")]


def test_a_result_may_have_the_rows_in_another_order() -> None:
    assert [one.output for one in acks(results("backwards", "a", "b"))] == [
        Payload(b"1", "text/plain"),
        Payload(b"2", "text/plain"),
    ]


def test_only_the_deliveries_of_bad_rows_fail(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "wallaroo_spark.engine"):
        found = results("careful", "a", "bad", "c")

    assert stage_functions.calls == [3, 1, 1, 1]
    assert reasons(found) == ["", "ValueError: there is a bad row", ""]
    assert [type(one) for one in found] == [e.DeliveryAcked, e.DeliveryNacked, e.DeliveryAcked]
    assert "failed for 1 of 3 rows: ValueError: there is a bad row" in caplog.text


def test_a_function_is_given_the_root_event_and_the_outputs_by_their_content_types() -> None:
    root = CloudEvent(
        "7", "shop", "order", b'{"total":3}', (("datacontenttype", "application/json"), ("colour", "red"))
    )
    outputs = (("charge", Payload(b"ok", "text/plain")), ("reserve", Payload(b"\x01")))

    (ack,) = acks(results("given", root, outputs=outputs, dependencies=("charge", "reserve", "quiet")))

    assert ack.output is not None
    assert json.loads(ack.output.data) == {
        "instance": "1",
        "root_event": str(
            {
                "id": "7",
                "source": "shop",
                "type": "order",
                "datacontenttype": "application/json",
                "colour": "red",
                "data": {"total": 3},
            }
        ),
        "charge": "ok",
        "reserve": "b'\\x01'",
        "quiet": "None",
    }


def test_an_input_that_is_not_of_its_content_type_fails_alone() -> None:
    bad = CloudEvent("7", "shop", "order", b"{", (("datacontenttype", "application/json"),))

    first, second = reasons(results("given", bad, "b"))

    assert first.startswith("an input cannot be read: JSONDecodeError")
    assert second == ""


def test_outputs_are_bytes_text_or_json() -> None:
    found = results("values", "bytes", "text", "json", "none", "nan", "object")

    assert [one.output for one in acks(found[:-1])] == [
        Payload(b"\x00\xff"),
        Payload("gruß".encode(), "text/plain"),
        Payload(b'{"total":3,"items":[1,null]}', "application/json"),
        None,
        None,
    ]
    assert reasons(found)[-1] == "TypeError: a object is no value of JSON"


def test_events_for_streams_have_a_partition_each_and_ids_that_are_the_same_in_the_next_run() -> None:
    first, second = results("emit", "a", "b", targets=TARGETS), results("emit", "a", "b", targets=TARGETS)

    assert first == second
    one, two = acks(first)
    written = {event.id: (part.target, event) for part in one.stream_outputs for event in part.records}
    assert set(written) == {"shop/text@0:0/1:work:shop/shipments:0", "b1", "shop/text@0:0/1:work:other/letters:0"}
    for target, event in written.values():
        partitions = dict(TARGETS)[target.stream]
        assert target.partition == partition_of(event, partitions)
    _, event = written["shop/text@0:0/1:work:shop/shipments:0"]
    assert (event.source, event.data, event.attributes) == (
        "shop/text",
        b'{"n":1}',
        (("datacontenttype", "application/json"),),
    )
    # A stream without an event is named with no record.
    assert [part.records for part in two.stream_outputs if part.target.stream == "other/letters"] == [()]


@pytest.mark.parametrize(
    ("function", "changes", "reason"),
    [
        ("a_number", {}, "the function returned a int; return a pandas DataFrame"),
        ("typo", {}, "the result has a column 'outptu', which is no output of stage work"),
        ("upper", {"targets": TARGETS}, "the result has no column 'shipments' for the declared stream output"),
        ("nothing", {"output_required": True}, "another stage needs the output of this one"),
        (
            "missing",
            {},
            "cannot be imported: ImportError: module tests.engine.operator.stage_functions has no function",
        ),
    ],
)
def test_a_result_that_cannot_be_used_is_a_nack_with_the_reason(
    function: str, changes: dict[str, Any], reason: str
) -> None:
    found = reasons(results(function, "a", "b", **changes))

    assert all(reason in one for one in found), found


def test_rows_that_a_function_leaves_out_are_tried_alone() -> None:
    assert len(acks(results("too_few", "a", "b"))) == 2


def test_a_function_may_have_no_output() -> None:
    assert [one.output for one in acks(results("nothing", "a"))] == [None]


def test_the_import_of_a_function_is_checked_before_the_start() -> None:
    assert import_problem(f"{MODULE}:upper") == ""
    assert "No module named 'no_such_package_anywhere'" in import_problem("no_such_package_anywhere.x:y")


def test_a_failed_delivery_is_tried_again_in_a_later_batch_and_its_reason_is_in_the_history() -> None:
    shell = Shell()
    shell.functions = StageFunctions()  # type: ignore[assignment]  # the real one
    stage = StagePlan("work", given_root=True, function=f"{MODULE}:careful", attempts=2)
    shell.turn(declared(in_spark(stage)))

    shell.turn(published(record("a"), record("bad"), record("c")))
    first, armed = shell.of(i.InstanceEnded), shell.result.armed
    shell.turn()

    assert [one.instance for one in first] == [1, 3]
    assert armed is not None
    (ended,) = shell.of(i.InstanceEnded)
    assert (ended.instance, ended.outcome) == (2, i.Outcome.FAILED)
    assert ended.reason == ("stage work did not succeed in 2 deliveries; the last one: ValueError: there is a bad row")
    assert shell.result.armed is None
