"""Versions of references: each stays as it was, and the changes between two of them are those that were made."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wallaroo_spark.references import (
    StreamKey,
    VersionedReferences,
    changed,
    of_scope,
    ranges,
    references_of,
)

SCOPES = st.sampled_from(["", "shop-1", "shöp-2"])
STREAMS = st.sampled_from(["1", "2", "18446744073709551615"])
REFERENCES = st.integers(0, 3) | st.sampled_from(["e:0:1:2", "e:1:1:7"])
CHANGES = st.dictionaries(SCOPES, st.dictionaries(STREAMS, REFERENCES | st.none(), max_size=3), max_size=3)
Nested = dict[str, dict[str, Any]]


def applied(references: Nested, changes: Nested) -> Nested:
    """The same, done the plain way."""
    found = {scope: dict(streams) for scope, streams in references.items()}
    for scope, streams in changes.items():
        for stream, reference in streams.items():
            if reference is None:
                found.get(scope, {}).pop(stream, None)
            else:
                found.setdefault(scope, {})[stream] = reference
    return {scope: streams for scope, streams in found.items() if streams}


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), CHANGES), max_size=12))
def test_every_version_stays_as_it_was_and_the_changes_lead_from_one_to_the_other(
    steps: list[tuple[int, Nested]],
) -> None:
    versions = [VersionedReferences.of({})]
    expected: list[Nested] = [{}]
    for back, changes in steps:
        base = max(0, len(versions) - 1 - back)
        versions.append(versions[base].with_changes(changes))
        expected.append(applied(expected[base], changes))

    for version, plain in zip(versions, expected, strict=True):
        assert version == plain == dict(version)
        assert version.count == sum(map(len, plain.values()))
        text = len(json.dumps(plain))
        assert (version.longer_than(text - 1), version.longer_than(text)) == (True, False)
        for scope in ("", "shop-1"):
            assert version.of_scope(scope) == of_scope(plain, scope) == plain.get(scope, {})
        asked = [StreamKey(scope, int(stream)) for scope in ("", "shop-1", "none") for stream in ("1", "2")]
        assert references_of(version, asked) == references_of(plain, asked)
        assert references_of(plain, asked) == {key: plain.get(key.scope, {}).get(str(key.stream_id)) for key in asked}
    for one, other in itertools.pairwise(versions):
        for before, after in ((one, other), (other, one)):
            known: Any = after.changes_since(before)
            assert known is None or applied(before.plain(), known) == after
            differing: Any = changed(before, after)
            reached = applied(before.plain(), differing)
            assert all(reached[scope].items() >= streams.items() for scope, streams in after.items())
            planned = {(r.key.scope, str(r.key.stream_id)): (r.start, r.end) for r in ranges(before, after)}
            plain_ones = {
                (r.key.scope, str(r.key.stream_id)): (r.start, r.end) for r in ranges(dict(before), dict(after))
            }
            assert planned == plain_ones


def test_a_line_forgets_its_oldest_versions_and_says_so() -> None:
    first = version = VersionedReferences.of({"shop-1": {"1": 0}})
    for number in range(1, 100):
        version = version.with_changes({"shop-1": {"1": number}})

    assert version.changes_since(first) is None
    assert changed(first, version) == {"shop-1": {"1": 99}}
    with pytest.raises(LookupError, match="is forgotten"):
        first.plain()


def test_references_of_several_lines_are_compared_one_by_one() -> None:
    one, other = VersionedReferences.of({"a": {"1": 5, "2": 1}}), VersionedReferences.of({"a": {"1": 5, "2": 2}})

    assert other.changes_since(one) is None
    assert changed(one, other) == {"a": {"2": 2}}
    assert one != other
    assert one.with_changes({"a": {"2": 2}}) == other
