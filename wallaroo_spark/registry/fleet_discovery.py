"""Finds the workers of a fleet by the leases of its slots, and remembers them while the registry does not answer.

Source: ``docs/architecture.md#rules``, rules 4 and 5.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from wallaroo_spark.errors import RegistryError, one_line
from wallaroo_spark.registry.model import Lease

log = one_line(logging.getLogger("wallaroo_spark.registry"))


class KnownWorkers:
    """The last lease of each slot whose worker can be called. Pure.

    A worker stays known when its lease has expired or is missing, because it may still hold rows: only another lease of
    its slot takes its place.
    """

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}

    def learn(self, leases: Mapping[int, Lease]) -> list[Lease]:
        """Add the leases of one answer of the registry; return those that were not known."""
        # A lease that differs is newer, although a Redis with another clock may number it lower.
        new = [lease for slot, lease in leases.items() if lease.flight and self._leases.get(slot) != lease]
        self._leases.update({lease.slot: lease for lease in new})
        return new

    def addresses(self) -> dict[int, str]:
        """The address of each known worker's inner port, by slot."""
        return {slot: lease.flight for slot, lease in self._leases.items()}


class FleetDiscovery(KnownWorkers):
    """Asks the registry for leases, and keeps the workers that it has found.

    ``leases`` asks the registry. ``found`` is called with each lease that was not known, in the order in which the
    registry granted them, also when several threads call :meth:`look` at the same time. ``who`` names the caller in the
    log.
    """

    def __init__(
        self,
        leases: Callable[[], Mapping[int, Lease]],
        who: str,
        found: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        super().__init__()
        self._ask = leases
        self._who = who
        self._found = found
        self._looking = threading.Lock()
        self._away = False

    def look(self) -> Mapping[int, Lease] | None:
        """Ask the registry once and return the live leases by slot. Returns None when it does not answer; all workers
        stay known then."""
        # An answer that is older than the last one would give a slot back to the worker that has lost it.
        with self._looking:
            try:
                leases = self._ask()
            except RegistryError as error:
                log.log(
                    logging.DEBUG if self._away else logging.WARNING,
                    "%s continues with the known workers: %s",
                    self._who,
                    error,
                )
                self._away = True
                return None
            self._away = False
            for lease in self.learn(leases):
                self._found(lease)
            return leases
