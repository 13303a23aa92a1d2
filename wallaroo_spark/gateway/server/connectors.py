"""The listener for connectors: byte streams around the pure sessions of the door.

Source: ``docs/pipelines/bulk.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging

from wallaroo_spark.errors import TransportError, one_line
from wallaroo_spark.gateway.connectors.session import DoorPhase, DoorSession
from wallaroo_spark.gateway.refusals import Refused
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.protocol import reasons
from wallaroo_spark.transport import ByteStream

log = one_line(logging.getLogger("wallaroo_spark.gateway"))

HELLO_SECONDS = 30.0
"""How long a connector may take until its HELLO. A choice, as that of the first message of a gRPC channel."""
UNSENT_LIMIT = 4 << 20
"""Bytes that wait for a connector that does not read, at most; then it is cut off. A choice, as that of workers."""


class ConnectorPeers:
    """The connections of connectors."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._streams: dict[DoorSession, ByteStream] = {}
        self._changed: dict[DoorSession, None] = {}
        self._paused = False
        self._answered = asyncio.Event()
        """Set when something has happened to a session: messages may be committed."""

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection until either side has ended it."""
        gateway, loop = self._gateway, asyncio.get_running_loop()
        door, holder = gateway.door, list[DoorSession]()
        session = door.connect(stream.peer, lambda: self._wake(holder))
        holder.append(session)
        self._streams[session] = stream
        gateway.rules_changed[session] = session.rules_changed
        waits = [
            loop.call_later(
                HELLO_SECONDS, self._late, session, DoorPhase.GREETING, f"HELLO, in {HELLO_SECONDS:g} seconds"
            ),
            loop.call_later(gateway.limits.request_seconds, self._late, session, DoorPhase.ASKING, "the next commit"),
        ]
        problem = ""
        try:
            self._wake(holder)
            if self._paused:
                stream.set_delivering(False)
            await stream.deliver(functools.partial(self._received, session))
        except TransportError as error:
            problem = error.message
        finally:
            for wait in waits:
                wait.cancel()
            del gateway.rules_changed[session]
            del self._streams[session]
            door.disconnect(session, problem)

    def _received(self, session: DoorSession, data: bytes) -> None:
        gateway = self._gateway
        gateway.add(gateway.door.receive(session, data))
        if self._full() and not self._paused:
            self._paused = True
            self._read_from_all(False)
            gateway.spawn(self._await_room())

    def _full(self) -> bool:
        return self._gateway.door.full or self._gateway.queue.full

    async def _await_room(self) -> None:
        """Wait until there is room for more messages, and read again."""
        queue = self._gateway.queue
        while self._full():
            if queue.full:
                with contextlib.suppress(Refused):
                    await queue.room()
            else:
                self._answered.clear()
                await self._answered.wait()
        self._paused = False
        self._read_from_all(True)

    def _read_from_all(self, on: bool) -> None:
        for stream in self._streams.values():
            stream.set_delivering(on)

    def _late(self, session: DoorSession, phase: DoorPhase, what: str) -> None:
        if session.phase is phase:
            session.fail(reasons.later(f"the wait for {what} has lasted too long"))
            self._wake([session])

    def _wake(self, sessions: list[DoorSession]) -> None:
        """Write for these sessions, once for all that happens in this turn of the event loop."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._changed.update(dict.fromkeys(sessions))

    def _flush(self) -> None:
        changed, self._changed = self._changed, {}
        self._answered.set()
        for session in changed:
            stream = self._streams.get(session)
            if stream is None:
                continue
            data = session.output()
            if data:
                stream.write(data)
            if stream.queued > UNSENT_LIMIT:
                log.warning("%s is cut off: it has not read %d bytes", session, stream.queued)
                stream.abort()
            elif session.phase is DoorPhase.ENDED:
                self._gateway.spawn(self._close(stream))

    async def _close(self, stream: ByteStream) -> None:
        try:
            await stream.close()
        except Exception:
            # The failure of one connection must not end the gateway.
            log.exception("closing the connection to %s has failed", stream.peer)
            stream.abort()
