"""The registry's records as values, and the workers that are known by their leases.

Workers stay known while the registry does not answer. Source: ``docs/decisions/redis-holds-nothing-durable.md`` and
``docs/architecture.md#rules``, rules 4 and 5.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.errors import RegistryError, one_line

NO_QUERY = "none"
"""The value of ``query`` in a fleet's record while no query reads the receiver."""
QUERY_STARTS = "starting"
"""The value of ``query`` while a query starts. While a query runs, the value is the query's id."""


@dataclass(frozen=True)
class Lease:
    """The right to serve a slot, until it expires or the slot gets a newer lease.

    Leases of a slot are ordered by ``(submission, generation)``.
    """

    slot: int
    """The slot's number, from 0."""
    submission: int
    """The driver's number for its submission of the slot's job."""
    generation: int
    """The registry's number for this lease of the slot; 0 in a request for a lease."""
    holder: str
    """The unique name of the worker process that has the lease; empty after a release."""
    connect: str
    """``host:port`` for connectors; empty until the worker listens."""
    flight: str
    """``host:port`` of the inner Flight port; empty until the worker listens."""

    def to_json(self) -> str:
        """Return the lease as JSON for the scripts: numbers are decimal text, because Lua's numbers are doubles."""
        return json.dumps({name: str(value) for name, value in dataclasses.asdict(self).items()})

    @classmethod
    def from_json(cls, text: str) -> Lease:
        """Parse a lease that a script returned. Raises ``ValueError`` or ``KeyError`` for any other text."""
        record = json.loads(text)
        fields: dict[str, Any] = {field.name: record[field.name] for field in dataclasses.fields(cls)}
        numbers = {name: int(fields[name]) for name in ("slot", "submission", "generation")}
        return cls(**{**fields, **numbers})


def expires_at(text: str) -> int:
    """Return the time at which a stored lease expires, in ms on Redis' clock. Raises as :meth:`Lease.from_json`
    does."""
    return int(json.loads(text)["expires"])


@dataclass(frozen=True)
class Assignment:
    """The slot to which a connector instance belongs."""

    slot: int
    """The slot's number, from 0."""
    connect: str | None
    """``host:port`` of the slot's worker; None while no worker serves the slot."""


def state_served(ready: bool, query: str) -> str:
    """Return the state of a slot whose worker answers: ``serving``, or ``waiting`` while it accepts no connectors.

    A worker accepts connectors when a query reads the receiver and the worker is ``ready``: it has received the query's
    committed references. ``query`` is the field of the fleet's record.
    """
    return "waiting" if query == NO_QUERY or not ready else "serving"


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
