"""The lease of a task for its number: acquired, renewed and released from asyncio.

A worker holds the lease of its slot, a publisher that of its partition. Source: ``docs/architecture.md#rules``,
rules 4 and 5.
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
from wallaroo_spark.registry import Lease
from wallaroo_spark.transport import refuses

log = one_line(logging.getLogger("wallaroo_spark.runtime"))

T = TypeVar("T")


class LeaseRegistry(Protocol):
    """The operations on leases that a registry provides; see ``wallaroo_spark.registry.Registry``."""

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Lease | None:
        """Acquire the lease of a number; None while another copy of the same submission holds it."""

    def renew(self, lease: Any) -> None:
        """Extend the lease."""

    def release(self, lease: Any) -> None:
        """Release the lease."""

    def leases(self) -> Mapping[int, Lease]:
        """The live leases, by number."""


class Tenancy:
    """The lease of one number, in the process that holds it or waits for it.

    ``number`` is the slot or partition, ``submission`` the driver's number for the submission of the job, ``holder``
    the unique name of this process, ``name`` the name of the service in the log. All calls to the registry about the
    lease are made by one thread.
    """

    def __init__(self, registry: LeaseRegistry, number: int, submission: int, holder: str, name: str) -> None:
        self.current: Any = None
        """The lease as the registry last returned it; None before the first."""
        self.unanswered = False
        """Whether the registry did not answer the last renewal."""
        self._leases = registry
        self._number = number
        self._submission = submission
        self._holder = holder
        self._name = name
        # A thread of its own, so that a renewal never waits behind the assignments of a thousand sessions.
        self._thread = ThreadPoolExecutor(1, "wallaroo-lease")

    async def take(self, connect: str, flight: str, stopped: asyncio.Event, pause: float) -> bool:
        """Acquire the lease with these addresses (may be empty), trying every ``pause`` seconds; True when acquired.

        Returns False when ``stopped`` is set meanwhile. A second copy of the same submission waits here as a standby
        while the first one lives. Raises :class:`LeaseLostError` when a newer submission is known.
        """
        while not stopped.is_set():
            try:
                if await self.acquire(connect, flight):
                    return True
                if await self._release_for_dead_holder():
                    continue
            except LeaseLostError:
                raise
            except RegistryError as error:
                log.warning("%s waits for the registry: %s", self._name, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), pause)
        return False

    async def acquire(self, connect: str = "", flight: str = "") -> bool:
        """Try once to acquire the lease; False when another copy of this submission holds it.

        Raises :class:`RegistryError`, or :class:`LeaseLostError` when a newer submission is known.
        """
        ask = functools.partial(self._leases.acquire, self._number, self._submission, self._holder, connect, flight)
        lease = await self.ask(ask)
        self.current = lease or self.current
        return lease is not None

    async def _release_for_dead_holder(self) -> bool:
        """As a standby: release the lease of a holder whose port refuses connections; return whether that was done.

        A killed process cannot release its lease, and Spark retries its task within the same submission. So nobody
        would serve the number until the lease expired. A refused connection shows that no process listens at the
        address any more. A connection attempt without an answer shows nothing; then the lease has to expire. If the
        holder lives after all, its next renewal fails and it stops serving.
        """
        lease = (await self.ask(self._leases.leases)).get(self._number)
        address = (lease.flight or lease.connect) if lease is not None else ""
        if lease is None or not address or not await refuses(address):
            return False
        log.warning("%s: its holder %s is gone; its lease is released", self._name, lease.holder)
        await self.ask(functools.partial(self._leases.release, lease))
        return True

    async def keep(self, renewal: Awaitable[T]) -> T | None:
        """Await a renewal of the lease and return its result; None while the registry does not answer.

        The log gets one line for each outage of the registry. Raises :class:`LeaseLostError` when the lease is lost.
        """
        try:
            answer = await renewal
        except LeaseLostError:
            raise
        except RegistryError as error:
            if not self.unanswered:
                log.warning("%s goes on without the registry: %s", self._name, error)
            self.unanswered = True
            return None
        self.unanswered = False
        return answer

    async def release(self) -> None:
        """Release the lease, if the registry answers, and end the thread; the last call."""
        if self.current is not None:
            with contextlib.suppress(RegistryError):
                await self.ask(functools.partial(self._leases.release, self.current))
        self._thread.shutdown(wait=False)

    async def ask(self, question: Callable[[], T]) -> T:
        """Call the registry in the thread for leases, and return its answer. Raises the errors of ``question``."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)
