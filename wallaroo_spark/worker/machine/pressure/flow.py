"""Limits the arrival of messages: credit windows from the memory budget, and sockets that are not read.

Windows have a fixed part of the budget, or follow the query's rate (:mod:`.pace`).

Pure. Source: ``docs/protocol.md#credits``; ``docs/architecture.md#rules``, rule 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum

from wallaroo_spark.options import Options
from wallaroo_spark.worker.machine.pressure.pace import Pace

LARGEST_WINDOW = 65_536
"""Greatest window of a session, in credits. It bounds the work on one session's messages."""
SMALLEST_WINDOW = 64
"""Least share of a session in the next batch's need, in credits, where the budget allows it.

With fewer credits a session would wait for an ACK after each few messages.
"""
DOOR_CREDITS = 1 << 31
"""Credits of a door's session. They limit nothing: a door has received a request before it sends its messages, and
limits by the memory in use which requests it takes."""
_SOFT_PART = 0.75
"""Part of the budget up to which credits are granted.

The rest holds messages of credits that were granted before, and messages that waiting reads need.
"""
_ROOM = 1.25
"""Factor on the average size of a row when limits in rows become bytes. A quarter is for variation."""
_FIRST_GUESS = 256.0
"""Bytes of memory of a message before any was observed. It is replaced by the measured average."""
_SMOOTHING = 10_000
"""Number of messages over which the average size of a message is smoothed."""


class Pressure(IntEnum):
    """How full the buffer is.

    Above the soft limit only messages that a waiting read needs are let in, above the hard limit none.
    """

    NONE = 0
    SOFT = 1
    HARD = 2


class FlowControl:
    """The windows and limits of one worker, from its options (``credits``, ``memoryBudget`` and those of the size of a
    batch) and the memory in use.

    ``pace`` is None for fixed windows. ``active`` is the number of sessions with messages to send, as far as is known:
    the need of the next batch is divided among them, the free budget among all sessions. ``waiting`` is whether a read
    waits for messages, which are then let in regardless of the next batch's need.
    """

    def __init__(self, options: Options) -> None:
        self.budget = options.memory_budget
        self.soft_limit = int(self.budget * _SOFT_PART)
        self.pace = Pace(self.soft_limit) if options.credits == "adaptive" else None
        self.active = 0
        self.waiting = False
        self._row_bytes = _FIRST_GUESS
        self._least_rows = options.min_offsets_per_trigger or 0
        self._most_rows = options.max_offsets_per_trigger or math.inf
        self._most_bytes = options.max_bytes_per_trigger or math.inf

    @property
    def limit(self) -> int:
        """Held bytes up to which credits are granted."""
        return self.soft_limit if self.pace is None or self.waiting else self.pace.limit

    def observe(self, rows: int, size: int) -> None:
        """Record the memory of messages."""
        if rows:
            weight = min(1.0, rows / _SMOOTHING)
            self._row_bytes += (size / rows - self._row_bytes) * weight

    def full(self, used: int) -> bool:
        """Record the memory in use. Returns whether no session gets credits now, unless a read waits."""
        if self.pace is not None:
            self.pace.arrived(used)
        return used >= self.limit

    def denies(self, used: int) -> bool:
        """Whether no session gets credits while this much memory is in use, unless a read waits."""
        return used >= self.limit

    def tick(self, now: float, used: int, plannable: Callable[[], bool]) -> None:
        """Time has passed (``now`` is monotonic, in seconds); see :meth:`.pace.Pace.tick`."""
        if self.pace is not None:
            self._bound(self.pace)
            self.pace.tick(now, used, plannable)

    def committed(self, now: float | None, number: int, freed: int, used: int) -> None:
        """A batch was committed and has freed bytes. ``now`` is monotonic; None: the time of the last tick."""
        if self.pace is not None:
            self._bound(self.pace)
            self.pace.committed(self.pace.now if now is None else now, number, freed, used)

    def _bound(self, pace: Pace) -> None:
        """Set the pace's bounds from the options, with ``_ROOM`` because the memory of a row is an average."""
        rows = self._row_bytes * _ROOM
        pace.bound(self._least_rows * rows, min(self._most_rows * rows, self._most_bytes * _ROOM))

    def restart(self, number: int) -> None:
        """A query continues behind the batch of this number."""
        if self.pace is not None:
            self.pace.restart(number)

    def pressure(self, used: int) -> Pressure:
        """How full the buffer is with ``used`` bytes."""
        if used >= self.budget:
            return Pressure.HARD
        return Pressure.SOFT if used >= self.soft_limit else Pressure.NONE

    def window(self, used: int, sessions: int) -> int:
        """The credits that one of ``sessions`` sessions may hold: its share of the free memory, and at least one."""
        each = max(1, sessions) * self._row_bytes
        share = int((self.soft_limit - used) / each)
        if self.limit < self.soft_limit:
            each = max(1, min(sessions, self.active)) * self._row_bytes
            share = min(share, max(SMALLEST_WINDOW, int((self.limit - used) / each)))
        return max(1, min(LARGEST_WINDOW, share))

    def top_up(self, available: int, used: int, sessions: int, *, needed: bool) -> int:
        """The credits to grant now: none while more than half a window is left or there is pressure.

        ``needed`` is whether a waiting read needs what this session sends; it gets credits until the buffer is full.
        """
        pressure = self.pressure(used)
        if pressure is Pressure.HARD or (used >= self.limit and not (pressure is Pressure.SOFT and needed)):
            return 0
        window = self.window(used, sessions)
        return window - available if available <= window // 2 else 0

    def may_read(self, used: int, *, streaming: bool, needed: bool) -> bool:
        """Whether to read a session's socket. Handshakes are always read, because they hold no messages."""
        pressure = self.pressure(used)
        return not streaming or pressure is Pressure.NONE or (pressure is Pressure.SOFT and needed)
