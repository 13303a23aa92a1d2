"""Compares the Parquet rows with the sent files, byte for byte. It reads both again and uses no counter of the run.

The demo's data: orders of a few shops as lines of JSON, the same ones at every run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray


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


def line_ends(file: Path) -> NDArray[np.int64]:
    """Return the offset of the byte after each line, its newline included."""
    data = np.memmap(file, dtype=np.uint8, mode="r") if file.stat().st_size else np.zeros(0, dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n")).astype(np.int64) + 1
    if len(data) and data[-1] != ord("\n"):
        ends = np.append(ends, len(data))
    return ends


def altered_lines(file: Path, table: pa.Table) -> int:
    """The number of rows whose bytes differ from the line that ends at their id."""
    altered = 0
    with file.open("rb") as lines:
        for message_id, value in _rows(table):
            newline = 1
            lines.seek(max(0, message_id - len(value) - 1))
            around = lines.read(len(value) + 1)
            if not around.endswith(b"\n"):
                # The file's last line, without a newline.
                newline = 0
                lines.seek(message_id - len(value))
                around = lines.read(len(value))
            if around[: len(around) - newline] != value:
                altered += 1
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
