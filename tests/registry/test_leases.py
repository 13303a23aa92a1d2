from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.waiting import eventually
from wallaroo_spark.errors import ConfigurationError, LeaseLostError
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry

Acquire = Callable[..., Lease]


def test_a_lease_says_who_serves_a_slot_and_where(registry: Registry) -> None:
    lease = registry.acquire(3, 7, "w-1", "host:7103", "")
    assert lease is not None
    assert (lease.slot, lease.submission, lease.holder, lease.connect, lease.flight) == (3, 7, "w-1", "host:7103", "")
    assert registry.leases() == {3: lease}


def test_a_second_copy_of_a_submission_waits_as_standby(registry: Registry, acquire: Acquire) -> None:
    lease = acquire(holder="w-1")
    assert registry.acquire(0, 1, "w-2", "b:1", "") is None
    assert registry.leases() == {0: lease}


def test_the_same_holder_gets_the_same_lease_with_its_new_addresses(registry: Registry, acquire: Acquire) -> None:
    first = acquire()
    again = registry.acquire(0, 1, "w-1", "a:9", "a:10")
    assert again == Lease(0, 1, first.generation, "w-1", "a:9", "a:10")
    registry.renew(first)
    assert registry.leases() == {0: again}


def test_a_newer_submission_takes_over_at_once(registry: Registry, acquire: Acquire) -> None:
    old = acquire(submission=1, holder="w-1")
    new = acquire(submission=2, holder="w-2")
    assert new.generation > old.generation
    assert registry.leases() == {0: new}
    with pytest.raises(LeaseLostError, match=r"slot 0 .* submission 2.* held by w-2; stop serving") as caught:
        registry.renew(old)
    assert caught.value.fields["generation"] == new.generation
    assert not caught.value.retryable


def test_a_holder_that_returns_under_a_newer_submission_gets_a_new_generation(acquire: Acquire) -> None:
    old, new = acquire(submission=1), acquire(submission=2)
    assert new.generation > old.generation


def test_an_older_submission_is_refused(registry: Registry, acquire: Acquire) -> None:
    acquire(submission=2, holder="w-2")
    with pytest.raises(LeaseLostError, match="submission 2"):
        registry.acquire(0, 1, "w-1", "a:1", "")


def test_an_older_submission_is_refused_even_when_the_newer_lease_has_expired(
    registry: Registry, acquire_expired: Acquire
) -> None:
    acquire_expired(submission=2)
    with pytest.raises(LeaseLostError):
        registry.acquire(0, 1, "w-0", "a:1", "")


def test_a_standby_takes_a_lease_that_has_expired(
    registry: Registry, acquire: Acquire, acquire_expired: Acquire
) -> None:
    old = acquire_expired(holder="w-1")
    new = acquire(holder="w-2")
    assert new.generation > old.generation
    with pytest.raises(LeaseLostError):
        registry.renew(old)


def test_an_expired_lease_that_nobody_took_is_renewed(registry: Registry, acquire_expired: Acquire) -> None:
    lease = acquire_expired()
    registry.renew(lease)
    assert registry.leases() == {0: lease}


def test_a_standby_takes_a_lease_that_was_released(registry: Registry, acquire: Acquire) -> None:
    old = acquire(holder="w-1")
    registry.release(old)
    registry.release(old)
    assert registry.leases() == {}
    assert acquire(holder="w-2").generation > old.generation


def test_a_released_lease_is_not_renewed(registry: Registry, acquire: Acquire) -> None:
    lease = acquire()
    registry.release(lease)
    with pytest.raises(LeaseLostError, match="released since"):
        registry.renew(lease)


def test_a_lease_is_released_by_its_own_holder_only(registry: Registry, acquire: Acquire) -> None:
    old = acquire(submission=1, holder="w-1")
    new = acquire(submission=2, holder="w-2")
    registry.release(old)
    assert registry.leases() == {0: new}


def test_a_renewal_puts_a_lease_back_into_an_emptied_redis(
    registry: Registry, acquire: Acquire, empty_redis: Callable[[], None]
) -> None:
    lease = acquire()
    empty_redis()
    assert registry.leases() == {}
    registry.renew(lease)
    assert registry.leases() == {0: lease}


