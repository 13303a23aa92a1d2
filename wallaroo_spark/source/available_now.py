"""``Trigger.AvailableNow`` for a push source: when a run has all the messages that it takes, and where it ends.

Pure: the callers pass the time as ``now``, in seconds of one monotonic clock. Source: ``docs/options.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wallaroo_spark.options import Options
from wallaroo_spark.references import Reference, References, flatten, nest, references_of


class AvailableNow:
    """One run. It takes the messages that connectors send until all of them are quiet, and no message that comes later.

    The *target* of a run is its end: the ends of all streams at the moment when all connectors were quiet, or when
    ``availableNowTimeout`` was over.
    """

    def __init__(self, options: Options, *, now: float) -> None:
        self._began = now
        self._latest = now + options.available_now_timeout
        self._quiet_seconds = options.quiet_seconds
        self._instances = frozenset(options.instances)
        self._increasing = options.message_ids == "increasing"
        self._idle_since: float | None = None
        self.target: References | None = None
        """The references at which the run ends, of the streams that it still reads; None while they are not known."""

    def late(self, *, now: float) -> bool:
        """Whether the run has waited for its whole ``availableNowTimeout``."""
        return now > self._latest

    def quiet(
        self, seen: Mapping[str, Mapping[str, Any]], connected: Mapping[str, Mapping[str, Any]], *, now: float
    ) -> bool:
        """Whether each connector has sent nothing for ``quietSeconds``, or has ended all of its streams.

        ``seen`` has each instance that was ever connected, in its last known state; ``connected`` has those that are
        connected now. Only the time in which no batch runs counts, because a connector may wait for credits until a
        batch is committed.
        """
        # Without names, the run waits for some time so that connectors can connect.
        come = self._instances <= set(seen) if self._instances else now - self._began >= self._quiet_seconds
        if not come:
            return False
        waited = 0.0 if self._idle_since is None else now - self._idle_since
        for instance, last in list(seen.items()):
            idle = connected[instance]["idle"] if instance in connected else now - last["at"]
            ended = last["streams"] and not last["open"]
            if not ended and min(idle, waited) < self._quiet_seconds:
                return False
        return True

    def nothing_to_read(self, *, now: float) -> None:
        """No batch could be planned: the time in which no batch runs begins, or continues."""
        if self._idle_since is None:
            self._idle_since = now

    def busy(self) -> None:
        """A batch is planned, or a connector waits for an ACK: the time in which no batch runs begins again later."""
        self._idle_since = None

    def within_target(self, start: References, ends: References) -> References:
        """The ends of a batch that would go from ``start`` to ``ends``, cut where they lie beyond the target.

        Streams that have reached the target, and streams that the target does not have, are left out.
        """
        target = self.target
        if target is None:
            return ends
        beyond = flatten(ends)
        known, last = references_of(start, beyond), references_of(target, beyond)
        return nest(
            {key: self._nearer(beyond[key], to) for key, to in last.items() if to is not None and to != known[key]}
        )

    def _nearer(self, end: Reference, target: Reference) -> Reference:
        """The earlier reference. Where ids do not increase, the order is not known, and this is the target."""
        if self._increasing and isinstance(end, int) and isinstance(target, int):
            return min(end, target)
        return target
