"""Patterns over event types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.pipelines.schema.names import LONGEST_PATTERN, matches, pattern_problem, shared_pattern


@pytest.mark.parametrize(
    ("pattern", "event_type", "expected"),
    [
        ("domain.event", "domain.event", True),
        ("domain.event", "domain.event.v1", False),
        ("domain.event", "domain", False),
        ("domain.event", "domainxevent", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.created", "order.created", True),
        ("a.*.c", "a.b.c", True),
        (">", "a", True),
        (">", "a.b.c", True),
        ("lit.>", "lit.a", True),
        ("lit.>", "lit", False),
        ("lit.*.>", "lit.a.b", True),
        ("lit.*.>", "lit.a.b.c.d", True),
        ("lit.*.>", "lit.a", False),
        ("a.b", "a.b\n", False),
        ("a+(b", "a+(b", True),
    ],
)
def test_a_pattern_matches_whole_types(pattern: str, event_type: str, expected: bool) -> None:
    assert pattern_problem(pattern) == ""
    assert matches([pattern], event_type) is expected


def test_one_pattern_of_several_is_enough_and_none_match_everything() -> None:
    assert matches(["a.b", "c.>"], "c.d.e")
    assert not matches(["a.b", "c.>"], "c")
    assert matches([], "anything.at all")
    assert matches((), "")


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "the pattern is empty; leave it out, and every type matches"),
        ("a..b", "has an empty part; remove the superfluous dot"),
        (".a", "has an empty part"),
        ("a.", "has an empty part"),
        (">.a", "goes on after '>', which stands for the whole rest; use '*' for one part"),
        ("a.ord*", "has the part 'ord*', and '*' and '>' stand for whole parts"),
        ("a.**", "has the part '**'"),
        ("a b", "has a space or a character that cannot be printed; remove it"),
        ("a" * (LONGEST_PATTERN + 1), "has 256 characters, and 255 are permitted; shorten it"),
    ],
)
def test_a_text_that_is_no_pattern_is_refused_with_the_way_out(pattern: str, problem: str) -> None:
    assert problem in pattern_problem(pattern)


def by_parts(pattern: list[str], parts: list[str]) -> bool:
    """The rule, part by part."""
    if not pattern or not parts:
        return not pattern and not parts
    if pattern == [">"]:
        return True
    return pattern[0] in ("*", parts[0]) and by_parts(pattern[1:], parts[1:])


PARTS = st.lists(st.sampled_from(["a", "b", "ab", "a+", "\\d"]), min_size=1, max_size=4)
PATTERNS = st.tuples(
    st.lists(st.sampled_from(["a", "b", "ab", "a+", "\\d", "*"]), min_size=1, max_size=4), st.booleans()
).map(lambda drawn: [*drawn[0], ">"] if drawn[1] else drawn[0])


@given(st.lists(PATTERNS, min_size=1, max_size=3), PARTS)
def test_matching_agrees_with_the_rule_by_parts(patterns: list[list[str]], parts: list[str]) -> None:
    written = [".".join(pattern) for pattern in patterns]

    assert [pattern_problem(pattern) for pattern in written] == [""] * len(written)
    assert matches(written, ".".join(parts)) == any(by_parts(pattern, parts) for pattern in patterns)


@given(PATTERNS, PATTERNS, PARTS)
def test_a_type_matches_the_shared_pattern_exactly_if_it_matches_both(
    one: list[str], two: list[str], parts: list[str]
) -> None:
    both, event_type = [".".join(one), ".".join(two)], ".".join(parts)
    shared = shared_pattern(*both)

    assert shared == "" or pattern_problem(shared) == ""
    expected = all(matches([pattern], event_type) for pattern in both)
    assert (shared != "" and matches([shared], event_type)) == expected


@given(st.text())
def test_each_type_is_read_without_an_error(event_type: str) -> None:
    assert matches([">"], event_type)
    assert matches(["*"], event_type) == ("." not in event_type)
