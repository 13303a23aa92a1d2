"""The driver's part without Spark: it plans, reads and commits the rows of a worker, batch after batch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from typing import Any

from tests.waiting import eventually
from tests.worker.running import Running
from wallaroo_spark.errors import TransportError
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.references import flatten

WAIT_SECONDS = 0.05


class Query:
    """Runs in a thread from entry to exit. ``rows`` has each stream's messages in the order of commits."""

    def __init__(self, worker: Running) -> None:
        self.rows: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self._worker = worker
        self._references: dict[str, dict[str, Any]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)

    def __enter__(self) -> Query:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def payloads(self) -> list[list[bytes]]:
        """The payloads of all streams."""
        return [[payload for _, payload in rows] for rows in self.rows.values()]

    async def has(self, messages: int) -> None:
        """Wait until so many are committed in all."""
        await asyncio.to_thread(eventually, lambda: sum(map(len, list(self.rows.values()))) >= messages)

    def _run(self) -> None:
        while not self._stopping.wait(WAIT_SECONDS):
            with contextlib.suppress(TransportError):
                self._batch()

    def _batch(self) -> None:
        worker = self._worker
        ends = worker.client.plan(PlanQuestion(flatten(self._references))).ends
        read: dict[int, list[tuple[int, bytes]]] = {}
        for scope, streams in ends.items():
            for stream, end in streams.items():
                start = self._references.get(scope, {}).get(stream)
                rows = worker.rows(scope, int(stream), start, end)
                read[int(stream)] = [(row["message_id"], row["value"]) for row in rows if row["value"] is not None]
        if not ends:
            return
        for stream_id, found in read.items():
            self.rows[stream_id] += found
        for scope, streams in ends.items():
            self._references.setdefault(scope, {}).update(streams)
        worker.commit(ends)
