"""A slot's lease and claims over a registry that does not always answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from redis import Redis

from wallaroo_spark.errors import RegistryError
from wallaroo_spark.options import Options
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.slot_tenancy import NAMED_INSTANCES, SlotTenancy, next_names


def claiming(*streams: int) -> Connections:
    """A worker without connections that has claimed these streams."""
    connections = Connections(Options(), Origin(0, 1), "")
    connections.claims.update(streams)
    return connections


class Failing(Registry):
    """A registry whose answers are lost: it carries out each call, and the caller gets an error."""

    lost = False

    def claim(self, lease: Lease, streams: Collection[int]) -> set[int]:
        return self._answer(super().claim(lease, streams))

    def _answer(self, granted: set[int]) -> set[int]:
        if self.lost:
            raise RegistryError("the answer was lost")
        return granted


class Away(Failing):
    """A registry that is not there when something is given back."""

    def unclaim(self, lease: Lease, streams: Collection[int]) -> None:
        if self.lost:
            raise RegistryError("the registry is away")
        super().unclaim(lease, streams)


async def held(registry: Registry, slot: int) -> SlotTenancy:
    tenancy = SlotTenancy(registry, slot, registry.next_submission(), f"holder of {slot}")
    assert await tenancy.acquire("127.0.0.1:1", "127.0.0.1:2")
    return tenancy


async def test_a_claim_whose_answer_was_lost_is_given_back_with_the_next_renewal(redis_server: EmbeddedRedis) -> None:
    registry = Failing(redis_server.url, "a-lost-answer")
    one, other = await held(registry, 0), await held(registry, 1)
    registry.lost = True
    with pytest.raises(RegistryError):
        await one.claim((7,))
    registry.lost = False
    assert await other.claim((7,)) == frozenset()

    await one.renew(claiming())
    assert await other.claim((7,)) == {7}
    registry.close()


async def test_claims_whose_release_failed_are_released_with_the_next_renewal(redis_server: EmbeddedRedis) -> None:
    registry = Away(redis_server.url, "away-for-a-moment")
    one, other = await held(registry, 0), await held(registry, 1)
    assert await one.claim((7, 8)) == {7, 8}
    registry.lost = True
    await one.unclaim((7,))
    registry.lost = False
    assert await other.claim((7, 8)) == frozenset()

    await one.renew(claiming(8))
    assert await other.claim((7, 8)) == {7}
    registry.close()


class Noting(Registry):
    """A registry that notes which instances each renewal names."""

    def __init__(self, url: str, receiver: str) -> None:
        super().__init__(url, receiver)
        self.named: list[tuple[int, bool]] = []

    def renew(self, lease: Lease, *, instances: Any = (), claims: Any = (), everything: bool = False) -> bool:
        self.named.append((len(instances), everything))
        return super().renew(lease, instances=instances, claims=claims, everything=everything)


class Serving(Connections):
    """A worker that serves instances without a connection."""

    def __init__(self, *names: str) -> None:
        super().__init__(Options(), Origin(0, 1), "")
        self.names = sorted(names)

    def instances(self) -> list[str]:
        return self.names


async def test_a_renewal_names_all_instances_only_when_redis_may_have_lost_some(redis_server: EmbeddedRedis) -> None:
    registry = Noting(redis_server.url, "many-instances")
    tenancy = await held(registry, 0)
    served = Serving(*(f"shop-{number}" for number in range(3 * NAMED_INSTANCES)))
    for _ in range(3):
        await tenancy.renew(served)
    assert registry.named == [(100, False), (300, True), (100, False), (100, False)]
    assert served.assigned == set(served.names)

    registry.named.clear()
    with Redis.from_url(redis_server.url) as client:
        client.delete(registry._key("leases"), registry._key("assignments"))
        await tenancy.renew(served)
        assert client.hlen(registry._key("assignments")) == 300
    assert registry.named == [(100, False), (300, True)]

    registry.named.clear()
    with Redis.from_url(redis_server.url) as client:
        # A claim writes the lease again, and does not hide the loss of the instances.
        client.delete(registry._key("leases"), registry._key("assignments"))
        await tenancy.claim((7,))
        await tenancy.renew(served)
        assert client.hlen(registry._key("assignments")) == 300
    registry.close()


async def test_an_assignment_that_was_lost_alone_is_restored_by_one_of_the_next_renewals(
    redis_server: EmbeddedRedis,
) -> None:
    registry = Noting(redis_server.url, "one-is-lost")
    tenancy = await held(registry, 0)
    served = Serving(*(f"shop-{number}" for number in range(3 * NAMED_INSTANCES)))
    await tenancy.renew(served)
    with Redis.from_url(redis_server.url) as client:
        client.hdel(registry._key("assignments"), "shop-150", "shop-0")
        for _ in range(3):
            await tenancy.renew(served)
        assert client.hlen(registry._key("assignments")) == 300
    registry.close()


def test_names_follow_each_other_in_turn() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert next_names(names, "", 2) == ["a", "b"]
    assert next_names(names, "b", 2) == ["c", "d"]
    assert next_names(names, "d", 2) == ["e", "a"]
    assert next_names(names, "x", 2) == ["a", "b"]
    assert next_names(names, "b", 9) == ["c", "d", "e", "a", "b"]
    assert next_names([], "b", 2) == []
