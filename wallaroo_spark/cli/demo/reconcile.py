"""Compares the Parquet rows with the sent files, byte for byte. It reads both again and uses no counter of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

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
