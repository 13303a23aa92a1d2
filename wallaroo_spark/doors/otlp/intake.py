"""From an OTLP request to its answer: each body is one message, and is answered when it is committed.

Exporters give up early, many after 10 seconds, and send an unanswered body again, which has no id. So a request is
answered a while before its client gives up, and a body that was not answered is recognised when it comes again to the
same worker. Source: ``docs/doors/opentelemetry.md``.
"""

from __future__ import annotations

import hashlib
import time

from wallaroo_spark.doors.client import DoorClient, Messages
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.doors.http.repeats import Repeats
from wallaroo_spark.doors.otlp.bodies import UNNAMED, client_of
from wallaroo_spark.doors.tickets import answered_when_received
from wallaroo_spark.doors.waits import kept
from wallaroo_spark.options import Options

DOOR = "otlp"
ANSWER_BEFORE = 0.8
"""The part of a client's time-out after which it is told to send again. A choice."""
USUAL_SECONDS = 10.0
"""The time-out of exporters that do not tell theirs, which is the default of the SDKs."""
UNANSWERED_SECONDS = 300.0
"""How long a body is recognised that was not answered. A choice: the time for which a Collector repeats a request."""
FRAME_OVERHEAD = 64
"""Bytes of a frame in addition to its payload, rounded up."""


def due(seconds: float | None) -> float:
    """When a request is answered in any case, in monotonic seconds; ``seconds`` is the client's time-out, if known."""
    return time.monotonic() + ANSWER_BEFORE * (USUAL_SECONDS if seconds is None else seconds)


class Intake:
    """The requests of the OTLP clients of one worker, over one transport."""

    def __init__(self, ground: Ground, options: Options) -> None:
        self.leaving = ""
        """Why no new request is taken; empty before."""
        self.waiting = 0
        """Requests that wait for a commit, or for a session."""
        self._ground = ground
        self._options = options
        self._repeats = Repeats()

    def admit(self) -> None:
        """Raise :class:`Problem` when no new request can be taken now; asked before the body is read."""
        if self.leaving:
            raise Problem("otlp-send-again", f"the worker leaves: {self.leaving}; send again")
        if not self._ground.host.eases():
            raise Problem("otlp-full", "the worker's memory is full (memoryBudget); send again")
        if self.waiting >= self._options.max_sessions:
            raise Problem("otlp-full", f"{self.waiting} requests wait for their answer (maxSessions); send again")

    async def export(self, signal: str, body: bytes, until: float, sender: str) -> None:
        """Take a body; returns when it is committed. Raises :class:`Problem`, at the latest at ``until``.

        ``sender`` is the name of who sends, empty where it has none.
        """
        most = self._options.max_frame_bytes - FRAME_OVERHEAD
        if len(body) > most:
            raise Problem(
                "otlp-body-too-large",
                f"a request of {len(body)} bytes is longer than {most} (maxFrameBytes); let the exporter send fewer "
                "records a batch, or raise maxFrameBytes",
            )
        name = client_of(signal, body)
        if name is None:
            return
        self.waiting += 1
        try:
            own = await self.opened(until)
            own.hold(len(body))
            try:
                client = await self.opened(until, name)
            finally:
                own.hold(-len(body))
            await self._committed(client, signal, body, until, sender)
        finally:
            self.waiting -= 1

    async def opened(self, until: float, name: str = UNNAMED) -> DoorClient:
        """The session of a service, once it is open. Raises :class:`Problem`, at the latest at ``until``.

        Each worker has one of its own, because the replicas of a service send to any worker.
        """
        client = self._ground.client(self._ground.own_instance(f"{DOOR}/{name}"))
        if not await kept(client.opening, until - time.monotonic()):
            raise Problem(
                "otlp-not-ready",
                f"{client.ended or 'the worker is not ready: no query reads the receiver yet'}; send again",
            )
        return client

    async def _committed(self, client: DoorClient, signal: str, body: bytes, until: float, sender: str) -> None:
        stream = client.stream(signal)
        if stream is None:
            raise Problem("otlp-send-again", f"{client.ended}; send again")
        identity = [hashlib.blake2b(body, digest_size=16).hexdigest()]
        now = time.monotonic()
        reference = self._repeats.known(client.instance, signal, identity[0], now)
        if reference is not None:
            ticket = stream.wait(reference)
        else:
            size = len(body)
            ticket = stream.send(Messages([body]), stream.next_reference(time.time_ns()))
            for counter, more in (("door-requests", 1), ("door-messages", 1), ("door-bytes", size)):
                self._ground.host.count(counter, more)
            if sender:
                self._ground.host.count(f"door-requests:{sender}", 1)
        references = [ticket.reference]
        if self._options.otlp_dedupe and reference is None:
            self._repeats.remember(client.instance, stream, identity, references, now + self._options.otlp_dedupe)
        if ticket.kept is None and answered_when_received(signal, self._options.door_received):
            return
        try:
            if await kept(ticket, until - now):
                return
        finally:
            if ticket.kept is None:
                # The client has gone, or is told to send again.
                self._repeats.remember(client.instance, stream, identity, references, now + UNANSWERED_SECONDS)
        if ticket.kept is False:
            raise Problem("otlp-send-again", f"{ticket.reason}; send again")
        raise Problem(
            "otlp-send-again",
            "the batch with this request is not committed yet; send it again, and it is recognised. A shorter trigger, "
            "or a longer time-out of the exporter, makes that rare",
        )
