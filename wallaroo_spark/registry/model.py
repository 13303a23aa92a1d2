"""The registry's records as values."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

NO_QUERY = "none"
"""The field ``query`` of a fleet's record while the receiver feeds no query."""
QUERY_STARTS = "starting"
"""The same field while a query starts; after that it is the query's id."""


@dataclass(frozen=True)
class Lease:
    """The right to serve a slot, until it expires or a newer lease is given out.

    Leases of a slot are ordered by ``(submission, generation)``.
    """

    slot: int
    submission: int
    """The driver's number for its submission of the slot's job."""
    generation: int
    """The registry's number for this lease of the slot."""
    holder: str
    """The worker process that has the lease."""
    connect: str
    """``host:port`` for connectors; empty until the worker listens."""
    flight: str
    """``host:port`` of the inner Flight port; empty until the worker listens."""

    def to_json(self) -> str:
        """The lease as the scripts take it: every number as decimal text, because Lua's numbers are doubles."""
        return json.dumps({name: str(value) for name, value in dataclasses.asdict(self).items()})

    @classmethod
    def from_json(cls, text: str) -> Lease:
        """The lease that a script has returned. Raises ``ValueError`` or ``KeyError`` for any other text."""
        record = json.loads(text)
        return cls(
            slot=int(record["slot"]),
            submission=int(record["submission"]),
            generation=int(record["generation"]),
            holder=record["holder"],
            connect=record["connect"],
            flight=record["flight"],
        )


def expires_at(text: str) -> int:
    """When a lease that a script wrote expires, in milliseconds of Redis' clock. Raises as :meth:`Lease.from_json`."""
    return int(json.loads(text)["expires"])


@dataclass(frozen=True)
class Assignment:
    """The slot that a connector instance belongs to."""

    slot: int
    connect: str | None
    """``host:port`` of the slot's worker; None while no worker serves the slot."""


def state_served(ready: bool, query: str) -> str:
    """The state of a slot whose worker answers: ``waiting`` while no query runs for which connectors are let in.

    ``ready`` says whether the worker knows the committed references of a query; ``query`` is that field of the fleet's
    record.
    """
    return "waiting" if query == NO_QUERY or not ready else "serving"
