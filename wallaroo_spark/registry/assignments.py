"""Assignments and claims: which slot a connector instance belongs to, and which slot a stream id of v3."""

from __future__ import annotations

from collections.abc import Collection

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.registry import scripts
from wallaroo_spark.registry.keyspace import Keyspace
from wallaroo_spark.registry.model import Assignment, Lease


class Assignments(Keyspace):
    """The slots of connector instances."""

    def assign(self, instance: str, knocked: int, workers: int) -> Assignment:
        """The slot of a connector instance, out of ``workers``: the one it ``knocked`` at, unless another one has it.

        A slot has an instance from then on until it gives it back (:meth:`unassign`), gives up its lease, or another
        lease of the slot begins: until nothing that the instance has sent is held there.
        """
        if workers < 1:
            raise ConfigurationError(f"option workers: {workers} is below 1", option="workers")
        what = f"assign instance {instance!r}"
        slot, connect = self._run(what, scripts.ASSIGN, instance, knocked, workers)
        return Assignment(self._read(what, int, slot), connect or None)

    def unassign(self, lease: Lease, instances: Collection[str]) -> None:
        """Give up connector instances; those that this very lease does not have stay as they are."""
        own = f"{lease.slot}:{lease.generation}"
        self._run(f"unassign instances of slot {lease.slot}", scripts.UNASSIGN, own, *instances)


class Claims(Keyspace):
    """The slots of stream ids, where a revision shares them out over the whole source."""

    def claim(self, lease: Lease, streams: Collection[int]) -> set[int]:
        """Claim stream ids for the lease's slot; returns those of ``streams`` that are the slot's now.

        In v3 a stream id belongs to the whole source (``docs/protocol.md#stream-states``): one that another slot claims
        under a live lease is not returned. Renews the lease. Raises :class:`LeaseLostError` as :meth:`renew` does.
        """
        what = f"claim streams for slot {lease.slot}"
        arguments: list[str | int] = [lease.to_json(), self._milliseconds, *map(str, streams)]
        outcome, found = self._run(what, scripts.CLAIM, *arguments)
        if outcome == "lost":
            raise self._lost(lease, self._read(what, Lease.from_json, found))
        return {self._read(what, int, stream) for stream in found}

    def unclaim(self, lease: Lease, streams: Collection[int]) -> None:
        """Give up stream ids; those that this very lease does not claim stay as they are."""
        own = f"{lease.slot}:{lease.generation}"
        self._run(f"unclaim streams of slot {lease.slot}", scripts.UNCLAIM, own, *map(str, streams))
