"""The delay before the next attempt, and the limit of attempts. Pure: clock and random numbers are arguments."""

from __future__ import annotations

from dataclasses import dataclass

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.settings import Kind, check_all, setting


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Exponential back-off with a limit."""

    initial: float = setting(0.2, Kind.SECONDS, minimum=0)
    """Delay after the first failure."""
    multiplier: float = setting(2.0, Kind.NUMBER, minimum=1)
    """Factor from one delay to the next."""
    maximum: float = setting(10.0, Kind.SECONDS, minimum=0)
    """Longest delay; at least initial."""
    jitter: float = setting(0.5, Kind.NUMBER, minimum=0, maximum=1)
    """Part of a delay that is random (0.5: half to all of it), so that connectors that have lost the same worker do
    not come back at the same moment."""
    attempts: int | None = setting(None, Kind.COUNT, minimum=1)
    """Failures in a row after which to give up; None: any number."""
    give_up_after: float = setting(300.0, Kind.SECONDS, minimum=0.001)
    """Seconds without a session after which to give up."""

    def __post_init__(self) -> None:
        check_all(self, "retry.")
        if self.maximum < self.initial:
            raise ConfigurationError(
                f"retry.maximum: {self.maximum} is below retry.initial, {self.initial}",
                code="options-conflict",
                option="maximum",
            )

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after ``failures`` failures in a row (1 or more); ``chance`` is a random number in [0, 1)."""
        # The exponent is bounded, because an unlimited number of failures would overflow a float.
        whole = min(self.maximum, self.initial * self.multiplier ** min(failures - 1, 64))
        return whole * (1 - self.jitter * chance)

    def exhausted(self, failures: int, seconds: float) -> bool:
        """Whether to give up after ``failures`` failures in a row and ``seconds`` seconds without a session."""
        return seconds >= self.give_up_after or (self.attempts is not None and failures >= self.attempts)
