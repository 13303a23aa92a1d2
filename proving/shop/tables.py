"""The tables of the shop's application, read as Parquet files without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import dataset

from proving.shop.judge import INPUTS, OUTPUTS, HistoryRow, StreamRecord, rows_of
from wallaroo_spark.streams.places import history_of, table_of
from wallaroo_spark.streams.rows import HISTORY

STREAMS = tuple(sorted({*INPUTS.values(), *(name for names in OUTPUTS.values() for name in names)}))
"""The streams of the shop."""


def read_history(folder: Path) -> list[HistoryRow]:
    """The history of all instances."""
    place = Path(history_of(str(folder)))
    files = sorted(map(str, place.glob("*.parquet")))
    if not files:
        return []
    rows: list[dict[str, Any]] = dataset.dataset(files, HISTORY).to_table().to_pylist()
    return rows_of(rows)


def read_streams(folder: Path) -> dict[str, list[StreamRecord]]:
    """The records of each stream."""
    return {name: _records(Path(table_of(str(folder), name))) for name in STREAMS}


def _records(place: Path) -> list[StreamRecord]:
    found = []
    for part in place.glob("partition=*"):
        number = int(part.name.partition("=")[2])
        files = sorted(map(str, part.glob("*.parquet")))
        if files:
            rows = dataset.dataset(files).to_table(columns=["offset", "data"]).to_pylist()
            found += [StreamRecord(number, row["offset"], row["data"]) for row in rows]
    return found
