"""The order and the times in which a connector tries the workers' addresses. Pure: clock and random numbers are
arguments.

Source: ``docs/protocol.md#when-to-try-again``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.errors import TransportError

Address = tuple[str, int]

REDIRECTS_IN_A_ROW = 5
"""Redirections that are followed without delay; another one without progress counts as a failed attempt.

A choice: enough for the moves of one instance, and a bound for workers that redirect to each other.
"""


BEHIND_SECONDS = 15.0
"""Seconds for which a connector reconnects to workers that request acknowledged messages again.

A worker that the driver could not reach does not know the last commits yet. The driver notifies it again every half
second, and one of its calls ends after 10 seconds at the latest; this is longer.
"""


class AddressRotation:
    """The order of attempts: a redirection first, then the address of the last session, then round-robin.

    ``instance`` decides the first address of the round-robin: connectors whose names differ spread over the workers,
    and each of them begins at the same address after a restart. ``random`` returns a number in [0, 1). Times are
    seconds of any steady clock.
    """

    def __init__(self, backoff: Backoff, random: Callable[[], float], now: float, instance: str = "") -> None:
        self._backoff = backoff
        self._random = random
        self._addresses: list[Address] = []
        self._turn = sum(instance.encode())
        self._first_choice: Address | None = None
        self._failures = 0
        self._attempts = 0
        self._redirects = 0
        self._down_since = now
        self._behind = 0
        self._behind_since = now
        self._tried: dict[str, int] = {}
        self._last_reason = "no attempt was made"
        self._ever = False

    @property
    def last_reason(self) -> str:
        """The reason why the last session or attempt has ended; empty before."""
        return self._last_reason if self._ever else ""

    @property
    def down_since(self) -> float:
        """The time at which the last session ended, or that of the start."""
        return self._down_since

    @property
    def failures(self) -> int:
        """Failed attempts in a row."""
        return self._failures

    def replace(self, addresses: Sequence[Address]) -> None:
        """Set the known addresses; their order is kept."""
        self._addresses = list(addresses)

    def next(self) -> Address | None:
        """The address for the next attempt; None when none is known."""
        if self._first_choice is not None:
            address, self._first_choice = self._first_choice, None
            return address
        if not self._addresses:
            return None
        address = self._addresses[self._turn % len(self._addresses)]
        self._turn += 1
        return address

    def failed(self, where: str, reason: str) -> None:
        """An attempt at ``where`` has failed."""
        self._failures += 1
        self._attempts += 1
        self._redirects = 0
        self._tried[where] = self._tried.get(where, 0) + 1
        self._last_reason, self._ever = reason, True

    def redirected(self, where: str, address: Address) -> None:
        """The worker at ``where`` has redirected the connector to ``address``."""
        if self._redirects >= REDIRECTS_IN_A_ROW:
            self.failed(where, f"redirected {self._redirects + 1} times in a row without a session")
            return
        self._redirects += 1
        self._tried[where] = self._tried.get(where, 0) + 1
        self._first_choice = address

    def connected(self) -> None:
        """A session has begun."""
        self._attempts = 0
        self._tried.clear()

    def behind(self, address: Address, reason: str, now: float) -> bool:
        """The worker requests acknowledged messages again. Returns whether to retry, because it may not know the
        commits.

        After :data:`BEHIND_SECONDS`, or at the limit of the back-off, the query itself must have gone back.
        """
        if not self._behind:
            self._behind_since = now
        self._behind += 1
        seconds = now - self._behind_since
        if seconds >= BEHIND_SECONDS or self._backoff.exhausted(self._behind, seconds):
            return False
        self._ended(address, reason, now, progressed=False)
        return True

    def was_long(self, seconds: float) -> bool:
        """Whether a session of this length counts as progress: it was longer than the longest delay."""
        return seconds > self._backoff.maximum

    def ended(self, address: Address, reason: str, now: float, *, progressed: bool) -> None:
        """A session has ended. If it made progress, the back-off starts again from its initial delay."""
        self._behind = 0
        self._ended(address, reason, now, progressed=progressed)

    def _ended(self, address: Address, reason: str, now: float, *, progressed: bool) -> None:
        if progressed:
            self._failures = self._redirects = 0
        else:
            self._failures += 1
        self._down_since = now
        self._first_choice = address
        self._last_reason, self._ever = reason, True

    def delay(self, now: float) -> float:
        """Seconds to wait before the next attempt; 0 for the first one and for a redirection."""
        if not self._failures or self._redirects:
            return 0.0
        left = max(0.0, self._down_since + self._backoff.give_up_after - now)
        return min(left, self._backoff.delay(self._failures, self._random()))

    def given_up(self, now: float) -> TransportError | None:
        """The error once the limits of the back-off are reached; None before."""
        seconds = now - self._down_since
        if not self._attempts or not self._backoff.exhausted(self._attempts, seconds):
            return None
        tried = ", ".join(f"{where} ({count} times)" for where, count in self._tried.items()) or "no address"
        return TransportError(
            f"no session with a worker for {seconds:.1f} seconds; tried {tried}; the last reason was: "
            f"{self._last_reason}; check that the receiver runs and that these are its workers' addresses",
            code="no-session",
            tried=dict(self._tried),
            seconds=seconds,
            reason=self._last_reason,
        )
