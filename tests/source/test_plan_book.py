"""The offsets of a source: small plans stand in them, large ones are named, and a new process finds every one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import ranges
from wallaroo_spark.sidecar.plan_files import LINKS, NamedPlan, PlanFiles
from wallaroo_spark.source.plan_book import PlanBook

Works = list[Callable[[], None]]


@pytest.fixture
def store(tmp_path: Path) -> PlanFiles:
    return PlanFiles(str(tmp_path / "checkpoint"), "orders")


def book_of(store: PlanFiles | None, inline_bytes: int = 60, beside: Any = lambda work: work()) -> PlanBook:
    return PlanBook("orders", "increasing", lambda: store, inline_bytes=inline_bytes, beside=beside)


def again(value: dict[str, Any]) -> dict[str, Any]:
    """As Spark hands an offset back."""
    found: dict[str, Any] = json.loads(json.dumps(value))
    return found


MANY = {f"shop-{n}": {"1": n, "2": 0} for n in range(10)}


def test_a_small_plan_stands_in_the_offset_and_nothing_is_written(store: PlanFiles) -> None:
    book = book_of(store)
    start = book.begin({})
    end = book.after(again(start), {"b": {"10": 5, "9": 1}})

    assert start == {"wallaroo": 1, "receiver": "orders", "streams": {}}
    assert json.dumps(end["streams"]) == '{"b": {"9": 1, "10": 5}}'
    assert store.files() == []


def test_a_large_plan_is_named_and_every_process_finds_it(store: PlanFiles) -> None:
    book = book_of(store)
    offsets = [book.begin({})]
    offsets.append(book.after(again(offsets[-1]), MANY))
    for number in range(5):
        offsets.append(book.after(again(offsets[-1]), {"shop-1": {"1": 100 + number}}))

    assert all(len(json.dumps(offset)) < 200 for offset in offsets)
    assert NamedPlan.of(offsets[1]) is not None
    for other in (book, book_of(store)):
        for start, end in itertools.pairwise(offsets[1:]):
            planned = ranges(other.references(again(start)), other.references(again(end)))
            assert [(p.key, p.end) for p in planned] == [(("shop-1", 1), end_of(offsets, end))]
    assert book_of(store).references(offsets[1]) == MANY


def end_of(offsets: list[dict[str, Any]], end: dict[str, Any]) -> int:
    return 98 + offsets.index(end)


def test_the_changes_from_start_to_end_are_known_without_comparing_all(store: PlanFiles) -> None:
    book = book_of(store)
    start = book.after(book.begin({}), MANY)
    end = book.after(again(start), {"shop-1": {"1": 7}})
    assert book.references(again(end)).changes_since(book.references(again(start))) == {"shop-1": {"1": 7}}

    fresh = book_of(store)
    before, after = fresh.references(start), fresh.references(end)
    assert after.changes_since(before) == {"shop-1": {"1": 7}}


def test_a_process_that_dies_before_spark_is_told_leaves_nothing_in_the_way(store: PlanFiles) -> None:
    first = book_of(store)
    start = first.after(first.begin({}), MANY)
    lost = first.after(start, {"shop-1": {"1": 50}})
    second = book_of(store)
    taken = second.after(again(start), {"shop-1": {"1": 60}})

    assert taken != lost
    assert book_of(store).references(taken).of_scope("shop-1").get("1") == 60
    named, wrote = NamedPlan.of(taken), NamedPlan.of(lost)
    assert named is not None
    assert wrote is not None
    assert named.plan.number > wrote.plan.number


def test_chains_stay_short_though_snapshots_are_written_beside(store: PlanFiles) -> None:
    works: Works = []
    book = book_of(store, beside=works.append)
    value, bases, numbers = book.after(book.begin({}), MANY), set(), []
    for number in range(6 * LINKS):
        value = book.after(again(value), {"shop-1": {"1": 100 + number}})
        named = NamedPlan.of(value)
        assert named is not None
        bases.add(named.base)
        numbers.append(named.base.number)
        if number % 7 == 6 and works:
            works.pop()()

    assert len(bases) > 6
    assert numbers == sorted(numbers)
    assert book_of(store).references(value) == book.references(value)


def test_a_snapshot_of_a_plan_that_was_given_up_is_no_base(store: PlanFiles) -> None:
    works: Works = []
    book = book_of(store, beside=works.append)
    start = book.after(book.begin({}), MANY)
    given_up = book.after(start, {f"shop-{n}": {"1": 50} for n in range(10)})
    given_up = book.after(given_up, {f"shop-{n}": {"1": 51} for n in range(10)})
    assert works
    works.pop()()
    value = book.after(again(start), {"shop-1": {"2": 9}})
    value = book.after(again(value), {"shop-1": {"2": 10}})

    assert book_of(store).references(value).plain() == {**MANY, "shop-1": {"1": 1, "2": 10}}
    assert book_of(store).references(given_up).of_scope("shop-1").get("1") == 51


def test_where_the_place_is_not_known_plans_stand_in_the_offsets() -> None:
    book = book_of(None)
    value = book.after(book.begin({}), MANY)

    assert value["streams"] == MANY
    assert book.knows(value)


def test_a_named_plan_without_a_place_is_waited_for_and_then_refused(store: PlanFiles) -> None:
    writer = book_of(store)
    value = writer.after(writer.begin({}), MANY)
    reader = book_of(None)

    assert not reader.knows(value)
    with pytest.raises(CheckpointError, match="check that Redis is reachable"):
        reader.references(value)


def test_a_place_that_cannot_be_written_to_keeps_plans_in_the_offsets(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "checkpoint").write_text("a file where a folder must be")
    book = book_of(PlanFiles(str(tmp_path / "checkpoint"), "orders"))
    value = book.after(book.begin({}), MANY)

    assert value["streams"] == MANY
    assert "plans stand in the offsets" in caplog.text


def test_a_plan_that_became_small_stands_in_the_offset_again(store: PlanFiles) -> None:
    book = book_of(store)
    value = book.after(book.begin({}), MANY)
    gone: dict[str, Any] = {scope: {"1": None, "2": None} for scope in MANY if scope != "shop-3"}
    value = book.after(again(value), gone)
    assert value["streams"] == {"shop-3": {"1": 3, "2": 0}}
    value = book.after(again(value), MANY)
    assert book_of(store).references(value) == MANY


def test_an_offset_of_an_earlier_release_goes_on_as_a_named_one(store: PlanFiles) -> None:
    old = {"wallaroo": 1, "receiver": "orders", "streams": MANY}
    value = book_of(store).after(old, {"shop-1": {"1": 4}})

    assert NamedPlan.of(value) is not None
    assert book_of(store).references(value).of_scope("shop-1").get("1") == 4
