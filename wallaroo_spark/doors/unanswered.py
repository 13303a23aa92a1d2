"""Rows that nobody can send again: planned ranges of a door's stream whose client does not come back.

The worker that held such rows has died before they were committed, so their client was not answered. A client that is
still there sends them again, and fills the range. When none does within ``door.replayTimeout``, the range is given up:
it counts as complete with the rows that have come. A connector's stream is never given up.

Pure. Source: ``docs/doors.md#rows-that-nobody-can-resend``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wallaroo_spark.protocol.reserved import reserved
from wallaroo_spark.references import PlannedRange

AGAIN_SECONDS = 1.0
"""Pause between two attempts to give up a range, in seconds. A choice: each asks the registry."""


class UnansweredRanges:
    """The ranges of doors' streams that reads wait for, each with the time since when.

    A read gives up after ``replay_timeout``, so a range is given up within half of that.
    """

    def __init__(self, seconds: float, replay_timeout: float) -> None:
        self._seconds = min(seconds, replay_timeout / 2)
        self._since: dict[PlannedRange, float | None] = {}
        self._not_before: dict[PlannedRange, float] = {}

    def wanted(self, ranges: Iterable[PlannedRange]) -> None:
        """These are all ranges that reads wait for now."""
        self._since = {
            planned: self._since.get(planned)
            for planned in ranges
            if reserved(planned.key.scope) and isinstance(planned.end, int)
        }
        self._not_before = {planned: at for planned, at in self._not_before.items() if planned in self._since}

    def __bool__(self) -> bool:
        return bool(self._since)

    def waits(self, prefix: str, now: float) -> dict[str, float]:
        """By instance with this prefix: the seconds for which one of its ranges has been waited for."""
        found: dict[str, float] = {}
        for planned, since in self._since.items():
            scope = planned.key.scope
            if since is not None and scope.startswith(prefix):
                found[scope] = max(found.get(scope, 0.0), now - since)
        return found

    def due(self, now: float, own: str) -> Iterator[PlannedRange]:
        """The ranges to give up now; those of instances that end with ``own`` need no wait.

        ``now`` is in monotonic seconds. A range that could not be given up is returned again a second later.
        """
        for planned in self._since:
            since = self._since[planned]
            begun = now if since is None else since
            self._since[planned] = begun
            patience = 0.0 if planned.key.scope.endswith(own) else self._seconds
            if now - begun >= patience and now >= self._not_before.get(planned, now):
                self._not_before[planned] = now + AGAIN_SECONDS
                yield planned
