"""Decoding: a worker finds frames and makes columns of them; messages a second of processor time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from proving.bench.results.figures import Spread
from wallaroo_spark.columnar import by_stream, decode_run, find_messages
from wallaroo_spark.protocol import (
    REVISIONS,
    ConnectorSession,
    Message,
    MessageRun,
    NotifyReceived,
    Revision,
    WorkerSession,
)
from wallaroo_spark.worker.service import LOT_BYTES

CREDITS = 2**31
NOON = 1_700_000_000_000_000_000
STREAMS = (1, 64)


@dataclass(frozen=True)
class MessageShape:
    """The form of messages."""

    name: str
    """Its name in tables and pictures."""
    least: int
    """The shortest payload in bytes."""
    most: int
    """The longest payload in bytes."""
    rich: bool = False
    """Whether messages carry an event time, and a key where the revision has keys."""


SHAPES = (
    MessageShape("fixed 100 B", 100, 100),
    MessageShape("varied 20-180 B", 20, 180),
    MessageShape("varied, keys and times", 20, 180, rich=True),
    MessageShape("1 KB", 1024, 1024),
)


def frames(revision: Revision, shape: MessageShape, streams: int, count: int) -> bytes:
    """MESSAGE frames of ``streams`` streams in turn. draft-le has no keys."""
    chance = random.Random(count)
    keyed = shape.rich and revision.name != "draft-le"
    pieces = []
    for number in range(count):
        payload = b"x" * chance.randint(shape.least, shape.most)
        stream_id, message_id = number % streams + 1, number // streams + 1
        event_time = NOON + number if shape.rich else None
        key = b"key-%d" % (number % 1000) if keyed else None
        pieces.append(revision.encode(Message(stream_id, message_id, payload, event_time=event_time, key=key)))
    return b"".join(pieces)


def streaming(revision: Revision, streams: int) -> WorkerSession:
    """A worker's session in which these streams are open."""
    worker, connector = WorkerSession(version="0.0.1", find=find_messages), ConnectorSession(revision)
    worker.receive(connector.hello(version="0.0.1", cookie=b"", program="bench", instance="bench"))
    assert worker.next_event() is not None
    connector.receive(worker.ok(CREDITS))
    assert connector.next_event() is not None
    for stream_id in range(1, streams + 1):
        worker.receive(connector.notify(stream_id, f"stream {stream_id}"))
        assert isinstance(worker.next_event(), NotifyReceived)
        if revision.name == "v3":
            worker.notify_ack(stream_id, None, success=True)
    return worker


def take(worker: WorkerSession, reads: list[bytes]) -> int:
    """Do a worker's work on reads from a socket, up to the columns of each stream; returns the number of messages."""
    count = 0
    for data in reads:
        worker.receive(data)
        while (event := worker.next_event()) is not None:
            assert isinstance(event, MessageRun)
            decoded = decode_run(event, event_time_unit="ns")
            (rows,) = by_stream(decoded)
            worker.admit(rows.spans, decoded.count, decoded.error)
            count += decoded.count
    return count


def once(revision: Revision, data: bytes, streams: int) -> float:
    """Messages a second of processor time."""
    reads = [data[at : at + LOT_BYTES] for at in range(0, len(data), LOT_BYTES)]
    worker = streaming(revision, streams)
    began = time.process_time()
    count = take(worker, reads)
    return count / max(time.process_time() - began, 1e-9)


def cases() -> Iterator[tuple[Revision, MessageShape, int]]:
    """All measured cases."""
    for shape in SHAPES:
        for streams in STREAMS:
            for revision in REVISIONS.values():
                yield revision, shape, streams


def measure(count: int, repetitions: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure each case with ``count`` messages (a quarter of that for long ones), ``repetitions`` times."""
    found = []
    for revision, shape, streams in cases():
        progress(f"decode: {revision.name}, {shape.name}, {streams} streams")
        data = frames(revision, shape, streams, count if shape.most < 1000 else max(1, count // 4))
        once(revision, data, streams)
        spread = Spread.of(once(revision, data, streams) for _ in range(repetitions))
        found.append({"revision": revision.name, "shape": shape.name, "streams": streams, **spread.to_json()})
    return {"unit": "messages a second of processor time", "messages": count, "cases": found}


def slowest(result: dict[str, Any], shape: str = "varied 20-180 B", streams: int = 1) -> float:
    """The slowest revision of a case, by its median."""
    return min(
        float(case["median"]) for case in result["cases"] if (case["shape"], case["streams"]) == (shape, streams)
    )
