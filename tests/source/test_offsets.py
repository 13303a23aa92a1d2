"""Offsets are what Spark's log holds: the same meaning is the same text, and newer ones build on older ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wallaroo_spark.checkpoint.model import parse_offsets
from wallaroo_spark.references import merge
from wallaroo_spark.source.offsets import offset, references_of

T = TypeVar("T")
U64 = st.integers(0, (1 << 64) - 1)
REFERENCES = st.dictionaries(
    st.text(max_size=8), st.dictionaries(U64.map(str), U64 | st.just("e:0:17:4"), max_size=4), max_size=4
)


@settings(deadline=None)
@given(REFERENCES, st.randoms(use_true_random=False))
def test_the_same_meaning_is_the_same_text(references: dict[str, dict[str, int]], random: Random) -> None:
    def shuffled(mapping: Mapping[str, T]) -> dict[str, T]:
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    other = shuffled({scope: shuffled(streams) for scope, streams in references.items()} | {"shop-without-streams": {}})

    assert json.dumps(offset("orders", other)) == json.dumps(offset("orders", references))


@settings(deadline=None)
@given(REFERENCES)
def test_the_offset_log_is_read_as_it_was_written(references: dict[str, dict[str, int]]) -> None:
    line = json.dumps(offset("orders", references))
    planned = parse_offsets(3, f"v1\n{{}}\n{line}", "orders", lambda named: pytest.fail(f"{named} is read"))

    assert planned is not None
    assert planned.references == references_of(json.loads(line))
    assert planned.references == {scope: streams for scope, streams in references.items() if streams}


@settings(deadline=None)
@given(REFERENCES, REFERENCES)
def test_the_newer_reference_counts_and_no_stream_is_lost(
    older: dict[str, dict[str, int]], newer: dict[str, dict[str, int]]
) -> None:
    before = json.dumps([older, newer])
    merged = merge(older, newer)

    for references in (older, newer):
        assert all(stream in merged[scope] for scope, streams in references.items() for stream in streams)
    assert all(merged[scope][stream] == end for scope, streams in newer.items() for stream, end in streams.items())
    assert json.dumps([older, newer]) == before


def test_an_empty_offset_has_no_references() -> None:
    assert references_of({}) == {}
    assert offset("orders", {}) == {"wallaroo": 1, "receiver": "orders", "streams": {}}
