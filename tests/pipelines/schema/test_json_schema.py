"""The JSON Schema and the page of fields are those of the declarations."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from proving.pages.json_schema import FILE, PAGE, json_schema, json_text, with_fields
from tests.conftest import ROOT
from tests.pipelines.schema.samples import SHOP
from wallaroo_spark.pipelines.schema.declarations import KINDS
from wallaroo_spark.pipelines.schema.names import name_problem, object_name_problem
from wallaroo_spark.yaml_reader import documents_of

DOCS = ROOT / "docs" / "pipelines"
HOW = "run python -m proving.pages"
TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float)}


def valid(schema: Any, given: Any) -> bool:
    """Whether a value is one of a schema, by the keywords that the schema of documents uses."""
    value: Any = given
    if "const" in schema:
        return bool(value == schema["const"])
    if "anyOf" in schema:
        return any(valid(one, value) for one in schema["anyOf"])
    if "oneOf" in schema and sum(valid(one, value) for one in schema["oneOf"]) != 1:
        return False
    if "properties" not in schema and "oneOf" in schema:
        return True
    if "type" not in schema:
        fields = {name: value.get(name) for name in schema["properties"]}
        return all(valid(schema["properties"][name], inner) for name, inner in fields.items())
    expected = schema["type"]
    if expected == "null":
        return value is None
    if isinstance(given, bool) or not isinstance(given, int if expected == "integer" else TYPES[expected]):
        return False
    if expected == "object":
        known = schema["properties"]
        return known.keys() >= value.keys() >= set(schema.get("required", [])) and all(
            valid(known[name], inner) for name, inner in value.items()
        )
    if expected == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
        return least <= len(value) <= most and all(valid(schema["items"], entry) for entry in value)
    if expected == "string":
        return value in schema.get("enum", [value]) and re.search(schema.get("pattern", ""), value) is not None
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


def test_the_schema_for_editors_is_current() -> None:
    assert (DOCS / FILE).read_text(encoding="utf-8") == json_text(), HOW


def test_the_page_of_fields_is_current() -> None:
    page = (DOCS / PAGE).read_text(encoding="utf-8")

    assert page == with_fields(page), HOW


def test_the_documents_of_an_application_are_valid() -> None:
    schema = json_schema()

    for document in documents_of(SHOP, "f"):
        assert valid(schema, document.value), document.value
        assert not valid(schema, {**document.value, "nme": "x"})
        assert not valid(schema, {**document.value, "kind": "Lake"})
        assert not valid(schema, {**document.value, "name": "a..b"})


@pytest.mark.parametrize(
    "text", ["a", "a.b", "x" * 100, "x" * 101, "", ".a", "a.", "a..b", "a b", "s/o", "s/", "s/o/p"]
)
def test_its_patterns_agree_with_the_checks(text: str) -> None:
    kinds = {one["properties"]["kind"]["const"]: one["properties"] for one in json_schema()["oneOf"]}

    assert kinds.keys() == KINDS.keys()
    assert valid(kinds["Stream"]["name"], text) == (name_problem(text) == "")
    assert valid(kinds["Pipeline"]["inputStream"], text) == (object_name_problem(text) == "")


@pytest.mark.parametrize(
    ("more", "good"),
    [
        ({"stream": "orders"}, True),
        ({"exchange": "shop/prices"}, True),
        ({"exchange": "prices", "stream": None}, True),
        ({"exchange": "prices", "stream": "orders"}, False),
        ({}, False),
    ],
)
def test_a_schedule_has_a_stream_or_an_exchange(more: dict[str, Any], good: bool) -> None:
    document = {"kind": "Schedule", "name": "daily", "namespace": "shop", "cron": "0 6 * * *", "type": "t", **more}

    assert valid(json_schema(), document) is good


def test_durations_are_numbers_or_texts_with_a_unit() -> None:
    stream = next(one for one in json_schema()["oneOf"] if one["properties"]["kind"]["const"] == "Stream")
    ttl = stream["properties"]["ttl"]

    assert [valid(ttl, value) for value in ("7d", "90 s", 90, None, "a week", 0, True)] == [
        True,
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_it_is_json_of_the_draft_that_editors_know() -> None:
    assert json.loads(json_text())["$schema"] == "http://json-schema.org/draft-07/schema#"


def test_a_page_without_a_place_for_the_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no place for the fields"):
        with_fields("# A page\n")
