"""The registry: all that the workers, the driver and the connectors of one receiver know of each other."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from wallaroo_spark.registry.assignments import Assignments, Claims
from wallaroo_spark.registry.connection import RedisConnection
from wallaroo_spark.registry.fleet_record import FleetRecord
from wallaroo_spark.registry.leases import Leases
from wallaroo_spark.registry.locks import Locks


class Registry(Leases, Assignments, Claims, Locks, FleetRecord):
    """The shared records of one receiver's workers, driver and connectors. See ``scripts`` for the keys.

    Safe to share between threads, not between processes. Calls block for the network, for a few seconds at worst
    for each of ``attempts``; from asyncio, use ``asyncio.to_thread``. Every call may raise :class:`RegistryError`,
    and does the same when run twice. ``url`` is that of :class:`RedisConnection`; ``lease_seconds`` is how long a
    lease lasts without being renewed.

    Raises :class:`ConfigurationError` for a URL that cannot be read and a receiver's name that cannot name keys.
    """

    def __init__(self, url: str, receiver: str, *, lease_seconds: float = 10.0, attempts: int = 5) -> None:
        # A few tries have to fit into a lease, or one lost packet would cost the slot.
        timeout = min(3.0, max(0.5, lease_seconds / 3))
        super().__init__(RedisConnection(url, attempts=attempts, timeout=timeout), receiver, lease_seconds)

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
