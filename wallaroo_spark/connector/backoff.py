"""How long to wait before the next attempt, and when to give up. Pure: the clock and the dice are arguments."""

from __future__ import annotations

from dataclasses import dataclass

from wallaroo_spark.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Exponential back-off with a limit.

    ``initial`` and ``maximum`` are seconds; ``jitter`` is the part of a delay that is left to chance (0.5: half to
    all of it), so that connectors that lost the same worker do not come back in step. An effort is given up after
    ``attempts`` failures in a row (None: however many) or ``give_up_after`` seconds without a session.
    """

    initial: float = 0.2
    multiplier: float = 2.0
    maximum: float = 10.0
    jitter: float = 0.5
    attempts: int | None = None
    give_up_after: float = 300.0

    def __post_init__(self) -> None:
        self._check("initial", self.initial >= 0, "0 seconds or more")
        self._check("multiplier", self.multiplier >= 1, "1 or more")
        self._check("maximum", self.maximum >= self.initial, "at least initial")
        self._check("jitter", 0 <= self.jitter <= 1, "between 0 and 1")
        self._check("attempts", self.attempts is None or self.attempts >= 1, "1 or more, or None for no limit")
        self._check("give_up_after", self.give_up_after > 0, "above 0 seconds")

    def _check(self, name: str, fits: bool, expected: str) -> None:
        if not fits:
            raise ConfigurationError(f"retry.{name} is {getattr(self, name)}; it must be {expected}", option=name)

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after so many failures in a row (1 or more); ``chance`` is drawn from [0, 1)."""
        # The exponent is bounded so that a number of failures without limit cannot overflow a float.
        whole = min(self.maximum, self.initial * self.multiplier ** min(failures - 1, 64))
        return whole * (1 - self.jitter * chance)

    def exhausted(self, failures: int, seconds: float) -> bool:
        """Whether to give up after so many failures in a row and so long without success."""
        return seconds >= self.give_up_after or (self.attempts is not None and failures >= self.attempts)
