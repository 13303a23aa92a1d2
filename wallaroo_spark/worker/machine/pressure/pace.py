"""The number of bytes that the buffer should hold: the rows of the batch that runs, and the rows for the next batch.

A micro-batch has a fixed cost, in addition to the cost of its bytes. So a larger batch drains faster, up to a size
above which it only takes longer. A batch should last :data:`WORTH` times its fixed cost, which is then a small part of
it. It needs as many bytes as drain in that time:

    batch = the highest of the last drain rates × WORTH × the shortest but one of the last batch lengths

BBR finds the capacity of a network path in the same way: the highest rate times the shortest time. A PID controller
does not fit, because it reacts to an error, and the right size of the buffer is unknown until rate and length are
known. When they are known, their product is the right size, in one step and without factors to tune. Simulated loads
are in ``proving/bench/simulated_loads.py``.

- *The supply is the limit.* A batch that took all available rows shows nothing about the sink, and changes nothing. A
  batch that was limited may halve the next batch, or make it up to four times as large: a slow start, which the formula
  ends.
- *The shortest length* is observed when a batch is small: when few messages arrive, and in probes. A probe is a batch
  that is small on purpose (BBR's ProbeRTT); every worker makes two of them at the same batch numbers, the first ones
  some seconds after a start. Without probes, a sink that is always busy would seem to have a high fixed cost. The
  shortest length but one is used, because a late commit notice makes the next batch seem short.
- *No commit comes.* A stalled sink looks the same as a planner that waits for more messages, so the limit grows slowly.
  When no held row can be planned, the sink is not the cause, and the whole buffer may be used at once.

Pure: all times are arguments, in monotonic seconds; sizes are bytes of memory. Source: ``docs/decisions/credits.md``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

WORTH = 20
"""A batch should last this many times its fixed cost. Measured in ``docs/decisions/credits.md``, "Why 20"."""
SMALLEST_BATCH = 2 << 20
"""Bytes that a batch may always have; a buffer without room for two such batches is not regulated.

It is one lot of the worker (2 MiB), below which nothing is gained.
"""
START_PART = 8
"""The first batch may have this part (1/8) of the limit. It is three doublings below the limit."""
PATIENCE_SECONDS = 15.0
"""Seconds that a full buffer waits for a commit before the limit grows. Usual batches are shorter."""
CREEP_SECONDS = 900.0
"""Seconds in which the limit then grows to the most. That is the default of ``maxTriggerDelay``."""
FIRST_SECONDS = 5.0
"""Greatest length of a batch, in seconds, while its fixed cost is unknown."""
FIRST_PROBE_SECONDS = 10.0
"""Seconds between the first batch that was held back and the first probes.

A query is not slowed by them while it starts.
"""
PROBE_EVERY = 64
"""Number of batches between two groups of small batches (probes).

