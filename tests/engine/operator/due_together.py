"""A program: how much memory a key needs whose delayed records are due together. Prints MiB before and after, as JSON.

The entries are files, as those of a state store, so the memory is that of the turns.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.engine.operator.shells import Functions, Table
from tests.pipelines.controller.one_key import ORDERS, reply
from wallaroo_spark.engine.operator.rows import output_rows
from wallaroo_spark.engine.operator.turn import InputRow, take_turn
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.streams.rows import OutputKind, Rank


class FileEntries(Mapping[bytes, bytes]):
    """Entries in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, key: bytes) -> bytes:
        try:
            return (self._folder / key.hex()).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[bytes]:
        return (bytes.fromhex(name) for name in os.listdir(self._folder))

    def __len__(self) -> int:
        return len(os.listdir(self._folder))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            path = self._folder / key.hex()
            path.unlink() if value is None else path.write_bytes(value)


def peak() -> int:
    """The most memory so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(folder: Path, count: int, size: int) -> None:
    entries, table, now, written = FileEntries(folder), Table(), 1_000, 0

    def turn(*events: e.Event) -> int | None:
        nonlocal now, written
        now += 10
        rows = [InputRow(Rank.RECEIVED, "g0/1", now, place, encode(event)) for place, event in enumerate(events)]
        result = take_turn(ORDERS, now, rows, entries, table, Functions())
        entries.write(result.changes)
        written += sum(row.rows for row in output_rows(ORDERS, now, result) if row.kind is OutputKind.RECORDS)
        return result.armed

    turn(e.PartitionDeclared(1, PartitionPlan(())))
    for number in range(count):
        turn(e.RecordsDelayed(reply(1), (CloudEvent(str(number), "s", "t", os.urandom(size)),), 1_000_000))
    before, now = peak(), 1_000_000
    turns = 1
    while turn() is not None:
        turns += 1
    print(json.dumps({"before": before, "after": peak(), "written": written, "turns": turns}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
