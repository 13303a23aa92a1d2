"""A worker's tenancy of its slot: the lease, the assigned instances and the claimed stream ids.

:class:`~wallaroo_spark.registry.Registry` implements :class:`SlotRegistry`; the worker does not import it. Source:
``docs/architecture.md#rules``, rules 4 and 5.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import functools
from collections.abc import Sequence
from typing import Any, Protocol

from wallaroo_spark.errors import RegistryError
from wallaroo_spark.runtime.service import LeaseRegistry, Tenancy
from wallaroo_spark.worker.machine.connections import Connections


class SlotRegistry(LeaseRegistry, Protocol):
    """The calls of a worker to its registry; see :class:`~wallaroo_spark.registry.Registry`."""

    def renew(self, lease: Any, *, instances: Any = (), claims: Any = (), everything: bool = False) -> bool:
        """Renew the lease; False when the registry may have lost assignments, and all instances must be named."""

    def assign(self, instance: str, knocked: int, workers: int) -> Any:
        """The slot of an instance."""

    def unassign(self, lease: Any, instances: Any) -> None:
        """Release assignments of instances."""

    def claim(self, lease: Any, streams: Any) -> set[int]:
        """Claim stream ids for this slot."""

    def unclaim(self, lease: Any, streams: Any) -> None:
        """Release claims of stream ids."""


NAMED_INSTANCES = 100
"""The most instances that one renewal names unless it names all. A choice: Redis takes 0.2 ms for them."""


def next_names(names: Sequence[str], last: str, most: int = NAMED_INSTANCES) -> list[str]:
    """The names that follow ``last`` among sorted names; those at the beginning follow those at the end."""
    at = bisect.bisect_right(names, last)
    return [*names[at:], *names[:at]][:most]


class SlotTenancy(Tenancy):
    """A slot's lease with instances and claims. When the registry does not answer, calls raise RegistryError."""

    def __init__(self, registry: SlotRegistry, slot: int, submission: int, holder: str) -> None:
        super().__init__(registry, slot, submission, holder, f"slot {slot}")
        self._registry = registry
        self._slot = slot
        self._named_last = ""
        # Claims and releases are sent one after another, because Redis might otherwise receive them in another order.
        self._claiming = asyncio.Lock()
        # Ids that Redis may have as claimed by this slot without need: it did not answer the claim or the release.
        self._doubtful: set[int] = set()
        # While instances are released, no instance is assigned, because the release might include the new one.
        self._none_leaving = asyncio.Event()
        self._none_leaving.set()

    async def renew(self, served: Connections) -> frozenset[int]:
        """Renew the lease, and restore entries that Redis has lost. Returns claims that another slot has now.

        A renewal names some of the instances, each time others, and all of them after Redis was emptied. So its cost
        does not follow their number, and an assignment that was lost alone is restored some time later.
        """
        await self._renew_with(served, next_names(served.instances(), self._named_last), everything=False)
        async with self._claiming:
            await self._give_back()
            wanted = served.claims.copy()
            ask = functools.partial(self._registry.claim, self.current, sorted(wanted))
            return frozenset(wanted - await self.ask(ask)) if wanted else frozenset()

    async def _renew_with(self, served: Connections, instances: list[str], *, everything: bool) -> None:
        ask = functools.partial(self._registry.renew, self.current, instances=instances, everything=everything)
        whole = await self.ask(ask)
        # Some may have been released meanwhile; the renewal has assigned them to this slot again.
        served.assigned.update(instances)
        if instances:
            self._named_last = instances[-1]
        if not whole and not everything:
            await self._renew_with(served, served.instances(), everything=True)

    async def served(self) -> dict[int, str]:
        """The addresses for connectors of the slots that have a worker now."""
        return {slot: lease.connect for slot, lease in (await asyncio.to_thread(self._registry.leases)).items()}

    async def assign(self, instance: str, workers: int) -> Any:
        """The slot of an instance that connects here, and the address at which the slot is served."""
        await self._none_leaving.wait()
        return await asyncio.to_thread(self._registry.assign, instance, self._slot, workers)

    async def unassign(self, instances: tuple[str, ...], served: Connections) -> None:
        """Release instances, unless they have reconnected; with a later renewal when the registry is unreachable."""
        await self._none_leaving.wait()
        back = set(instances) & set(served.instances())
        self._none_leaving.clear()
        try:
            await asyncio.to_thread(self._registry.unassign, self.current, sorted(set(instances) - back))
        except RegistryError:
            back = set(instances)
        finally:
            served.assigned.update(back)
            self._none_leaving.set()

    async def claim(self, streams: tuple[int, ...]) -> frozenset[int]:
        """Claim stream ids. Returns those that are claimed for this slot now."""
        async with self._claiming:
            self._doubtful.update(streams)
            granted = frozenset(await asyncio.to_thread(self._registry.claim, self.current, streams))
            self._doubtful.difference_update(streams)
            return granted

    async def unclaim(self, streams: tuple[int, ...]) -> None:
        """Release claims of stream ids; with the next renewal when the registry does not answer now."""
        async with self._claiming:
            self._doubtful.update(streams)
            with contextlib.suppress(RegistryError):
                await self._give_back()

    async def _give_back(self) -> None:
        if self._doubtful:
            await asyncio.to_thread(self._registry.unclaim, self.current, sorted(self._doubtful))
            self._doubtful.clear()
