"""Connections to workers that a reading task leaves to the next task of its process.

Source: ``docs/decisions/price-of-a-batch.md``.
"""

from __future__ import annotations

import threading
import time

from wallaroo_spark.inner.client import Trust, WorkerClient

KEPT_SECONDS = 5.0
"""How long a connection may have been idle when a task takes it over.

A choice: a busy query begins its next batch sooner. A firewall may have dropped a connection that was idle for minutes,
and a read on such a connection would wait in vain.
"""

_Key = tuple[str, str, Trust | None]


class KeptClients:
    """Clients that no task uses, by worker address, token and trust. Several threads may use it at the same time.

    When a process closes its last client, gRPC ends its threads (about ten), and the next client starts them again.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: dict[_Key, tuple[WorkerClient, float]] = {}

    def take(self, address: str, token: str, trust: Trust | None) -> WorkerClient:
        """A client for one task alone: an idle one if there is one, otherwise a new one."""
        with self._guard:
            found = self._idle.pop((address, token, trust), None)
            stale = self._stale()
        if found is not None and time.monotonic() - found[1] > KEPT_SECONDS:
            stale.append(found[0])
            found = None
        taken = found[0] if found is not None else WorkerClient(address, token, trust=trust)
        for client in stale:
            client.close()
        return taken

    def keep(self, client: WorkerClient, token: str, trust: Trust | None) -> None:
        """Take back a client whose calls have all ended."""
        with self._guard:
            replaced = self._idle.pop((client.address, token, trust), None)
            self._idle[client.address, token, trust] = (client, time.monotonic())
        if replaced is not None:
            replaced[0].close()

    def _stale(self) -> list[WorkerClient]:
        """Remove and return the clients that have been idle for too long."""
        oldest = time.monotonic() - KEPT_SECONDS
        old = [key for key, (_, since) in self._idle.items() if since < oldest]
        return [self._idle.pop(key)[0] for key in old]


KEPT = KeptClients()
"""The kept clients of this process."""
