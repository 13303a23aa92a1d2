"""Many active streams in one worker: messages a second and processor time, phase by phase, without Spark.

The worker's state receives frames that are encoded once; then the driver's calls follow: plan, read and commit,
encoded as for the inner port. ``python -m proving.bench.sections.active --help`` describes how to run it alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from proving.bench.load_generator import Template
from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion
from wallaroo_spark.inner.rows import Unpacker
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import REVISIONS, ConnectorSession, Ok
from wallaroo_spark.references import PlannedRange, flatten, nest
from wallaroo_spark.runtime.python_tasks import rare_collections
from wallaroo_spark.worker.buffer.delivery import gather
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.offers import offer
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.state import WorkerState
from wallaroo_spark.worker.service import LOT_BYTES

REVISION = REVISIONS["draft-be"]
COOKIE = "a cookie for this run"


@dataclass(frozen=True)
class Case:
    """The parameters of one run."""

    streams: int
    """Active streams, of all sessions together."""
    sessions: int = 1
    """Sessions that share the streams."""
    messages: int = 100_000
    """Messages a batch, of all streams together."""
    size: int = 100
    """Bytes of a payload."""
    lot: int = LOT_BYTES
    """Bytes that the worker is given at once."""


class Phases:
    """Processor seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the processor time of a block."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - began


@dataclass
class Feed:
    """One session and its position; message n is number n // streams of stream n % streams."""

    number: int
    """The session's number."""
    streams: int
    size: int
    """Bytes of a payload."""
    template: Template
    """The encoded frames."""
    sent: int = 0
    """Messages that were made so far."""
    due: int = 0
    """Messages that should be sent by now."""
    left: bytes = field(default=b"", repr=False)
    """Encoded bytes that are not taken yet."""

    def take(self, most: int) -> bytes:
        """The next due bytes, at most ``most``."""
        while len(self.left) < most and self.due > self.sent:
            count = min(self.template.most, self.due - self.sent)
            self.left += self.template.frames(0, self.streams, self.sent, count)
            self.sent += count
        data, self.left = self.left[:most], self.left[most:]
        return data


