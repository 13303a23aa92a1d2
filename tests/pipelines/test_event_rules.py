"""The rules of every event and every output, whoever writes it."""

from __future__ import annotations

import pytest

from tests import evil_values as evil
from wallaroo_spark.api.limits import EVENT_BYTES, MESSAGE_BYTES
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.gateway.cloud_events import to_wire
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, EventProblem, Payload, valid_event, valid_output
from wallaroo_spark.pipelines.schema.declarations import ScheduleDeclaration
from wallaroo_spark.yaml_reader import documents_of

EVENT = CloudEvent("1", "/x", "t", b"data")


def extensions(given: dict[str, str]) -> CloudEvent:
    return EVENT._replace(attributes=tuple(given.items()))


@pytest.mark.parametrize("field", ["id", "source", "type", "subject", "time"])
@pytest.mark.parametrize("name", evil.TEXTS)
def test_a_text_is_kept_or_refused_with_its_reason(field: str, name: str) -> None:
    text = evil.TEXTS[name]
    given = extensions({field: text})
    if field in EVENT._fields:
        given = CloudEvent(**{**EVENT._asdict(), field: text})
    try:
        found = valid_event(given)
    except EventProblem as refused:
        problem = str(refused)
    else:
        problem = ""
    if problem:
        assert len(problem.encode()) < 300
        return
    assert valid_event(found) == found
    to_wire(found).SerializeToString()
    if field != "time":
        assert found == given


@pytest.mark.parametrize("name", ["", "Colour", "with space", "ä", evil.LONE, "x" * 101, "id", "data", "a\n"])
def test_a_name_that_no_attribute_may_have_is_refused(name: str) -> None:
    with pytest.raises(EventProblem, match="lower-case letters and digits"):
        valid_event(extensions({name: "x"}))


def test_an_attribute_stands_once() -> None:
    with pytest.raises(EventProblem, match="'a' twice"):
        valid_event(EVENT._replace(attributes=(("a", "1"), ("a", "2"))))


def test_the_size_of_an_event_has_all_of_its_texts() -> None:
    with pytest.raises(EventProblem, match=f"and {EVENT_BYTES} are permitted"):
        valid_event(extensions(evil.EXTENSIONS))
    largest = EVENT._replace(data=b"x" * (EVENT_BYTES - 4))
    assert to_wire(valid_event(largest)).ByteSize() < MESSAGE_BYTES
    with pytest.raises(EventProblem):
        valid_event(largest._replace(id="12"))


def test_an_output_has_the_same_limit() -> None:
    valid_output(Payload(b"x" * EVENT_BYTES))
    with pytest.raises(EventProblem, match="put out its address"):
        valid_output(Payload(b"x" * (EVENT_BYTES + 1)))
    for content_type in ("x" * 1001, "a\x00", evil.LONE):
        with pytest.raises(EventProblem, match="characters that can be printed"):
            valid_output(Payload(b"", content_type))


@pytest.mark.parametrize("changes", [{"type": "t" * 5000}, {"data": "x" * EVENT_BYTES}, {"data": evil.LONE}])
def test_the_event_of_a_schedule_has_the_same_rules(changes: dict[str, str]) -> None:
    given = {"name": "s", "namespace": "n", "stream": "orders", "cron": "* * * * *", "type": "t", **changes}
    with pytest.raises(ConfigurationError):
        ScheduleDeclaration(**given)


@pytest.mark.parametrize("text", ['a: "\\ud800"', '"\\udfff": 1', '- - "x\\ud83d"'])
def test_a_text_of_a_document_that_no_message_can_have_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"line 1, column .* lone surrogate"):
        documents_of(text, "shop.yaml")
