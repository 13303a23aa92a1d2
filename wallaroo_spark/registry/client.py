"""The registry: the records by which workers, drivers and clients find each other, each kind of record in a class.

Redis runs each of the Lua scripts as one atomic step. The keys of a receiver have its name as hash tag, so that one
node of a Redis cluster has all of them:

- ``leases``       hash, slot → JSON of a lease, when it ``expires`` (ms of Redis' own clock), and whether
                   it is ``whole``: a renewal has named all instances of the slot since the lease was written
- ``assignments``  hash, instance → ``slot:generation``
- ``claims``       hash, stream id → ``slot:generation``
- ``cursors``      hash, ``assignments`` and ``claims`` → where the next renewal goes on to delete void ones
- ``submission``   the number of the last submission
- ``reports``      hash, slot → the last report of its holder, in JSON; of applications only, and written by no script
- ``lock:…``       the owner of a lock; the key expires

An expired lease is not deleted, because its submission and generation are the least that a later lease may have. A
released lease is not deleted either; its holder is empty. Assignments and claims of a lease that was released or
replaced do not count, and renewals delete them some at a time. Numbers are passed as decimal text. Only times,
submissions and generations (milliseconds, well below 2^53) are converted to Lua's numbers, which are doubles; stream
ids (u64) are not. Source: ``docs/decisions/redis-holds-nothing-durable.md`` and
``docs/decisions/one-writer-per-checkpoint.md``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self, TypeVar

from wallaroo_spark.errors import ConfigurationError, LeaseLostError
from wallaroo_spark.registry.connection import RedisConnection
from wallaroo_spark.registry.model import Assignment, Lease, expires_at


@dataclass(frozen=True)
class Script:
    """A Lua script that Redis runs as one atomic step."""

    keys: tuple[str, ...]
    """The names of its keys without the receiver's prefix, in the order of KEYS; a trailing colon: a family of keys."""
    source: str
    """The Lua text."""


