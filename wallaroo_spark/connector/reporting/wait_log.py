"""Logs long waits: the reason after some seconds, again with growing pauses, and one line when it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from wallaroo_spark.errors import one_line

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

WAIT_SECONDS = 5.0
"""Seconds after which a wait is logged. A choice: usual waits for an ACK are a batch, which takes a second or two."""
LONGEST_PAUSE = 300.0
"""Most seconds between two lines of one wait; each pause is twice the one before. A choice: an operator who looks at
the log of the last minutes finds one."""


class WaitLog:
    """The waits of one connector's calls. ``describe`` returns the sentence on the reason of the wait."""

    def __init__(self, name: str, describe: Callable[[], str]) -> None:
        self.describe = describe
        self._name = name
        self._since: dict[object, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pause = WAIT_SECONDS
        self._logged: float | None = None

    @property
    def since(self) -> float | None:
        """The loop's time at which the oldest wait began; None while no call waits."""
        return next(iter(self._since.values()), None)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A call waits within the block."""
        loop = asyncio.get_running_loop()
        me = object()
        self._since[me] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(WAIT_SECONDS, self._look, loop)
        try:
            yield
        finally:
            del self._since[me]
            if self._logged is not None and not self._since:
                self._goes_on(loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Log if the oldest wait is long enough, and look again later."""
        self._timer = None
        since = self.since
        if since is None:
            return
        waited = loop.time() - since
        if self._logged is not None and since > self._logged:
            # The wait that was logged is over, and this is a younger one.
            self._goes_on(loop)
        due = self._pause if self._logged is not None else WAIT_SECONDS
        if waited >= due:
            self._logged = since if self._logged is None else self._logged
            self._pause = min(2 * due, waited + LONGEST_PAUSE)
            _log.warning("%s", self.describe())
            due = self._pause
        self._timer = loop.call_later(max(0.0, due - waited), self._look, loop)

    def _goes_on(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._logged is not None
        _log.warning("%s goes on after %.0f seconds", self._name, loop.time() - self._logged)
        self._logged, self._pause = None, WAIT_SECONDS
