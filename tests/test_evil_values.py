"""Each place that decodes or encodes payloads takes the whole corpus: exactly, or with an error that says why not."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests import evil_values as evil
from tests.streams.samples import canonical
from wallaroo_spark.cli.durable.events import event_as_json, shown_data
from wallaroo_spark.cli.durable.stage import plain
from wallaroo_spark.client import Event
from wallaroo_spark.client.events import JSON_TYPE, decode_value, encode_value, from_structured
from wallaroo_spark.columnar.python_values import python_rows, python_values, with_valid_texts
from wallaroo_spark.engine.isolation import FailedRows
from wallaroo_spark.engine.operator.functions import given_event, payload_of
from wallaroo_spark.engine.operator.rows import history_batches
from wallaroo_spark.engine.set_aside import FailedRow
from wallaroo_spark.errors import SinkError, WallarooError
from wallaroo_spark.gateway.cloud_events import event_of, to_wire
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.json_text import dump_json
from wallaroo_spark.pipelines.controller.messages.instructions import StoreOutput
from wallaroo_spark.pipelines.controller.messages.values import StageDelivery
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.pubsub.subscribing.topic_source import row_as_json
from wallaroo_spark.sidecar.task_access import as_arrow_stream
from wallaroo_spark.sinks.settings import StreamSettings
from wallaroo_spark.sinks.stores.event_rows import CLOUDEVENTS, RowReader
from wallaroo_spark.sinks.stores.files import FORMATS
from wallaroo_spark.streams.rows import as_events, as_rows

LIMITS = GatewayLimits()


def event(payload: bytes) -> CloudEvent:
    attributes = (("datacontenttype", JSON_TYPE), ("time", "2026-03-01T12:00:00Z"))
    return CloudEvent("1", "/x", "t", payload, attributes)


def of_client(payload: bytes) -> Event:
    return Event.from_message(to_wire(event(payload)))


def same(payload: bytes, found: bytes) -> bool:
    """Whether two texts of JSON are the same value."""
    return bool(payload == found or json.loads(payload) == json.loads(found))


def gateway(payload: bytes) -> None:
    assert event_of(to_wire(event(payload)), LIMITS) == event(payload)


def connector(payload: bytes) -> None:
    row = pa.record_batch({"value": [b'{"type":"t","data":' + payload + b"}"]})
    reader = RowReader(StreamSettings("app", "a/b", checkpoint="c", format=CLOUDEVENTS, source="/x"))
    (made,) = reader.events(row, "1", 0, 1)
    if made.problem:
        raise SinkError(made.problem)
    found = made.event
    if found.data is not None and dict(found.attributes)["datacontenttype"] == JSON_TYPE:
        assert same(payload, found.data)
    else:
        assert found.data == (None if found.data is None else json.loads(payload).encode())


def controller(payload: bytes) -> None:
    assert decode(encode(event(payload))) == event(payload)


def table(payload: bytes) -> None:
    assert as_events(as_rows(1, [event(payload)], 0)) == (canonical(event(payload)),)


def history(payload: bytes) -> None:
    step = StoreOutput(StageDelivery("shop/p", 1, "s", 1), Payload(payload, JSON_TYPE), 0, 0)
    rows = pa.ipc.open_stream(as_arrow_stream(*history_batches(0, 0, [step]))).read_all()
    assert rows.column("output").to_pylist() == [payload]


def function(payload: bytes) -> None:
    given = given_event(event(payload))["data"]
    output = payload_of([given], None)
    assert output is not None
    assert same(b"[" + payload.removeprefix("\ufeff".encode()) + b"]", output.data)


def client(payload: bytes) -> None:
    value = of_client(payload).value
    if isinstance(value, bytes):
        assert value == payload
    else:
        data, _ = encode_value([value])
        assert decode_value(data, JSON_TYPE) == [value]


def structured(payload: bytes) -> None:
    line = event_as_json(of_client(payload))
    assert line.isprintable()
    assert same(payload, from_structured(line, "line 1").data)


def command_of_a_stage(payload: bytes) -> None:
    given = plain(decode_value(payload, JSON_TYPE), payload)
    (line,) = dump_json([given]).splitlines()
    assert json.loads(line) == [given]


def terminal(payload: bytes) -> None:
    assert shown_data(of_client(payload)).isprintable()


def dead_letter_file(payload: bytes) -> None:
    memory: dict[str, bytes] = {}

    class Folder:
        def write(self, name: str, data: bytes) -> None:
            memory[name] = data

    rows = FailedRows.__new__(FailedRows)
    vars(rows).update(_folder=Folder(), identity="here")
    rows.write_lines(FailedRow("shop/orders", 0), [event(payload)])
    (text,) = memory.values()
    (line,) = text.splitlines()
    assert from_structured(line, "line 1").data == payload


def sink_of_json(payload: bytes) -> None:
    (line,) = json_lines(evil.texts(payload))
    assert line["value"] == payload.decode(errors="replace")


def topic(payload: bytes) -> None:
    rows = pa.record_batch([evil.texts(payload)], names=["value"])
    (found,) = map(row_as_json, python_rows(rows))
    assert json.loads(found)["value"] == payload.decode(errors="replace")


def json_lines(column: pa.Array) -> list[dict[str, Any]]:
    rows = pa.record_batch([column], names=["value"])
    file = io.BytesIO()
    FORMATS["json"](file, rows.schema, [rows])
    return [json.loads(line) for line in file.getvalue().split(b"\n") if line]


PLACES: list[Callable[[bytes], None]] = [
    gateway,
    connector,
    controller,
    table,
    history,
    function,
    client,
    structured,
    command_of_a_stage,
    terminal,
    dead_letter_file,
    sink_of_json,
    topic,
]


@pytest.mark.parametrize("name", evil.PAYLOADS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_payload_is_taken_exactly_or_refused_with_its_reason(place: Callable[[bytes], None], name: str) -> None:
    try:
        place(evil.PAYLOADS[name])
    except (ValueError, WallarooError) as refused:
        problem = str(refused)
    else:
        problem = ""
    # Only what reads JSON may refuse a payload: for all others it is bytes. Python reads 1e400, and cannot write it.
    assert not problem or place in (connector, function) or (place is client and name == "a float beyond all")
    assert len(problem.encode()) < 1000


@pytest.mark.parametrize("seconds", [-62_167_219_200, 253_402_300_800, -(10**12), 10**12])
def test_a_time_of_no_year_of_python_is_a_text(seconds: int) -> None:
    times = pa.array([seconds * 1_000_000, None, 0], pa.timestamp("us", "UTC"))

    found = [line["value"] for line in json_lines(times)]

    assert found[1:] == [None, "1970-01-01T00:00:00+00:00"]
    assert "T00:00:00" in found[0] or "T" in found[0]
    nested = pa.array([[{"at": 253_402_300_800_000_000}]], pa.list_(pa.struct([("at", pa.timestamp("us"))])))
    assert python_values(nested) == [[{"at": "10000-01-01T00:00:00.000000"}]]


def test_numbers_that_json_does_not_have_are_texts_in_rows_of_topics() -> None:
    row = {"a": float("nan"), "b": [float("inf"), {"c": -float("inf")}], "d": 1.5}

    assert json.loads(row_as_json(row)) == {"a": "NaN", "b": ["+Infinity", {"c": "-Infinity"}], "d": 1.5}


def test_wrong_bytes_become_the_replacement_character_in_texts_of_all_depths_and_nothing_else_changes() -> None:
    wrong = evil.texts(b"a\xffb")
    inner = pa.StructArray.from_arrays([wrong, pa.array([float("inf")])], ["t", "n"])
    nested = pa.ListArray.from_arrays([0, 1], inner)
    rows = pa.record_batch([wrong, nested, pa.array([b"\xff"])], names=["a", "b", "c"])

    found = with_valid_texts(rows)

    assert found.schema == rows.schema
    found.validate(full=True)
    text = "a\ufffdb"
    assert found.to_pylist() == [{"a": text, "b": [{"t": text, "n": float("inf")}], "c": b"\xff"}]
    assert with_valid_texts(found) is found
