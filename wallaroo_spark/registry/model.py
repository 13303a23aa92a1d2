"""The registry's records as values. Source: ``docs/decisions/redis-holds-nothing-durable.md``."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

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
