"""A server and clients that do the same over TCP with TLS and over channels on QUIC, as programs of their own.

python -m proving.bench.channels.program ROAD VERB ARGUMENTS…, where ROAD is tcp or quic; a client prints a JSON object.
The client ``quiet`` also has the roads connector-tcp and connector-quic, to a worker.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

from wallaroo_spark import aqueduct
from wallaroo_spark.connector import Connector, Stream
from wallaroo_spark.connector.reporting import Acknowledgements
from wallaroo_spark.transport import client_context, parse_address, server_context

MESSAGE = 64 * 1024
"""Bytes of a message of the busy stream when it sends as fast as it can."""
PACED, PACE = 10_000, 0.1
"""Bytes of a message of the busy stream beside a quiet one, and seconds between two."""
QUIET, QUIET_PACE = 100, 0.05
"""The same of the quiet stream, whose messages are answered."""
ANSWERED, PLAIN, LAST = b"a", b"p", b"l"
"""The first byte of a message: answer it; do not; answer it, it is the last."""
_HEAD = struct.Struct(">I")


class Way(Protocol):
    """Two streams to a server."""

    async def busy(self, payload: bytes) -> None:
        """Send on the busy stream."""

    async def quiet(self, payload: bytes) -> None:
        """Send on the quiet stream."""

    async def answer(self) -> bytes:
        """The next answer of the server, on either stream."""


class Tcp:
    """Both streams in one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def busy(self, payload: bytes) -> None:
        """Frames of both streams are one behind the other."""
        self._writer.write(_HEAD.pack(len(payload)) + payload)
        await self._writer.drain()

    quiet = busy

    async def answer(self) -> bytes:
        """The next frame."""
        (length,) = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
        return await self._reader.readexactly(length)


class Quic:
    """A channel for each stream."""

    def __init__(self, busy: aqueduct.Sender, quiet: aqueduct.Sender, answers: aqueduct.Receiver) -> None:
        self._busy, self._quiet, self._answers = busy, quiet, answers

    async def busy(self, payload: bytes) -> None:
        """Send on the one channel."""
        await self._busy.send(payload)

    async def quiet(self, payload: bytes) -> None:
        """Send on the other one."""
        await self._quiet.send(payload)

    async def answer(self) -> bytes:
        """The answers have one channel, too."""
        message = await self._answers.receive()
        assert message is not None
        return message.payload


class Connected:
    """Two streams of a connector; their answers are their ACKs."""

    def __init__(self, busy: Stream, quiet: Stream, acknowledgements: Acknowledgements) -> None:
        self._busy, self._quiet, self._acknowledgements = busy, quiet, acknowledgements
        self._answers: deque[bytes] = deque()

    async def busy(self, payload: bytes) -> None:
        """Send on the one stream."""
        await self._busy.send(payload)

    async def quiet(self, payload: bytes) -> None:
        """Send on the other one, with the message's number as its id."""
        await self._quiet.send(payload, id=1 + _HEAD.unpack(payload[1:5])[0])

    async def answer(self) -> bytes:
        """A message of the quiet stream that is acknowledged."""
        while not self._answers:
            found = await anext(self._acknowledgements)
            if found.stream == self._quiet.name:
                numbers = range(found.reference - found.messages, found.reference)
                self._answers += [ANSWERED + _HEAD.pack(number) for number in numbers]
        return self._answers.popleft()


@asynccontextmanager
async def way(road: str, address: str, ca: str) -> AsyncIterator[Way]:
    """Connect."""
    if road.startswith("connector-"):
        workers = address if road == "connector-tcp" else f"quic://{address}"
        async with Connector("bench", instance="bench", workers=workers, ca=ca) as connector:
            busy_one, quiet_one = await connector.open("busy"), await connector.open("quiet")
            yield Connected(busy_one, quiet_one, connector.acknowledgements())
        return
    host, port = parse_address(address)
    if road == "tcp":
        reader, writer = await asyncio.open_connection(host, port, ssl=client_context(ca), server_hostname="localhost")
        try:
            yield Tcp(reader, writer)
        finally:
            writer.close()
        return
    connection = await aqueduct.connect(address, ca=ca, server_name="localhost")
    busy, for_busy = connection.channel("sender")
    quiet, for_quiet = connection.channel("sender")
    answers, for_answers = connection.channel()
    await connection.entrypoint.send(b"", attach=[for_answers, for_busy, for_quiet])
    try:
        yield Quic(busy, quiet, answers)
    finally:
        connection.abort("measured")
        busy.cancel()
        quiet.cancel()


