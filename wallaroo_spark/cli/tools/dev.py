"""``wallaroo-spark dev up``: a receiver on this machine that prints its rows, for somebody who writes a connector."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark.cli.common import listen_address, printable_bytes
from wallaroo_spark.cli.sessions import standard_error_to
from wallaroo_spark.cli.signals import Signals, exit_after_interrupt
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import printable
from wallaroo_spark.protocol import Error
from wallaroo_spark.texts import count
from wallaroo_spark.wiretap.decoding import CaptureDecoder, DecodedFrame
from wallaroo_spark.wiretap.proxy import End, Proxy, Watcher
from wallaroo_spark.wiretap.recording import ConnectionOpened, Passed, Recorder, Remark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN_ROWS = 1000
"""Most rows that are printed of a batch. A choice that bounds memory and output."""
SHOWN_BYTES = 200
"""Bytes of a key or a payload that are printed. A choice: a row takes about a line."""
_HOST = "127.0.0.1"
_COLUMNS = [
    "instance",
    "stream",
    "stream_id",
    "message_id",
    "event_time",
    f"substring(key, 1, {SHOWN_BYTES}) AS key",
    f"substring(value, 1, {SHOWN_BYTES}) AS value",
    "length(value) AS size",
    "flags",
]


@click.group()
def dev() -> None:
    """Tools for authors of connectors."""


@verb(dev)
def up(
    *,
    listen: str = f"{_HOST}:7100",
    cookie: str = "dev",
    frames: bool = False,
    capture: Annotated[Path | None, click.Path(dir_okay=False, path_type=Path)] = None,
    folder: Annotated[Path | None, click.Path(file_okay=False, path_type=Path)] = None,
    overrides: Annotated[tuple[str, ...], "--set"] = (),
    as_json: Json = False,
) -> None:
    """Run Redis and a receiver here, and print the rows that are committed.

    It starts Spark, an embedded Redis and a receiver with one worker, and runs until Ctrl-C. It prints the address and
    the cookie for a connector, a line to copy for a client of each door that --set opens, each ERROR of the worker, and
    each frame of the connector that breaks the protocol, with the offset of the wrong byte. Without --folder nothing is
    kept: every start is a new receiver without committed messages, so a connector begins with its first message. Java
    17 or newer is needed.

    Options:
        --listen HOST:PORT: Address for connectors.
        --cookie: Cookie that connectors must present.
        --frames: Print every frame, too, and not only errors.
        --capture: Record the frames to this file.
        --folder: Folder of the checkpoint and Spark's log, to continue next time. By default a temporary folder.
        --set NAME=VALUE: An option of the receiver, e.g. messageIds=opaque.
        --json: Print rows as lines of JSON, and everything else on standard error.

    Examples:
        wallaroo-spark dev up
        wallaroo-spark dev up --frames --capture shop.capture
        wallaroo-spark dev up --folder dev --set messageIds=opaque
        wallaroo-spark dev up --set http.port=8080 --set kafka.port=9092
    """
    from wallaroo_spark.options import Options

    wrong = next((override for override in overrides if "=" not in override), None)
    if wrong is not None:
        raise click.UsageError(f"--set {wrong}: write NAME=VALUE")
    options = {"cookie": cookie, "logLevel": "info", **dict(override.split("=", 1) for override in overrides)}
    Options.parse(options)
    home = (folder or Path(tempfile.mkdtemp(prefix="wallaroo-dev-"))).resolve()
    home.mkdir(parents=True, exist_ok=True)
    view = _View(as_json, frames)
    recorder = None if capture is None else Recorder(capture, listen)
    with Signals() as signals, contextlib.ExitStack() as stack:
        if folder is None:
            stack.push(lambda error, *_: remove_unless_failed(home, error))
        if recorder is not None:
            stack.callback(recorder.close)
        _run(home, listen, options, view, _Watcher(view, recorder or Watcher()), signals)
    view.say(f"Stopped; {count(view.rows, 'row')} committed.")
    exit_after_interrupt(signals.received)


def remove_unless_failed(home: Path, error: type[BaseException] | None) -> None:
    """Remove the folder, but for the log that an error names."""
    if error is None or not issubclass(error, Exception):
        shutil.rmtree(home, ignore_errors=True)


def _run(home: Path, listen: str, options: dict[str, str], view: _View, watcher: _Watcher, signals: Signals) -> None:
    from wallaroo_spark.cli.receive.running import failed_query
    from wallaroo_spark.cli.tools.demo_job import make_session
    from wallaroo_spark.receiver import Receiver

    host, port = listen_address(listen)
    with socket.create_server((_HOST, 0)) as free:
        worker_port = free.getsockname()[1]
    with Proxy((_HOST, worker_port), (host, port), watcher=watcher) as proxy:
        view.say(f"Starting Spark, Redis and a worker; Spark's messages are in {home / 'spark.log'} …")
        with standard_error_to(home / "spark.log"):
            spark = make_session(home)
            signals.install()
            batches = _Batches(home / "checkpoint")
            try:
                with Receiver(
                    spark, "dev", workers=1, host=_HOST, port=worker_port, advertise=proxy.address, **options
                ) as receiver:
                    writer = receiver.stream().writeStream.foreachBatch(batches.collect)
                    query = receiver.start_query(writer, checkpoint=str(home / "checkpoint"))
                    signals.gentle = True
                    doors = {one.door: one.address for one in receiver.status(most=0).doors}
                    view.ready(
                        proxy.address, receiver.options.cookie, receiver.registry_url, receiver.page_address, doors
                    )
                    while signals.received is None:
                        view.show(batches.committed())
                        if (error := query.exception()) is not None:
                            raise failed_query(error)
                        batches.commits.wait()
                    view.show(batches.committed())
            finally:
                spark.stop()


def _curl(address: str, cookie: str) -> str:
    """A line with which a person may send by HTTP."""
    secret = f" -H {shlex.quote(f'Authorization: Bearer {cookie}')}" if cookie else ""
    return f"curl {address}/v1/streams/orders{secret} -H 'Content-Type: text/plain' -d hello"


def _kafka(address: str, cookie: str) -> str:
    """A line with which a person may send with the package confluent-kafka."""
    settings = {"bootstrap.servers": address}
    if cookie:
        settings |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        settings |= {"sasl.username": "dev", "sasl.password": cookie}
    producer = f"from confluent_kafka import Producer; p = Producer({json.dumps(settings)})"
    program = f'{producer}; p.produce("orders", "hello"); p.flush()'
    return f"python -c {shlex.quote(program)}"


def _otlp(address: str, cookie: str) -> str:
    """A line behind which a person may start a program that has OpenTelemetry's SDK."""
    secret = f" OTEL_EXPORTER_OTLP_HEADERS={shlex.quote(f'authorization=Bearer {cookie}')}" if cookie else ""
    return f"export OTEL_EXPORTER_OTLP_ENDPOINT=http://{address}{secret}"


