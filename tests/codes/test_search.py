"""The search for a code, in whatever form a person has it."""

from __future__ import annotations

import pytest

from wallaroo_spark.codes import ENTRIES, search


def named(text: str) -> list[str]:
    return [entry.code for entry in search(text).named]


def nearest(text: str) -> list[str]:
    return [entry.code for entry in search(text).nearest]


@pytest.mark.parametrize("code", ENTRIES)
def test_a_code_is_found_by_itself_and_behind_a_message(code: str) -> None:
    assert named(code) == [code]
    assert named(f" [{code}]\n") == [code]
    assert named(f"Error: receiver 'orders' at [::1]:4040 says no [{code}]\nmore lines") == [code]


def test_a_code_may_be_written_in_other_ways() -> None:
    assert named("Wrong Cookie") == ["wrong-cookie"]
    assert named("WALLAROOWORKERSDIE") == ["worker-lost"]
    assert named('{"healthy": false, "cause": {"code": "flowing"}}') == ["flowing"]
    assert named("fault=superseded") == ["superseded"]


def test_a_message_with_several_codes_names_all_of_them() -> None:
    text = "batch 7 is aborted: no room [sink-write-failed]; the query failed [query-failed]"

    assert named(text) == ["sink-write-failed", "query-failed"]


def test_a_misspelt_code_finds_the_one_that_is_meant() -> None:
    assert nearest("workr-lost")[0] == "worker-lost"
    assert nearest("checkpoint-inuse")[0] == "checkpoint-in-use"


def test_a_message_without_a_code_finds_what_it_resembles() -> None:
    assert "cannot-listen" in nearest("cannot listen on 127.0.0.1:80: permission denied")
    assert "registry-away" in nearest("the registry does not answer: Redis at redis:6379 is away")
    assert "worker-frozen" in nearest("its process accepts calls and hangs")


@pytest.mark.parametrize("text", ["", "  ", "qqq", "[qqq]"])
def test_a_text_unlike_any_other_finds_nothing(text: str) -> None:
    assert search(text) == search("")