Two of 64 batches bound the cost of probing to 3 % of the batches.
"""
_PROBES = 2
"""Number of small batches in a group: two, because the shortest length but one counts."""
_PROBE_PART = 4 * WORTH
"""A probe has this part (1/80) of the batch, so that its bytes take a quarter of the fixed cost."""
_GROWTH = 4
"""Greatest growth of a batch from one to the next. It is a slow start with the factor 4."""
_RATES = 3
"""Number of recent drain rates of which the highest counts."""


class Pace:
    """The number of bytes that a buffer may hold now (``limit``, at most ``most``), and that the next batch needs
    (``batch``).

    While a batch runs, ``limit`` leaves room for ``batch`` beside it, because its rows are held until its commit.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 0.0
        self.limit = most
        self.batch = 0
        self._least, self._largest = min(most, SMALLEST_BATCH), most
        self.restart(-1)

    def restart(self, number: int) -> None:
        """A query continues behind the batch of this number, with unknown rate and length."""
        self.batch = max(self._least, self.most // START_PART)
        self._number = number
        self._held = 0
        self._crept = 0.0
        self._unplannable = False
        self._limited_at: float | None = None
        self._probed = False
        self._probing = 0
        self._committed_at: float | None = None
        self._began: float | None = None
        self._prices: deque[float] = deque(maxlen=2 * PROBE_EVERY)
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._full_at: float | None = None
        self._was_full = False
        self._set_limit()

    def bound(self, least: float, largest: float) -> None:
        """A batch is planned from ``least`` bytes on, and takes at most ``largest``."""
        self._least = int(min(self.most, max(SMALLEST_BATCH, least)))
        self._largest = int(min(self.most, max(self._least, largest)))
        self.batch = self._bounded(self.batch)
        self._set_limit()

    def arrived(self, used: int) -> bool:
        """Record the held bytes; returns whether they are at the limit."""
        if self._began is None and used:
            self._began = self.now
        if used < self.limit:
            return False
        if self._full_at is None:
            self._full_at = self.now
        return True

    def tick(self, now: float, used: int, plannable: Callable[[], bool]) -> None:
        """Time has passed. ``plannable`` returns whether a batch could take any of the held rows."""
        passed, self.now = max(0.0, now - self.now), max(now, self.now)
        if not self.arrived(used) or self.limit >= self.most:
            return
        self._unplannable = not plannable()
        assert self._full_at is not None
        if self.now - self._full_at > PATIENCE_SECONDS:
            self._crept += passed * self.most / CREEP_SECONDS
        self._set_limit()

    def committed(self, now: float, number: int, freed: int, held: int) -> None:
        """The batch of this number was committed, freed ``freed`` bytes and left ``held``. Skipped numbers were
        committed, too.
        """
        self.now = max(now, self.now)
        limited = self._was_full or self._full_at is not None
        if self._committed_at is not None:
            self._see((self.now - self._committed_at) / max(1, number - self._number), freed)
        length = self.now - (self.now if self._began is None else self._began)
        if limited and freed and length > 0:
            self._learn(freed / length, length)
        self._probe(limited, number)
        self._was_full, self._full_at = self._full_at is not None, None
        self._number, self._held, self._crept, self._unplannable = number, held, 0.0, False
        self._committed_at = self.now
        self._began = self.now if held else None
        self._set_limit()

    def _see(self, length: float, freed: int) -> None:
        """Record the length of a batch, in seconds. For a small batch the time that its bytes need is subtracted."""
        if 4 * freed <= self.batch and self._rates:
            length = max(length / 2, length - freed / max(self._rates))
        if length > 0:
            self._prices.append(length)

    def _probe(self, limited: bool, number: int) -> None:
        """Decide whether the next batches are probes; not while a larger batch is waited for."""
        if self._probing:
            self._probing -= 1
        elif limited and self._least <= SMALLEST_BATCH < self.most // 2:
            self._limited_at = self.now if self._limited_at is None else self._limited_at
            due = number // PROBE_EVERY != self._number // PROBE_EVERY
            if due or (not self._probed and self.now >= self._limited_at + FIRST_PROBE_SECONDS):
                self._probing, self._probed = _PROBES, True

    def _learn(self, rate: float, length: float) -> None:
        """Record the drain rate (bytes a second) and the length of a batch that could have been larger."""
        worth = WORTH * sorted(self._prices)[:2][-1] if self._prices else math.inf
        if length > 2 * worth:
            # Half of it would still be too long, so the earlier rates no longer hold.
            self._rates.clear()
        self._rates.append(rate)
        if self._probing:
            return
        most = max(self._rates) * (worth if self._probed else min(worth, FIRST_SECONDS))
        least = self.batch / 2 if self._probed else self.batch
        self.batch = self._bounded(max(least, min(most, _GROWTH * (self.batch + self._crept))))

    def _bounded(self, batch: float) -> int:
        return max(self._least, min(self._largest, int(batch)))

    def _set_limit(self) -> None:
        gathers = self.batch // _PROBE_PART if self._probing else self.batch
        # Up to two batches may be held, because the size of the next batch may just have been halved.
        limit = min(self._held, 2 * self.batch) + gathers + int(self._crept)
        if not self._probing:
            limit = max(limit, 2 * SMALLEST_BATCH)
        self.limit = self.most if self._unplannable else min(self.most, limit)