def test_addresses_survive_a_renewal_from_before_they_were_published(
    registry: Registry, acquire: Acquire, empty_redis: Callable[[], None]
) -> None:
    before = registry.acquire(0, 1, "w-1", "", "")
    assert before is not None
    published = acquire()
    assert published.connect
    empty_redis()
    registry.renew(before)
    registry.renew(published)
    assert registry.leases() == {0: published}


def test_an_emptied_redis_gives_the_slot_to_a_newer_submission_for_good(
    registry: Registry, acquire: Acquire, empty_redis: Callable[[], None]
) -> None:
    old = acquire(submission=1, holder="w-1")
    empty_redis()
    new = acquire(submission=2, holder="w-2")
    with pytest.raises(LeaseLostError):
        registry.renew(old)
    registry.release(new)
    with pytest.raises(LeaseLostError):
        registry.renew(old)


def test_a_worker_left_over_does_not_keep_an_emptied_redis_from_the_newer_one(
    registry: Registry, acquire: Acquire, empty_redis: Callable[[], None]
) -> None:
    old = acquire(submission=1, holder="w-1")
    new = acquire(submission=2, holder="w-2")
    empty_redis()
    registry.renew(old)
    registry.renew(new)
    assert registry.leases() == {0: new}
    with pytest.raises(LeaseLostError):
        registry.renew(old)


def test_slots_are_leased_independently(registry: Registry, acquire: Acquire) -> None:
    leases = {slot: acquire(slot=slot, submission=9 - slot) for slot in range(3)}
    assert registry.leases() == leases


def test_receivers_do_not_see_each_other(redis_server: EmbeddedRedis, registry: Registry, acquire: Acquire) -> None:
    acquire()
    with Registry(redis_server.url, "another") as other:
        assert other.leases() == {}


def test_submissions_are_numbered_upwards(registry: Registry) -> None:
    numbers = [registry.next_submission() for _ in range(20)]
    assert numbers == sorted(set(numbers))


def test_submissions_are_numbered_upwards_through_an_emptied_redis(
    registry: Registry, empty_redis: Callable[[], None]
) -> None:
    before = registry.next_submission()
    empty_redis()
    # The numbers go on from Redis's clock, in milliseconds; it takes longer to empty a real one.
    eventually(lambda: time.time() * 1000 >= before + 1)
    assert registry.next_submission() > before


def test_a_submission_is_numbered_above_the_leases_that_came_back_from_a_faster_clock(
    registry: Registry, acquire: Acquire, empty_redis: Callable[[], None]
) -> None:
    ahead = 2**45
    lease = acquire(submission=ahead)
    empty_redis()
    registry.renew(lease)
    assert registry.next_submission() == ahead + 1


def test_slots_of_a_shrunken_fleet_are_forgotten(registry: Registry, acquire: Acquire) -> None:
    kept, dropped = acquire(slot=0), acquire(slot=1)
    registry.forget_slots_from(1)
    assert registry.leases() == {0: kept}
    with pytest.raises(LeaseLostError):
        registry.renew(dropped)
    with pytest.raises(LeaseLostError):
        registry.acquire(1, dropped.submission, "w-2", "b:1", "")


def test_a_fleet_that_grows_again_leases_its_slots_again(registry: Registry, acquire: Acquire) -> None:
    acquire(slot=1, submission=registry.next_submission())
    registry.forget_slots_from(1)
    registry.forget_slots_from(1)
    lease = acquire(slot=1, submission=registry.next_submission())
    assert registry.leases() == {1: lease}


def test_a_holder_needs_a_name(registry: Registry) -> None:
    with pytest.raises(ConfigurationError, match="slot 0: the holder of a lease needs a name"):
        registry.acquire(0, 1, "", "a:1", "")


def test_the_fleet_is_overwritten_whole(registry: Registry, empty_redis: Callable[[], None]) -> None:
    registry.publish_fleet({"status_token": "t", "workers": "2"})
    registry.publish_fleet({"workers": "3"})
    assert registry.fleet() == {"workers": "3"}
    empty_redis()
    assert registry.fleet() == {}
