"""The clients of doors that send in a run: each a program of ``proving/producers``, and a row of one table."""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proving import producers
from proving.chaos.doors.promises import ClientsVerdict, Expected, Numbers, Promise, Told, judge, number_of, outcomes
from proving.chaos.judge import Written
from proving.chaos.report import Sent
from proving.chaos.schedule import Kind
from proving.chaos.stage import COOKIE, SLOTS, Stage
from proving.producers import telemetry
from wallaroo_spark.registry.embedded import lasting_port

KINDS = (Kind.WORKER, Kind.EXECUTOR, Kind.DRIVER)
COLUMNS = ("instance", "stream", "stream_id", "message_id", "key", "value")
KAFKA, HTTP, OTLP = "kafka.port", "http.port", "otlp.port"
PORTS = {KAFKA: 4, HTTP: 1, OTLP: 1}
"""The doors by the options of their ports, each with the ports of a slot: ``kafka.nodes`` has its default."""


def spans_of(row: Mapping[str, Any], name: str) -> list[int]:
    """The names of the spans of a request for traces, which are numbers, of the service with this name."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    body = bytes(row["value"])
    request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    return [
        int(span.name)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if any(one.key == "service.name" and one.value.string_value == name for one in resource.resource.attributes)
    ]


@dataclass(frozen=True)
class Row:
    """One client. In regular expressions ``{name}`` is its name."""

    name: str
    """Its name, which is also the stream that it names."""
    promise: Promise
    """What it is promised."""
    door: str
    """The option of the port to which it sends."""
    instance: str
    """The instance of its rows, a regular expression."""
    command: Callable[[str], list[str]]
    """The beginning of its command line, from its name."""
    stream: str = "{name}"
    """The stream of its rows, a regular expression."""
    numbers: Numbers = number_of
    """Reads them from a row of the sink's table."""
    each_slot: bool = False
    """Whether it is told the addresses of all slots; otherwise that of the first one."""

    @property
    def expected(self) -> Expected:
        """The client as the judge knows it."""
        instance, stream = (text.replace("{name}", self.name) for text in (self.instance, self.stream))
        return Expected(self.name, self.promise, instance, stream, self.numbers)


def _kafka(name: str) -> Row:
    promise = Promise.ONCE if name in producers.IDEMPOTENT else Promise.ANSWERED
    return Row(name, promise, KAFKA, "kafka/{name}", producers.command)


def _http(name: str, promise: Promise, instance: str) -> Row:
    def command(name: str) -> list[str]:
        return [sys.executable, "-m", "proving.producers.http_clients", name]

    return Row(name, promise, HTTP, instance, command, each_slot=True)


def _spans(name: str, door: str, command: Callable[[], list[str]]) -> Row:
    return Row(name, Promise.ANSWERED, door, "otlp/{name}", lambda _: command(), stream="traces", numbers=spans_of)


ROWS = (
    *map(_kafka, producers.CODECS),
    _http("curl", Promise.ANSWERED, "http/worker-[0-9]+"),
    _http("curl-with-tokens", Promise.ONCE, "http/{name}"),
    _http("browser", Promise.ONCE, "http/{name}"),
    _spans("opentelemetry-python", OTLP, telemetry.python_program),
    _spans("opentelemetry-java", HTTP, telemetry.java_program),
    _spans("opentelemetry-collector", OTLP, telemetry.collector_program),
)
"""Every client."""


class Producers:
    """All clients of :data:`ROWS`, each with as many messages."""

    kinds: Sequence[Kind] = KINDS
    columns: Sequence[str] = COLUMNS

    def __init__(self, messages: int, minutes: float) -> None:
        """``messages`` is the number of all together, which are sent within ``minutes``."""
        self._count = max(1, messages // len(ROWS))
        self._seconds = 60 * minutes
        self._ports = {door: lasting_port(range(SLOTS * PORTS[door])) for door in {row.door: None for row in ROWS}}
        self._told = {row.name: Told() for row in ROWS}
        self._commands = {row.name: row.command(row.name) for row in ROWS}
        self._began = 0.0

    def __len__(self) -> int:
        return len(ROWS)

    @property
    def options(self) -> Mapping[str, Any]:
        """The doors of the receiver. Any page may send, because that of the run has any port."""
        return {**self._ports, "http.origins": ["*"]}

    @property
    def answers(self) -> int:
        """How many messages were answered with success."""
        return sum(len(told.answered) for told in self._told.values())

    def start(self, stage: Stage, began: float) -> None:
        """Start all clients. None is started again, because a program that starts again is another producer."""
        self._began = began
        for row in ROWS:
            places = [f"127.0.0.1:{self._ports[row.door] + slot * PORTS[row.door]}" for slot in range(SLOTS)]
            given = {
                "bootstrap": ",".join(places if row.each_slot else places[:1]),
                "topic": row.name,
                "client-id": row.name,
                "first": 0,
                "count": self._count,
                "rate": self._count / self._seconds,
                "password": COOKIE,
            }
            arguments = [text for name, value in given.items() for text in (f"--{name}", str(value))]
            stage.add_sender(row.name, [*self._commands[row.name], *arguments], self._taker(row.name), again=False)

    def verdict(self, written: Written) -> ClientsVerdict:
        """Compare the committed rows with what each client was answered."""
        return judge([row.expected for row in ROWS], self._count, self._told, written)

    def sent(self) -> dict[str, list[Sent]]:
        """The messages of each client."""
        due = self._began + np.arange(self._count, dtype=np.float64) * (self._seconds / self._count)
        found = {}
        for name, told in self._told.items():
            answered, given_up = zip(*outcomes(told, self._count), strict=True)
            found[name] = [Sent(name, due, np.array(answered), np.array(given_up))]
        return found

    def _taker(self, name: str) -> Callable[[str], None]:
        return lambda line: self._told[name].take(line, time.time())
