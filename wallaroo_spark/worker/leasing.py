"""What a worker asks of the registry it is handed, and the address it leaves there.

``wallaroo_spark.registry.Registry`` has this shape; the worker does not import it. Source: ``design.md``, rule 5.
"""

from __future__ import annotations

import socket
from typing import Any, Protocol
from urllib.parse import urlsplit


class Lease(Protocol):
    """What the service needs to know of a slot's lease."""

    @property
    def generation(self) -> int:
        """Grows with every lease of the slot."""


class Registry(Protocol):
    """What the service asks of the registry it is handed; see ``wallaroo_spark.registry.Registry``."""

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Any:
        """The slot's lease, None while another copy of this submission holds it."""

    def renew(self, lease: Any, *, instances: Any = (), claims: Any = ()) -> None:
        """Keep the lease."""

    def release(self, lease: Any) -> None:
        """Give the lease back."""

    def assign(self, instance: str, knocked: int, workers: int) -> Any:
        """The slot an instance belongs to."""

    def claim(self, lease: Any, streams: Any) -> set[int]:
        """Stream ids for this slot."""

    def unclaim(self, lease: Any, streams: Any) -> None:
        """Give stream ids back."""


def reachable_host(bound: str, registry: str) -> str:
    """The address others reach this machine at: the bound one, or, of a wildcard, the one that faces the registry."""
    if bound not in ("", "0.0.0.0", "::"):
        return bound
    target = urlsplit(registry).hostname or "192.0.2.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only picks the route.
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
