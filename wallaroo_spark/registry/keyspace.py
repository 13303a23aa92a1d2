"""The keys of one receiver in Redis, and how they are read and changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from wallaroo_spark.errors import ConfigurationError, LeaseLostError, RegistryError
from wallaroo_spark.registry.connection import RedisConnection
from wallaroo_spark.registry.model import Lease
from wallaroo_spark.registry.scripts import Script

T = TypeVar("T")


class Keyspace:
    """The keys of ``receiver``, with its name as hash tag, so that they share a node of a Redis cluster.

    The topics of the registry are built on it: leases, assignments, claims, locks and the fleet's record.
    ``lease_seconds`` is how long a lease lasts. Raises :class:`ConfigurationError` for a name that cannot name keys.
    """

    def __init__(self, connection: RedisConnection, receiver: str, lease_seconds: float) -> None:
        if not receiver or "{" in receiver or "}" in receiver:
            raise ConfigurationError(
                f"option receiver: {receiver!r} cannot name keys in Redis; give a name without braces",
                option="receiver",
            )
        self._connection = connection
        self._receiver = receiver
        self._milliseconds = max(1, round(lease_seconds * 1000))

    def _key(self, name: str) -> str:
        return f"wallaroo:{{{self._receiver}}}:{name}"

    def _get(self, what: str, name: str) -> str | None:
        value = self._connection.call(what, lambda: self._connection.client.get(self._key(name)))
        return None if value is None else str(value)

    def _run(self, what: str, script: Script, *arguments: str | int, of: str = "") -> Any:
        """Run a script on its keys; ``of`` completes the name of a key that there are several of, such as a lock."""
        keys, connection = [self._key(f"{key}{of}") for key in script.keys], self._connection
        return connection.call(
            what, lambda: connection.client.register_script(script.source)(keys=keys, args=list(arguments))
        )

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
