"""Functions of stages that raise, are given and return what breaks programs: each is a nack with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import evil_values as evil
from tests.engine.operator import stage_functions
from tests.engine.operator.test_functions import TARGETS, acks, results, runs
from tests.pipelines.controller.one_key import record
from wallaroo_spark.api.limits import EVENT_BYTES
from wallaroo_spark.engine.operator.functions import StageFunctions
from wallaroo_spark.errors import LONGEST_REASON
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload

JSON = (("datacontenttype", "application/json"),)


@pytest.fixture(autouse=True)
def _behaviour() -> Iterator[None]:
    yield
    stage_functions.behaviour.update({"raise": None, "output": None, "events": None, "content_type": None})


def in_a_task(function: str, *roots: CloudEvent | str, **changes: Any) -> list[e.Event]:
    """The results as in a task of Spark, each of which can be stored."""
    found = list(StageFunctions(passing=()).run(runs(function, *roots, **changes), 1_000))
    assert [decode(encode(one)) for one in found] == found
    for one in found:
        if isinstance(one, e.DeliveryNacked):
            assert 0 < len(one.reason) <= LONGEST_REASON
            assert one.reason.isprintable()
            one.reason.encode()
    return found


def kinds(found: list[e.Event]) -> str:
    """A letter for each result: a for an ack, n for a nack."""
    return "".join("a" if isinstance(one, e.DeliveryAcked) else "n" for one in found)


@pytest.mark.parametrize("name", evil.ERRORS)
def test_whatever_a_function_raises_is_a_nack_of_its_row_alone(name: str) -> None:
    stage_functions.behaviour["raise"] = evil.ERRORS[name]

    assert kinds(in_a_task("evil", "a", "bad", "c")) == "ana"
    assert kinds(in_a_task("evil", "bad")) == "n"


def test_a_ctrl_c_ends_the_test_that_has_called_the_function() -> None:
    stage_functions.behaviour["raise"] = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        StageFunctions().run(runs("evil", "bad"), 1_000)


@pytest.mark.parametrize("name", evil.PAYLOADS)
def test_whatever_an_event_has_is_given_to_the_function_or_is_a_nack_of_its_row_alone(name: str) -> None:
    bad = CloudEvent("x", "shop", "order", evil.PAYLOADS[name], JSON)

    found = in_a_task("given", record("a"), bad, record("c"))

    assert kinds(found) in ("ana", "aaa")
    if kinds(found) == "ana":
        assert isinstance(found[1], e.DeliveryNacked)
        assert found[1].reason.startswith("an input cannot be read: ")


@pytest.mark.parametrize("name", evil.PAYLOADS)
def test_a_value_that_a_function_passes_on_is_the_one_that_it_was_given(name: str) -> None:
    bad = CloudEvent("x", "shop", "order", evil.PAYLOADS[name], JSON)

    (found,) = in_a_task("pass_on", bad)

    if isinstance(found, e.DeliveryAcked):
        assert found.output is not None
        assert json.loads(found.output.data) == {"it": json.loads(evil.PAYLOADS[name])}
        # The next stage is given it, too.
        (again,) = in_a_task("pass_on", bad._replace(data=found.output.data))
        assert isinstance(again, e.DeliveryAcked)
        assert again.output is not None
        assert json.loads(again.output.data) == {"it": {"it": json.loads(evil.PAYLOADS[name])}}


@pytest.mark.parametrize("name", evil.VALUES)
def test_whatever_a_function_returns_is_stored_or_is_a_nack_of_its_row_alone(name: str) -> None:
    stage_functions.behaviour["output"] = evil.VALUES[name]

    assert kinds(in_a_task("evil", "a", "bad", "c")) in ("ana", "aaa")


def test_an_output_that_is_nested_too_deeply_is_a_nack() -> None:
    stage_functions.behaviour["output"] = evil.nested()

    assert kinds(in_a_task("evil", "a", "bad", "c")) == "ana"


@pytest.mark.parametrize(
    "text", [evil.EvilText("x"), evil.LONE, "x" * 5000, np.str_("text/plain"), object()], ids=range(5)
)
def test_a_content_type_is_stored_or_is_a_nack(text: Any) -> None:
    stage_functions.behaviour.update(output="o", content_type=text)

    assert kinds(in_a_task("evil", "a", "bad", "c")) in ("ana", "aaa")


EVENTS: list[tuple[dict[str, Any], str]] = [
    ({"id": evil.LONE}, "lone surrogate"),
    ({"id": "x" * 5000}, "has an id of 5000 characters"),
    ({"type": "t" * 5000}, "has a type of 5000 characters"),
    ({"subject": evil.LONE}, "lone surrogate"),
    ({"Colour": "red"}, "lower-case letters"),
    ({evil.LONE: "red"}, "lower-case letters"),
    ({"": "red"}, "lower-case letters"),
    ({"time": "yesterday"}, "RFC 3339"),
    ({"time": "0000-01-01T00:00:00Z"}, "RFC 3339"),
    ({"time": "10000-01-01T00:00:00Z"}, "RFC 3339"),
    ({"subject": object()}, "is a object"),
    ({"data": b"x" * EVENT_BYTES}, f"{EVENT_BYTES} are permitted"),
    (evil.EXTENSIONS, "attributes"),
    ({"subject": "s" * EVENT_BYTES}, f"{EVENT_BYTES} are permitted"),
    ({"data": evil.nested()}, "nested too deeply"),
    ({"data": [float("nan")]}, "not JSON compliant"),
]


@pytest.mark.parametrize("place", range(len(EVENTS)))
def test_the_rules_of_publishers_hold_for_the_events_of_functions(place: int) -> None:
    event, problem = EVENTS[place]
    stage_functions.behaviour["events"] = [{"type": "letter", "datacontenttype": "x", **event}]

    found = in_a_task("evil_events", "a", "bad", "c", targets=(("other/letters", 2),))

    assert kinds(found) == "ana"
    assert isinstance(found[1], e.DeliveryNacked)
    assert problem in found[1].reason


def test_texts_of_other_libraries_are_texts() -> None:
    stage_functions.behaviour["events"] = {
        "type": np.str_("letter"),
        "id": np.str_("i"),
        "count": np.int64(7),
        "ok": np.bool_(True),
        "time": "2026-03-01T14:00:00+02:00",
    }
    (ack,) = acks(in_a_task("evil_events", "bad", targets=(TARGETS[1],)))

    (event,) = [one for output in ack.stream_outputs for one in output.records]
    assert event.attributes == (("count", "7"), ("ok", "true"), ("time", "2026-03-01T12:00:00Z"))
    assert {type(text) for text in (event.id, event.type)} == {str}


def test_an_output_has_the_limit_of_an_event() -> None:
    stage_functions.behaviour["output"] = b"x" * EVENT_BYTES
    assert kinds(in_a_task("evil", "bad")) == "a"
    stage_functions.behaviour["output"] = b"x" * (EVENT_BYTES + 1)
    (nack,) = in_a_task("evil", "bad")
    assert isinstance(nack, e.DeliveryNacked)
    assert f"the output has {EVENT_BYTES + 1} bytes, and {EVENT_BYTES} are permitted" in nack.reason


def test_each_call_is_given_new_values_and_a_frame_that_it_may_change() -> None:
    priced = [CloudEvent(str(place), "s", "t", b'{"price":%d}' % price, JSON) for place, price in enumerate((1, -2, 3))]

    found = in_a_task("hundredfold", *priced)

    assert kinds(found) == "ana"
    assert [one.output for one in found if isinstance(one, e.DeliveryAcked)] == [
        Payload(b"100", "application/json"),
        Payload(b"300", "application/json"),
    ]
    assert results("hundredfold", *priced) == found
