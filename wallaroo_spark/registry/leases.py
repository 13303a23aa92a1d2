"""Leases: which worker serves which slot, and until when.

Source: ``docs/architecture.md#rules``, rules 4 and 5.
"""

from __future__ import annotations

from collections.abc import Collection

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.registry import scripts
from wallaroo_spark.registry.keyspace import Keyspace
from wallaroo_spark.registry.model import Lease, expires_at


class Leases(Keyspace):
    """The leases of a receiver's slots, and the numbers of the submissions of their jobs.

    Every method raises :class:`RegistryError` when Redis cannot be reached or its answer cannot be used.
    """

    def next_submission(self) -> int:
        """Return a number above all earlier ones, also when Redis has lost its data since then."""
        return self._read("number a submission", int, self._run("number a submission", scripts.NEXT_SUBMISSION))

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Lease | None:
        """Acquire a slot's lease; None when another process of the same submission has it: the caller is its standby.

        A newer submission gets the lease at once, under a new generation. The process that already holds the lease gets
        it again, extended and with the addresses of this call. Another process of the same submission gets the lease
        when it was released, has expired or is unknown to Redis. ``holder`` is a unique name of the process,
        ``connect`` and ``flight`` are the fields of :class:`Lease`. Raises :class:`LeaseLostError` when a newer
        submission is known, and :class:`ConfigurationError` for an empty holder.
        """
        if not holder:
            raise ConfigurationError(
                f"slot {slot}: the holder of a lease needs a name; give the process a name", code="name-invalid"
            )
        want = Lease(slot, submission, 0, holder, connect, flight)
        action = f"lease slot {slot}"
        outcome, *lease = self._run(action, scripts.ACQUIRE, want.to_json(), self._milliseconds)
        if outcome == "standby":
            return None
        current = self._read(action, Lease.from_json, lease[0])
        if outcome == "lost":
            raise self._lost(want, current)
        return current

    def renew(self, lease: Lease, *, instances: Collection[str] = (), claims: Collection[int] = ()) -> None:
        """Extend a lease. When Redis has lost its data, write the lease, the assignments and the claims again.

        ``instances`` are the connector instances that the slot serves, ``claims`` the stream ids that it has claimed.
        An instance or a stream that belongs to another slot by now stays with that slot; :meth:`claim` returns the
        streams that are still this slot's. Raises :class:`LeaseLostError` when a newer lease of the slot is known, or
        this one was released.
        """
        action = f"renew the lease of slot {lease.slot}"
        arguments: list[str | int] = [
            lease.to_json(),
            self._milliseconds,
            len(instances),
            *instances,
            *map(str, claims),
        ]
        newer = self._run(action, scripts.RENEW, *arguments)
        if newer is not None:
            raise self._lost(lease, self._read(action, Lease.from_json, newer))

    def release(self, lease: Lease) -> None:
        """Release a lease and its claims. Does nothing when the slot has another lease."""
        self._run(f"release slot {lease.slot}", scripts.RELEASE, lease.to_json())

    def leases(self) -> dict[int, Lease]:
        """Return the live leases, by slot."""
        # Two read commands and no script, so that the Redis user of a connector needs no other permission.
        key, connection = self._key("leases"), self._connection
        stored, now = connection.call("list the leases", lambda: (connection.client.hvals(key), connection.clock(key)))
        leases = [self._read("list the leases", Lease.from_json, text) for text in stored if self._is_live(text, now)]
        return {lease.slot: lease for lease in sorted(leases, key=lambda lease: lease.slot)}

    def known_leases(self) -> dict[int, tuple[Lease, bool]]:
        """Return the last lease of each slot with whether it is live, without leases that were released.

        A lease that is not live is of a worker that has died, hangs, or does not reach the registry.
        """
        key, connection = self._key("leases"), self._connection
        stored, now = connection.call("list the leases", lambda: (connection.client.hvals(key), connection.clock(key)))
        found = [(self._read("list the leases", Lease.from_json, text), self._is_live(text, now)) for text in stored]
        return {lease.slot: (lease, live) for lease, live in sorted(found, key=lambda one: one[0].slot) if lease.holder}

    def _is_live(self, text: str, now: int) -> bool:
        return self._read("list the leases", expires_at, text) > now

    def forget_slots_from(self, workers: int) -> None:
        """Delete the assignments and claims of slot ``workers`` and above, and invalidate their leases.

        For a fleet with fewer slots than before. The holder of such a lease is refused at its next renewal; a later
        submission may acquire the slot again.
        """
        self._run("forget slots", scripts.FORGET, workers)
