"""A slot's lease as its worker holds it, and what the worker asks of the registry that it is handed.

``wallaroo_spark.registry.Registry`` has the shape of :class:`Registry`; the worker does not import it.
Source: ``docs/architecture.md#rules``, rules 4 and 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from wallaroo_spark.errors import LeaseLostError, RegistryError, one_line
from wallaroo_spark.transport import refuses

log = one_line(logging.getLogger("wallaroo_spark.worker"))

T = TypeVar("T")


class Lease(Protocol):
    """What the service needs to know of a slot's lease."""

    @property
    def generation(self) -> int:
        """Grows with every lease of the slot."""


class Registry(Protocol):
    """What the service asks of the registry it is handed; see ``wallaroo_spark.registry.Registry``."""

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Any:
        """The slot's lease, None while another copy of this submission holds it."""

    def renew(self, lease: Any, *, instances: Any = (), claims: Any = ()) -> None:
        """Keep the lease."""

    def release(self, lease: Any) -> None:
        """Give the lease back."""

    def leases(self) -> Any:
        """The live leases by slot."""

    def assign(self, instance: str, knocked: int, workers: int) -> Any:
        """The slot an instance belongs to."""

    def unassign(self, lease: Any, instances: Any) -> None:
        """Give instances back."""

    def claim(self, lease: Any, streams: Any) -> set[int]:
        """Stream ids for this slot."""

    def unclaim(self, lease: Any, streams: Any) -> None:
        """Give stream ids back."""


class Guests(Protocol):
    """What giving instances back needs to know of the worker's state."""

    @property
    def assigned(self) -> set[str]:
        """The instances that are still to be given back."""

    def instances(self) -> list[str]:
        """Those that are served, or of which something is held."""


class Tenancy:
    """A slot's lease from asyncio. Where the registry does not answer, calls raise :class:`RegistryError`.

    ``current`` is the lease as it was last given out, None before the first.
    """

    def __init__(self, registry: Registry, slot: int, submission: int, holder: str) -> None:
        self.current: Any = None
        self._registry = registry
        self._slot = slot
        self._submission = submission
        self._holder = holder
        # Claims are asked for and given back one after the other, or Redis might see it the other way round.
        self._claiming = asyncio.Lock()
        # What Redis may have as ours although it is not: it did not answer when that was claimed or given back.
        self._doubtful: set[int] = set()
        # Who knocks while instances are given back waits until that is done, or might be given back with them.
        self._none_leaving = asyncio.Event()
        self._none_leaving.set()
        # Renewing must not queue behind a thousand sessions that ask where they belong.
        self._thread = ThreadPoolExecutor(1, "wallaroo-lease")

    async def acquire(self, connect: str = "", flight: str = "") -> bool:
        """Ask for the lease once; False when a copy of this submission has it, or the registry does not answer.

        Raises :class:`LeaseLostError` when a newer submission is known.
        """
        ask = functools.partial(self._registry.acquire, self._slot, self._submission, self._holder, connect, flight)
        try:
            lease = await self._run(ask)
        except LeaseLostError:
            raise
        except RegistryError as error:
            log.warning("slot %d waits for the registry: %s", self._slot, error)
            return False
        self.current = lease or self.current
        return lease is not None

    async def relieve_the_dead(self) -> bool:
        """As a standby: give back the lease of a holder whose port refuses connections; whether there was one.

        A killed process cannot give its lease back, and Spark retries its task within the same submission, so the slot
        would stand empty until the lease ran out. A refusal says that nobody listens there any more; silence says
        nothing, and is left to the lease's own end. Were the holder alive after all, its next renewal would end it.
        """
        try:
            held = (await self._run(self._registry.leases)).get(self._slot)
            if held is None or not held.flight or not await refuses(held.flight):
                return False
            log.warning("slot %d: its holder %s is gone; its lease is given back", self._slot, held.holder)
            await self._run(functools.partial(self._registry.release, held))
        except RegistryError:
            return False
        return True

    async def renew(self, guests: Guests, claims: Callable[[], set[int]]) -> frozenset[int]:
        """Keep the lease, and put back what an emptied Redis has forgotten; the claims that another slot has by now."""
        instances = guests.instances()
        await self._run(functools.partial(self._registry.renew, self.current, instances=instances))
        # Some may have been given back meanwhile, and are this slot's again by the renewal.
        guests.assigned.update(instances)
        async with self._claiming:
            await self._give_back()
            wanted = claims().copy()
            ask = functools.partial(self._registry.claim, self.current, sorted(wanted))
            return frozenset(wanted - await self._run(ask)) if wanted else frozenset()

    async def assign(self, instance: str, workers: int) -> Any:
        """The slot of an instance that knocks here, and where it is served."""
        await self._none_leaving.wait()
        return await asyncio.to_thread(self._registry.assign, instance, self._slot, workers)

    async def unassign(self, instances: tuple[str, ...], guests: Guests) -> None:
        """Give instances back, unless they are here again; later, when the registry does not answer now."""
        await self._none_leaving.wait()
        back = set(instances) & set(guests.instances())
        self._none_leaving.clear()
        try:
            await asyncio.to_thread(self._registry.unassign, self.current, sorted(set(instances) - back))
        except RegistryError:
            back = set(instances)
        finally:
            guests.assigned.update(back)
            self._none_leaving.set()

    async def claim(self, streams: tuple[int, ...]) -> frozenset[int]:
        """Claim stream ids; those that are the slot's now."""
        async with self._claiming:
            self._doubtful.update(streams)
            granted = frozenset(await asyncio.to_thread(self._registry.claim, self.current, streams))
            self._doubtful.difference_update(streams)
            return granted

    async def unclaim(self, streams: tuple[int, ...]) -> None:
        """Give stream ids back; with the next renewal, when the registry does not answer now."""
        async with self._claiming:
            self._doubtful.update(streams)
            with contextlib.suppress(RegistryError):
                await self._give_back()

    async def _give_back(self) -> None:
        if self._doubtful:
            await asyncio.to_thread(self._registry.unclaim, self.current, sorted(self._doubtful))
            self._doubtful.clear()

    async def release(self) -> None:
        """Give the lease back, as far as the registry answers; the last call."""
        if self.current is not None:
            with contextlib.suppress(RegistryError):
                await self._run(functools.partial(self._registry.release, self.current))
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
