"""One stream, as the program that sends it holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from wallaroo_spark.connector.batches import bytes_of, event_time_of, key_of
from wallaroo_spark.connector.hub import Hub, Obstacle
from wallaroo_spark.connector.ledger import Ledger
from wallaroo_spark.connector.link import Link
from wallaroo_spark.connector.outbox import Fleeting, Outbox, cost
from wallaroo_spark.connector.pieces import Piece, Pieces
from wallaroo_spark.errors import LocalProtocolError, WallarooError
from wallaroo_spark.protocol import HEAD_BYTES, EncodedRun, Flags, Message, encode_run, encode_single

QUANTUM = 256
"""Messages a stream may send in one turn while others wait; it keeps its turn while it waits for credit."""

_NO_FLAGS = Flags.NONE

Sent = Callable[[Sequence[int], Sequence[bytes]], None]
"""Told of the ids and payloads of messages that were sent."""


class Stream:
    """A stream of messages; made by :meth:`Connector.open`.

    ``reference`` is the last committed reference when the stream was opened, as the worker said it (or the one the
    caller gave, where the worker has none); None means from the beginning. Source: ``docs/protocol.md#stream-states``.
    """

    def __init__(self, hub: Hub, name: str, stream_id: int, ledger: Ledger) -> None:
        self.name = name
        self.id = stream_id
        self.ledger = ledger
        self.opened = False
        self.reference: int | None = None
        self.failure: Exception | None = None
        self.refusals = 0
        self.refused_since = 0.0
        self._hub = hub
        self._turn_left = 0
        self._place: int | None = None
        self._resender: Link | None = None
        self._ephemeral = isinstance(ledger, Fleeting)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r} id={self.id}: {self.ledger.state()}>"

    @property
    def acknowledged(self) -> int | None:
        """The last committed reference now; None when there is none."""
        return self.ledger.reference

    @property
    def unacknowledged(self) -> int:
        """Messages sent and not acknowledged yet; 0 for an ephemeral stream."""
        return self.ledger.kept

    @property
    def last(self) -> int | None:
        """The id that the next message follows: that of the last one sent, or else ``reference``."""
        return self.ledger.last

    @property
    def done(self) -> bool:
        """Whether everything sent is acknowledged, or, for an ephemeral stream, handed to the connection."""
        link = self._hub.link
        return self.ledger.done and (not self._ephemeral or link is None or link.idle)

    async def send(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        id: int | None = None,
        event_time: int | datetime | None = None,
        key: bytes | None = None,
        unstable: bool = False,
    ) -> int:
        """Send one message, as soon as there are a connection, a credit and memory to keep it; its id.

        Without ``id`` it is one more than the last one, and where a process gives no ids it begins at the present time
        in nanoseconds: no id comes twice, so every message is a new one and none is taken for a replay of what an
        earlier process has sent. A program that sends the same again after a restart gives ids. On an ephemeral stream
        ids count from 1.

        ``event_time`` is an integer in the unit the receiver was given (``eventTimeUnit``), or an aware datetime, sent
        as nanoseconds. ``unstable`` says that the stream cannot be resumed from this id. A call that is cancelled has
        sent nothing.

        Raises :class:`LocalProtocolError` for an id that does not increase and for what does not fit a frame, and
        whatever has ended the connector.
        """
        if not isinstance(payload, bytes):
            payload = bytes_of(payload)
        if key is not None:
            key = key_of(key)
        return await self._put(payload, id, Flags.UNSTABLE_REFERENCE if unstable else _NO_FLAGS, event_time, key)

    async def send_many(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        ids: Iterable[int] | None = None,
        event_times: Iterable[int | datetime | None] | None = None,
        keys: Iterable[bytes | None] | None = None,
        *,
        unstable: bool = False,
    ) -> int | None:
        """Send many messages, each as :meth:`send` would, at a fraction of its cost; the last id, None for no message.

        ``payloads`` is an iterable, or an Arrow array of binary or string; the columns beside it have an item for each
        payload (``ids`` may be a ``range``). They are pulled a piece at a time, as sending goes on, and one that takes
        its time holds nothing back.

        Raises what :meth:`send` raises, with the place of the message in question as ``fields["index"]``, and whatever
        an iterable raises; what came before was sent then. So it was when the call is cancelled: see :attr:`last`.
        """
        pieces = Pieces(payloads, ids, event_times, keys)
        last: int | None = None
        while (piece := pieces.next()) is not None:
            last = await self.send_piece(piece, unstable=unstable)
            if pieces.slow:
                await asyncio.sleep(0)
        return last

    async def send_boundary(self, id: int | None = None, *, unstable: bool = False) -> int:
        """Send a BOUNDARY: a marker without payload, from whose id the stream can be resumed; its id.

        Raises :class:`LocalProtocolError` where the revision has none.
        """
        flags = Flags.BOUNDARY | Flags.UNSTABLE_REFERENCE if unstable else Flags.BOUNDARY
        return await self._put(None, id, flags, None, None)

    async def end(self) -> None:
        """Close the stream, in whatever way the revision has; nothing can be sent on it afterwards."""
        if self.ledger.ended:
            return
        await self._admitted(self._end_obstacle)
        self._end_now()

    async def flushed(self) -> None:
        """Wait until everything sent is acknowledged. Raises what ends the connector or the stream before that."""
        await self._hub.until(lambda: self.done or self.failure is not None)
        if self.failure is not None and not self.done:
            raise self.failure

    # What the hub and the feed call.

    def resume(self, ref: int | None) -> None:
        """The stream is open in a session, behind ``ref``. Raises :class:`ReplayError`."""
        self.ledger.resume(ref)
        if not self.opened:
            self.opened = True
            self.reference = self.ledger.start if ref is None else ref

    def obstacle(self, size: int) -> Obstacle | None:
        """What keeps a message of ``size`` counted bytes from being sent now; nothing, once the stream has ended."""
        hub = self._hub
        if self.ledger.ended:
            return None
        if hub.link is None:
            return Obstacle.CONNECTION
        if not hub.link.session.is_open(self.id):
            return Obstacle.NOTIFY
        if self.ledger.behind or self._resender is not None:
            return Obstacle.RESEND
        if isinstance(self.ledger, Outbox) and not hub.budget.admits(size):
            return Obstacle.MEMORY
        return hub.obstacle()

    async def send_piece(self, piece: Piece, *, unstable: bool = False, sent: Sent | None = None) -> int | None:
        """Send what is left of a piece, as many messages at a time as may go, and tell ``sent``; the last id.

        Raises as :meth:`send_many` does.
        """
        flags = Flags.UNSTABLE_REFERENCE if unstable else _NO_FLAGS
        if self._ephemeral:
            flags |= Flags.EPHEMERAL
        last, most = self.last, piece.left
        while piece.left:
            try:
                run, payloads = await self._send_some(piece, most, flags)
            except LocalProtocolError as error:
                # The first message that cannot be sent is found by taking ever fewer; those before it are sent.
                most //= 2
                if not most or self._hub.over or self.ledger.ended:
                    raise piece.located(error) from None
                continue
            except WallarooError as error:
                raise piece.located(error) from None
            last = run.last
            piece.sent(run.count)
            if sent is not None:
                sent(run.ids, payloads)
        return last

    async def _send_some(self, piece: Piece, most: int, flags: Flags) -> tuple[EncodedRun, Sequence[bytes]]:
        hub, size = self._hub, piece.next_cost
        self._check_not_ended()
        await self._admitted(lambda: self.obstacle(size))
        self._check_not_ended()
        link = hub.link
        assert link is not None
        memory = hub.budget.room if isinstance(self.ledger, Outbox) else None
        count = piece.fitting(min(most, self._most(link)), link.room, memory)
        batch = piece.take(count)
        ids = self.ledger.next_ids(batch.ids, count)
        run = encode_run(hub.revision, self.id, ids, batch.payloads, flags, batch.event_times, batch.keys)
        link.messages(run)
        self.ledger.append(run)
        self._turn_left -= count - 1
        return run, batch.payloads

    async def send_again(self, link: Link) -> None:
        """Send what an earlier session left unacknowledged, then the end if there was one."""
        if self._resender is link:
            return
        self._resender = link
        ledger = self.ledger
        try:
            while isinstance(ledger, Outbox) and ledger.behind:
                await self._admitted(lambda: self._again_obstacle(self._hub.obstacle))
                # An ACK may have come meanwhile for what was to be sent.
                run = ledger.next_again(self._most(link))
                if run is not None:
                    link.messages(run)
                    ledger.sent_again()
                    self._turn_left -= run.count - 1
            if ledger.ended and not ledger.end_written:
                await self._admitted(lambda: self._again_obstacle(self._hub.end_obstacle))
                self._write_end(link)
        finally:
            if self._resender is link:
                self._resender = None
            self._hub.wake()

    async def _put(
        self, payload: bytes | None, id: int | None, flags: Flags, event_time: int | datetime | None, key: bytes | None
    ) -> int:
        ledger = self.ledger
        self._check_not_ended()
        ledger.next_id(id)
        if isinstance(event_time, datetime):
            event_time = event_time_of(event_time)
        size = cost(HEAD_BYTES + len(payload or b"") + len(key or b""))
        await self._admitted(lambda: self.obstacle(size))
        self._check_not_ended()
        message_id = ledger.next_id(id)
        if self._ephemeral:
            flags |= Flags.EPHEMERAL
        run = encode_single(self._hub.revision, self.id, message_id, payload, flags, event_time, key)
        link = self._hub.link
        assert link is not None
        link.messages(run)
        ledger.append(run)
        return message_id

    def _check_not_ended(self) -> None:
        if self.ledger.ended:
            raise LocalProtocolError(f"stream {self.name!r} has ended; open it again to send more", stream=self.name)

    def _most(self, link: Link) -> int:
        """How many messages the turn that was just admitted is good for."""
        credits = link.session.credits.available
        return min(credits, self._turn_left + 1) if self._hub.turnstile.crowded else credits

    async def _admitted(self, obstacle: Callable[[], Obstacle | None]) -> None:
        """Wait until nothing is in the way; until the caller awaits something, nothing can come into it."""
        hub = self._hub
        while True:
            hub.check()
            if self.failure is not None:
                raise self.failure
            if (self._turn_left > 0 or not hub.turnstile.crowded) and obstacle() is None:
                self._turn_left -= 1
                return
            unfinished = self._turn_left > 0
            self._place = await hub.turn(
                obstacle,
                lambda: hub.over or self.failure is not None or obstacle() is None,
                self._place if unfinished else None,
            )
            if not unfinished:
                self._turn_left = QUANTUM

    def _end_obstacle(self) -> Obstacle | None:
        if self.ledger.ended:
            return None
        found = self.obstacle(0)
        return self._hub.end_obstacle() if found in (Obstacle.CREDIT, Obstacle.MEMORY, None) else found

    def _again_obstacle(self, obstacle: Callable[[], Obstacle | None]) -> Obstacle | None:
        link = self._hub.link
        if link is not None and not link.session.is_open(self.id):
            return Obstacle.NOTIFY
        return obstacle()

    def _end_now(self) -> None:
        # Another task may have ended it meanwhile.
        if not self.ledger.ended:
            link = self._hub.link
            assert link is not None
            self.ledger.ended = True
            self._write_end(link)

    def _write_end(self, link: Link) -> None:
        last = self.ledger.last or 0
        if self._ephemeral:
            # The usual closing boundary is not ephemeral, and a stream may not mix the two.
            link.message(Message(self.id, last, None, Flags.BOUNDARY | Flags.EOS | Flags.EPHEMERAL))
        else:
            link.end(self.id, last)
        self.ledger.end_written = True
        self._hub.wake()
