from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from wallaroo_spark.errors import LeaseLostError
from wallaroo_spark.registry import Lease, Registry

Acquire = Callable[..., Lease]
GREATEST = 2**64 - 1


@pytest.fixture
def pair(acquire: Acquire) -> tuple[Lease, Lease]:
    return acquire(slot=0, holder="w-1"), acquire(slot=1, holder="w-2")


def test_a_stream_is_claimed_by_one_slot_at_a_time(registry: Registry, pair: tuple[Lease, Lease]) -> None:
    here, there = pair
    assert registry.claim(here, {1, 2}) == {1, 2}
    assert registry.claim(there, {2, 3}) == {3}
    assert registry.claim(here, {1, 2, 3}) == {1, 2}


def test_stream_ids_are_told_apart_to_the_last_bit(registry: Registry, pair: tuple[Lease, Lease]) -> None:
    here, there = pair
    assert registry.claim(here, {GREATEST, 0}) == {GREATEST, 0}
    assert registry.claim(there, {GREATEST - 1, GREATEST, 2**53, 2**53 + 1}) == {GREATEST - 1, 2**53, 2**53 + 1}


def test_claiming_nothing_claims_nothing(registry: Registry, pair: tuple[Lease, Lease]) -> None:
    assert registry.claim(pair[0], set()) == set()


def test_an_unclaimed_stream_is_free_for_another_slot(registry: Registry, pair: tuple[Lease, Lease]) -> None:
    here, there = pair
    registry.claim(here, {1, 2})
    registry.unclaim(here, {1})
    assert registry.claim(there, {1, 2}) == {1}


def test_only_its_own_claims_can_a_slot_give_up(registry: Registry, pair: tuple[Lease, Lease]) -> None:
    here, there = pair
    registry.claim(here, {1})
    registry.unclaim(there, {1})
    assert registry.claim(there, {1}) == set()


def test_claims_of_an_earlier_generation_are_void(
    registry: Registry, acquire: Acquire, pair: tuple[Lease, Lease]
) -> None:
    here, there = pair
    registry.claim(here, {1, 2})
    newer = acquire(slot=0, submission=2, holder="w-3")
    assert registry.claim(there, {1}) == {1}
    assert registry.claim(newer, {1, 2}) == {2}
    registry.unclaim(here, {2})
    assert registry.claim(there, {2}) == set()


def test_claims_of_a_slot_without_a_live_lease_are_void(
    registry: Registry, acquire: Acquire, acquire_expired: Acquire, client: redis.Redis, receiver: str
) -> None:
    expired, there = acquire_expired(slot=0), acquire(slot=1, holder="w-2")
    claims = f"wallaroo:{{{receiver}}}:claims"
    client.hset(claims, "1", f"0:{expired.generation}")
    assert registry.claim(there, {1}) == {1}


def test_an_expired_lease_that_nobody_took_claims_and_lives_on(registry: Registry, acquire_expired: Acquire) -> None:
    lease = acquire_expired()
    assert registry.claim(lease, {1}) == {1}
    assert registry.leases() == {0: lease}


def test_a_lost_lease_claims_nothing(registry: Registry, acquire: Acquire, pair: tuple[Lease, Lease]) -> None:
    acquire(slot=0, submission=2, holder="w-3")
    with pytest.raises(LeaseLostError, match="held by w-3"):
        registry.claim(pair[0], {1})
    assert registry.claim(pair[1], {1}) == {1}


def test_a_released_slot_leaves_no_claims_behind(
    registry: Registry, pair: tuple[Lease, Lease], client: redis.Redis, receiver: str
) -> None:
    here, there = pair
    registry.claim(here, {1})
    registry.claim(there, {2})
    registry.release(here)
    registry.renew(there)
    assert client.hkeys(f"wallaroo:{{{receiver}}}:claims") == ["2"]


def test_forgotten_slots_take_their_claims_along(registry: Registry, pair: tuple[Lease, Lease]) -> None:
    here, there = pair
    registry.claim(here, {1})
    registry.claim(there, {2})
    registry.forget_slots_from(1)
    assert registry.claim(here, {1, 2}) == {1, 2}


def test_a_renewal_puts_claims_back_into_an_emptied_redis(
    registry: Registry, pair: tuple[Lease, Lease], empty_redis: Callable[[], None]
) -> None:
    here, there = pair
    registry.claim(here, {1, GREATEST})
    empty_redis()
    registry.renew(here, claims={1, GREATEST})
    assert registry.claim(there, {1, GREATEST}) == set()


def test_a_renewal_leaves_a_stream_to_the_slot_that_claimed_it_since(
    registry: Registry, pair: tuple[Lease, Lease], empty_redis: Callable[[], None]
) -> None:
    here, there = pair
    registry.claim(here, {1, 2})
    empty_redis()
    registry.claim(there, {1})
    registry.renew(here, claims={1, 2})
    assert registry.claim(here, {1, 2}) == {2}
    assert registry.claim(there, {1, 2}) == {1}
