"""The figures of a gateway: counters since its start, and the ages of its calls and deliveries. Pure.

The gateway's report has them, and the driver's metrics, status and page show them. Source:
``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

from wallaroo_spark.gateway.state.members import JoinedMember, StageJoining

OK = "ok"
"""The outcome of a call that was answered without an error; the others are codes of refusals."""
COMMIT_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of the seconds to a commit.

They lie around the measured times of ``docs/performance.md#durable-streams-and-pipelines``; the last one is the limit
of a call.
"""

ALWAYS_THERE = ("commit-seconds", "inbox-files", "inbox-events", "inbox-bytes", "inbox-seconds")
"""The counts that a report has from the start: the seconds from calls to their commits, and the files of the inbox with
their events, the bytes of these, and the seconds that writing them has taken."""


class GatewayFigures:
    """Counts calls, commits and refused tokens. ``now`` is monotonic time in seconds."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, float] = defaultdict(int, dict.fromkeys(ALWAYS_THERE, 0))
        """``calls:<method>:<outcome>``, ``deliveries``, ``tokens-refused``, ``commit:<bound>``, and ALWAYS_THERE."""
        self.refused_reason = ""
        """Why a token was refused last."""
        self._refused_at: float | None = None
        self._waiting: dict[Hashable, float] = {}
        self._oldest: dict[int, tuple[int, float]] = {}

    def call(self, method: str, outcome: str = OK) -> None:
        """A call has ended."""
        self.counts[f"calls:{method}:{outcome}"] += 1

    def token(self, reason: str, now: float) -> None:
        """A token was refused."""
        self.counts["tokens-refused"] += 1
        self.refused_reason, self._refused_at = reason, now

    def refused_age(self, now: float) -> float | None:
        """Seconds since a token was refused last; None when none was."""
        return None if self._refused_at is None else now - self._refused_at

    def waits(self, call: Hashable, now: float) -> None:
        """A call begins to wait for its commit."""
        self._waiting[call] = now

    def waited(self, call: Hashable, now: float, *, committed: bool) -> None:
        """A call waits no more; ``committed``: because its commit has come."""
        seconds = now - self._waiting.pop(call)
        if committed:
            bound = next((f"{bound:g}" for bound in COMMIT_SECONDS if seconds <= bound), "+Inf")
            self.counts[f"commit:{bound}"] += 1
            self.counts["commit-seconds"] += seconds

    def oldest_call(self, now: float) -> float | None:
        """Seconds for which the oldest call has waited; None when none waits."""
        first = next(iter(self._waiting.values()), None)
        return None if first is None else now - first

    def oldest_deliveries(self, members: Iterable[JoinedMember], now: float) -> dict[str, float]:
        """For each ``pipeline stage`` the seconds for which its oldest delivery has been open.

        A delivery counts from the first call of this method that has seen it.
        """
        seen: dict[int, tuple[int, float]] = {}
        found: dict[str, float] = {}
        for member in members:
            joining, number = member.joining, member.oldest_open
            if number is None or not isinstance(joining, StageJoining):
                continue
            before = self._oldest.get(member.number)
            since = before[1] if before is not None and before[0] == number else now
            seen[member.number] = number, since
            place = f"{joining.pipeline} {joining.stage}"
            found[place] = max(now - since, found.get(place, 0.0))
        self._oldest = seen
        return found
