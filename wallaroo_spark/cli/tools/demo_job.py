"""The demo's Spark job: it writes rows and per-minute totals as Parquet, with one folder for each batch.

A batch that is run again replaces its earlier files, so the sink is idempotent.

The comparison of the Parquet rows with the sent files, byte for byte. It reads both again and uses no counter of the
run. The demo's data: orders of a few shops as lines of JSON, the same ones at every run.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from wallaroo_spark.cli.sessions import log_to, refusal, started

TASK_SLOTS = 4
_ORDER = "shop string, time timestamp, quantity long, cents long"


def make_session(folder: Path) -> SparkSession:
    """Start Spark in local mode, with its log in ``spark.log``."""
    log4j = folder / "log4j2.properties"
    log4j.write_text(
        "rootLogger.level = warn\n"
        "rootLogger.appenderRef.file.ref = file\n"
        "appender.file.type = File\n"
        "appender.file.name = file\n"
        f"appender.file.fileName = {folder / 'spark.log'}\n"
        "appender.file.layout.type = PatternLayout\n"
        "appender.file.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex\n"
    )
    settings = {
        "spark.master": f"local[{TASK_SLOTS}]",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **log_to(log4j),
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with refusal("Spark did not start", f"see {folder / 'spark.log'}", code="spark-not-started"):
        session: SparkSession = started("wallaroo-spark demo", settings, TASK_SLOTS)
    return session


def make_certificate(folder: Path) -> tuple[str, str]:
    """Make a certificate for workers on this machine, which is its own authority; returns its file and that of its
    key."""
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "wallaroo-spark demo")])
    key = ec.generate_private_key(ec.SECP256R1())
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    built = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - timedelta(days=1), now + timedelta(days=7)
    ).add_extension(host, critical=False)
    files = folder / "certificate.pem", folder / "certificate.key"
    files[0].write_bytes(built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    secret = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files[1].touch(mode=0o600)
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *secret))
    return str(files[0]), str(files[1])


class CountingSink:
    """Writes each batch, and counts the messages of each committed one."""

    def __init__(self, folder: Path, *, totals: bool) -> None:
        self.rows = folder / "rows"
        self.minutes = folder / "minutes"
        self.batches: dict[int, int] = {}
        self._totals = totals
        self._lock = threading.Lock()

    @property
    def messages(self) -> int:
        """Messages written so far."""
        with self._lock:
            return sum(self.batches.values())

    @property
    def filled(self) -> int:
        """The number of batches with messages; Spark runs the first batch although it has none."""
        with self._lock:
            return sum(count > 0 for count in self.batches.values())

    def write(self, batch: DataFrame, number: int) -> None:
        """Write one batch, for ``foreachBatch``. A batch that is run again replaces its earlier files."""
        rows = self.rows / f"batch={number}"
        batch.select("instance", "stream", "message_id", "value").write.mode("overwrite").parquet(str(rows))
        written = batch.sparkSession.read.parquet(str(rows))
        if self._totals:
            order = f.from_json(f.col("value").cast("string"), _ORDER)
            totals = totals_of(written.select(order.alias("order")).select("order.*"))
            totals.write.mode("overwrite").parquet(str(self.minutes / f"batch={number}"))
        with self._lock:
            self.batches[number] = written.count()

    def finish(self, spark: SparkSession, target: Path) -> DataFrame | None:
        """The totals of all batches as one Parquet folder, in order; None when there are none."""
        if not self._totals or not any(self.minutes.glob("batch=*/*.parquet")):
            return None
        parts = spark.read.parquet(str(self.minutes))
        totals = parts.groupBy("minute", "shop").agg(
            *(f.sum(name).alias(name) for name in ("orders", "items", "cents"))
        )
        totals.orderBy("minute", "shop").coalesce(1).write.mode("overwrite").parquet(str(target))
        return spark.read.parquet(str(target)).orderBy("minute", "shop")


def totals_of(orders: DataFrame) -> DataFrame:
    """The totals of orders by the minute that they fall into, and by shop."""
    minute = f.date_trunc("minute", f.col("time")).alias("minute")
    items, cents = f.sum("quantity").alias("items"), f.sum("cents").alias("cents")
    return orders.groupBy(minute, "shop").agg(f.count(f.lit(1)).alias("orders"), items, cents)


def expected_totals(spark: SparkSession, files: list[str]) -> DataFrame:
    """Compute the same totals from the sent files themselves."""
    return totals_of(spark.read.schema(_ORDER).json(files)).orderBy("minute", "shop")


def clear(folder: Path) -> None:
    """Delete the files of an earlier run in the folder, and no other files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("orders", "rows", "minutes", "totals", "checkpoint"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("spark.log", "log4j2.properties", "certificate.pem", "certificate.key"):
        (folder / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Reconciliation:
    """The result of the demo's comparison. Every field is a number of messages."""

    sent: int
    """Lines in the files."""
    committed: int
    """Rows in the Parquet files."""
    acknowledged: int
    """Lines up to the last reference that was acknowledged to the connector."""
    lost: int
    """Lines without a row."""
    repeated: int
    """Rows beyond the first of a line."""
    altered: int = 0
    """Rows whose bytes differ from their line."""
    disordered: int = 0
    """Rows that are not in the order of their lines."""

    @property
    def clean(self) -> bool:
        """Whether every message arrived exactly once, unchanged and in order, and was acknowledged."""
        arrived = self.sent == self.committed == self.acknowledged
        return arrived and not (self.lost or self.repeated or self.altered or self.disordered)

    def counts(self) -> dict[str, int]:
        """The five counts."""
        return {name: count for name, count in asdict(self).items() if name not in ("altered", "disordered")}

    def __add__(self, other: Reconciliation) -> Reconciliation:
        mine, theirs = asdict(self), asdict(other)
        return Reconciliation(**{name: mine[name] + theirs[name] for name in mine})


NOTHING = Reconciliation(0, 0, 0, 0, 0)


def reconcile(rows: Path, acknowledged: Mapping[str, int]) -> Reconciliation:
    """Compare all files; ``acknowledged`` has the last acknowledged reference of each, by path, -1 for none."""
    dataset = ds.dataset(rows, format="parquet", partitioning="hive") if any(rows.rglob("*.parquet")) else None
    total = NOTHING
    for file, reference in acknowledged.items():
        table = None
        if dataset is not None:
            table = dataset.to_table(columns=["batch", "message_id", "value"], filter=pc.field("stream") == file)
        total += reconcile_file(Path(file), table, reference)
    return total


def reconcile_file(file: Path, table: pa.Table | None, reference: int) -> Reconciliation:
    """Compare one file with its stream's rows. A message's id is the offset of the byte after its line."""
    expected = line_ends(file)
    acknowledged = int(np.count_nonzero(expected <= reference)) if reference >= 0 else 0
    if table is None or not table.num_rows:
        return Reconciliation(len(expected), 0, acknowledged, len(expected), 0)
    table = table.sort_by([("batch", "ascending"), ("message_id", "ascending")])
    found = table["message_id"].to_numpy()
    distinct = np.unique(found)
    lost = len(np.setdiff1d(expected, distinct, assume_unique=True))
    unknown = len(np.setdiff1d(distinct, expected, assume_unique=True))
    return Reconciliation(
        sent=len(expected),
        committed=len(distinct),
        acknowledged=acknowledged,
        lost=lost,
        repeated=len(found) - len(distinct),
        altered=unknown + altered_lines(file, table),
        disordered=int(np.count_nonzero(np.diff(found) < 0)),
    )


def _bytes_of(file: Path) -> NDArray[np.uint8]:
    return np.memmap(file, dtype=np.uint8, mode="r") if file.stat().st_size else np.zeros(0, dtype=np.uint8)


def line_ends(file: Path) -> NDArray[np.int64]:
    """Return the offset of the byte after each line, its newline included."""
    data = _bytes_of(file)
    ends = np.flatnonzero(data == ord("\n")).astype(np.int64) + 1
    return np.append(ends, len(data)) if len(data) and data[-1] != ord("\n") else ends


def altered_lines(file: Path, table: pa.Table) -> int:
    """The number of rows whose bytes differ from the line that ends at their id."""
    data, altered = _bytes_of(file), 0
    for message_id, value in _rows(table):
        # The file's last line may have no newline.
        end = message_id - data[message_id - 1 : message_id].tobytes().count(b"\n")
        altered += data[max(0, end - len(value)) : end].tobytes() != value
    return altered


def _rows(table: pa.Table) -> Iterator[tuple[int, bytes]]:
    for batch in table.to_batches():
        yield from zip(batch["message_id"].to_pylist(), batch["value"].to_pylist(), strict=True)


SHOPS = 4
_ITEMS = {"apples": 120, "bread": 340, "coffee": 899, "dates": 450, "eggs": 310, "flour": 180}
_OPENING = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
_BURST = 10_000


def orders(shop: int, count: int) -> Iterator[dict[str, Any]]:
    """``count`` orders of one shop, a few for each second, with prices in cents."""
    chance = random.Random(shop)
    moment = _OPENING
    for number in range(1, count + 1):
        item = chance.choice(list(_ITEMS))
        quantity = chance.randint(1, 9)
        moment += timedelta(milliseconds=chance.randint(10, 120))
        yield {
            "order": number,
            "shop": f"shop-{shop}",
            "time": moment.isoformat(timespec="milliseconds"),
            "item": item,
            "quantity": quantity,
            "cents": quantity * _ITEMS[item],
        }


def write_orders(folder: Path, messages: int, wrote: Callable[[int], None]) -> list[Path]:
    """Write one file for each shop, with ``messages`` orders in all; ``wrote`` is called after each burst of orders."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for shop in range(1, SHOPS + 1):
        count = messages // SHOPS + (shop <= messages % SHOPS)
        path = folder / f"shop-{shop}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for number, order in enumerate(orders(shop, count), start=1):
                file.write(json.dumps(order) + "\n")
                if number % _BURST == 0:
                    wrote(_BURST)
            wrote(count % _BURST)
        paths.append(path)
    return paths