def _script(keys: tuple[str, ...], *files: str) -> Script:
    """The script in these files of the folder ``lua``, which are joined; the last one tells of KEYS and ARGV."""
    folder = resources.files("wallaroo_spark.registry") / "lua"
    return Script(keys, "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in files))


NEXT_SUBMISSION = _script(("submission", "leases"), "leases", "next_submission")
ACQUIRE = _script(("leases",), "leases", "acquire")
RENEW = _script(("leases", "assignments", "claims", "cursors"), "leases", "renewals", "renew")
RELEASE = _script(("leases",), "leases", "release")
FORGET = _script(("leases", "assignments"), "leases", "forget")
ASSIGN = _script(("leases", "assignments"), "leases", "assign")
CLAIM = _script(("leases", "claims"), "leases", "renewals", "claim")
UNCLAIM = _script(("claims",), "give_up")
UNASSIGN = _script(("assignments",), "give_up")
LOCK = _script(("lock:",), "lock")
UNLOCK = _script(("lock:",), "unlock")


T = TypeVar("T")


class Keyspace:
    """The keys of ``receiver``, with its name as hash tag, so that one node of a Redis cluster has all of them.

    The base class of leases, assignments, claims, locks and the fleet's record. ``lease_seconds`` is how long a lease
    lasts. Raises :class:`ConfigurationError` for a receiver's name that cannot be part of a key.
    """

    def __init__(self, connection: RedisConnection, receiver: str, lease_seconds: float) -> None:
        if not receiver or "{" in receiver or "}" in receiver:
            raise ConfigurationError(
                f"option receiver: {receiver!r} cannot name keys in Redis; give a name without braces",
                code="name-invalid",
                option="receiver",
            )
        self._connection = connection
        self._receiver = receiver
        self._milliseconds = max(1, round(lease_seconds * 1000))

    def _key(self, name: str) -> str:
        return f"wallaroo:{{{self._receiver}}}:{name}"

    def _get(self, action: str, name: str) -> str | None:
        value = self._connection.call(action, lambda: self._connection.client.get(self._key(name)))
        return None if value is None else str(value)

    def _run(self, action: str, script: Script, *arguments: str | int, of: str = "") -> Any:
        """Run a script on its keys and return its answer.

        ``action`` names the operation in error messages. ``of`` is appended to the names of the keys of a family, such
        as the name of a lock to ``lock:``.
        """
        keys, connection = [self._key(f"{key}{of}") for key in script.keys], self._connection
        return connection.call(
            action, lambda: connection.client.register_script(script.source)(keys=keys, args=list(arguments))
        )

    def _read(self, action: str, reader: Callable[[str], T], text: str) -> T:
        """Parse a text from Redis with ``reader``. Raises :class:`RegistryError` when that fails."""
        return self._connection.parse(action, reader, text, f"keys that start with {self._key('')}")

    def _lost(self, lease: Lease, newer: Lease) -> LeaseLostError:
        ours = f"submission {lease.submission}" + (f", generation {lease.generation}," if lease.generation else "")
        state = f"held by {newer.holder}" if newer.holder else "released since"
        return LeaseLostError(
            f"slot {lease.slot} of receiver {self._receiver}: the lease of {ours} was replaced by submission "
            f"{newer.submission}, generation {newer.generation}, {state}; stop serving the slot",
            code="lease-lost",
            slot=lease.slot,
            submission=newer.submission,
            generation=newer.generation,
            holder=newer.holder,
        )


class Leases(Keyspace):
    """The leases of a receiver's slots, and the numbers of the submissions of their jobs.

    Every method raises :class:`RegistryError` when Redis cannot be reached or its answer cannot be used.
    """

    def next_submission(self) -> int:
        """Return a number above all earlier ones, also when Redis has lost its data since then."""
        return self._read("number a submission", int, self._run("number a submission", NEXT_SUBMISSION))

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
        outcome, *lease = self._run(action, ACQUIRE, want.to_json(), self._milliseconds)
        if outcome == "standby":
            return None
        current = self._read(action, Lease.from_json, lease[0])
        if outcome == "lost":
            raise self._lost(want, current)
        return current

    def renew(
        self, lease: Lease, *, instances: Collection[str] = (), claims: Collection[int] = (), everything: bool = False
    ) -> bool:
        """Extend a lease. When Redis has lost its data, write the lease, the assignments and the claims again.

        ``instances`` are connector instances that the slot serves, ``claims`` stream ids that it has claimed. With
        ``everything`` the slot serves no other instances. Returns whether Redis has had the lease ever since a renewal
        with ``everything``; otherwise Redis may have lost assignments, and such a renewal is due. An instance or a
        stream that belongs to another slot by now stays with that slot; :meth:`claim` returns the streams that are
        still this slot's. Raises :class:`LeaseLostError` when a newer lease of the slot is known, or this one was
        released.
        """
        action = f"renew the lease of slot {lease.slot}"
        served: list[str | int] = [int(everything), len(instances), *instances, *map(str, claims)]
        newer = self._run(action, RENEW, lease.to_json(), self._milliseconds, *served)
        if newer:
            raise self._lost(lease, self._read(action, Lease.from_json, newer))
        return newer is None

    def release(self, lease: Lease) -> None:
        """Release a lease and its claims. Does nothing when the slot has another lease."""
        self._run(f"release slot {lease.slot}", RELEASE, lease.to_json())

    def leases(self) -> dict[int, Lease]:
        """Return the live leases, by slot."""
        return {slot: lease for slot, (lease, live) in self.known_leases().items() if live}

    def known_leases(self) -> dict[int, tuple[Lease, bool]]:
        """Return the last lease of each slot with whether it is live, without leases that were released.

        A lease that is not live is of a worker that has died, hangs, or does not reach the registry.
        """
        # Two read commands and no script, so that the Redis user of a connector needs no other permission.
        action, key, connection = "list the leases", self._key("leases"), self._connection
        stored, now = connection.call(action, lambda: (connection.client.hvals(key), connection.clock(key)))
        found = [(self._read(action, Lease.from_json, text), self._read(action, expires_at, text)) for text in stored]
        held = sorted((one for one in found if one[0].holder), key=lambda one: one[0].slot)
        return {lease.slot: (lease, expires > now) for lease, expires in held}

    def forget_slots_from(self, workers: int) -> None:
        """Delete the assignments and claims of slot ``workers`` and above, and invalidate their leases.

        For a fleet with fewer slots than before. The holder of such a lease is refused at its next renewal; a later
        submission may acquire the slot again.
        """
        self._run("forget slots", FORGET, workers)


class Locks(Keyspace):
    """Locks by name. A lock expires unless its owner renews it, so that an owner that crashed does not keep it."""

    def lock(self, name: str, owner: str, seconds: float) -> bool:
        """Take the lock ``name`` for ``seconds``, or renew it; False when another owner has it."""
        milliseconds = max(1, round(seconds * 1000))
        return bool(self._run(f"lock {name!r}", LOCK, owner, milliseconds, of=name))

    def unlock(self, name: str, owner: str) -> None:
        """Release the lock ``name``. Does nothing when another owner, or nobody, has it."""
        self._run(f"unlock {name!r}", UNLOCK, owner, of=name)

    def lock_left(self, name: str) -> float | None:
        """Return for how many seconds the lock ``name`` lasts unless it is renewed; None when nobody has it."""
        action, key, connection = f"look at lock {name!r}", self._key(f"lock:{name}"), self._connection
        left = connection.call(action, lambda: connection.client.pttl(key))
        return left / 1000 if left >= 0 else None

    def locked_by(self, name: str) -> str | None:
        """Return the owner of the lock ``name``; None when nobody has it."""
        return self._get(f"look at lock {name!r}", f"lock:{name}")


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
        slot, connect = self._run(action, ASSIGN, instance, knocked, workers)
        return Assignment(self._read(action, int, slot), connect or None)

    def unassign(self, lease: Lease, instances: Collection[str]) -> None:
        """End the assignments of connector instances. Instances that are not assigned to this lease are ignored."""
        own = f"{lease.slot}:{lease.generation}"
        self._run(f"unassign instances of slot {lease.slot}", UNASSIGN, own, *instances)


class Claims(Keyspace):
    """The slots of stream ids in v3, where a stream id is unique in the whole source and not only in an instance."""

    def claim(self, lease: Lease, streams: Collection[int]) -> set[int]:
        """Claim stream ids for the lease's slot; return those of ``streams`` that now belong to the slot.

        In v3 a stream id belongs to the whole source (``docs/protocol.md#stream-states``): an id that another slot has
        claimed under a live lease is not returned. Renews the lease. Raises :class:`LeaseLostError` as
        :meth:`Leases.renew` does.
        """
        action = f"claim streams for slot {lease.slot}"
        outcome, answer = self._run(action, CLAIM, lease.to_json(), self._milliseconds, *map(str, streams))
        if outcome == "lost":
            raise self._lost(lease, self._read(action, Lease.from_json, answer))
        return {self._read(action, int, stream) for stream in answer}

    def unclaim(self, lease: Lease, streams: Collection[int]) -> None:
        """Release claims of stream ids. Streams that this lease has not claimed are ignored."""
        own = f"{lease.slot}:{lease.generation}"
        self._run(f"unclaim streams of slot {lease.slot}", UNCLAIM, own, *map(str, streams))


_FRONT, _END = "wallaroo:{", "}:fleet"


class FleetRecord(Keyspace):
    """The fleet's record, which the driver writes: number of workers, query, and the token for status requests."""

    def publish_fleet(self, fleet: Mapping[str, str]) -> None:
        """Replace the fleet's record.

        Every program that may read the receiver's status can read the record, so it must not contain a secret that
        permits more than that.
        """
        text = json.dumps(dict(fleet))
        self._connection.call("publish the fleet", lambda: self._connection.client.set(self._key("fleet"), text))

    def fleet(self) -> dict[str, str]:
        """Return the record that was published last; empty when there is none, or Redis has lost its data."""
        text = self._get("read the fleet", "fleet")
        return self._read("read the fleet", _texts, text) if text is not None else {}

    def publish_report(self, report: str) -> None:
        """Replace the driver's report: a JSON text, without secrets, for programs that show the receiver's status.

        The report stays in Redis when the driver has ended, so that its last state can still be seen.
        """
        self._connection.call("publish the report", lambda: self._connection.client.set(self._key("report"), report))

    def report(self) -> str | None:
        """Return the driver's last report; None when there is none, or Redis has lost its data."""
        return self._get("read the report", "report")

    def publish_slot_report(self, slot: int, report: str) -> None:
        """Replace the report of a slot's holder: a JSON text, without secrets, for programs that show the status."""
        key, client = self._key("reports"), self._connection.client
        self._connection.call("publish the report of a slot", lambda: client.hset(key, str(slot), report))

    def slot_reports(self) -> list[str]:
        """Return the last report of each slot, in no order; also of holders that have ended."""
        key, client = self._key("reports"), self._connection.client
        return [str(text) for text in self._connection.call("read the reports of slots", lambda: client.hvals(key))]


def _texts(text: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in json.loads(text).items()}


def receiver_names(url: str, attempts: int = 5) -> list[str]:
    """The names of the receivers that have published a fleet, sorted; also those that have ended since.

    ``url`` and ``attempts`` are as for :class:`RedisConnection`. Raises :class:`RegistryError` when the registry does
    not answer.
    """
    connection = RedisConnection(url, attempts=attempts, timeout=3.0)
    try:
        return connection.names_between("list the receivers", _FRONT, _END)
    finally:
        connection.close()


class Registry(Leases, Assignments, Claims, Locks, FleetRecord):
    """The records that the workers, the driver and the connectors of one receiver share. This module lists the keys.

    ``url`` is a URL as :class:`RedisConnection` takes it, ``receiver`` the receiver's name, ``lease_seconds`` how long
    a lease lasts without being renewed, ``attempts`` how often a call is tried.

    May be shared between threads, not between processes. Calls block while they wait for the network, at most three
    seconds for each attempt; from asyncio, use ``asyncio.to_thread``. Every call may raise :class:`RegistryError`, and
    running a call twice has the same effect as running it once. The constructor raises :class:`ConfigurationError` for
    a URL that cannot be parsed and for a receiver's name that cannot be part of a key.
    """

    def __init__(self, url: str, receiver: str, *, lease_seconds: float = 10.0, attempts: int = 5) -> None:
        # A choice: three attempts fit into a lease, so that one lost packet does not cost the slot. The limits bound
        # the wait with very long leases and the false time-outs with very short ones.
        timeout = min(3.0, max(0.5, lease_seconds / 3))
        super().__init__(RedisConnection(url, attempts=attempts, timeout=timeout), receiver, lease_seconds)

    def __repr__(self) -> str:
        return f"Registry({self._connection.endpoint!r}, {self._receiver!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ping(self) -> None:
        """Check that Redis answers, accepts the login and lets this user read the receiver's keys.

        Raises :class:`RegistryError` otherwise.
        """
        self._connection.call("ping it", lambda: bool(self._connection.client.ping()))
        self.fleet()

    def close(self) -> None:
        """Close the connections to Redis."""
        self._connection.close()


def application_registry(url: str, application: str, *, lease_seconds: float = 10.0, attempts: int = 5) -> Registry:
    """The registry of an application of durable streams: a lease for each of its gateways, by slot, and the lock of its
    driver. The field ``connect`` of a lease is the gateway's ``host:port``."""
    return Registry(url, f"application:{application}", lease_seconds=lease_seconds, attempts=attempts)
