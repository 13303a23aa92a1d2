"""The registry: slots, leases, assignments, claims and locks of one receiver."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from wallaroo_spark.errors import ConfigurationError, LeaseLostError, RegistryError
from wallaroo_spark.registry import scripts
from wallaroo_spark.registry.connection import Connection
from wallaroo_spark.registry.model import Assignment, Lease, expires_at

T = TypeVar("T")


class Registry:
    """The shared records of one receiver's workers, driver and connectors. See ``scripts`` for the keys.

    Safe to share between threads, not between processes. Calls block for the network, for a few seconds at worst for
    each of ``attempts``; from asyncio, use ``asyncio.to_thread``. Every call may raise :class:`RegistryError`, and does
    the same when run twice. ``url`` is that of :class:`Connection`; ``lease_seconds`` is how long a lease lasts without
    being renewed.

    Raises :class:`ConfigurationError` for a URL that cannot be read and a receiver's name that cannot name keys.
    """

    def __init__(self, url: str, receiver: str, *, lease_seconds: float = 10.0, attempts: int = 5) -> None:
        if not receiver or "{" in receiver or "}" in receiver:
            raise ConfigurationError(
                f"option receiver: {receiver!r} cannot name keys in Redis; give a name without braces",
                option="receiver",
            )
        self._receiver = receiver
        self._milliseconds = max(1, round(lease_seconds * 1000))
        # A few tries have to fit into a lease, or one lost packet would cost the slot.
        timeout = min(3.0, max(0.5, lease_seconds / 3))
        self._connection = Connection(url, attempts=attempts, timeout=timeout)

    def __repr__(self) -> str:
        return f"Registry({self._connection.endpoint!r}, {self._receiver!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ping(self) -> None:
        """Make sure that Redis is there, lets us in, and is the one for this receiver's keys."""
        self._connection.call("ping it", lambda: bool(self._connection.client.ping()))
        self.fleet()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def next_submission(self) -> int:
        """A number above all that were given out before, even by a Redis that was emptied since."""
        keys = ["submission", "leases"]
        return self._read("number a submission", int, self._run("number a submission", scripts.NEXT_SUBMISSION, keys))

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
        outcome, *lease = self._run(what, scripts.ACQUIRE, ["leases", "claims"], want.to_json(), self._milliseconds)
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
        newer = self._run(what, scripts.RENEW, ["leases", "assignments", "claims"], *arguments)
        if newer is not None:
            raise self._lost(lease, self._read(what, Lease.from_json, newer))

    def release(self, lease: Lease) -> None:
        """Give a lease back, and its claims with it; nothing happens when it is no longer the slot's."""
        self._run(f"release slot {lease.slot}", scripts.RELEASE, ["leases", "claims"], lease.to_json())

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
        self._run("forget slots", scripts.FORGET, ["leases", "assignments", "claims"], workers)

    def assign(self, instance: str, knocked: int, workers: int) -> Assignment:
        """The slot of a connector instance, out of ``workers``: the one it ``knocked`` at, unless another one has it.

        A slot has an instance from then on until it gives it back (:meth:`unassign`), gives up its lease, or another
        lease of the slot begins: until nothing that the instance has sent is held there.
        """
        if workers < 1:
            raise ConfigurationError(f"option workers: {workers} is below 1", option="workers")
        what = f"assign instance {instance!r}"
        slot, connect = self._run(what, scripts.ASSIGN, ["leases", "assignments"], instance, knocked, workers)
        return Assignment(self._read(what, int, slot), connect or None)

    def claim(self, lease: Lease, streams: Collection[int]) -> set[int]:
        """Claim stream ids for the lease's slot; returns those of ``streams`` that are the slot's now.

        In v3 a stream id belongs to the whole source (``docs/protocol.md#stream-states``): one that another slot claims
        under a live lease is not returned. Renews the lease. Raises :class:`LeaseLostError` as :meth:`renew` does.
        """
        what = f"claim streams for slot {lease.slot}"
        arguments: list[str | int] = [lease.to_json(), self._milliseconds, *map(str, streams)]
        outcome, found = self._run(what, scripts.CLAIM, ["leases", "claims"], *arguments)
        if outcome == "lost":
            raise self._lost(lease, self._read(what, Lease.from_json, found))
        return {self._read(what, int, stream) for stream in found}

    def unclaim(self, lease: Lease, streams: Collection[int]) -> None:
        """Give up stream ids; those that this very lease does not claim stay as they are."""
        own = f"{lease.slot}:{lease.generation}"
        self._run(f"unclaim streams of slot {lease.slot}", scripts.UNCLAIM, ["claims"], own, *map(str, streams))

    def unassign(self, lease: Lease, instances: Collection[str]) -> None:
        """Give up connector instances; those that this very lease does not have stay as they are."""
        own = f"{lease.slot}:{lease.generation}"
        self._run(f"unassign instances of slot {lease.slot}", scripts.UNCLAIM, ["assignments"], own, *instances)

    def publish_fleet(self, fleet: Mapping[str, str]) -> None:
        """Replace the record of the whole fleet, such as its number of workers.

        Everybody who may read a receiver's status reads it, so it holds nothing that permits more than that.
        """
        text = json.dumps(dict(fleet))
        self._connection.call("publish the fleet", lambda: self._connection.client.set(self._key("fleet"), text))

    def fleet(self) -> dict[str, str]:
        """The record that was published last; empty when there is none, or Redis was emptied since."""
        text = self._get("read the fleet", "fleet")
        return self._read("read the fleet", _texts, text) if text is not None else {}

    def lock(self, what: str, owner: str, seconds: float) -> bool:
        """Take the lock called ``what`` for so many seconds, or renew it; False when another owner has it."""
        milliseconds = max(1, round(seconds * 1000))
        return bool(self._run(f"lock {what!r}", scripts.LOCK, [f"lock:{what}"], owner, milliseconds))

    def unlock(self, what: str, owner: str) -> None:
        """Give a lock back; nothing happens when the owner does not have it."""
        self._run(f"unlock {what!r}", scripts.UNLOCK, [f"lock:{what}"], owner)

    def locked_by(self, what: str) -> str | None:
        """The owner of the lock called ``what``; None when it is free."""
        return self._get(f"look at lock {what!r}", f"lock:{what}")

    def _key(self, name: str) -> str:
        return f"wallaroo:{{{self._receiver}}}:{name}"

    def _get(self, what: str, name: str) -> str | None:
        value = self._connection.call(what, lambda: self._connection.client.get(self._key(name)))
        return None if value is None else str(value)

    def _run(self, what: str, source: str, names: list[str], *arguments: str | int) -> Any:
        keys, connection = [self._key(name) for name in names], self._connection
        return connection.call(what, lambda: connection.client.register_script(source)(keys=keys, args=list(arguments)))

    def _read(self, what: str, reader: Callable[[str], T], text: str) -> T:
        try:
            return reader(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryError(
                f"Redis at {self._connection.endpoint} answered something unusable when asked to {what}: {error!r}; "
                f"check that nothing else writes keys that start with {self._key('')}",
                endpoint=self._connection.endpoint,
            ) from error

    def _lost(self, lease: Lease, newer: Lease) -> LeaseLostError:
        ours = f"submission {lease.submission}" + (f", generation {lease.generation}," if lease.generation else "")
        by = f"held by {newer.holder}" if newer.holder else "given up since"
        return LeaseLostError(
            f"slot {lease.slot} of receiver {self._receiver}: the lease of {ours} has given way to submission "
            f"{newer.submission}, generation {newer.generation}, {by}; stop serving the slot",
            slot=lease.slot,
            submission=newer.submission,
            generation=newer.generation,
            holder=newer.holder,
        )


def _texts(text: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in json.loads(text).items()}
