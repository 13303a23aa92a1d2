"""The right of a task to serve its number: a lease in the registry, taken, renewed and given back from asyncio.

Workers hold one for their slot, publishers one for their partition. ``wallaroo_spark.registry.Registry`` has the shape
of :class:`LeaseRegistry`; this room does not import it. Source:
``docs/architecture.md#rules``, rules 4 and 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from wallaroo_spark.errors import LeaseLostError, RegistryError, one_line
from wallaroo_spark.transport import refuses

log = one_line(logging.getLogger("wallaroo_spark.slots"))

T = TypeVar("T")


class LeaseView(Protocol):
    """A lease as the registry gives it out; see ``wallaroo_spark.registry.Lease``."""

    @property
    def generation(self) -> int:
        """Grows with every lease of the number."""

    @property
    def holder(self) -> str:
        """The process that holds it."""

    @property
    def connect(self) -> str:
        """The address for peers, empty until the holder listens."""

    @property
    def flight(self) -> str:
        """The inner address, empty until the holder listens, and where there is none."""


class LeaseRegistry(Protocol):
    """The questions about leases that a registry answers; see ``wallaroo_spark.registry.Registry``."""

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> LeaseView | None:
        """The lease of a number, None while another copy of this submission holds it."""

    def renew(self, lease: Any) -> None:
        """Keep the lease."""

    def release(self, lease: Any) -> None:
        """Give the lease back."""

    def leases(self) -> Mapping[int, LeaseView]:
        """The live leases by number."""


class Tenancy:
    """The lease of one number, as its holder sees it. ``name`` is what the log calls that holder.

    ``current`` is the lease as it was last given out, None before the first. ``registry_away`` is whether the registry
    did not answer when the lease was last to be renewed. Questions about the lease are asked by one thread.
    """

    def __init__(self, registry: LeaseRegistry, number: int, submission: int, holder: str, name: str) -> None:
        self.current: Any = None
        self.registry_away = False
        self._leases = registry
        self._number = number
        self._submission = submission
        self._holder = holder
        self._name = name
        # Renewing must not queue behind a thousand sessions that ask where they belong.
        self._thread = ThreadPoolExecutor(1, "wallaroo-lease")

    async def take(self, connect: str, flight: str, stopped: asyncio.Event, pause: float) -> bool:
        """Take the lease and leave the addresses in it, empty ones for now; asks every ``pause`` seconds until then.

        False when ``stopped`` is set meanwhile. A second copy of the same submission waits here for as long as the
        first one lives. Raises :class:`LeaseLostError` when a newer submission is known.
        """
        while not stopped.is_set():
            try:
                if await self.acquire(connect, flight):
                    return True
                if await self._relieve_the_dead():
                    continue
            except LeaseLostError:
                raise
            except RegistryError as error:
                log.warning("%s waits for the registry: %s", self._name, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), pause)
        return False

    async def acquire(self, connect: str = "", flight: str = "") -> bool:
        """Ask for the lease once; False when a copy of this submission has it. Raises :class:`RegistryError`."""
        ask = functools.partial(self._leases.acquire, self._number, self._submission, self._holder, connect, flight)
        lease = await self.ask(ask)
        self.current = lease or self.current
        return lease is not None

    async def _relieve_the_dead(self) -> bool:
        """As a standby: give back the lease of a holder whose port refuses connections; whether there was one.

        A killed process cannot give its lease back, and Spark retries its task within the same submission, so the
        number would be served by nobody until the lease ran out. A refusal says that nobody listens there any more;
        silence says nothing, and is left to the lease's own end. Were the holder alive after all, its next renewal
        would end it.
        """
        held = (await self.ask(self._leases.leases)).get(self._number)
        address = (held.flight or held.connect) if held is not None else ""
        if held is None or not address or not await refuses(address):
            return False
        log.warning("%s: its holder %s is gone; its lease is given back", self._name, held.holder)
        await self.ask(functools.partial(self._leases.release, held))
        return True

    async def keep(self, renewal: Awaitable[T]) -> T | None:
        """Await what renews the lease; None, and one line in the log, while the registry does not answer.

        Raises :class:`LeaseLostError` when the lease is another's.
        """
        try:
            kept = await renewal
        except LeaseLostError:
            raise
        except RegistryError as error:
            if not self.registry_away:
                log.warning("%s goes on without the registry: %s", self._name, error)
            self.registry_away = True
            return None
        self.registry_away = False
        return kept

    async def release(self) -> None:
        """Give the lease back, as far as the registry answers; the last call."""
        if self.current is not None:
            with contextlib.suppress(RegistryError):
                await self.ask(functools.partial(self._leases.release, self.current))
        self._thread.shutdown(wait=False)

    async def ask(self, question: Callable[[], T]) -> T:
        """Ask the registry, in the thread that asks about the lease."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)
