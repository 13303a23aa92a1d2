"""Each worker is told the references of the scopes that it names, all of them at first and their changes later."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from wallaroo_spark.errors import CheckpointError, TransportError
from wallaroo_spark.inner.calls import COMMITTED, REWIND, DecodedNotice, FollowedScopes, Notice, decode
from wallaroo_spark.inner.notices import Followers, LastCommit, NoticeSender
from wallaroo_spark.references import PlannedRange, StreamKey, VersionedReferences
from wallaroo_spark.sidecar.given_up import GivenUpRanges


class Scripted:
    """A worker that answers as a test decides."""

    def __init__(self) -> None:
        self.scopes: list[str] = []
        self.give_up: list[PlannedRange] = []
        self.notices: list[tuple[str, DecodedNotice]] = []
        self.questions: list[tuple[int, bool]] = []
        self.fails = False

    def followed(self, cursor: int, wait: float, everything: bool = False) -> FollowedScopes:
        self.questions.append((cursor, everything))
        kept = self.scopes[:cursor] if everything else None
        return FollowedScopes(len(self.scopes), self.scopes[cursor:], kept, len(self.scopes), self.give_up)

    def tell(self, notice: Notice) -> None:
        if self.fails:
            raise TransportError("no answer")
        self.notices.append((notice.action, decode(notice.body)))

    def close(self) -> None:
        """Nothing to close."""


class Fleet:
    """Some workers, and the driver that tells them."""

    def __init__(self, workers: int = 1) -> None:
        self.commit = LastCommit(1, 0, VersionedReferences.of({}))
        self.followers = Followers()
        self.workers = [Scripted() for _ in range(workers)]
        changed = threading.Condition()
        self.record = GivenUpRanges()
        self.senders = [
            NoticeSender(slot, worker, changed, lambda: self.commit, self.followers, lambda: self.record)  # type: ignore[arg-type]  # it is no client
            for slot, worker in enumerate(self.workers)
        ]

    def begin(self, references: Any) -> None:
        self.commit = LastCommit(self.commit.epoch + 1, 0, VersionedReferences.of(references))

    def commits(self, changes: Any) -> None:
        assert isinstance(self.commit.references, VersionedReferences)
        references = self.commit.references.with_changes(changes)
        self.commit = LastCommit(self.commit.epoch, self.commit.batch + 1, references)

    def ask(self, slot: int = 0) -> None:
        sender = self.senders[slot]
        sender.answered(self.workers[slot].followed(*sender.question(0.0)))

    def told(self, slot: int = 0) -> tuple[Any, ...]:
        """Send a notice; its action, batch and references, and the scopes that it has whole."""
        worker = self.workers[slot]
        before = len(worker.notices)
        self.senders[slot].send()
        if len(worker.notices) == before:
            return ()
        action, notice = worker.notices[-1]
        flat = {f"{scope}/{stream}": reference for (scope, stream), reference in notice.references.items()}
        return action, notice.batch, flat, list(notice.scopes)


def test_a_worker_is_told_what_it_follows_and_nothing_else() -> None:
    fleet = Fleet(2)
    fleet.workers[0].scopes, fleet.workers[1].scopes = ["a", "new"], ["b"]
    fleet.begin({"a": {"1": 10, "2": 20}, "b": {"1": 30}, "c": {"1": 40}})
    assert fleet.told(0) == (REWIND, 0, {"a/1": 10, "a/2": 20}, ["a", "new"])
    assert fleet.told(1) == (REWIND, 0, {"b/1": 30}, ["b"])
    assert fleet.told(0) == fleet.told(1) == ()

    fleet.commits({"a": {"2": 21}, "b": {"1": 31}, "c": {"1": 41}, "new": {"5": 1}})
    assert fleet.told(0) == (COMMITTED, 1, {"a/2": 21, "new/5": 1}, [])
    assert fleet.told(1) == (COMMITTED, 1, {"b/1": 31}, [])
    fleet.commits({"c": {"1": 42}})
    assert fleet.told(0) == fleet.told(1) == (COMMITTED, 2, {}, [])


def test_a_new_scope_comes_whole_with_the_next_notice_or_in_one_of_its_own() -> None:
    fleet = Fleet()
    fleet.begin({"a": {"1": 10}, "b": {"1": 30, "2": 31}})
    assert fleet.told() == (REWIND, 0, {}, [])
    fleet.workers[0].scopes = ["a"]
    fleet.ask()
    assert fleet.told() == (COMMITTED, 0, {"a/1": 10}, ["a"])
    fleet.workers[0].scopes = ["a", "b"]
    fleet.commits({"a": {"1": 11}, "b": {"1": 33}})
    fleet.ask()
    assert fleet.told() == (COMMITTED, 1, {"a/1": 11, "b/1": 33, "b/2": 31}, ["b"])
    assert fleet.workers[0].notices[-1][1].cursor == 2


def test_a_worker_that_asks_while_another_is_told_misses_no_change() -> None:
    fleet = Fleet(2)
    fleet.begin({"a": {"1": 10}})
    for slot in (0, 1):
        fleet.told(slot)
    fleet.commits({"a": {"1": 11}})
    # The changes are divided here, before the other worker names the scope.
    fleet.told(0)
    fleet.workers[1].scopes = ["a"]
    fleet.ask(1)
    assert fleet.told(1) == (COMMITTED, 1, {"a/1": 11}, ["a"])
    fleet.commits({"a": {"1": 12}})
    assert fleet.told(1) == (COMMITTED, 2, {"a/1": 12}, [])


def test_after_a_failure_and_in_a_new_query_a_worker_is_told_all_of_it() -> None:
    fleet = Fleet()
    worker = fleet.workers[0]
    worker.scopes = ["a", "b"]
    fleet.begin({"a": {"1": 10}, "b": {"1": 30}, "c": {"1": 40}})
    fleet.told()
    worker.fails = True
    fleet.commits({"a": {"1": 11}})
    assert fleet.told() == ()
    assert isinstance(fleet.senders[0].failure, TransportError)
    worker.fails = False
    assert fleet.told() == (REWIND, 1, {"a/1": 11, "b/1": 30}, ["a", "b"])

    fleet.begin({"a": {"1": 5}})
    assert fleet.told() == (REWIND, 0, {"a/1": 5}, ["a", "b"])
    assert worker.questions == [(0, False)]


def test_a_forgotten_stream_is_told_to_its_followers() -> None:
    fleet = Fleet(2)
    fleet.workers[0].scopes = ["a"]
    fleet.begin({"a": {"1": 10, "2": 20}})
    for slot in (0, 1):
        fleet.told(slot)
    fleet.commits({"a": {"1": None}})
    assert fleet.told(0) == (COMMITTED, 1, {"a/1": None}, [])
    assert fleet.told(1) == (COMMITTED, 1, {}, [])


def test_scopes_that_a_worker_has_left_are_given_up_when_they_are_many() -> None:
    fleet = Fleet()
    worker, sender = fleet.workers[0], fleet.senders[0]
    names = [f"shop-{number}" for number in range(200)]
    fleet.begin({name: {"1": 1} for name in names})
    worker.scopes = names
    fleet.told()
    assert sender.question(0.0) == (200, 0.0, False)
    sender.answered(FollowedScopes(200, [], None, 1))
    assert sender.question(0.0) == (200, 0.0, True)
    sender.answered(FollowedScopes(201, ["shop-x"], ["shop-7"], 2))
    assert sender.question(0.0) == (201, 0.0, False)
    fleet.commits({name: {"1": 2} for name in [*names, "shop-x"]})
    assert fleet.told() == (COMMITTED, 1, {"shop-7/1": 2, "shop-x/1": 2}, ["shop-x"])


def test_a_sender_that_has_stopped_follows_nothing() -> None:
    fleet = Fleet()
    fleet.workers[0].scopes = ["a"]
    fleet.begin({"a": {"1": 10}})
    fleet.told()
    fleet.senders[0].stop()
    assert fleet.followers.part(fleet.senders[0], fleet.commit, 0, {"a": {"1": 11}}) == {}
    fleet.senders[0].answered(FollowedScopes(2, ["b"], None, 2))
    assert fleet.followers.part(fleet.senders[0], LastCommit(1, 9, {}), 0, {"b": {"1": 11}}) == {}


@pytest.mark.parametrize("versions", [False, True], ids=["plain", "versions"])
def test_the_news_of_a_commit_is_made_once(versions: bool) -> None:
    references: Any = {"a": {"1": 10, "2": 20}}
    after: Any = {"a": {"1": 11, "2": 20}}
    if versions:
        references = VersionedReferences.of(references)
        after = references.with_changes({"a": {"1": 11}})
    before, commit = LastCommit(5, 2, references), LastCommit(5, 3, after)
    news = commit.since(before)
    assert news is commit.since(before)
    assert news is not None
    assert news.changes == {"a": {"1": 11}}
    assert commit.since(None) is None
    assert commit.since(LastCommit(4, 9, references)) is None


def test_a_notice_arrives_with_its_whole_scopes() -> None:
    notice = Notice(COMMITTED, 3, 4, {"a": {"1": 5, "2": None}}, {"b": {"7": "e:3:7:12"}, "empty": {}}, cursor=9)
    told = decode(notice.body)
    assert told.references == {StreamKey("a", 1): 5, StreamKey("a", 2): None, StreamKey("b", 7): "e:3:7:12"}
    assert (list(told.scopes), told.cursor) == (["b", "empty"], 9)


GIVEN_UP = PlannedRange(StreamKey("http/a", 1), 10, 12)


def test_a_range_is_recorded_before_its_worker_is_told_that_it_is_given_up() -> None:
    fleet = Fleet(2)
    fleet.begin({"http/a": {"1": 10}})
    assert fleet.told() == (REWIND, 0, {}, [])
    worker = fleet.workers[0]
    worker.scopes, worker.give_up = ["http/a"], [GIVEN_UP]
    fleet.ask()

    assert fleet.record.of(["http/a"]) == [GIVEN_UP]
    assert not worker.notices[-1][1].given_up
    assert fleet.told() == (COMMITTED, 0, {"http/a/1": 10}, ["http/a"])
    assert worker.notices[-1][1].given_up == (GIVEN_UP,)

    fleet.workers[1].scopes = ["http/a", "http/b"]
    assert fleet.told(1) == (REWIND, 0, {"http/a/1": 10}, ["http/a", "http/b"])
    assert fleet.workers[1].notices[-1][1].given_up == (GIVEN_UP,)


def test_a_worker_is_not_told_of_a_range_that_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    fleet.begin({})
    fleet.told()
    fleet.workers[0].scopes, fleet.workers[0].give_up = ["http/a"], [GIVEN_UP]
    with monkeypatch.context() as patch:
        patch.setattr(fleet.record, "record", lambda ranges: (_ for _ in ()).throw(CheckpointError("the disk is full")))
        with pytest.raises(CheckpointError):
            fleet.ask()
    assert fleet.told() == ()

    fleet.ask()
    fleet.told()
    assert fleet.workers[0].notices[-1][1].given_up == (GIVEN_UP,)


def test_nothing_is_read_while_no_instance_of_a_door_is_followed() -> None:
    fleet = Fleet()
    fleet.record = GivenUpRanges(lambda: pytest.fail("the folder is used"))
    fleet.workers[0].scopes = ["", "shop-1", "https/shop-1"]
    fleet.begin({"shop-1": {"1": 10}})
    assert fleet.told()
