"""How many messages one connector sends: ``python -m proving.bench.sending``.

A process of its own takes everything in, and acknowledges it, at next to no cost. Said for each revision and way of
sending: messages a second by the clock, and by the connector's own processor time, which other programs on the machine
disturb less. ``send`` is the measure for the others.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from wallaroo_spark.connector import Connector, Lines, Records
from wallaroo_spark.protocol import REVISIONS, Message, MessagesReceived, NotifyReceived, WorkerSession

CREDITS = 2**31
ACKNOWLEDGE_BYTES = 1 << 20


def sink(ready: Connection, size: int) -> None:
    """Take one session after the other; every message is counted as ``size`` bytes of payload and the same head."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.send(listener.getsockname()[1])
        while True:
            peer, _ = listener.accept()
            with peer:
                _take(peer, size)


def _take(peer: socket.socket, size: int) -> None:
    session = WorkerSession(version="0.0.1")
    stream_id, frame, unread = 0, 0, 0
    while not frame:
        session.receive(peer.recv(65536))
        while (event := session.next_event()) is not None:
            if isinstance(event, NotifyReceived):
                stream_id = event.notify.stream_id
                if session.revision is not None and session.revision is REVISIONS["v3"]:
                    peer.sendall(session.notify_ack(stream_id, None, success=True))
            elif isinstance(event, MessagesReceived):
                assert session.revision is not None
                frame = len(session.revision.encode(Message(stream_id, 1, b"x" * size)))
                unread = event.run.size + session.pending
            elif not session.streams:
                peer.sendall(session.ok(CREDITS))
    buffer, said = bytearray(1 << 20), 0
    taken = unread
    while True:
        if taken - said >= ACKNOWLEDGE_BYTES or taken % frame == 0:
            peer.sendall(session.ack(0, [(stream_id, taken // frame)]))
            said = taken
        count = peer.recv_into(buffer)
        if not count:
            return
        taken += count


async def one_by_one(connector: Connector, payloads: list[bytes], path: Path) -> None:
    stream = await connector.open("a")
    for payload in payloads:
        await stream.send(payload)


async def many(connector: Connector, payloads: list[bytes], path: Path) -> None:
    stream = await connector.open("a")
    await stream.send_many(payloads)


async def from_lines(connector: Connector, payloads: list[bytes], path: Path) -> None:
    # The sink counts messages, and the references of lines are offsets: what it acknowledges is not waited for.
    feeding = asyncio.create_task(connector.feed(Lines(path), end=False))
    await _all_sent(connector, path.stat().st_size)  # noqa: ASYNC240 -- a moment
    feeding.cancel()
    await asyncio.wait([feeding])


async def from_records(connector: Connector, payloads: list[bytes], path: Path) -> None:
    await connector.feed(Records("a", lambda: enumerate(payloads, 1)), end=False)


async def _all_sent(connector: Connector, last: int) -> None:
    while not any(stream.last == last for stream in connector._hub.streams.values()):  # noqa: ASYNC110 -- no event says so
        await asyncio.sleep(0.001)


WAYS: dict[str, Callable[[Connector, list[bytes], Path], Awaitable[None]]] = {
    "send": one_by_one,
    "send_many": many,
    "feed lines": from_lines,
    "feed records": from_records,
}


async def measure(port: int, revision: str, way: str, payloads: list[bytes], path: Path) -> tuple[float, float]:
    """Messages a second: by the clock, and by processor time."""
    connector = Connector(
        "bench", instance="bench", workers=f"127.0.0.1:{port}", revision=revision, max_unacknowledged=256 << 20
    )
    async with connector:
        began, spent = time.perf_counter(), time.process_time()
        await WAYS[way](connector, payloads, path)
        if way != "feed lines":
            await connector.drain()
        return len(payloads) / (time.perf_counter() - began), len(payloads) / (time.process_time() - spent)


def measured(arguments: argparse.Namespace) -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=sink, args=(theirs, arguments.size), daemon=True)
    process.start()
    port = ours.recv()
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name, "lines")
    try:
        for revision in REVISIONS:
            base = 0.0
            for way in WAYS:
                count = arguments.messages if way != "send" else arguments.messages // 10
                payloads = [b"x" * arguments.size for _ in range(count)]
                path.write_bytes(b"\n".join(payloads) + b"\n")
                clock, own = max(
                    asyncio.run(measure(port, revision, way, payloads, path)) for _ in range(arguments.times)
                )
                base = base or own
                yield f"{revision:9} {way:13} {clock:12,.0f} msg/s {own:12,.0f} msg/s of processor {own / base:6.1f} x"
    finally:
        process.terminate()
        process.join()
        folder.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures how many messages one connector sends.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in bulk; a tenth one by one")
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--times", type=int, default=3, help="measurements of each, of which the best is said")
    for line in measured(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