_CLIENTS: Mapping[str, Callable[[str, str], str]] = {"http": _curl, "kafka": _kafka, "otlp": _otlp}
"""For each door, what makes a line to copy from its address and the cookie."""


@dataclass(frozen=True)
class CommittedRows:
    """The rows of a committed batch."""

    batch: int
    """Number of the batch."""
    rows: list[dict[str, Any]]
    """The first rows, with keys and payloads cut."""
    total: int
    """Number of all rows."""


class _Batches:
    """Collects the rows of batches, and returns them once Spark has committed them."""

    def __init__(self, checkpoint: Path) -> None:
        from wallaroo_spark.checkpoint import CheckpointFiles, CommitFollower

        self.commits = CommitFollower(CheckpointFiles(str(checkpoint)))
        self._collected: dict[int, CommittedRows] = {}
        self._lock = threading.Lock()

    def collect(self, batch: DataFrame, number: int) -> None:
        """Collect one batch, for ``foreachBatch``. A batch that runs again replaces its earlier rows."""
        rows = [row.asDict() for row in batch.selectExpr(*_COLUMNS).limit(SHOWN_ROWS).collect()]
        total = batch.count() if len(rows) == SHOWN_ROWS else len(rows)
        with self._lock:
            self._collected[number] = CommittedRows(number, rows, total)

    def committed(self) -> list[CommittedRows]:
        """The batches that have been committed since the last call, in order."""
        newest = self.commits.newest()
        with self._lock:
            done = [number for number in sorted(self._collected) if newest is not None and number <= newest]
            return [self._collected.pop(number) for number in done]


