"""What the streams of a connector share: the session of the moment, credits, memory, references and waiting.

The keeper brings sessions up and down here, streams ask here whether they may send.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.link import Link
from wallaroo_spark.connector.outbox import Budget, Fleeting, Outbox
from wallaroo_spark.connector.turnstile import Signal, Turnstile
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError, one_line
from wallaroo_spark.protocol import (
    NOTHING_PROCESSED,
    Ack,
    ConnectorSession,
    Frame,
    Nack,
    NotifyAck,
    Ok,
    Revision,
    StreamState,
)

if TYPE_CHECKING:
    from wallaroo_spark.connector.stream import Stream

_log = one_line(logging.getLogger("wallaroo_spark.connector"))


STARVED_SECONDS = 1.0
"""A send that has waited for so long says in the log what for."""


class Obstacle(StrEnum):
    """What a send may wait for; the value is what people are told."""

    CONNECTION = "connection"
    NOTIFY = "answer to NOTIFY"
    RESEND = "messages that are sent again first"
    CREDIT = "credit"
    NETWORK = "network"
    MEMORY = "memory"


class Hub:
    """The shared state of one connector. Everything runs on one event loop."""

    def __init__(self, revision: Revision, budget: Budget, retry: Backoff, *, increasing: bool) -> None:
        self.revision = revision
        self.budget = budget
        self.increasing = increasing
        self.link: Link | None = None
        self.streams: dict[int, Stream] = {}
        self.turnstile = Turnstile()
        self.changed = Signal()
        self.failure: Exception | None = None
        self.closed = False
        self._retry = retry
        self._references: dict[int, int] = {}
        self._abandoned: set[int] = set()
        self._waiting: dict[object, Callable[[], Obstacle | None]] = {}
        self._told: Obstacle | None = None
        self._end_costs_credit = ConnectorSession(revision).end_costs_credit
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    # Waiting.

    def check(self) -> None:
        """Raise what has ended the connector, if it has ended."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise LocalProtocolError("the connector is closed; open another one")

    @property
    def over(self) -> bool:
        """Whether the connector has failed or was closed."""
        return self.closed or self.failure is not None

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds. Raises what ends the connector meanwhile."""
        while not holds():
            self.check()
            await self.changed.wait()

    @property
    def waiting_for(self) -> Obstacle | None:
        """What the send that has waited longest waits for; None when none waits."""
        return next((found for obstacle in self._waiting.values() if (found := obstacle())), None)

    async def turn(
        self, obstacle: Callable[[], Obstacle | None], may_pass: Callable[[], bool], place: int | None
    ) -> int:
        """Wait for a turn to send, as :meth:`Turnstile.wait`; one that takes long is logged with what it waits for."""
        starving = asyncio.get_running_loop().call_later(STARVED_SECONDS, self._starved)
        me = object()
        self._waiting[me] = obstacle
        try:
            return await self.turnstile.wait(may_pass, place)
        finally:
            starving.cancel()
            del self._waiting[me]
            if not self._waiting:
                self._told = None

    def _starved(self) -> None:
        found = self.waiting_for
        if found is not None and found is not self._told:
            self._told = found
            _log.info("sending waits for %s", found)

    def wake(self) -> None:
        """Something has changed: let everybody look again."""
        self.changed.fire()
        self.turnstile.turn()

    def fail(self, error: Exception) -> None:
        """End the connector: every waiter and every later call raises ``error``."""
        if not self.over:
            self.failure = error
        self.wake()

    def obstacle(self, *, free: bool = False) -> Obstacle | None:
        """What keeps any stream from sending; ``free`` is for what costs no credit."""
        if self.link is None:
            return Obstacle.CONNECTION
        if not free and self.link.session.credits.available < 1:
            return Obstacle.CREDIT
        return Obstacle.NETWORK if self.link.full else None

    def end_obstacle(self) -> Obstacle | None:
        """The same for what closes a stream."""
        return self.obstacle(free=not self._end_costs_credit)

    # Streams.

    def add(self, stream: Stream) -> None:
        """A stream is opened. Raises :class:`LocalProtocolError` when its id is taken."""
        other = self.streams.get(stream.id)
        if other is not None and not (other.ledger.ended and other.ledger.done):
            what = "is open already" if other.name == stream.name else f"would have the id of stream {other.name!r}"
            raise LocalProtocolError(
                f"stream {stream.name!r} (id {stream.id}) {what}; end the other one and wait until it is flushed, "
                "or give this one an id of its own",
                stream=stream.name,
                id=stream.id,
            )
        if stream.id in self._abandoned and not self.increasing:
            raise LocalProtocolError(
                f"stream {stream.name!r} was given up in this session with messages unacknowledged, and with opaque "
                "ids the worker could not tell them from new ones; close this connector and use another one",
                stream=stream.name,
                id=stream.id,
            )
        self.streams[stream.id] = stream
        if self.link is not None:
            self.announce(stream, self.link)

    def forget(self, stream: Stream) -> None:
        """A stream is nobody's any more; what it kept is dropped."""
        if self.streams.get(stream.id) is stream:
            del self.streams[stream.id]
            if not stream.ledger.all_acknowledged:
                self._abandoned.add(stream.id)
        if isinstance(stream.ledger, Outbox):
            stream.ledger.clear()
        self.wake()

    def announce(self, stream: Stream, link: Link) -> None:
        """Open a stream in this session, with as many NOTIFYs as that takes."""
        streams = link.session.streams
        if not link.session.is_open(stream.id) and streams.get(stream.id).state is not StreamState.NOTIFY_SENT:
            reference = stream.ledger.notified(self._references.get(stream.id))
            link.notify(stream.id, stream.name, reference)
            while streams.get(stream.id).state is StreamState.RESET:
                link.notify(stream.id, stream.name, reference)
        if link.session.is_open(stream.id):
            self._resume(stream, link)

    def _resume(self, stream: Stream, link: Link) -> None:
        stream.resume(self._references.get(stream.id))
        ledger = stream.ledger
        if (isinstance(ledger, Outbox) and ledger.behind) or (ledger.ended and not ledger.end_written):
            self._start(stream.send_again(link))
        self.wake()

    # Sessions.

    def up(self, link: Link, ok: Ok) -> None:
        """A session has begun. Raises :class:`ReplayError` for a stream that cannot go on from its reference."""
        self.link = link
        if not self.revision.has(NotifyAck):
            # Where OK has no room for references, each NOTIFY_ACK renews one.
            self._references = {stream.stream_id: stream.ref for stream in ok.streams}
        self._abandoned.clear()
        for stream in list(self.streams.values()):
            stream.refusals = 0
            if not stream.ledger.settled:
                self.announce(stream, link)
        self.wake()

    def down(self, link: Link) -> None:
        """A session is over."""
        if self.link is link:
            self.link = None
        for task in self._tasks:
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.wake()

    def take(self, link: Link, frame: Frame) -> None:
        """A frame of the running session. Raises :class:`ReplayError` as :meth:`up` does."""
        match frame:
            case Ack():
                for stream_id, ref in frame.refs:
                    self._acknowledge(link, stream_id, ref)
                if frame.refs:
                    self.changed.fire()
                self.turnstile.turn()
            case Nack():
                self._rewind(link, frame)
            case NotifyAck():
                self._answer(link, frame)

    def _acknowledge(self, link: Link, stream_id: int, ref: int) -> None:
        link.progressed = True
        self._references[stream_id] = ref
        stream = self.streams.get(stream_id)
        if stream is not None and stream.opened:
            stream.ledger.acknowledge(ref)

    def _rewind(self, link: Link, nack: Nack) -> None:
        # A NACK cannot say "nothing": it says 0, and sending message 0 once more does no harm.
        if nack.ref:
            self._references[nack.stream_id] = nack.ref
        else:
            self._references.pop(nack.stream_id, None)
        stream = self.streams.get(nack.stream_id)
        if stream is None:
            _log.warning(
                "the worker wants stream id %d again behind reference %d, and this connector sends it no longer; "
                "open or feed it again",
                nack.stream_id,
                nack.ref,
            )
        else:
            _log.info("the worker takes stream %r back to reference %d", stream.name, nack.ref)
            self.announce(stream, link)
        self.turnstile.turn()

    def _answer(self, link: Link, answer: NotifyAck) -> None:
        if answer.ref != NOTHING_PROCESSED:
            self._references[answer.stream_id] = answer.ref
        elif answer.success:
            self._references.pop(answer.stream_id, None)
        stream = self.streams.get(answer.stream_id)
        if stream is None:
            return
        if answer.success:
            stream.refusals = 0
            self._resume(stream, link)
        else:
            self._refused(stream, link)

    def _refused(self, stream: Stream, link: Link) -> None:
        """v3: the stream is active in another session, which may be our own last one; ask again later."""
        loop = asyncio.get_running_loop()
        if not stream.refusals:
            stream.refused_since = loop.time()
        stream.refusals += 1
        seconds = loop.time() - stream.refused_since
        if self._retry.exhausted(stream.refusals, seconds):
            stream.failure = RemoteProtocolError(
                f"stream {stream.name!r} (id {stream.id}) was refused {stream.refusals} times in {seconds:.1f} "
                "seconds: it is active in another session; end the other connector that sends it, or use another id",
                stream=stream.name,
                id=stream.id,
            )
            self.wake()
            return
        delay = min(self._retry.delay(stream.refusals, 0.0), self._retry.give_up_after - seconds)
        _log.info("stream %r is active in another session; asking again in %.1f s", stream.name, delay)
        timer = loop.call_later(delay, self._announce_again, stream, link)
        self._timers.add(timer)

    def _announce_again(self, stream: Stream, link: Link) -> None:
        if self.link is link and self.streams.get(stream.id) is stream:
            self.announce(stream, link)

    def room(self) -> None:
        """The connection has taken what was collected."""
        self.turnstile.turn()
        if self.link is not None and self.link.idle and self._fleeting():
            self.changed.fire()

    def _fleeting(self) -> bool:
        return any(isinstance(stream.ledger, Fleeting) for stream in self.streams.values())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self.over:
            self.fail(error)
