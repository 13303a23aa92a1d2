"""Leases: which worker serves which slot, until when, and in which order they were given out."""

from __future__ import annotations

from collections.abc import Collection

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.registry import scripts
from wallaroo_spark.registry.keyspace import Keyspace
from wallaroo_spark.registry.model import Lease, expires_at


class Leases(Keyspace):
    """The leases of a receiver's slots, and the numbers of their submissions."""

    def next_submission(self) -> int:
        """A number above all that were given out before, even by a Redis that was emptied since."""
        return self._read("number a submission", int, self._run("number a submission", scripts.NEXT_SUBMISSION))

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Lease | None:
        """Take a slot's lease; None means that a copy of the same submission has it, and the caller is its standby.

        A newer submission takes over at once, under a new generation. The same holder gets the lease it has, extended,
        with the addresses now given. The same submission may take a lease that was released, has expired or is unknown.
        ``holder`` is unique to a process. Raises :class:`LeaseLostError` when a newer submission is known.
        """
        if not holder:
            raise ConfigurationError(f"slot {slot}: a lease needs a holder with a name; name the process")
        want = Lease(slot, submission, 0, holder, connect, flight)
        what = f"lease slot {slot}"
        outcome, *lease = self._run(what, scripts.ACQUIRE, want.to_json(), self._milliseconds)
        if outcome == "standby":
            return None
        found = self._read(what, Lease.from_json, lease[0])
        if outcome == "lost":
            raise self._lost(want, found)
        return found

    def renew(self, lease: Lease, *, instances: Collection[str] = (), claims: Collection[int] = ()) -> None:
        """Extend a lease, or put it back where Redis was emptied, and with it what has gone missing of its slot.

        ``instances`` are those the slot serves, ``claims`` the stream ids it has claimed. What belongs to another slot
        by now stays with that slot; :meth:`claim` tells which streams do. Raises :class:`LeaseLostError` when a newer
        lease of the slot is known, or this one was released.
        """
        what = f"renew the lease of slot {lease.slot}"
        arguments: list[str | int] = [
            lease.to_json(),
            self._milliseconds,
            len(instances),
            *instances,
            *map(str, claims),
        ]
        newer = self._run(what, scripts.RENEW, *arguments)
        if newer is not None:
            raise self._lost(lease, self._read(what, Lease.from_json, newer))

    def release(self, lease: Lease) -> None:
        """Give a lease back, and its claims with it; nothing happens when it is no longer the slot's."""
        self._run(f"release slot {lease.slot}", scripts.RELEASE, lease.to_json())

    def leases(self) -> dict[int, Lease]:
        """The leases that are live now, by slot."""
        # Two commands that only read, and no script: a connector's user needs leave for nothing else.
        key, connection = self._key("leases"), self._connection
        found, now = connection.call("list the leases", lambda: (connection.client.hvals(key), connection.clock(key)))
        leases = [self._read("list the leases", Lease.from_json, text) for text in found if self._lives(text, now)]
        return {lease.slot: lease for lease in sorted(leases, key=lambda lease: lease.slot)}

    def _lives(self, text: str, now: int) -> bool:
        return self._read("list the leases", expires_at, text) > now

    def forget_slots_from(self, workers: int) -> None:
        """Drop the leases, assignments and claims of slot ``workers`` and above, when a fleet has shrunk.

        Who holds one of these leases is refused at its next renewal; a later submission may take the slot again.
        """
        self._run("forget slots", scripts.FORGET, workers)
