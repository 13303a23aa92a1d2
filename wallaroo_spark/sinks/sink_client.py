"""A worker's connection to a connector sink: :class:`SinkWorkerSession` over a transport.

Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Self, TypeVar

from wallaroo_spark.errors import RemoteProtocolError, SinkError, TransportError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.protocol import Error, NotifyAck, Ok, Restart
from wallaroo_spark.protocol.sinks import messages
from wallaroo_spark.protocol.sinks.sessions import SUPERSEDED, SinkWorkerSession
from wallaroo_spark.sinks.settings import ConnectionSettings
from wallaroo_spark.transport import ByteStream, client_context, connect, format_address

log = one_line("wallaroo_spark.sinks")

PROGRAM = "wallaroo_spark"
STREAM = "data"
"""The name of stream 1."""
ALREADY_ACTIVE = "already active"
"""The end of the reason by which a sink refuses a second session of a worker."""
FLUSH_BYTES = 64 * 1024
"""Bytes that are sent before messages of the sink are read. A choice: an ERROR of the sink is noticed this early."""

Answer = TypeVar("Answer")


class SinkClient:
    """One session with a connector sink, as ``worker``.

    ``prepared`` are the ids of the worker's transactions that wait for a decision; a sink lists them only to the worker
    that has prepared them. Methods raise :class:`TransportError` when the sink cannot be reached, does not answer in
    time, or has another session of the worker, and :class:`SinkError` when it refuses a request or violates the
    protocol.
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
        """Connect, send HELLO, NOTIFY and LIST_UNCOMMITTED as Wallaroo's workers do, and await the answers.

        ``reference`` is the length of the worker's output by the decision log, in bytes.
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
            # Both requests are sent before the first answer is awaited.
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
        """The length of the output that the sink reports, in bytes; the committed length may differ."""
        return self._session.reference

    async def notify(self, reference: int = 0) -> None:
        """Send NOTIFY and await its answer, which updates :attr:`reference`."""
        self._announce(reference)
        await self._announced()

    def _announce(self, reference: int) -> None:
        self._stream.write(self._session.notify(STREAM, reference))

    async def _announced(self) -> None:
        answer = await self._answer(NotifyAck)
        if not answer.success or answer.stream_id != messages.DATA_STREAM:
            raise self.refused(f"it does not accept stream {messages.DATA_STREAM}")

    def begin(self, offset: int) -> None:
        """Set the offset of the first row: the committed length of the worker's output, in bytes."""
        self._session.begin(offset)

    async def send(self, rows: Sequence[bytes]) -> None:
        """Send rows, waiting while the connection is full. Raises LocalProtocolError for a row that is too long."""
        at, size = 0, 0
        for number, row in enumerate(rows, 1):
            size += len(row)
            if size >= FLUSH_BYTES or number == len(rows):
                self._stream.write(self._session.rows(rows[at:number]))
                at, size = number, 0
                # Lets the connection write, and an ERROR be read.
                await asyncio.sleep(0)
                await self._drain()

    async def vote(self, transaction: str) -> tuple[bool, messages.Range]:
        """Send PHASE1 for all sent rows; return the sink's vote (True: commit) and the range of the rows."""
        rows = messages.Range(messages.DATA_STREAM, self._session.committed, self._session.offset)
        self._stream.write(self._session.control(messages.Phase1(transaction, (rows,))))
        reply = await self._answer(messages.Reply)
        return reply.commit, rows

    def decide(self, transaction: str, commit: bool) -> None:
        """Send PHASE2. It has no answer: the answer to a later request shows that it has arrived."""
        log.debug("> %s: PHASE2 %s %s", self._stream.peer, transaction, commit)
        self._stream.write(self._session.control(messages.Phase2(transaction, commit)))

    async def abort(self, transactions: Collection[str]) -> None:
        """Decide transactions to abort. Raises :class:`SinkError` when the sink lists one of them still."""
        for transaction in transactions:
            self.decide(transaction, False)
        left = set(transactions).intersection(await self.uncommitted())
        if left:
            raise self.refused(f"it does not abort {', '.join(sorted(left)[:3])}")

    async def uncommitted(self) -> tuple[str, ...]:
        """Send LIST_UNCOMMITTED; return the ids of the worker's transactions that wait for a decision."""
        self._ask()
        return await self._told()

    def _ask(self) -> None:
        self._requests += 1
        self._stream.write(self._session.control(messages.ListUncommitted(self._requests)))

    async def _told(self) -> tuple[str, ...]:
        answer = await self._answer(messages.ReplyUncommitted)
        if answer.request != self._requests:
            raise self.refused(f"it answers request {answer.request}, and {self._requests} was asked")
        return answer.transactions

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._connection.answer_timeout):
                await self._stream.drain()
        except TimeoutError:
            raise self._silent("has read nothing of {worker} for {seconds:g} s") from None
        except TransportError:
            # An ERROR that the sink sent before the end has the reason.
            await self._answer(Ok)
            raise

    async def _answer(self, kind: type[Answer]) -> Answer:
        """Return the next frame of type ``kind``; credit frames are ignored."""
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
            raise self._silent("did not answer {worker} within {seconds:g} s") from None
        except RemoteProtocolError as error:
            raise self.refused(f"it breaks the protocol: {error.message}") from error

    def _silent(self, problem: str) -> TransportError:
        what = problem.format(worker=self._worker, seconds=self._connection.answer_timeout)
        return TransportError(
            f"sink {self._stream.peer} {what}; see whether it runs and its disk keeps up, or raise answer_timeout",
            code="sink-unreachable",
            peer=self._stream.peer,
        )

    def _closed(self) -> TransportError:
        problem = f"sink {self._stream.peer} closed the connection of {self._worker}"
        if not self._greeted:
            cookie = "a cookie" if self._connection.cookie else "no cookie"
            problem += (
                " before it answered HELLO: some sinks do so when the version or the cookie is wrong, and this "
                f"HELLO said version {self._connection.version!r} and {cookie} (version=, cookie=)"
            )
        return TransportError(f"{problem}; its log says why", code="sink-refused", peer=self._stream.peer)

    def _check(self, event: object) -> None:
        if isinstance(event, Error) and (event.reason == SUPERSEDED or event.reason.endswith(ALREADY_ACTIVE)):
            raise TransportError(
                f"sink {self._stream.peer} has another session of {self._worker}: another task runs its partition too",
                code="sink-partition-twice",
                peer=self._stream.peer,
            )
        if isinstance(event, Error):
            raise self.refused(event.reason)
        if isinstance(event, Restart):
            raise TransportError(
                f"sink {self._stream.peer} asks to connect again", code="sink-unreachable", peer=self._stream.peer
            )

    def refused(self, reason: str) -> SinkError:
        """Return the error for a sink that refuses a request."""
        return SinkError(
            f"sink {self._stream.peer} refuses {self._worker}: {reason}",
            code="sink-refused",
            peer=self._stream.peer,
            reason=reason,
        )


def shown(address: tuple[str, int]) -> str:
    """An address as people write it."""
    return format_address(*address)
