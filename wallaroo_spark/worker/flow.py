"""How much a worker lets in: credit windows granted out of the memory budget, and which sockets are read.

Pure. Source: ``protocol.md``, rulings on credits; ``design.md``, rule 6; ``seeds/000``, Overview.
"""

from __future__ import annotations

from enum import IntEnum

LARGEST_WINDOW = 65_536
_SOFT_PART = 0.75
_FIRST_GUESS = 256.0
_SMOOTHING = 10_000


class Pressure(IntEnum):
    """How full the buffer is: past soft only what a waiting read needs is let in, past hard nothing."""

    NONE = 0
    SOFT = 1
    HARD = 2


class FlowControl:
    """The windows and gates of one worker, from its budget and what is in use."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.soft_limit = int(budget * _SOFT_PART)
        self._row_bytes = _FIRST_GUESS

    def observe(self, rows: int, size: int) -> None:
        """Take note of what messages cost in memory."""
        if rows:
            weight = min(1.0, rows / _SMOOTHING)
            self._row_bytes += (size / rows - self._row_bytes) * weight

    def pressure(self, used: int) -> Pressure:
        """How full the buffer is."""
        if used >= self.budget:
            return Pressure.HARD
        return Pressure.SOFT if used >= self.soft_limit else Pressure.NONE

    def window(self, used: int, sessions: int) -> int:
        """The credits that one of so many sessions may hold: its share of what is free, and at least one."""
        share = (self.soft_limit - used) / (max(1, sessions) * self._row_bytes)
        return max(1, min(LARGEST_WINDOW, int(share)))

    def top_up(self, available: int, used: int, sessions: int, *, needed: bool) -> int:
        """The credits to grant now: none while more than half a window is left or there is pressure.

        ``needed`` is whether a waiting read needs what this session sends; it gets credits until the buffer is full.
        """
        pressure = self.pressure(used)
        if pressure is Pressure.HARD or (pressure is Pressure.SOFT and not needed):
            return 0
        window = self.window(used, sessions)
        return window - available if available <= window // 2 else 0

    def may_read(self, used: int, *, streaming: bool, needed: bool) -> bool:
        """Whether to read from a session's socket; handshakes are always read, they hold no messages."""
        pressure = self.pressure(used)
        return not streaming or pressure is Pressure.NONE or (pressure is Pressure.SOFT and needed)