class WorkerUnderLoad:
    """A worker's state, its sessions, and a driver that runs batches on it."""

    def __init__(self, shape: Case) -> None:
        self.shape = shape
        self.phases = Phases()
        self.state = WorkerState(Options(cookie=COOKIE, credits="fixed"), Origin(0, 1), COOKIE)
        self.now = 0.0
        self.rows = 0
        self.batch = -1
        self._do(e.Rewound(1, -1, {}))
        template = Template(REVISION, shape.size)
        each = shape.streams // shape.sessions
        self.feeds = [Feed(number, each, shape.size, template) for number in range(shape.sessions)]
        for feed in self.feeds:
            self._open(feed)

    def _do(self, event: e.Event) -> list[e.Instruction]:
        return self.state.handle(event)

    def _open(self, feed: Feed) -> None:
        self._do(e.Connected(feed.number, f"10.0.0.1:{feed.number}", self.now))
        session = ConnectorSession(REVISION)
        hello = session.hello(version="0.0.1", cookie=COOKIE.encode(), program="bench", instance=f"shop-{feed.number}")
        out = self._do(e.Received(((feed.number, hello),), 1))
        self._do(e.Assigned(feed.number, f"shop-{feed.number}", 0, "here:1"))
        scopes = [f"shop-{feed.number}"]
        out += self._do(e.Committed(1, self.batch, {}, scopes=scopes))
        for instruction in out:
            if isinstance(instruction, e.Send):
                session.receive(instruction.data)
        assert isinstance(session.next_event(), Ok)
        notes = b"".join(session.notify(number, f"stream {number}") for number in range(1, feed.streams + 1))
        self._do(e.Received(((feed.number, notes),), 1))

    def run_batch(self) -> None:
        """Send the messages of a batch, then plan, read and commit it."""
        shape = self.shape
        for feed in self.feeds:
            feed.due += shape.messages // shape.sessions
        lot: list[tuple[int, bytes]] = []
        size = 0
        each = max(1, min(256 * 1024, shape.lot // shape.sessions))
        while waiting := [feed for feed in self.feeds if feed.due > feed.sent or feed.left]:
            for feed in waiting:
                credits = self.state.connections.by_number[feed.number].protocol.credits.available
                data = feed.take(min(each, credits * shape.size))
                lot.append((feed.number, data))
                size += len(data)
                if size >= shape.lot:
                    self._receive(lot)
                    lot, size = [], 0
            if lot and len(waiting) == 1 and size < shape.lot and waiting[0].sent < waiting[0].due:
                continue
            if lot:
                self._receive(lot)
                lot, size = [], 0
        self._query()

    def _receive(self, lot: list[tuple[int, bytes]]) -> None:
        with self.phases.phase("receive"):
            self._do(e.Received(tuple(lot), 1_700_000_000_000_000))

    def _query(self) -> None:
        phase, buffer = self.phases.phase, self.state.buffer
        asked = PlanQuestion().encode()
        with phase("plan"):
            told = offer(buffer, PlanQuestion.decode(asked)).encode()
        with phase("driver"):
            offers = PlanAnswer.decode(told).offers
            ranges = [PlannedRange(key, one.start, one.end) for key, one in offers.items()]
            ticket = json.dumps([one.to_json() for one in ranges])
            committed = json.dumps(nest({one.key: one.end for one in ranges}))
        with phase("find"):
            asked_for = {index: PlannedRange.from_json(one) for index, one in enumerate(json.loads(ticket))}
            found = buffer.find_all(asked_for)
            assert len(found) == len(asked_for)
        with phase("gather"):
            sent = list(gather(found))
        with phase("task"):
            unpacker = Unpacker(boundaries=False)
            for batch, text in sent:
                rows, _ = unpacker.unpack(batch, text)
                self.rows += rows.num_rows
        del found, sent, rows, batch
        self.batch += 1
        self.now += 1.0
        with phase("commit"):
            self._do(e.Committed(1, self.batch, flatten(json.loads(committed)), self.now))
        with phase("tick"):
            self._do(e.Tick(self.now))


WORKER = ("receive", "plan", "find", "gather", "commit", "tick")
"""The phases whose processor time is a worker's; "task" is the reading task's, "driver" the planner's."""
CASES = ((1, 1), (10, 1), (1_000, 1), (10_000, 1), (10_000, 10))
"""Streams and sessions of each case; the others are compared with the first."""
BATCHES = 3


def measure(progress: Callable[[str], None], messages: int = 100_000) -> dict[str, Any]:
    """All cases, each with its processor time against that of one stream in the same run."""
    cases = []
    for streams, sessions in CASES:
        progress(f"active: {streams:,} streams in {sessions} sessions")
        with rare_collections():
            cases.append(run(Case(streams, sessions, max(messages, streams)), BATCHES))
    one = cases[0]["worker_seconds_per_million"]
    return {"cases": [{**case, "of_one_stream": case["worker_seconds_per_million"] / one} for case in cases]}


def most(found: dict[str, Any]) -> float:
    """Messages a second with the most streams in one session."""
    rate: float = next(
        case["messages_per_second"] for case in found["cases"] if (case["streams"], case["sessions"]) == (10_000, 1)
    )
    return rate


def run(shape: Case, batches: int) -> dict[str, Any]:
    """Run ``batches`` batches; processor seconds a million messages by phase, and messages a processor second."""
    load = WorkerUnderLoad(shape)
    load.run_batch()
    load.phases.seconds.clear()
    load.rows = 0
    for _ in range(batches):
        load.run_batch()
    assert load.rows == shape.messages * batches, load.rows
    by_phase = {name: 1e6 * seconds / load.rows for name, seconds in load.phases.seconds.items()}
    worker = sum(by_phase[name] for name in WORKER)
    return {
        "streams": shape.streams,
        "sessions": shape.sessions,
        "worker_seconds_per_million": worker,
        "messages_per_second": 1e6 / worker,
        "by_phase": by_phase,
    }


def shown(found: dict[str, Any]) -> str:
    """One line for a run."""
    phases = " ".join(f"{name} {seconds:.2f}" for name, seconds in found["by_phase"].items())
    return (
        f"{found['streams']:>6} streams, {found['sessions']:>4} sessions: {found['messages_per_second']:>9,.0f} msg/s, "
        f"{found['worker_seconds_per_million']:6.2f} CPU s a million ({phases})"
    )


def main() -> None:
    """Run it alone."""
    parser = argparse.ArgumentParser(prog="active", description="Many active streams in one worker, without Spark.")
    parser.add_argument("--streams", default="1,10,1000,10000")
    parser.add_argument("--sessions", default="1")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--lot", type=int, default=LOT_BYTES)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    for sessions in map(int, given.sessions.split(",")):
        for streams in map(int, given.streams.split(",")):
            if streams < sessions:
                continue
            shape = Case(streams, sessions, given.messages, given.size, given.lot)
            if given.profile:
                import cProfile

                cProfile.runctx("print(shown(run(shape, given.batches)))", globals(), locals(), sort="tottime")
            else:
                print(shown(run(shape, given.batches)), flush=True)


if __name__ == "__main__":
    main()
