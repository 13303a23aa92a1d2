"""A registry of one slot in memory: it answers a worker's Redis calls as the test decides."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from wallaroo_spark.errors import LeaseLostError, RegistryError
from wallaroo_spark.registry import Assignment, Lease


class OneSlot:
    """The registry of slot 0; any thread may call it.

    While ``away`` is set, every call fails as it does when Redis is unreachable. ``elsewhere`` is the address of
    another worker to which connectors are redirected; empty for none.
    """

    def __init__(self) -> None:
        self.away = False
        self.elsewhere = ""
        self._generation = 0
        self._lease: Lease | None = None
        self._changed = threading.Condition()

    def await_served(self, submission: int, seconds: float) -> Lease | None:
        """Wait until the worker of this submission serves the slot. Returns its lease, or None after ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._served_by(submission), seconds)
            return self._lease if self._served_by(submission) else None

    def _served_by(self, submission: int) -> bool:
        return self._lease is not None and self._lease.submission == submission and bool(self._lease.flight)

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Lease:
        """The slot's lease, for the newest submission. Raises :class:`LeaseLostError` for an older one."""
        self._answer()
        with self._changed:
            held = self._lease
            if held is not None and held.submission > submission:
                raise LeaseLostError(
                    f"slot {slot} is held by submission {held.submission}, which is newer", code="lease-lost"
                )
            if held is None or held.submission != submission:
                self._generation += 1
            self._lease = Lease(slot, submission, self._generation, holder, connect, flight)
            self._changed.notify_all()
            return self._lease

    def renew(self, lease: Any, *, instances: Any = (), claims: Any = ()) -> None:
        """Renew the lease. Raises :class:`LeaseLostError` when a newer submission has it."""
        self._answer()
        held = self._lease
        if held is not None and held.submission > lease.submission:
            raise LeaseLostError(
                f"slot {lease.slot} is held by submission {held.submission}, which is newer", code="lease-lost"
            )

    def release(self, lease: Any) -> None:
        """Release the lease, unless a newer one exists."""
        with self._changed:
            if self._lease is not None and self._lease.submission == lease.submission:
                self._lease = None
                self._changed.notify_all()

    def leases(self) -> dict[int, Lease]:
        """The live leases, by slot."""
        self._answer()
        return {} if self._lease is None else {self._lease.slot: self._lease}

    def assign(self, instance: str, knocked: int, workers: int) -> Assignment:
        """Assign the instance to the slot that the connector connected to, or to another one at ``elsewhere``."""
        self._answer()
        return Assignment(knocked + 1, self.elsewhere) if self.elsewhere else Assignment(knocked, None)

    def unassign(self, lease: Any, instances: Any) -> None:
        """Remove assignments; does nothing here."""
        self._answer()

    def claim(self, lease: Any, streams: Iterable[int]) -> set[int]:
        """Claim all requested stream ids, because there is no other slot."""
        self._answer()
        return set(streams)

    def unclaim(self, lease: Any, streams: Any) -> None:
        """Release claims of stream ids; does nothing here."""
        self._answer()

    def _answer(self) -> None:
        if self.away:
            raise RegistryError("the test makes the registry unreachable", code="registry-away")
