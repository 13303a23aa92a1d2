"""Samples the live messages of a fleet without consuming them.

Source: ``docs/debug-a-connector.md#look-at-live-messages``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa

from wallaroo_spark.errors import TransportError
from wallaroo_spark.inner.calls import SampleQuestion
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.references import StreamKey

INTERVAL_SECONDS = 0.2
"""Seconds between two samples of a worker. A choice: five a second look live."""
AGAIN_SECONDS = 1.0
"""Seconds until a worker that did not answer is asked again. A choice."""
_MOST_PASSED = 10_000
"""Most streams whose position is remembered. A choice; of others some messages may be shown twice."""
_WAIT_SECONDS = 1.0
_U64 = 1 << 64


@dataclass(frozen=True)
class TappedMessage:
    """One message on its way. Values are those of the row that Spark reads."""

    slot: int
    """Slot of the worker that holds it."""
    instance: str
    """Name of the connector instance."""
    stream: str
    stream_id: int
    """Id of the stream, u64 as on the wire."""
    message_id: int | None
    """Id of the message; None for an ephemeral message in draft-be."""
    event_time: datetime | None
    """Event time; None without one."""
    key: bytes | None
    """Key, possibly cut; None without one."""
    value: bytes | None
    """Payload, possibly cut; None for a BOUNDARY."""
    size: int
    """Bytes of the whole payload."""
    flags: int
    received_at: datetime
    """Time at which the worker received it."""


def tap(
    workers: Callable[[], Mapping[int, str]],
    token: str,
    stream: str,
    *,
    instance: str = "",
    rate: float = 20.0,
    cut: int = 4096,
    trust: Trust | None = None,
    seconds: float | None = None,
) -> Iterator[TappedMessage]:
    """Messages of a stream, by name or id (``*``: of all streams), as workers receive them, until closed.

    It is a sample: at most ``rate`` messages a second of each worker, the newest ones. ``workers`` returns the inner
    addresses by slot. ``token`` is the fleet's token or its tap token. With ``seconds`` it ends after so long.

    Raises :class:`TransportError` when a worker refuses the token, and when no worker has ever answered.
    """
    found: SimpleQueue[TappedMessage | TransportError] = SimpleQueue()
    stop = threading.Event()
    rows = max(1, round(rate * INTERVAL_SECONDS))
    question = SampleQuestion(stream, instance, rows, cut, _WAIT_SECONDS)
    threads: dict[int, threading.Thread] = {}
    until = None if seconds is None else time.monotonic() + seconds
    try:
        while until is None or time.monotonic() < until:
            for slot, address in workers().items():
                if slot not in threads or not threads[slot].is_alive():
                    client = WorkerClient(address, token, trust=trust)
                    pause = max(INTERVAL_SECONDS, rows / rate)
                    of_slot = (slot, client, question, pause, found, stop)
                    threads[slot] = threading.Thread(target=_sample, args=of_slot, name=f"tap-{slot}", daemon=True)
                    threads[slot].start()
            yield from _arrived(found, AGAIN_SECONDS if until is None else min(AGAIN_SECONDS, until - time.monotonic()))
    finally:
        stop.set()


def _arrived(found: SimpleQueue[TappedMessage | TransportError], seconds: float) -> Iterator[TappedMessage]:
    """The messages that arrive within some seconds."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            one = found.get(timeout=left)
        except Empty:
            return
        if isinstance(one, TransportError):
            raise one
        yield one


def _sample(
    slot: int,
    client: WorkerClient,
    question: SampleQuestion,
    pause: float,
    found: SimpleQueue[TappedMessage | TransportError],
    stop: threading.Event,
) -> None:
    """Ask one worker until it does not answer any more; a refusal is passed on."""
    cursor: Mapping[StreamKey, int] = {}
    answered = False
    try:
        while not stop.is_set():
            sample = client.sample(SampleQuestion(**{**vars(question), "cursor": cursor}))
            answered = True
            cursor = {**cursor, **sample.cursor} if len(cursor) < _MOST_PASSED else sample.cursor
            for row in sorted(_rows(sample.rows, question), key=lambda row: row["received_at"]):
                found.put(_message(slot, row))
            stop.wait(pause)
    except TransportError as error:
        # A worker that answered once may have been replaced; the next round asks its successor.
        if not answered:
            found.put(error)
    finally:
        client.close()


def _rows(sample: pa.Table, question: SampleQuestion) -> list[dict[str, Any]]:
    """The rows of a sample, with the newest records of record batches in their place."""
    if not any(name.startswith("kafka/") for name in sample["instance"].unique().to_pylist()):
        return sample.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no type information
    from wallaroo_spark.doors.kafka.rows import expand

    found: list[dict[str, Any]] = []
    for batch in sample.to_batches():
        for part in expand(batch, headers=False, corrupt=False):
            for row in part.slice(max(0, part.num_rows - question.rows)).to_pylist():
                row.setdefault("size", len(row["value"] or b""))
                for name in ("key", "value"):
                    row[name] = None if row[name] is None else row[name][: question.cut]
                found.append(row)
    return found


def _message(slot: int, row: dict[str, Any]) -> TappedMessage:
    # The bits of a bigint are those of the u64.
    row["stream_id"] %= _U64
    if row["message_id"] is not None:
        row["message_id"] %= _U64
    return TappedMessage(slot, **row)
