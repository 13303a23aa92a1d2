"""Assignments and claims: the slots of connector instances, and the slots of v3's stream ids.

Source: ``docs/protocol.md#which-worker``.
"""

from __future__ import annotations

from collections.abc import Collection

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.registry import scripts
from wallaroo_spark.registry.keyspace import Keyspace
from wallaroo_spark.registry.model import Assignment, Lease


class Assignments(Keyspace):
    """The slots of connector instances."""

    def assign(self, instance: str, knocked: int, workers: int) -> Assignment:
        """Assign a connector instance to a slot and return the assignment.

        The slot is ``knocked``, the one to which the instance has connected, unless the instance is already assigned to
        another slot. ``workers`` is the number of slots. An assignment ends when the slot's worker unassigns the
        instance (:meth:`unassign`), releases its lease, or the slot gets a newer lease: from then on no worker buffers
        a message of the instance. Raises :class:`ConfigurationError` when ``workers`` is below 1.
        """
        if workers < 1:
            raise ConfigurationError(
                f"option workers: {workers} is below 1", code="option-out-of-range", option="workers"
            )
        action = f"assign instance {instance!r}"
        slot, connect = self._run(action, scripts.ASSIGN, instance, knocked, workers)
        return Assignment(self._read(action, int, slot), connect or None)

    def unassign(self, lease: Lease, instances: Collection[str]) -> None:
        """End the assignments of connector instances. Instances that are not assigned to this lease are ignored."""
        own = f"{lease.slot}:{lease.generation}"
        self._run(f"unassign instances of slot {lease.slot}", scripts.UNASSIGN, own, *instances)


class Claims(Keyspace):
    """The slots of stream ids in v3, where a stream id is unique in the whole source and not only in an instance."""

    def claim(self, lease: Lease, streams: Collection[int]) -> set[int]:
        """Claim stream ids for the lease's slot; return those of ``streams`` that now belong to the slot.

        In v3 a stream id belongs to the whole source (``docs/protocol.md#stream-states``): an id that another slot has
        claimed under a live lease is not returned. Renews the lease. Raises :class:`LeaseLostError` as
        :meth:`Leases.renew` does.
        """
        action = f"claim streams for slot {lease.slot}"
        arguments: list[str | int] = [lease.to_json(), self._milliseconds, *map(str, streams)]
        outcome, answer = self._run(action, scripts.CLAIM, *arguments)
        if outcome == "lost":
            raise self._lost(lease, self._read(action, Lease.from_json, answer))
        return {self._read(action, int, stream) for stream in answer}

    def unclaim(self, lease: Lease, streams: Collection[int]) -> None:
        """Release claims of stream ids. Streams that this lease has not claimed are ignored."""
        own = f"{lease.slot}:{lease.generation}"
        self._run(f"unclaim streams of slot {lease.slot}", scripts.UNCLAIM, own, *map(str, streams))
