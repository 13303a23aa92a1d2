"""The registry of one receiver: the records by which its workers, its driver and its connectors find each other."""

from __future__ import annotations

from typing import Self

from wallaroo_spark.registry.assignments import Assignments, Claims
from wallaroo_spark.registry.connection import RedisConnection
from wallaroo_spark.registry.fleet_record import FleetRecord
from wallaroo_spark.registry.leases import Leases
from wallaroo_spark.registry.locks import Locks


class Registry(Leases, Assignments, Claims, Locks, FleetRecord):
    """The records that the workers, the driver and the connectors of one receiver share. ``scripts`` lists the keys.

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


def connectors_registry(url: str, application: str, *, lease_seconds: float = 10.0, attempts: int = 5) -> Registry:
    """The registry in which connectors find the gateways of an application of durable streams.

    It has a lease for each gateway that serves connectors, as the registry of a receiver has for its workers. So a
    connector whose program is ``connectors:<application>`` needs nothing else.
    """
    return Registry(url, f"connectors:{application}", lease_seconds=lease_seconds, attempts=attempts)
