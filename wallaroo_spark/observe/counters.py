"""Counters that never go backwards, although workers die and start again from zero. Pure.

Source: ``docs/monitoring.md#counters``.
"""

from __future__ import annotations

from collections import Counter

from wallaroo_spark.observe.receiver import ReceiverStatus, SlotStatus

KEPT_WORKERS = 4
"""Maximum number of a slot's workers whose counts are kept separately.

A choice: answers of a former worker arrive at most a few seconds late, and a slot does not change its worker so often.
"""

ROWS_IN, ROWS_OUT = "rows-in", "rows-out"
"""The names of the counters of received and of committed rows."""
Identity = tuple[int, str, int | None]
"""One worker: the generation of its lease, its unique name and its process id."""


class SlotCounts:
    """The counters of one slot: the sum over all workers that have served it."""

    def __init__(self) -> None:
        self._former: Counter[str] = Counter()
        self._workers: dict[Identity, Counter[str]] = {}
        self._jobs: Counter[str] = Counter()
        self._last_jobs: Counter[str] = Counter()

    def add(self, slot: SlotStatus) -> None:
        """Add one snapshot. An answer is ignored when a newer one of the same worker was added before."""
        if slot.answers or slot.counts:
            # Each counter by its greatest value: an answer that comes late has lower ones.
            known = self._workers.setdefault((slot.generation, slot.holder, slot.pid), Counter())
            known |= Counter({**slot.counts, ROWS_IN: slot.rows_in, ROWS_OUT: slot.rows_out})
            if len(self._workers) > KEPT_WORKERS:
                self._former.update(self._workers.pop(next(iter(self._workers))))
        for name, value in (("deaths", slot.died), ("submissions", slot.submissions or 0)):
            # Another start of the fleet counts from zero.
            last = self._last_jobs[name]
            self._jobs[name] += value - last if value >= last else value
            self._last_jobs[name] = value

    def totals(self) -> Counter[str]:
        """The counters, by the names of a worker's counts; those of its job, ROWS_IN and ROWS_OUT beside them."""
        return sum((self._former, self._jobs, *self._workers.values()), Counter())


class Aggregate:
    """The counters of a receiver by slot, from its snapshots. Slots that do not answer keep their last values."""

    def __init__(self) -> None:
        self._slots: dict[int, SlotCounts] = {}
        self._time = 0.0

    def add(self, status: ReceiverStatus) -> None:
        """Add a snapshot. It is ignored when it is older than the last one."""
        if status.time < self._time:
            return
        self._time = status.time
        for slot in status.slots:
            self._slots.setdefault(slot.slot, SlotCounts()).add(slot)

    def counts(self) -> dict[int, Counter[str]]:
        """The counters of each slot that was ever seen."""
        return {number: slot.totals() for number, slot in sorted(self._slots.items())}
