"""A worker's connection to a connector sink: :class:`SinkWorkerSession` over a transport.

Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from wallaroo_spark.errors import RemoteProtocolError, SinkError, TransportError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.protocol import Error, NotifyAck, Ok, Restart
from wallaroo_spark.protocol.sinks.messages import (
    DATA_STREAM,
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
)
from wallaroo_spark.protocol.sinks.sessions import SUPERSEDED, SinkWorkerSession
from wallaroo_spark.sinks.settings import ConnectionSettings
from wallaroo_spark.transport import ByteStream, client_context, connect, format_address

log = one_line(logging.getLogger("wallaroo_spark.sinks"))

PROGRAM = "wallaroo_spark"
STREAM = "data"
"""The name of stream 1."""
ALREADY_ACTIVE = "already active"
"""In the reason of a sink that has another session of the worker, and keeps it."""
FLUSH_BYTES = 64 * 1024
"""Bytes that are encoded before messages of the sink are looked at."""

Answer = TypeVar("Answer")


class SinkClient:
    """One session, as ``worker``. Methods raise :class:`TransportError` when the sink cannot be reached, is silent for
    too long, or has another session of that worker, and :class:`SinkError` when it refuses or breaks the protocol.

    ``prepared`` is what the sink has of this worker that waits for a decision; a sink tells it to nobody else.
    """

    def __init__(self, stream: ByteStream, worker: str, connection: ConnectionSettings) -> None:
        self._stream = stream
        self._worker = worker
        self._connection = connection
        self._session = SinkWorkerSession(connection.max_frame_bytes)
        self._requests = 0
        self._greeted = False
        self.prepared: tuple[str, ...] = ()

    @classmethod
    async def open(
        cls, address: tuple[str, int], worker: str, connection: ConnectionSettings, reference: int = 0
    ) -> Self:
        """Connect, greet, announce the rows and ask for what is prepared, as Wallaroo's workers do.

        ``reference`` is where this side takes the worker's output to end.
        """
        tls = (
            client_context(connection.ca, connection.certificate, connection.key)
            if connection.tls or connection.ca
            else None
        )
        stream = await connect(*address, tls=tls, timeout=connection.connect_timeout)
        client = cls(stream, worker, connection)
        try:
            cookie = resolve_secret(connection.cookie).encode()
            hello = client._session.hello(version=connection.version, cookie=cookie, program=PROGRAM, worker=worker)
            stream.write(hello)
            await client._answer(Ok)
            client._greeted = True
            # One after the other, with one wait for both answers.
            client._announce(reference)
            client._ask()
            await client._announced()
            client.prepared = await client._told()
        except BaseException:
            stream.abort()
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failed: Any, *_: object) -> None:
        if failed is None:
            await self._stream.close()
        else:
            self._stream.abort()

    @property
    def reference(self) -> int:
        """The length of the output as the sink says; the committed length may be smaller or greater."""
        return self._session.reference

    async def notify(self, reference: int = 0) -> None:
        """Announce the rows; once more for a later :attr:`reference`."""
        self._announce(reference)
        await self._announced()

    def _announce(self, reference: int) -> None:
        self._stream.write(self._session.notify(STREAM, reference))

    async def _announced(self) -> None:
        answer = await self._answer(NotifyAck)
        if not answer.success or answer.stream_id != DATA_STREAM:
            raise self.refused(f"it does not take stream {DATA_STREAM}")

    def begin(self, offset: int) -> None:
        """Have the rows begin there: where what is committed of the worker's output ends."""
        self._session.begin(offset)

    async def send(self, rows: Sequence[bytes]) -> None:
        """Send rows, as many as there is room for, and wait for room. Raises LocalProtocolError for a row too long."""
        at, size = 0, 0
        for number, row in enumerate(rows, 1):
            size += len(row)
            if size >= FLUSH_BYTES or number == len(rows):
                self._stream.write(self._session.rows(rows[at:number]))
                at, size = number, 0
                # Lets the connection write, and an ERROR be read.
                await asyncio.sleep(0)
                await self._drain()

    async def vote(self, transaction: str) -> tuple[bool, Range]:
        """PHASE1 for all that was sent: the sink's vote, and what it is about."""
        rows = Range(DATA_STREAM, self._session.committed, self._session.offset)
        self._stream.write(self._session.control(Phase1(transaction, (rows,))))
        reply = await self._answer(Reply)
        return reply.commit, rows

    def decide(self, transaction: str, commit: bool) -> None:
        """PHASE2; that it arrived is known when something asked afterwards is answered."""
        log.debug("> %s: PHASE2 %s %s", self._stream.peer, transaction, commit)
        self._stream.write(self._session.control(Phase2(transaction, commit)))

    async def uncommitted(self) -> tuple[str, ...]:
        """LIST_UNCOMMITTED: the transactions that wait for a decision."""
        self._ask()
        return await self._told()

    def _ask(self) -> None:
        self._requests += 1
        self._stream.write(self._session.control(ListUncommitted(self._requests)))

    async def _told(self) -> tuple[str, ...]:
        answer = await self._answer(ReplyUncommitted)
        if answer.request != self._requests:
            raise self.refused(f"it answers request {answer.request}, and {self._requests} was asked")
        return answer.transactions

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._connection.answer_timeout):
                await self._stream.drain()
        except TimeoutError:
            raise TransportError(
                f"sink {self._stream.peer} has read nothing of {self._worker} for "
                f"{self._connection.answer_timeout:g} s; see whether it runs and its disk keeps up, or raise "
                "answer_timeout",
                peer=self._stream.peer,
            ) from None
        except TransportError:
            # An ERROR that was sent before the cut says why.
            await self._answer(Ok)
            raise

    async def _answer(self, kind: type[Answer]) -> Answer:
        """The next frame of a kind; grants of credit are passed over."""
        try:
            async with asyncio.timeout(self._connection.answer_timeout):
                while True:
                    while (event := self._session.next_event()) is not None:
                        if isinstance(event, kind):
                            return event
                        self._check(event)
                    data = await self._stream.read()
                    if not data:
                        raise self._closed()
                    self._session.receive(data)
        except TimeoutError:
            raise TransportError(
                f"sink {self._stream.peer} did not answer {self._worker} within "
                f"{self._connection.answer_timeout:g} s; see whether it runs and its disk keeps up, or raise "
                "answer_timeout",
                peer=self._stream.peer,
            ) from None
        except RemoteProtocolError as error:
            raise self.refused(f"it breaks the protocol: {error.message}") from error

    def _closed(self) -> TransportError:
        what = f"sink {self._stream.peer} closed the connection of {self._worker}"
        if not self._greeted:
            cookie = "a cookie" if self._connection.cookie else "no cookie"
            what += (
                " before it answered HELLO: some sinks do so at a version or a cookie that is not theirs, and this "
                f"HELLO said version {self._connection.version!r} and {cookie} (version=, cookie=)"
            )
        return TransportError(f"{what}; its log says why", peer=self._stream.peer)

    def _check(self, event: object) -> None:
        if isinstance(event, Error) and (event.reason == SUPERSEDED or event.reason.endswith(ALREADY_ACTIVE)):
            raise TransportError(
                f"sink {self._stream.peer} has another session of {self._worker}: its partition is run elsewhere too",
                peer=self._stream.peer,
            )
        if isinstance(event, Error):
            raise self.refused(event.reason)
        if isinstance(event, Restart):
            raise TransportError(f"sink {self._stream.peer} asks to connect again", peer=self._stream.peer)

    def refused(self, reason: str) -> SinkError:
        """The error for a sink that does not do what is asked of it."""
        return SinkError(
            f"sink {self._stream.peer} refuses {self._worker}: {reason}", peer=self._stream.peer, reason=reason
        )


def shown(address: tuple[str, int]) -> str:
    """An address as people write it."""
    return format_address(*address)
