"""When a stream is forgotten that ended: the ends that a plan records, and the streams that leave with it. Pure.

A stream of the Kafka door ends without saying so: it counts as ended since a plan has read it last.

A stream is forgotten in two steps, each of which is a plan. The first one names the streams that ended longer ago than
the retention; they are *leaving*. A worker that was told of that lets no connector begin such a stream, and says which
ones are wanted. The second plan forgets the leaving streams that nobody wants, once every worker of the fleet has been
told of them. So no worker can tell a connector a reference of a stream that has been forgotten and begun anew.
Source: ``docs/decisions/streams-are-forgotten.md``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from wallaroo_spark import references
from wallaroo_spark.doors.kafka import PREFIX
from wallaroo_spark.source.planner import Plan

MOST_LEAVING = 10_000
"""Streams that leave at once; a choice, which bounds the notices of them (some 100 kB)."""
SLACK_PART = 8
"""Streams leave in groups: the oldest ended stream waits for this part of the retention longer than it has to.

A choice: while streams are leaving, their connectors are asked to come back later.
"""

Times = dict[references.StreamKey, int | None]
"""When streams ended, as changes of an earlier plan; None for a stream that is open again or forgotten."""


def dwell_seconds(lease_seconds: float) -> float:
    """How long streams are leaving at least: a worker that has lost its lease notices that in this time."""
    return lease_seconds + 5.0


class PlanClock:
    """The driver's clock, in milliseconds since 1970 UTC. It never goes back, and no step of the system moves it.

    The system's clock is read once, and the time that passes after that is counted. A time that an earlier plan has
    recorded counts as past.
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._base: float | None = None
        self._began = 0.0

    def after(self, recorded: int) -> int:
        """The time of a plan behind one of the time ``recorded``."""
        if self._base is None:
            self._base, self._began = self._wall(), self._elapsed()
        now = int((self._base + self._elapsed() - self._began) * 1000)
        if now < recorded:
            self._base += (recorded - now) / 1000
        return max(now, recorded)

    def counted(self) -> float:
        """The seconds that this process has counted: the time between two calls is right, whatever any plan records."""
        return self._elapsed()


@dataclass(frozen=True)
class Decision:
    """The ends of streams in a plan, beside the rows that it reads."""

    forgotten: references.Changes
    """The streams that it forgets, with None for each."""
    endings: references.EndingChanges
    """The changes of the ended streams."""
    due: bool
    """Whether it is to be planned though there is nothing to read."""
    settles: bool = False
    """Whether it settles a group of leaving streams. Such a plan must read nothing."""


class Forgetting:
    """Decides for one source. ``retention``, ``dwell`` and ``unused`` are in seconds.

    ``dwell`` is the least time between the two plans: a worker that has lost its slot has ended by then. It is counted
    in one process, because another process may have another clock, which may be ahead. ``unused`` is the retention of
    streams of the Kafka door. With 0 for one of both, streams of its kind are kept.
    """

    def __init__(self, retention: float, dwell: float, clock: PlanClock, unused: float = 0.0) -> None:
        self._ended, self._unused = retention > 0, round(unused * 1000)
        self._retention = round(retention * 1000) or self._unused
        self._dwell = dwell
        self._clock = clock
        self._watched: tuple[str, float] = ("", 0.0)
        """The token of the leaving streams, and the counted time at which this process first found them leaving."""
        self._oldest: int | None = None
        """No stream ended before this, as far as the last look at all of them says; None before the first look."""

    def decide(
        self, start: references.VersionedReferences, plan: Plan, ends: references.References, slots: int
    ) -> Decision:
        """The ends that a plan records which goes from ``start`` to ``ends``; ``slots`` is the size of the fleet."""
        before = start.endings
        at = self._clock.after(0 if before is None else before.at)
        if before is None:
            before = references.Endings(at, references.VersionedReferences.of({}), None)
        read, committed = references.flatten(ends), start.references_of(plan.ended)
        times: Times = {key: None for key, ended in before.times.references_of(read).items() if ended is not None}
        if self._oldest is None:
            times |= self._first_look(start, before, at)
        times |= {key: self._now(at) for key in read if self._unending(key)}
        # An end in this plan counts from the plan after it, when its batch is committed.
        times |= {key: at for key, end in plan.ended.items() if end == committed[key] and key not in read}
        if before.leaving is not None:
            return self._resolve(before, before.leaving, plan, times, slots, at)
        group = self._next_group(before, times, at)
        if group is not None:
            self._watch(group)
        return Decision({}, references.EndingChanges(at, references.nest(times), group), due=False)

    def _first_look(self, start: references.VersionedReferences, before: references.Endings, at: int) -> Times:
        """The streams of which no time is recorded, and those that ended while their kind had a retention."""
        known = before.times.plain()
        kept = (key for _, key in before.ended_before(at + self._unused) if not self._forgets(key))
        new = (
            key
            for scope, streams in start.plain().items()
            for key in (references.StreamKey(scope, int(stream)) for stream in streams if scope.startswith(PREFIX))
            if self._unending(key) and str(key.stream_id) not in known.get(scope, {})
        )
        return {**dict.fromkeys(kept), **dict.fromkeys(new, self._now(at))}

    def _now(self, at: int) -> int:
        """The time of a stream of the Kafka door that is used at a time. The one retention is counted from it."""
        return at + self._unused - self._retention if self._unused else at

    def _unending(self, key: references.StreamKey) -> bool:
        """Whether a stream is forgotten when nobody uses it."""
        return bool(self._unused) and key.scope.startswith(PREFIX)

    def _forgets(self, key: references.StreamKey) -> bool:
        """Whether streams of its kind are forgotten."""
        return self._unending(key) or (self._ended and not key.scope.startswith(PREFIX))

    def _watch(self, leaving: references.Leaving) -> float:
        """The counted seconds since this process first found these streams leaving."""
        now = self._clock.counted()
        if self._watched[0] != leaving.token:
            self._watched = (leaving.token, now)
        return now - self._watched[1]

    def _resolve(
        self,
        before: references.Endings,
        leaving: references.Leaving,
        plan: Plan,
        times: Times,
        slots: int,
        at: int,
    ) -> Decision:
        """Forget the leaving streams once every worker knows of them, but for those that somebody wants."""
        streams = before.leaving_streams()
        wanted = [key for key in streams if key in plan.wanted and key not in times]
        # They are open, so they have not ended before now.
        times |= {key: self._now(at) if self._unending(key) else at for key in wanted}
        known = all(plan.leaving.get(slot) == leaving.token for slot in range(slots))
        waited = self._watch(leaving)
        if not slots or not known or waited < self._dwell:
            return Decision({}, references.EndingChanges(at, references.nest(times), leaving), due=bool(wanted))
        forgotten = dict.fromkeys(key for key in streams if key not in times)
        self._oldest = None
        endings = references.EndingChanges(at, references.nest(times | forgotten), None)
        return Decision(references.nest(forgotten), endings, due=True, settles=True)

    def _next_group(self, before: references.Endings, times: Times, at: int) -> references.Leaving | None:
        """The streams that leave next; None while the retention of none is over."""
        over = at - self._retention
        if self._oldest is not None and self._oldest > over - self._retention // SLACK_PART:
            return None
        found = [ended for ended, key in before.ended_before(at) if key not in times]
        # Streams that this plan reads may have a time before the plan's own.
        self._oldest = min([*found, at, self._now(at)])
        if self._oldest > over - self._retention // SLACK_PART:
            return None
        group = [ended for ended in found if ended <= over][:MOST_LEAVING]
        return references.Leaving(group[-1], at, secrets.token_hex(4))
