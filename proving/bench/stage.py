"""A Spark session on this machine for a whole run, its receivers, and the processes that send to them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from proving.bench.load_generator import Load
from proving.bench.results.figures import rates
from proving.bench.usage import cpu_by_role, grown
from proving.processes import end
from wallaroo_spark.cli.sessions import LOG4J, THIS_MACHINE, log_to
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

ROOT = Path(__file__).resolve().parents[2]
COOKIE = "a cookie for this run"
SLOTS = 4
READY_SECONDS = 90.0
PRIME_SECONDS = 0.5
PRIME_RATE = 20_000.0
SETTINGS = {
    **THIS_MACHINE,
    **log_to(LOG4J),
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "2000",
}


@dataclass(frozen=True)
class Lengths:
    """Seconds and counts of a run."""

    warm_up: float = 4.0
    """Seconds before measuring."""
    window: float = 1.6
    """Seconds of one window."""
    windows: int = 5
    """Windows of one measurement."""
    messages: int = 65_536
    """Messages of one decoding."""
    sdk_messages: int = 200_000
    """Messages that one SDK connector sends."""
    paused: float = 60.0
    """Seconds that the query stands still in the memory section."""
    connectors: tuple[int, ...] = (1, 10, 100, 1000)
    """Numbers of connectors to measure."""
    streams: tuple[int, ...] = (1, 10, 100, 1000, 10_000)
    """Numbers of streams to measure."""
    sessions: tuple[int, ...] = (100, 1000, 10_000)
    """Numbers of sessions to measure on one worker without Spark."""
    known: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """Numbers of known streams to plan with."""

    @property
    def measured(self) -> float:
        """The length of all windows together in seconds."""
        return self.window * self.windows


QUICK = Lengths(2.0, 0.6, 5, 16_384, 50_000, 10.0, (1, 10, 100), (1, 10, 100, 1000), (100, 1000), (1_000, 10_000))


@dataclass
class Context:
    """The arguments of every section."""

    directory: Path
    """Where everything is written."""
    lengths: Lengths
    """Seconds and counts of the run."""
    say: Callable[[str], None]
    """Prints a line that stays."""
    progress: Callable[[str], None]
    """Prints progress, which the next progress replaces."""
    results: dict[str, Any] = field(default_factory=dict)
    """The figures of each section that ran."""
    _spark: Any = None

    @property
    def spark(self) -> Any:
        """The run's one Spark session, started at its first use."""
        if self._spark is None:
            self.progress("starting Spark")
            self._spark = start_spark(self.directory)
        return self._spark

    def close(self) -> None:
        """End Spark, and its Java process with it."""
        if self._spark is None:
            return
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        self._spark.stop()
        self._spark = None
        java = getattr(gateway, "proc", None)
        if gateway is not None:
            gateway.shutdown()
        if java is not None:
            end(java)


def start_spark(directory: Path) -> Any:
    """Start a local Spark whose Python processes import this checkout."""
    from pyspark.sql import SparkSession

    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        os.environ.pop(name, None)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName("wallaroo-spark bench")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    # A query that is stopped in a batch logs pages of stack traces; errors are raised all the same.
    session.sparkContext.setLogLevel("OFF")
    return session


class SendingProcess:
    """A sending process: it prints a line when it begins, and its figures at the end."""

    def __init__(self, module: str, load: Load, log: Path) -> None:
        self.load = load
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(asdict(load))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def began(self) -> float:
        """Wait until sending begins; returns the time."""
        began: float = self._line(READY_SECONDS)["began"]
        return began

    def report(self) -> dict[str, Any]:
        """Wait for the end; returns the figures."""
        return self._line(self.load.seconds + self.load.drain + 30.0)

    def _line(self, seconds: float) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], seconds)
        line = out.readline() if ready else b""
        if not line:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise RuntimeError(f"the sender printed nothing for {seconds:.0f} s, or ended: {' / '.join(tail)}")
        found: dict[str, Any] = json.loads(line)
        return found


