"""References out of PostgreSQL's log, and values in JSON."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.bridges.sources.pgoutput import ChangeDecoder, json_of, lsn_of, lsn_text, reference_of

COMMITS = st.integers(min_value=1, max_value=(1 << 48) - 41)
ROWS = st.integers(min_value=1, max_value=(1 << 21) - 1)


@given(COMMITS, ROWS, ROWS)
def test_references_grow_from_commit_to_commit_and_lead_to_the_commit(commit: int, row: int, other: int) -> None:
    # The smallest record of a commit has 34 bytes, and records begin at multiples of 8.
    following = reference_of(commit + 40, 1)

    assert reference_of(commit, row) < following < 1 << 64
    assert (reference_of(commit, row) < reference_of(commit, other)) is (row < other)
    assert commit - 32 < lsn_of(reference_of(commit, row)) <= commit


@pytest.mark.parametrize(("commit", "row"), [(1 << 48, 1), (1, 1 << 21)])
def test_a_place_without_a_reference_is_refused(commit: int, row: int) -> None:
    with pytest.raises(OverflowError, match=lsn_text(commit)):
        reference_of(commit, row)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (23, "-7", -7),
        (701, "1e+20", 1e20),
        (701, "NaN", "NaN"),
        (1700, "1.50", 1.5),
        (1700, "-Infinity", "-Infinity"),
        (16, "t", True),
        (16, "f", False),
        (3802, '{"a": [1, null]}', {"a": [1, None]}),
        (25, 'ä"\\', 'ä"\\'),
        (17, "\\xff", "\\xff"),
    ],
)
def test_a_value_is_json(kind: int, text: str, expected: object) -> None:
    assert json.loads(json_of(kind, text.encode())) == expected


def test_bytes_that_are_no_text_are_seen() -> None:
    assert json.loads(json_of(25, b"a\xff")) == "a\\xff"


def test_a_truncation_names_each_table() -> None:
    decoder = ChangeDecoder()
    for oid, name in ((1, b"a"), (2, b"b")):
        decoder.decode(b"R" + struct.pack(">I", oid) + b"s\0" + name + b"\0d" + struct.pack(">h", 0))
    decoder.decode(b"B" + struct.pack(">qqI", 320, 0, 9))

    changes = decoder.decode(b"T" + struct.pack(">ibII", 2, 0, 1, 2))

    assert [json.loads(one.body)["table"] for one in changes] == ["s.a", "s.b"]
    assert [one.reference for one in changes] == [reference_of(320, 1), reference_of(320, 2)]
