"""The judge of doors' clients finds what breaks each kind of promise, and nothing else."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proving.chaos.doors.producers import ROWS, Row, spans_of
from proving.chaos.doors.promises import ClientsVerdict, Expected, Promise, Told, judge
from proving.chaos.judge import Written
from tests.conftest import ROOT

COUNT = 4
COMMITTED_AT = 1000.0
ONCE = Expected("java", Promise.ONCE, "kafka/java", "java")
ANSWERED = Expected("curl", Promise.ANSWERED, "http/worker-[0-9]+", "curl")


def row(client: Expected, number: object, *, batch: int = 0, partition: int = 7, **other: Any) -> dict[str, Any]:
    """A row as the client's door makes it."""
    instance = {"java": "kafka/java", "curl": "http/worker-1"}[client.name]
    return {
        "instance": instance,
        "stream": client.name,
        "stream_id": partition,
        "key": client.name.encode(),
        "value": str(number).encode(),
        "batch": batch,
        **other,
    }


def said(*lines: str, at: float = COMMITTED_AT + 1) -> Told:
    told = Told()
    for line in lines:
        told.take(line + "\n", at)
    return told


def rows_of(client: Expected) -> list[dict[str, Any]]:
    return [row(client, number) for number in range(COUNT)]


ALL = ("acked 0", "acked 1", "acked 2", "acked 3", "end")


def verdict(client: Expected, rows: Sequence[dict[str, Any]], told: Told | None = None) -> ClientsVerdict:
    columns = ("instance", "stream", "stream_id", "key", "value", "batch")
    table = pa.table({name: [one[name] for one in rows] for name in columns})
    return judge(
        [client], COUNT, {client.name: told or said(*ALL)}, Written(table, dict.fromkeys((0, 1), COMMITTED_AT))
    )


@pytest.mark.parametrize("client", [ONCE, ANSWERED], ids=["once", "answered"])
def test_every_message_answered_and_there_once_is_clean(client: Expected) -> None:
    found = verdict(client, rows_of(client))
    counts = found.clients[client.name]
    assert (counts.sent, counts.answered, counts.committed) == (COUNT, COUNT, COUNT)
    assert found.clean


@pytest.mark.parametrize("client", [ONCE, ANSWERED], ids=["once", "answered"])
def test_a_planted_loss_breaks_every_promise(client: Expected) -> None:
    found = verdict(client, [one for one in rows_of(client) if one["value"] != b"2"])
    assert found.clients[client.name].broken == {"missing": 1}
    assert not found.clean
    assert "1 of them missing" in found.title


def test_a_planted_repeat_breaks_the_promise_of_once() -> None:
    found = verdict(ONCE, [*rows_of(ONCE), row(ONCE, 3, batch=1)])
    assert found.clients["java"].broken == {"repeated": 1}
    assert not found.clean


def test_a_repeat_keeps_the_promise_of_a_client_that_may_repeat() -> None:
    found = verdict(ANSWERED, [*rows_of(ANSWERED), row(ANSWERED, 1, batch=1)])
    assert found.clients["curl"].repeated == 1
    assert found.clean


def test_order_is_promised_within_a_partition_where_once_is() -> None:
    first, second, third, fourth = rows_of(ONCE)
    assert verdict(ONCE, [second, first, third, fourth]).clients["java"].broken == {"disordered": 1}
    assert verdict(ONCE, [second, first | {"stream_id": 8}, third, fourth]).clean
    first, second, third, fourth = rows_of(ANSWERED)
    assert verdict(ANSWERED, [second, first, third, fourth]).clean


@pytest.mark.parametrize("client", [ONCE, ANSWERED], ids=["once", "answered"])
def test_what_a_client_gave_up_may_be_there_or_not(client: Expected) -> None:
    told = said("acked 0", "acked 1", "failed 2 the time is over", "acked 3", "end")
    assert told.given_up == {2: "the time is over"}
    assert verdict(client, rows_of(client), told).clean
    found = verdict(client, [one for one in rows_of(client) if one["value"] != b"2"], told)
    assert found.clean
    assert (found.clients[client.name].given_up, found.clients[client.name].committed) == (1, 3)
    assert found.to_json()["given_up"] == {client.name: {"the time is over": 1}}


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        ({"value": b"4"}, {"altered": 1}),
        ({"value": b"two"}, {"altered": 1}),
        ({"value": None}, {"altered": 1}),
        ({"key": b"another"}, {"altered": 1}),
    ],
    ids=["a number that was not sent", "no number", "no value", "another's key"],
)
@pytest.mark.parametrize("client", [ONCE, ANSWERED], ids=["once", "answered"])
def test_rows_that_a_client_has_not_sent_are_counted(
    client: Expected, wrong: dict[str, Any], broken: dict[str, int]
) -> None:
    found = verdict(client, [*rows_of(client), row(client, 0) | wrong])
    assert found.clients[client.name].broken == broken


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_request_for_traces_has_the_numbers_of_its_services_spans(pack: Callable[[bytes], bytes]) -> None:
    request = ExportTraceServiceRequest()
    for service, number in (("shop", 3), ("shop", 4), ("another", 5)):
        resource = request.resource_spans.add()
        resource.resource.attributes.add(key="service.name").value.string_value = service
        resource.scope_spans.add().spans.add(name=str(number))
    assert spans_of({"value": pack(request.SerializeToString())}, "shop") == [3, 4]


def test_a_row_of_nobody_is_a_stranger() -> None:
    found = verdict(ONCE, [*rows_of(ONCE), row(ONCE, 0, instance="kafka/another")])
    assert found.strangers == 1
    assert not found.clean


@pytest.mark.parametrize("client", [ONCE, ANSWERED], ids=["once", "answered"])
def test_an_answer_before_the_commit_is_early(client: Expected) -> None:
    assert verdict(client, rows_of(client), said(*ALL, at=COMMITTED_AT - 1)).clients[client.name].broken == {"early": 4}
    uncommitted = [one | {"batch": 9} for one in rows_of(client)]
    assert verdict(client, uncommitted).clients[client.name].broken == {"early": 4}


def test_a_message_without_an_answer_and_a_program_without_an_end_are_open() -> None:
    assert verdict(ONCE, rows_of(ONCE), said("acked 0", "end")).clients["java"].broken == {"open": 3}
    assert verdict(ONCE, rows_of(ONCE), said(*ALL[:-1])).clients["java"].broken == {"open": COUNT}


def test_a_client_that_is_never_answered_proves_nothing() -> None:
    told = said(*(f"failed {number} refused" for number in range(COUNT)), "end")
    assert not verdict(ONCE, [], told).clean


@pytest.mark.parametrize("client", ROWS, ids=[row.name for row in ROWS])
def test_a_client_is_judged_by_its_row_on_the_page_of_doors(client: Row) -> None:
    word = re.escape(client.name.replace("-with-", " with "))
    page = (ROOT / "docs" / "doors.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (.*) \| .*\*\*(.*)\*\*.* \| .* \|$", page, re.M)
    said = {promise for clients, promise in table if re.search(rf"(?<![\w-]){word}\b(?! with)", clients, re.IGNORECASE)}
    assert said == {client.promise.value}
