"""What one Python connector can send: to a process that takes everything, or, run as a sender, to a real worker."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.bench.figures import Spread
from tests.bench.load import Load
from wallaroo_spark.connector import Connector
from wallaroo_spark.protocol import REVISIONS

SIZE = 100
ONE_BY_ONE = 10
"""How many times fewer messages are sent where each is sent alone."""
PIECE = 20_000
POLL_SECONDS = 0.02


def measure(count: int, repetitions: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Each revision and way of sending, by the clock and by the connector's own processor time."""
    # The generator of the connector's own tests: one process more that takes everything in at next to no cost.
    from tests.connector.throughput import WAYS, sink
    from tests.connector.throughput import measure as send

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=sink, args=(theirs, SIZE), daemon=True)
    process.start()
    cases = []
    try:
        port = ours.recv()
        for revision in REVISIONS:
            for way in WAYS:
                progress(f"SDK: {revision}, {way}")
                messages = count if way == "send_many" else count // ONE_BY_ONE
                payloads = [b"x" * SIZE for _ in range(messages)]
                pairs = [asyncio.run(send(port, revision, way, payloads)) for _ in range(repetitions)]
                by_clock, by_cpu = (Spread.of(pair[at] for pair in pairs).to_json() for at in (0, 1))
                cases.append({"revision": revision, "way": way, "clock": by_clock, "cpu": by_cpu})
    finally:
        process.terminate()
        process.join()
    return {"size": SIZE, "messages": count, "cases": cases}


def slowest(result: dict[str, Any], way: str = "send_many") -> float:
    """Of the revisions, by the clock."""
    return min(case["clock"]["median"] for case in result["cases"] if case["way"] == way)


async def send(load: Load) -> None:
    """A connector that sends as fast as it may, with the words of the load generator."""
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
        while time.monotonic() < began + load.seconds:
            await stream.send_many(payloads)
        stopped, sent = time.monotonic(), stream.last or 0
        await asyncio.wait_for(connector.drain(), load.drain)
        await asyncio.sleep(2 * POLL_SECONDS)
        watching.cancel()
    report = {"stopped": stopped, "sent": sent, "acknowledged": points[-1][1], "points": points, "latencies": []}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(send(Load(**json.loads(sys.argv[1]))))
