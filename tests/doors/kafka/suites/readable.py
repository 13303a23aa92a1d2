"""A worker with the Kafka door, with what the clients' own test suites need around their producers.

Suites create topics of a given size, and read back what they have sent. A door does neither. Here both are answered:
topics by their names alone, and readers from the record batches that were committed. Produce, Metadata and
InitProducerId are the door's own.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa

from wallaroo_spark.doors.kafka import PREFIX
from wallaroo_spark.doors.kafka.apis import SERVED, Api, Code, ServedApi
from wallaroo_spark.doors.kafka.record_batch import BatchHead, head_of
from wallaroo_spark.doors.kafka.rows import topic_of
from wallaroo_spark.doors.kafka.server import KafkaServer, _Answer, _frame, _KafkaConnection
from wallaroo_spark.doors.kafka.wire import WireField, WireMessage, WireReader, read, write
from wallaroo_spark.testing.fake_worker import FakeWorker

PARTITIONS = 4
"""The partitions of a topic that nobody has created."""
FETCH_SECONDS = 0.1
"""The longest wait of a reader for records. A choice."""
OFFSET_OUT_OF_RANGE = 1
OFFSET_FETCH, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 9, 19, 20, 37

_F = WireField
_ERROR, _TEXT = _F("error", "i16"), _F("message", "text", since=1, nullable=0)
_NAME, _COUNT, _TIMEOUT, _VALIDATE = (
    _F("name", "text"),
    _F("partitions", "i32"),
    _F("timeout", "i32"),
    _F("validate", "bool", since=1),
)


def _rows(name: str, *fields: WireField, nullable: int = 99) -> WireField:
    return _F(name, fields, array=True, nullable=nullable)


def _throttle(since: int) -> WireField:
    return _F("throttle", "i32", since=since)


_ASSIGNED = _rows("assignments", _F("partition", "i32"), _F("brokers", "i32", array=True))
_CONFIGS = _rows("configs", _NAME, _F("value", "text", nullable=0))
_DETAILS = (_F("partitions", "i32", since=5), _F("replicas", "i16", since=5), _F("configs", (), since=5, array=True))
_POSITION = (
    _F("index", "i32"),
    _F("offset", "i64"),
    _F("leader_epoch", "i32", since=5),
    _F("metadata", "text", nullable=0),
    _F("error", "i16"),
)
BESIDE: dict[int, ServedApi] = {
    OFFSET_FETCH: ServedApi(
        0,
        5,
        WireMessage(
            (_F("group", "text"), _rows("topics", _NAME, _F("partitions", "i32", array=True), nullable=2)), flexible=6
        ),
        WireMessage(
            (_throttle(3), _rows("topics", _NAME, _rows("partitions", *_POSITION)), _F("error", "i16", since=2))
        ),
    ),
    CREATE_TOPICS: ServedApi(
        0,
        5,
        WireMessage(
            (_rows("topics", _NAME, _COUNT, _F("replicas", "i16"), _ASSIGNED, _CONFIGS), _TIMEOUT, _VALIDATE),
            flexible=5,
        ),
        WireMessage((_throttle(2), _rows("topics", _NAME, _ERROR, _TEXT, *_DETAILS)), flexible=5),
    ),
    DELETE_TOPICS: ServedApi(
        0,
        4,
        WireMessage((_F("topics", "text", array=True), _TIMEOUT), flexible=4),
        WireMessage((_throttle(1), _rows("topics", _NAME, _ERROR)), flexible=4),
    ),
    CREATE_PARTITIONS: ServedApi(
        0,
        1,
        WireMessage(
            (
                _rows("topics", _NAME, _COUNT, _rows("assignments", _F("brokers", "i32", array=True), nullable=0)),
                _TIMEOUT,
                _F("validate", "bool"),
            )
        ),
        WireMessage((_throttle(0), _rows("topics", _NAME, _ERROR, _F("message", "text", nullable=0)))),
    ),
}
"""The requests that are answered beside those of the door."""


class Committed:
    """The committed record batches of all partitions, as a broker would hand them out.

    It numbers all records of a partition together; the door numbers those of each producer.
    """

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        """The partitions of topics that were created."""
        self.away = threading.Event()
        """Set: the door drops every connection."""
        self._batches: defaultdict[tuple[str, int], list[tuple[int, int, BatchHead, bytes]]] = defaultdict(list)

    def add(self, rows: pa.Table) -> None:
        """Rows of a batch of Spark, each with a record batch."""
        for row in rows.select(["instance", "stream", "message_id", "value"]).to_pylist():
            if row["instance"].startswith(PREFIX) and row["value"] is not None:
                batches = self._batches[topic_of(row["stream"])]
                head = head_of(row["value"])
                first = batches[-1][1] + 1 if batches else 0
                batches.append((first, first + head.count - 1, head, first.to_bytes(8, "big") + row["value"][8:]))

    def end(self, place: tuple[str, int]) -> int:
        """The offset behind the last record."""
        batches = self._batches[place]
        return batches[-1][1] + 1 if batches else 0

    def offset(self, place: tuple[str, int], time: int) -> tuple[int, int]:
        """Time and offset of the first batch with a record from ``time`` on; -2: the first, -1: the end."""
        for first, _, head, _ in self._batches[place]:
            if time == -2 or (time >= 0 and head.max_time >= time):
                return (-1 if time < 0 else head.max_time, first)
        return -1, (self.end(place) if time < 0 else -1)

    def read(self, place: tuple[str, int], offset: int, most: int) -> tuple[int, bytes]:
        """The code and the batches from an offset on; one at least."""
        if offset > self.end(place):
            return OFFSET_OUT_OF_RANGE, b""
        batches, found = self._batches[place], bytearray()
        for _, _, _, batch in batches[bisect.bisect_left(batches, offset, key=lambda one: one[1]) :]:
            if found and len(found) + len(batch) > most:
                break
            found += batch
        return Code.NONE, bytes(found)


class ReadableServer(KafkaServer):
    """The door's server, which also creates topics and hands out what is committed."""

    def __init__(self, committed: Committed, *arguments: Any) -> None:
        self._committed = committed
        super().__init__(*arguments)

    def connected(self, connection: int, peer: str) -> None:
        super().connected(connection, peer)
        if self._committed.away.is_set():
            self._drop(self._connections[connection], "the test has cut it off")

    def received(self, connection: int, data: bytes, now: float, time_ns: int) -> None:
        if self._committed.away.is_set() and connection in self._connections:
            self._drop(self._connections[connection], "the test has cut it off")
        super().received(connection, data, now, time_ns)

    def _request(self, one: _KafkaConnection, frame: bytes) -> None:
        reader = WireReader(frame)
        key, version, correlation = (reader.fixed(kind) for kind in ("i16", "i16", "i32"))
        served = SERVED[Api.FETCH] if key == Api.FETCH else BESIDE.get(key)
        if one.raw_token or served is None:
            super()._request(one, frame)
            return
        reader.text(compact=False)
        flexible = version >= served.request.flexible
        if flexible:
            reader.skip_tags()
        request = read(served.request, version, frame, reader.at)

        def framed(values: dict[str, Any]) -> bytes:
            return _frame(correlation, write(served.response, version, values), flexible=flexible)

        if key == Api.FETCH:
            self._read(one, request, lambda: framed(self._found(request)))
            return
        answers: dict[int, Callable[[Any], dict[str, Any]]] = {OFFSET_FETCH: _position, DELETE_TOPICS: self._delete}
        rows = [answers.get(key, self._create)(topic) for topic in request["topics"] or ()]
        one.pending.append(_Answer(framed({"throttle": 0, "topics": rows, "error": Code.NONE})))

    def _create(self, topic: dict[str, Any]) -> dict[str, Any]:
        most = self.settings.layout.partitions
        wanted = topic["partitions"] if topic["partitions"] > 0 else len(topic["assignments"] or ()) or PARTITIONS
        code = Code.NONE if self._see(topic["name"]) else Code.INVALID_TOPIC
        self._committed.topics[topic["name"]] = min(wanted, most)
        details: dict[str, Any] = {"partitions": min(wanted, most), "replicas": 1, "configs": []}
        return {"name": topic["name"], "error": code, "message": None, **details}

    def _delete(self, topic: str) -> dict[str, Any]:
        known = self._committed.topics.pop(topic, None)
        return {"name": topic, "error": Code.NONE if known else Code.UNKNOWN_TOPIC_OR_PARTITION}

    def _read(self, one: _KafkaConnection, request: dict[str, Any], body: Callable[[], bytes]) -> None:
        answer = _Answer()

        def expire() -> None:
            answer.data = body()
            self._flush(one)

        wait = min(request["max_wait"] / 1000, FETCH_SECONDS)
        answer.begun, answer.until, answer.expire = self._now, self._now + wait, expire
        if any(
            one["records"] or one["error"] for topic in self._found(request)["topics"] for one in topic["partitions"]
        ):
            answer.data = body()
        one.pending.append(answer)

    def _found(self, request: dict[str, Any]) -> dict[str, Any]:
        topics = []
        for topic in request["topics"]:
            rows = []
            for asked in topic["partitions"]:
                place = topic["name"], asked["index"]
                code, records = self._committed.read(place, asked["offset"], asked["max_bytes"])
                end = self._committed.end(place)
                rows.append(
                    {"index": asked["index"], "error": code, "high_watermark": end, "last_stable_offset": end}
                    | {"log_start_offset": 0, "aborted": None, "preferred": -1, "records": records}
                )
            topics.append({"name": topic["name"], "partitions": rows})
        return {"throttle": 0, "error": Code.NONE, "session": 0, "topics": topics}

    def _list_offsets(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        answer = super()._list_offsets(one, version, request)
        for topic, asked in zip(answer["topics"], request["topics"], strict=True):
            for row, partition in zip(topic["partitions"], asked["partitions"], strict=True):
                place = asked["name"], partition["index"]
                row["timestamp"], row["offset"] = self._committed.offset(place, partition["timestamp"])
                row["error"], row["leader_epoch"] = Code.NONE, 0
        return answer

    def _find_coordinator(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        (node, *_) = self.settings.layout.shown(self.hosts)
        own = {"node": node.number, "host": node.host, "port": node.port, "error": Code.NONE, "message": None}
        return {"throttle": 0, **own, "coordinators": [{"key": key, **own} for key in request.get("keys", ())]}

    def _metadata(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        answer = super()._metadata(one, version, request)
        for topic in answer["topics"]:
            del topic["partitions"][self._committed.topics.get(topic["name"], PARTITIONS) :]
        return answer

    def _api_versions(self, one: _KafkaConnection, version: int, request: dict[str, Any]) -> dict[str, Any]:
        answer = super()._api_versions(one, version, request)
        answer["apis"] += [{"key": key, "oldest": row.oldest, "newest": row.newest} for key, row in BESIDE.items()]
        return answer


def _position(topic: dict[str, Any]) -> dict[str, Any]:
    """No group has a position."""
    none = {"offset": -1, "leader_epoch": -1, "metadata": "", "error": Code.NONE}
    return {"name": topic["name"], "partitions": [{"index": index, **none} for index in topic["partitions"]]}


class ReadableWorker(FakeWorker):
    """A worker whose committed record batches can be read."""

    def __init__(self, committed: Committed, **options: Any) -> None:
        self._readable = committed
        super().__init__(**options)

    def commit(self, *arguments: Any, **named: Any) -> pa.Table:
        """See :meth:`FakeWorker.commit`."""
        # Before the answers, for a client reads at once.
        self._readable.add(self.read(*arguments, **named))
        return super().commit(*arguments, **named)


@contextmanager
def readable(port: int, **options: Any) -> Iterator[Committed]:
    """A worker with a readable door at this port, which commits what it gets."""
    committed = Committed()
    server = functools.partial(ReadableServer, committed)
    with (
        mock.patch("wallaroo_spark.doors.kafka.door.KafkaServer", server),
        ReadableWorker(committed, kafka_port=port, **options) as worker,
        worker.committing(),
    ):
        yield committed