async def serve(road: str, host: str, certificate: str, key: str) -> None:
    """Answer what asks for it, until this is killed."""
    if road == "tcp":
        context = server_context(certificate, key)
        server = await asyncio.start_server(_serve_tcp, host, 0, ssl=context)
        print(f"{host}:{server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()
    async with aqueduct.serve(_serve_quic, host, 0, certificate=certificate, key=key) as listening:
        print(listening.address, flush=True)
        await listening.serve_forever()


async def _serve_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    other = Tcp(reader, writer)
    try:
        while True:
            payload = await other.answer()
            if payload[:1] != PLAIN:
                await other.busy(payload[:100])
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _serve_quic(connection: aqueduct.Connection) -> None:
    first = await connection.requests.receive()
    assert first is not None
    answers = first.attachments[0].sender()

    async def take(receiver: aqueduct.Receiver) -> None:
        async for message in receiver:
            if message.payload[:1] != PLAIN:
                await answers.send(message.payload[:100])

    async with asyncio.TaskGroup() as taking:
        for attached in first.attachments[1:]:
            taking.create_task(take(attached.receiver()))


async def bulk(road: str, address: str, ca: str, megabytes: str) -> dict[str, Any]:
    """Send as fast as it goes, until the server has everything."""
    count = int(float(megabytes) * 1e6 / MESSAGE)
    async with way(road, address, ca) as to:
        began, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            await to.busy(PLAIN + bytes(MESSAGE - 1))
        await to.busy(LAST)
        await to.answer()
        seconds, used = time.perf_counter() - began, time.process_time() - used
    return {"megabytes_per_second": count * MESSAGE / seconds / 1e6, "cpu_seconds": used}


async def quiet(road: str, address: str, ca: str, seconds: str) -> dict[str, Any]:
    """A quiet stream beside a busy one: milliseconds from the moment that a message is due to its answer."""
    async with way(road, address, ca) as to:
        began = time.perf_counter() + 0.2
        count = int(float(seconds) / QUIET_PACE)

        async def send(
            send_one: Callable[[bytes], Awaitable[None]], kind: bytes, size: int, pace: float, count: int
        ) -> None:
            for number in range(count):
                await asyncio.sleep(began + number * pace - time.perf_counter())
                await send_one(kind + _HEAD.pack(number) + bytes(size))

        async with asyncio.TaskGroup() as sending:
            sending.create_task(send(to.busy, PLAIN, PACED, PACE, int(float(seconds) / PACE)))
            sending.create_task(send(to.quiet, ANSWERED, QUIET, QUIET_PACE, count))
            found = []
            for _ in range(count):
                (number,) = _HEAD.unpack((await to.answer())[1:5])
                found.append(1000 * (time.perf_counter() - began - number * QUIET_PACE))
    return {"ms": found}


async def moved(road: str, address: str, ca: str) -> dict[str, Any]:
    """Milliseconds to the first answer after the address of this machine has changed, which a line on the input says.

    Over TCP it is the time of a new connection: the old one must be noticed to be dead before.
    """
    async with way(road, address, ca) as to:
        await to.quiet(ANSWERED)
        await to.answer()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.perf_counter()
        if road == "tcp":
            async with way(road, address, ca) as again:
                await again.quiet(ANSWERED)
                await again.answer()
        else:
            await to.quiet(ANSWERED)
            await to.answer()
        return {"ms": 1000 * (time.perf_counter() - began)}


async def datagrams(road: str, address: str, ca: str, count: str) -> dict[str, Any]:
    """Unreliable messages, 200 a second, of which each is told to be there or to be lost."""
    async with aqueduct.connect(address, ca=ca, server_name="localhost") as connection:
        sender, theirs = connection.channel("sender")
        _answers, for_answers = connection.channel()
        await connection.entrypoint.send(b"", attach=[for_answers, theirs])
        sent = []
        for number in range(int(count)):
            sent.append(await sender.send(PLAIN + _HEAD.pack(number) + bytes(QUIET), unreliable=True))
            await asyncio.sleep(0.005)
        outcomes = await asyncio.gather(*(message.acked for message in sent), return_exceptions=True)
        await sender.finish()
    return {"sent": len(sent), "lost": sum(isinstance(one, aqueduct.Lost) for one in outcomes)}


if __name__ == "__main__":
    road, verb, *given = sys.argv[1:]
    if verb == "serve":
        asyncio.run(serve(road, *given))
    else:
        clients: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]]
        clients = {"bulk": bulk, "quiet": quiet, "moved": moved, "datagrams": datagrams}
        print(json.dumps(asyncio.run(clients[verb](road, *given))), flush=True)
