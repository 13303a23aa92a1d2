"""Sources of one query agree: the first that is asked plans, and the others go where it went."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wallaroo_spark.source import leader_election
from wallaroo_spark.source.leader_election import LeaderElection, followed


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LeaderElection]]:
    monkeypatch.setattr(leader_election, "SUCCESSION_SECONDS", 0.0)
    made: list[LeaderElection] = []

    def open_one(receiver: str = "orders", secret: str = "token") -> LeaderElection:
        made.append(LeaderElection(receiver, secret, tmp_path))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def test_the_first_that_is_asked_leads_and_the_others_read_its_batches(make: Callable[..., LeaderElection]) -> None:
    first, second, third = make(), make(), make()
    assert [one.leads() for one in (first, second, third)] == [True, False, False]
    assert second.read() is None
    first.write({}, {"streams": {"a": {"1": "e:0:1:100"}}})
    first.write({"streams": {"a": {"1": "e:0:1:100"}}}, {"streams": {"a": {"1": 2}}})
    written = ({"streams": {"a": {"1": "e:0:1:100"}}}, {"streams": {"a": {"1": 2}}})
    assert second.read() == third.read() == written


def test_one_that_remains_alone_leads_and_forgets_the_last_batch(make: Callable[..., LeaderElection]) -> None:
    first, second = make(), make()
    assert (first.leads(), second.leads()) == (True, False)
    first.write({}, {"streams": {}})
    first.close()
    assert second.leads()
    assert second.read() is None


def test_sources_of_other_receivers_do_not_meet(make: Callable[..., LeaderElection]) -> None:
    assert all(one.leads() for one in (make(), make("returns"), make(secret="another")))


def test_only_files_of_sources_are_removed_when_they_are_old(
    tmp_path: Path, make: Callable[..., LeaderElection]
) -> None:
    make("returns").close()
    (left,) = tmp_path.iterdir()
    other = tmp_path / "socket-of-a-worker"
    other.touch()
    for path in (left, other):
        os.utime(path, (0, 0))
    make()

    assert other.exists()
    assert not left.exists()


def test_where_files_cannot_be_shared_each_leads(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert all(LeaderElection("orders", "token", missing).leads() for _ in range(2))


def test_a_follower_never_goes_back_where_ids_increase() -> None:
    start: dict[str, dict[str, int | str]] = {"a": {"1": 20, "2": 5, "3": "e:0:1:4"}, "b": {"7": 1}}
    end: dict[str, dict[str, int | str]] = {"a": {"1": 15, "2": 9, "3": "e:1:1:2"}, "c": {"8": 3}}
    found: dict[str, dict[str, int | str]] = {"a": {"2": 9, "3": "e:1:1:2"}, "c": {"8": 3}}
    assert followed(start, end, increasing=True) == found
    found["a"]["1"] = 15
    assert followed(start, end, increasing=False) == found
