"""The keys of one receiver in Redis: their names, and running scripts on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from wallaroo_spark.errors import ConfigurationError, LeaseLostError
from wallaroo_spark.registry.connection import RedisConnection
from wallaroo_spark.registry.model import Lease
from wallaroo_spark.registry.scripts import Script

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
