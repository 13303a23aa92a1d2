"""The state that all streams of one connector share: connection, credits, memory, and the queue of waiting sends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.sending.fair_queue import Broadcast, FairQueue
from wallaroo_spark.connector.sending.resend_buffer import MemoryBudget
from wallaroo_spark.connector.session.worker_connection import WorkerConnection
from wallaroo_spark.errors import LocalProtocolError, one_line
from wallaroo_spark.protocol import ConnectorSession, Revision

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

STARVED_SECONDS = 1.0
"""Seconds after which a waiting send logs its reason. A choice: a usual wait for an ACK is shorter."""


class WaitingFor(StrEnum):
    """The reason for which a send waits. The value is shown to people."""

    CONNECTION = "connection"
    NOTIFY = "answer to NOTIFY"
    RESEND = "messages that are sent again first"
    CREDIT = "credit"
    NETWORK = "network"
    MEMORY = "memory"


class ConnectorState:
    """The shared state of one connector. Everything runs on one event loop."""

    def __init__(self, revision: Revision, budget: MemoryBudget, retry: Backoff, *, increasing: bool) -> None:
        self.revision = revision
        self.budget = budget
        self.retry = retry
        """The back-off of NOTIFYs that the worker refuses."""
        self.increasing = increasing
        """Whether message ids increase within a stream."""
        self.connection: WorkerConnection | None = None
        """The connection of the session; None while there is no session."""
        self.queue = FairQueue()
        """Sends that wait for credit, memory or the network."""
        self.changed = Broadcast()
        """Notified when a stream, a session or an acknowledgement has changed."""
        self.failure: Exception | None = None
        """The error that has ended the connector."""
        self.closed = False
        self._waiting: dict[object, Callable[[], WaitingFor | None]] = {}
        self._logged: WaitingFor | None = None
        self._end_costs_credit = ConnectorSession(revision).end_costs_credit

    @property
    def over(self) -> bool:
        """Whether the connector has failed or was closed."""
        return self.closed or self.failure is not None

    def check(self) -> None:
        """Raise the error that has ended the connector, if it has ended."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise LocalProtocolError("the connector is closed; open another one")

    def fail(self, error: Exception) -> None:
        """End the connector: every waiting and every later call raises ``error``."""
        if not self.over:
            self.failure = error
        self.wake()

    def record(self) -> None:
        """Close the open run of a stream, if there is one, and record its messages."""
        if self.connection is not None:
            self.connection.record()

    def wake(self) -> None:
        """Let every waiting send check its condition again."""
        self.record()
        self.changed.notify_all()
        self.queue.wake_next()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds. Raises the error if the connector ends first."""
        while not holds():
            self.check()
            await self.changed.wait()

    @property
    def waiting_for(self) -> WaitingFor | None:
        """The reason of the oldest waiting send; None when none waits."""
        return next((found for blocker in self._waiting.values() if (found := blocker())), None)

    async def turn(
        self, blocker: Callable[[], WaitingFor | None], may_pass: Callable[[], bool], ticket: int | None
    ) -> int:
        """Wait in the queue, as :meth:`FairQueue.wait`; a long wait is logged with its reason."""
        # A stream with an open run does not check whether others wait, so the run is closed first.
        self.record()
        starving = asyncio.get_running_loop().call_later(STARVED_SECONDS, self._log_starving)
        me = object()
        self._waiting[me] = blocker
        try:
            return await self.queue.wait(may_pass, ticket)
        finally:
            starving.cancel()
            del self._waiting[me]
            if not self._waiting:
                self._logged = None

    def _log_starving(self) -> None:
        found = self.waiting_for
        if found is not None and found is not self._logged:
            self._logged = found
            _log.info("sending waits for %s", found)

    def blocker(self, *, costs_credit: bool = True) -> WaitingFor | None:
        """The reason for which no stream may send; None when there is none."""
        if self.connection is None:
            return WaitingFor.CONNECTION
        if costs_credit and self.connection.session.credits.available < 1:
            return WaitingFor.CREDIT
        return WaitingFor.NETWORK if self.connection.full else None

    def end_blocker(self) -> WaitingFor | None:
        """The reason for which no stream may send its end; None when there is none."""
        return self.blocker(costs_credit=self._end_costs_credit)
