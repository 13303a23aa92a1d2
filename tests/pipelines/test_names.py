"""The names of declared objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.pipelines.schema.names import LONGEST_NAME, ObjectKey, name_problem, object_name_problem, stream_key

ALPHABET = "abcXYZ019-_."


def permitted(text: str) -> bool:
    """The rule, as it is written in the page."""
    return (
        1 <= len(text) <= LONGEST_NAME
        and all(character.isascii() and (character.isalnum() or character in "-_.") for character in text)
        and ".." not in text
        and not text.startswith(".")
        and not text.endswith(".")
    )


@given(st.text(ALPHABET, max_size=8) | st.text(max_size=8) | st.text("a.", min_size=98, max_size=102))
def test_a_name_follows_the_rule(text: str) -> None:
    assert (name_problem(text) == "") == permitted(text)


@pytest.mark.parametrize("text", ["a", "-", "_", "a.b", "a-b_c.D9", "x" * 100])
def test_names_of_all_forms_are_permitted(text: str) -> None:
    assert name_problem(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the name is empty; give 1 to 100 letters, digits, '-', '_' or '.'"),
        ("x" * 101, "has 101 characters, and 100 are permitted; shorten it"),
        ("a b", "the name 'a b' has ' '; use letters (A to Z), digits, '-', '_' and '.'"),
        ("größe", "the name 'größe' has 'ö'; use letters"),
        ("a..b", "the name 'a..b' has two dots in a row; remove one of them"),
        (".a", "the name '.a' begins or ends with a dot; remove it"),
        ("a.", "the name 'a.' begins or ends with a dot; remove it"),
        ("a\n", "has '\\n'"),
    ],
)
def test_a_text_that_is_no_name_is_refused_with_the_way_out(text: str, problem: str) -> None:
    assert problem in name_problem(text)


def test_a_stream_is_named_with_or_without_its_namespace() -> None:
    assert stream_key("orders", "shop") == ObjectKey("Stream", "shop", "orders")
    assert stream_key("store/orders", "shop") == ObjectKey("Stream", "store", "orders")
    assert str(stream_key("orders", "shop")) == "Stream shop/orders"
    assert str(ObjectKey("Token", "", "till")) == "Token till"


@pytest.mark.parametrize(("text", "good"), [("a", True), ("a/b", True), ("/b", False), ("a/", False), ("a/b/c", False)])
def test_the_name_of_a_stream_has_at_most_one_namespace(text: str, good: bool) -> None:
    assert (object_name_problem(text) == "") is good
