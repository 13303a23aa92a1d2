"""A slot's lease and claims over a registry that does not always answer."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from wallaroo_spark.errors import RegistryError
from wallaroo_spark.options import Options
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.slot_tenancy import SlotTenancy


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
