"""YAML documents, with the place of every value."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark import yaml_reader
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.yaml_reader import FilePosition, YamlValue, documents_of, read_documents

TEXT = """\
kind: Stream
name: orders
---
# The second document.
kind: Pipeline
stages:
  - name: charge
  - {name: ship, after: [charge]}
---
"""


def only(text: str) -> YamlValue:
    (document,) = documents_of(text, "f.yaml")
    return document


def test_every_value_of_several_documents_has_its_place() -> None:
    first, second = documents_of(TEXT, "f.yaml")

    assert (first.value, first.place) == ({"kind": "Stream", "name": "orders"}, FilePosition("f.yaml", 1, 1))
    assert second.value == {"kind": "Pipeline", "stages": [{"name": "charge"}, {"name": "ship", "after": ["charge"]}]}
    assert second.names == {"kind": FilePosition("f.yaml", 5, 1), "stages": FilePosition("f.yaml", 6, 1)}
    assert second.at("kind") == FilePosition("f.yaml", 5, 7)
    assert second.at("stages", 1, "after", 0) == FilePosition("f.yaml", 8, 26)
    assert str(second.at("stages", 0, "name")) == "f.yaml, line 7, column 11"


def test_the_place_of_a_missing_value_is_that_of_the_value_around_it() -> None:
    document = documents_of(TEXT, "f.yaml")[1]

    assert document.at("stages", 0, "after", 3) == document.at("stages", 0) == FilePosition("f.yaml", 7, 5)
    assert document.at("stages", 7) == document.at("stages") == FilePosition("f.yaml", 7, 3)
    assert document.at("nothing") == document.place


def test_an_alias_has_the_place_of_its_anchor_and_may_stand_in_itself() -> None:
    document = only("a: &a {b: 1}\nc: *a\n")
    circle = only("a: &a\n  b: *a\n")

    assert document.at("c", "b") == FilePosition("f.yaml", 1, 11)
    assert circle.at("a", "b", "b", "b") == FilePosition("f.yaml", 1, 4)


def test_names_of_a_merged_mapping_may_be_replaced() -> None:
    document = only("base: &base {a: 1, b: 2}\nmore:\n  <<: *base\n  b: 3\n")

    assert document.value["more"] == {"a": 1, "b": 3}
    assert document.fields is not None
    assert document.fields["more"].fields is not None
    assert document.fields["more"].fields["b"].value == 3
    assert document.at("more", "b") == FilePosition("f.yaml", 4, 6)


def test_many_aliases_of_aliases_take_little_memory() -> None:
    levels = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30))]

    assert len(only("\n".join(levels)).value) == 30


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("a: [1", "f.yaml is not YAML in line 1, column 6: ", 1),
        ("a: 1\nb: 2\na: 3\n", "f.yaml, line 3: a is given twice, first in line 1; remove one of them", 3),
        ("a:\n  - b: 1\n    b: 2\n", "f.yaml, line 3: a.0.b is given twice, first in line 2; remove one of them", 3),
        ("---\na: 1\n---\na: !!python/object:os.system {}\n", "f.yaml is not YAML in line 4", 4),
        ("a: 2026-02-31", "f.yaml is not YAML: day is out of range", None),
        ("a: \x07", "f.yaml is not YAML: unacceptable character", None),
    ],
)
def test_a_text_that_is_no_yaml_is_refused_with_its_place(text: str, problem: str, line: int | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        documents_of(text, "f.yaml")

    assert caught.value.message.startswith(problem)
    assert caught.value.fields.get("line") == line


def test_a_text_that_is_nested_too_deep_is_refused() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        with pytest.raises(ConfigurationError, match="it is nested too deep; correct that value"):
            documents_of("[" * 5000, "f.yaml")
    finally:
        sys.setrecursionlimit(limit)


def test_a_file_that_cannot_be_read_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: ä".encode("latin-1"))
    monkeypatch.setattr(yaml_reader, "MOST_BYTES", 1 << 20)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * ((1 << 20) + 1))

    with pytest.raises(ConfigurationError, match=r"none.yaml cannot be read: No such file or directory; look there"):
        read_documents(str(tmp_path / "none.yaml"), "look there")
    with pytest.raises(ConfigurationError, match=r"latin.yaml is not YAML: it is not UTF-8 text; save it as UTF-8"):
        read_documents(str(latin), "")
    with pytest.raises(ConfigurationError, match=r"large.yaml has more than 1 MiB, and no more are read; divide it"):
        read_documents(str(large), "")


def test_standard_input_is_read_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: 1\n")))

    (document,) = read_documents("-", "")

    assert (document.value, str(document.place)) == ({"a": 1}, "standard input, line 1, column 1")


@given(st.text(st.sampled_from("ab: -[]{}&*\n|>'\"#,!1"), max_size=40))
def test_any_text_is_documents_or_one_error(text: str) -> None:
    documents: list[YamlValue] = []
    with contextlib.suppress(ConfigurationError):
        documents = documents_of(text, "f.yaml")

    assert all(document.value is not None for document in documents)
