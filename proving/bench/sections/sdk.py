"""The speed of one Python connector: to a process that accepts everything, or, run as a sender, to a real worker."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from proving.bench.load_generator import Load
from proving.bench.results.figures import Spread
from wallaroo_spark.connector import Connector, Lines
from wallaroo_spark.protocol import REVISIONS, Hello, Message, MessageRun, NotifyReceived, WorkerSession

SIZE = 100
CREDITS = 2**31 - 1
ONE_BY_ONE = 2
"""The factor by which fewer messages are sent in the case of one call for each message."""
PIECE = 20_000
POLL_SECONDS = 0.02


def sink(ready: Pipe) -> None:
    """Serve one session after the other: find the frames and acknowledge the last of each run, nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.send(listener.getsockname()[1])
        while True:
            peer, _ = listener.accept()
            with peer:
                _take(peer)


def _take(peer: socket.socket) -> None:
    session = WorkerSession(version="0.0.1")
    while data := peer.recv(1 << 18):
        session.receive(data)
        while (event := session.next_event()) is not None:
            match event:
                case Hello():
                    peer.sendall(session.ok(CREDITS))
                case NotifyReceived() if session.revision is REVISIONS["v3"]:
                    peer.sendall(session.notify_ack(event.notify.stream_id, None, success=True))
                case MessageRun() as run if run.count:
                    last = run.revision.decode(run.revision.by_frame[Message].tag, run.data[run.starts[-1] : run.end])
                    assert isinstance(last, Message)
                    peer.sendall(session.ack(run.count, [(last.stream_id, last.message_id or 0)]))


async def one_by_one(connector: Connector, payloads: list[bytes], path: Path) -> None:
    """A call for each message."""
    stream = await connector.open("load")
    for payload in payloads:
        await stream.send(payload)
    await connector.drain()


async def in_bulk(connector: Connector, payloads: list[bytes], path: Path) -> None:
    """One call for all."""
    stream = await connector.open("load")
    await stream.send_many(payloads)
    await connector.drain()


async def of_a_file(connector: Connector, payloads: list[bytes], path: Path) -> None:
    """The lines of a file, as ``wallaroo-spark send`` sends them."""
    await connector.feed(Lines(path), end=False)


WAYS = {"send": one_by_one, "send_many": in_bulk, "feed of a file": of_a_file}


async def once(port: int, revision: str, way: str, payloads: list[bytes], path: Path) -> tuple[float, float]:
    """Messages a second until all are acknowledged: of elapsed time, and of processor time."""
    connector = Connector(
        "bench", instance="bench", workers=f"127.0.0.1:{port}", revision=revision, max_unacknowledged=256 << 20
    )
    async with connector:
        began, spent = time.perf_counter(), time.process_time()
        await WAYS[way](connector, payloads, path)
        return len(payloads) / (time.perf_counter() - began), len(payloads) / (time.process_time() - spent)


def measure(directory: Path, count: int, repetitions: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure each revision and way of sending, in elapsed time and in the connector's own processor time."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=sink, args=(theirs,), daemon=True)
    process.start()
    cases = []
    try:
        port = ours.recv()
        for revision in REVISIONS:
            for way in WAYS:
                progress(f"SDK: {revision}, {way}")
                payloads = [b"x" * SIZE] * (count // ONE_BY_ONE if way == "send" else count)
                path = directory / "lines"
                path.write_bytes(b"\n".join(payloads) + b"\n")
                pairs = [asyncio.run(once(port, revision, way, payloads, path)) for _ in range(repetitions)]
                by_clock, by_cpu = (Spread.of(pair[at] for pair in pairs).to_json() for at in (0, 1))
                cases.append({"revision": revision, "way": way, "clock": by_clock, "cpu": by_cpu})
    finally:
        process.terminate()
        process.join()
    return {"size": SIZE, "messages": count, "cases": cases}


def slowest(result: dict[str, Any], way: str = "send_many") -> float:
    """The rate of the slowest revision, of elapsed time."""
    return min(float(case["clock"]["median"]) for case in result["cases"] if case["way"] == way)


async def send(load: Load) -> None:
    """Send ``rate`` messages a second, 0 for as fast as credits allow, and print the lines of the load generator."""
    payloads = [b"x" * load.size] * PIECE
    points: list[tuple[float, int]] = []
    connector = Connector(
        load.program,
        instance=load.prefix,
        workers=load.address,
        cookie=load.cookie,
        revision=load.revision,
        max_unacknowledged=1 << 30,
    )
    async with connector:
        stream = await connector.open("load")
        began = time.monotonic()
        print(json.dumps({"began": began}), flush=True)

        async def watch() -> None:
            while True:
                acknowledged = stream.acknowledged or 0
                if not points or points[-1][1] != acknowledged:
                    points.append((time.monotonic(), acknowledged))
                await asyncio.sleep(POLL_SECONDS)

        watching = asyncio.create_task(watch())
        count = 0
        while (now := time.monotonic()) < began + load.seconds:
            due = min(int(load.rate * (now - began)) - count, PIECE) if load.rate else PIECE
            if due > 0:
                await stream.send_many(payloads[:due])
                count += due
            if load.rate:
                # Without this pause the next call would come at once, with the few messages that are due by then.
                await asyncio.sleep(load.burst)
        stopped, sent = time.monotonic(), stream.last or 0
        await asyncio.wait_for(connector.drain(), load.drain)
        await asyncio.sleep(2 * POLL_SECONDS)
        watching.cancel()
    report = {"stopped": stopped, "sent": sent, "acknowledged": points[-1][1], "points": points, "latencies": []}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(send(Load(**json.loads(sys.argv[1]))))
