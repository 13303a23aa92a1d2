"""What the registry keeps, as values."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

NO_QUERY = "none"
"""What a fleet's record says of its ``query`` while the receiver feeds none."""
QUERY_STARTS = "starting"
"""What it says while one starts; then it says the query's id."""


@dataclass(frozen=True)
class Lease:
    """The right to serve a slot, until it expires or a newer one is given out.

    Leases of a slot are ordered by ``(submission, generation)``: the driver numbers its submissions of the slot's job,
    and the registry numbers the leases it gives out. ``connect`` is the ``host:port`` that connectors are told,
    ``flight`` that of the inner Flight port, empty until it is served.
    """

    slot: int
    submission: int
    generation: int
    holder: str
    connect: str
    flight: str

    def to_json(self) -> str:
        """The lease as the scripts take it: every number as decimal text, since Lua's numbers are doubles."""
        return json.dumps({name: str(value) for name, value in dataclasses.asdict(self).items()})

    @classmethod
    def from_json(cls, text: str) -> Lease:
        """Read what a script returned. Raises ``ValueError`` or ``KeyError`` when that is not a lease."""
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
    """The slot a connector instance belongs to, and the address it is served at; None while nobody serves the slot."""

    slot: int
    connect: str | None


def state_served(ready: bool, query: str) -> str:
    """The state of a slot whose worker answers: it waits while there is no query for which connectors are let in.

    ``ready`` is whether the worker knows where a query stands, ``query`` what the fleet's record says of it.
    """
    return "waiting" if query == NO_QUERY or not ready else "serving"