class _View:
    """Prints rows, frames and errors; any thread may call it."""

    def __init__(self, as_json: bool, frames: bool) -> None:
        self.rows = 0
        self._as_json = as_json
        self._frames = frames
        self._lock = threading.Lock()
        self._out = sys.stdout

    def say(self, text: str) -> None:
        """Print a line about the program itself."""
        self._print(json.dumps({"info": text}) if self._as_json else text)

    def ready(self, address: str, cookie: str, registry: str, page: str, doors: Mapping[str, str]) -> None:
        """Connectors may connect now, and clients of the ``doors``, whose addresses are given."""
        if self._as_json:
            values = {"address": address, "cookie": cookie, "registry": registry, "page": page, "doors": doors}
            self._print(json.dumps(values))
            return
        lines = [
            f"Ready. Connect to {address} with cookie {cookie!r}, version '0.0.1', in any revision.",
            f"  by registry: {registry}, receiver 'dev'",
            *([f"  status page: {page}"] if page else []),
            f"  try it: echo hello | wallaroo-spark send - --workers {address} --cookie {cookie}",
            *(f"  or:     {_CLIENTS[name](place, cookie)}" for name, place in doors.items() if name in _CLIENTS),
            "Rows are printed once they are committed. Ctrl-C ends.",
        ]
        self._print("\n".join(lines))

    def show(self, batches: list[CommittedRows]) -> None:
        """Print committed rows."""
        for batch in batches:
            self.rows += batch.total
            for row in batch.rows:
                self._print(_row_as_json(batch.batch, row) if self._as_json else _row_as_text(batch.batch, row))
            if batch.total > len(batch.rows):
                self.say(f"batch {batch.batch}: … {count(batch.total - len(batch.rows), 'more row')}")

    def frame(self, one: DecodedFrame) -> None:
        """Print a frame, or only its error."""
        if not (self._frames or one.error or isinstance(one.frame, Error)):
            return
        if self._as_json:
            self._print(json.dumps(one.to_json()))
            return
        sign = "→" if one.sender is End.CONNECTOR else "←"
        self._print(f"#{one.connection} {sign} @{one.offset} {one.text()}")
        if one.error:
            self._print(f"    error at byte {one.error_offset}: {one.error}")
            if one.frame is None:
                self._print(f"    {one.data[:64].hex(' ')}")

    def _print(self, text: str) -> None:
        with self._lock:
            self._out.write(text + "\n")
            self._out.flush()


class _Watcher(Watcher):
    """Decodes and prints the bytes that pass, and gives them to a recorder."""

    def __init__(self, view: _View, recorder: Watcher) -> None:
        self._view = view
        self._recorder = recorder
        self._decoder = CaptureDecoder()

    def opened(self, connection: int, peer: str) -> None:
        """Print and record a new connection."""
        self._recorder.opened(connection, peer)
        self._view.say(f"#{connection} opened by {peer}")
        list(self._decoder.feed(ConnectionOpened(time.time(), connection, peer)))

    def passed(self, connection: int, sender: End, data: bytes) -> None:
        """Print and record bytes."""
        self._recorder.passed(connection, sender, data)
        for frame in self._decoder.feed(Passed(time.time(), connection, sender, data)):
            self._view.frame(frame)

    def closed(self, connection: int, cause: str) -> None:
        """Print and record the end of a connection."""
        self._recorder.closed(connection, cause)
        for frame in self._decoder.feed(Remark(time.time(), connection, cause, closed=True)):
            self._view.frame(frame)
        self._view.say(f"#{connection} ended: {cause}")


def _row_as_json(batch: int, row: dict[str, Any]) -> str:
    moment = row["event_time"]
    texts = {name: None if row[name] is None else printable_bytes(row[name]) for name in ("key", "value")}
    return json.dumps({"batch": batch, **row, "event_time": moment.isoformat() if moment else None, **texts})


def _row_as_text(batch: int, row: dict[str, Any]) -> str:
    key = "" if row["key"] is None else f" key={printable_bytes(row['key'])}"
    moment = f" at {row['event_time'].isoformat()}" if row["event_time"] else ""
    value = "BOUNDARY" if row["value"] is None else printable_bytes(row["value"])
    more = f" … ({row['size']} bytes)" if (row["size"] or 0) > SHOWN_BYTES else ""
    stream = f"{printable(row['instance'])}/{printable(row['stream'])} {row['message_id']}"
    return f"batch {batch}: {stream}{key}{moment} {value}{more}"