class Installation:
    """One receiver with one query and an empty checkpoint, from entry to exit."""

    _count = 0

    def __init__(
        self,
        context: Context,
        sink: Callable[[Any], Any],
        rows: Callable[[Any], Any] = lambda stream: stream,
        **options: Any,
    ) -> None:
        """``rows`` makes the rows of the query of those of the receiver; ``sink`` gets their writer."""
        Installation._count += 1
        self.name = f"bench-{Installation._count}"
        self.directory = context.directory / self.name
        self.context = context
        self._sink = sink
        self._rows = rows
        self._options = {"workers": 1, "cookie": COOKIE, **options}
        self._loads = 0
        self._base = 0
        self._last = contextlib.ExitStack()
        self.query: Any = None
        self.receiver: Any = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            self.directory.mkdir(parents=True)
            started.callback(shutil.rmtree, self.directory, ignore_errors=True)
            redis = started.enter_context(EmbeddedRedis())
            self.receiver = Receiver(self.context.spark, self.name, registry=redis.url, **self._options)
            started.enter_context(self.receiver)
            writer = self._sink(self._rows(self.receiver.stream()).writeStream)
            self.query = self.receiver.start_query(writer, checkpoint=str(self.checkpoint))
            self._prime()
            self._last = started.pop_all()
        return self

    def _prime(self) -> None:
        """Send messages through the query before measuring, because Spark starts its Python processes for the first."""
        with self.load(PRIME_SECONDS, rate=PRIME_RATE) as process:
            process.began()
            process.report()

    def __exit__(self, *_: object) -> None:
        self._last.close()

    @property
    def checkpoint(self) -> Path:
        """The query's checkpoint."""
        return self.directory / "checkpoint"

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers."""
        return [slot.pid for slot in self.receiver.status().slots if slot.answers and slot.pid is not None]

    def buffered(self) -> int:
        """Bytes in the workers' buffers."""
        return sum(slot.memory_used for slot in self.receiver.status().slots if slot.answers)

    def offsets_bytes(self) -> int:
        """The size in bytes of the newest file in ``offsets/``."""
        files = [file for file in (self.checkpoint / "offsets").glob("[0-9]*") if file.name.isdigit()]
        return max(files, key=lambda file: int(file.name)).stat().st_size if files else 0

    def load(self, seconds: float, module: str = "proving.bench.load_generator", **settings: Any) -> SendingProcess:
        """Start a sender with new instances and streams."""
        self._loads += 1
        load = Load(
            address=self.receiver.addresses[0],
            cookie=self._options["cookie"],
            program=self.name,
            prefix=f"load-{self._loads}",
            seconds=seconds,
            base=self._base,
        )
        load = replace(load, **settings)
        self._base += load.connectors * load.streams
        return SendingProcess(module, load, self.directory / f"load-{self._loads}.log")

    def run(
        self, module: str = "proving.bench.load_generator", warm_up: float | None = None, **settings: Any
    ) -> dict[str, Any]:
        """One load: after the warm-up, windows of equal length; rates of acknowledged messages, and processor time."""
        lengths = self.context.lengths
        warm_up = lengths.warm_up if warm_up is None else warm_up
        last = self.query.lastProgress
        with self.load(warm_up + lengths.measured + 0.5, module, **settings) as process:
            began = process.began()
            samples = list(self._samples(began + warm_up))
            report = process.report()
        edges = [time for time, _ in samples]
        found = rates(report["points"], edges)
        seconds = grown(samples[0][1], samples[-1][1])
        before = -1 if last is None else last["batchId"]
        progress = [one for one in self.query.recentProgress if one["numInputRows"] and one["batchId"] > before]
        return {
            "edges": edges,
            "rates": found,
            "seconds": seconds,
            "messages": sum(rate * (edges[at + 1] - edges[at]) for at, rate in enumerate(found)),
            "wall": edges[-1] - edges[0],
            "batches": [shown(one) for one in progress],
            **report,
        }

    def _samples(self, start: float) -> Iterator[tuple[float, dict[str, float]]]:
        lengths, workers = self.context.lengths, self.workers
        for window in range(lengths.windows + 1):
            time.sleep(max(0.0, start + window * lengths.window - time.monotonic()))
            yield time.monotonic(), dict(cpu_by_role(workers))


def shown(progress: Any) -> dict[str, Any]:
    """The reported part of a batch's progress; durations in ms."""
    return {"batch": progress["batchId"], "rows": progress["numInputRows"], "ms": dict(progress["durationMs"])}


def per_million(run: dict[str, Any]) -> dict[str, float]:
    """Seconds of processor time a million messages, by role."""
    messages = max(run["messages"], 1.0)
    return {role: round(1e6 * seconds / messages, 3) for role, seconds in sorted(run["seconds"].items())}


def noop(writer: Any) -> Any:
    """A sink that drops the rows after Spark has converted them."""
    return writer.format("noop")


def parquet(directory: Path) -> Callable[[Any], Any]:
    """A sink that writes Parquet files."""
    return lambda writer: writer.format("parquet").option("path", str(directory))
