from __future__ import annotations

from collections.abc import Callable

from tests.waiting import eventually
from wallaroo_spark.registry import Registry


def test_a_lock_has_one_owner(registry: Registry) -> None:
    assert registry.lock("file:/checkpoint", "query-1", 60)
    assert not registry.lock("file:/checkpoint", "query-2", 60)
    assert registry.locked_by("file:/checkpoint") == "query-1"
    assert registry.lock("file:/another", "query-2", 60)


def test_its_owner_renews_a_lock(registry: Registry) -> None:
    assert registry.lock("receiver", "a", 0.5)
    assert registry.lock("receiver", "a", 600)
    assert registry.lock("receiver", "a", 600)
    assert not registry.lock("receiver", "b", 600)


def test_a_lock_is_given_back_by_its_owner_only(registry: Registry) -> None:
    registry.lock("receiver", "a", 60)
    registry.unlock("receiver", "b")
    assert registry.locked_by("receiver") == "a"
    registry.unlock("receiver", "a")
    registry.unlock("receiver", "a")
    assert registry.locked_by("receiver") is None
    assert registry.lock("receiver", "b", 60)


def test_a_lock_that_is_not_renewed_passes_on(registry: Registry) -> None:
    registry.lock("receiver", "a", 0.01)
    eventually(lambda: registry.lock("receiver", "b", 60))
    assert registry.locked_by("receiver") == "b"


def test_an_emptied_redis_holds_no_lock(registry: Registry, empty_redis: Callable[[], None]) -> None:
    registry.lock("receiver", "a", 60)
    empty_redis()
    assert registry.locked_by("receiver") is None


def test_a_lock_tells_how_long_it_lasts(registry: Registry) -> None:
    assert registry.lock_left("receiver") is None
    registry.lock("receiver", "a", 60)
    assert 0 < (registry.lock_left("receiver") or 0) <= 60
