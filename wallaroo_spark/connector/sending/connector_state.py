"""The state that all streams of one connector share: connection, credits, memory, and the queue of waiting sends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable
from enum import StrEnum

from wallaroo_spark.connector.reporting import Deliveries, WaitLog
from wallaroo_spark.connector.sending.resend_buffer import MemoryBudget
from wallaroo_spark.connector.sending.send_batches import FairQueue
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.connector.worker_connection import WorkerConnection
from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import ConnectorSession


class WaitingFor(StrEnum):
    """The reason for which a send waits. The value is shown to people."""

    CONNECTION = "connection"
    NOTIFY = "answer to NOTIFY"
    RESEND = "messages that are sent again first"
    CREDIT = "credit"
    NETWORK = "network"
    MEMORY = "memory"


_states: weakref.WeakSet[ConnectorState] = weakref.WeakSet()
"""The states of this process."""


class ConnectorState:
    """The shared state of one connector. Everything runs on one event loop."""

    def __init__(self, settings: ConnectorSettings, waits: WaitLog) -> None:
        self.revision = settings.protocol_revision
        self.budget = MemoryBudget(settings.max_unacknowledged)
        self.retry = settings.backoff
        """The back-off of NOTIFYs that the worker refuses."""
        self.increasing = settings.increasing
        """Whether message ids increase within a stream."""
        self.connection: WorkerConnection | None = None
        """The connection of the session; None while there is no session."""
        self.queue = FairQueue()
        """Sends that wait for credit, memory or the network."""
        self.changed = asyncio.Event()
        """Set for a moment when a stream, a session or an acknowledgement has changed."""
        self.failure: Exception | None = None
        """The error that has ended the connector."""
        self.closed = False
        self.lost_messages = 0
        """Messages of ephemeral streams that were lost on the way."""
        self.deliveries = Deliveries()
        """The callbacks and the iterators that are told of acknowledgements."""
        self.waits = waits
        """The waiting calls; long waits are logged."""
        _states.add(self)
        self._waiting: dict[object, Callable[[], WaitingFor | None]] = {}
        self._end_costs_credit = ConnectorSession(self.revision).end_costs_credit

    @property
    def over(self) -> bool:
        """Whether the connector has failed or was closed."""
        return self.closed or self.failure is not None

    def check(self) -> None:
        """Raise the error that has ended the connector, if it has ended."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise LocalProtocolError("the connector is closed; open another one", code="connector-closed")

    def fail(self, error: Exception) -> None:
        """End the connector: every waiting and every later call raises ``error``."""
        if not self.over:
            self.failure = error
            self.deliveries.finish(error, error)
        self.wake()

    def record(self) -> None:
        """Close the open run of a stream, if there is one, and record its messages."""
        if self.connection is not None:
            self.connection.record()

    def wake(self) -> None:
        """Let every waiting send check its condition again."""
        self.record()
        self.wake_waiting()
        self.queue.wake_next()

    def wake_waiting(self) -> None:
        """Let every call that waits for a change check its condition again."""
        self.changed.set()
        self.changed.clear()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds. Raises the error if the connector ends first."""
        if holds():
            return
        with self.waits.waiting():
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
        me = object()
        self._waiting[me] = blocker
        try:
            with self.waits.waiting():
                return await self.queue.wait(may_pass, ticket)
        finally:
            del self._waiting[me]

    def blocker(self, *, costs_credit: bool = True) -> WaitingFor | None:
        """The reason for which no stream may send; None when there is none."""
        if self.connection is None:
            return WaitingFor.CONNECTION
        if costs_credit and self.connection.session.credits.available < 1:
            return WaitingFor.CREDIT
        return WaitingFor.NETWORK if self.connection.room <= 0 else None

    def end_blocker(self) -> WaitingFor | None:
        """The reason for which no stream may send its end; None when there is none."""
        return self.blocker(costs_credit=self._end_costs_credit)


def _forked() -> None:
    """End the connectors that a forked process has inherited: the session belongs to the process before."""
    for state in list(_states):
        # The connection's frames are only a copy here; closing the open run makes the next send look at the failure.
        with contextlib.suppress(Exception):
            state.record()
        state.connection = None
        state.failure = LocalProtocolError(
            "this process was forked from the one that has opened the connector; open a connector with an instance "
            "name of its own in each process, behind the fork",
            code="connector-forked",
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
