"""The Spark side of a turn: a processor of ``transformWithStateInPandas``.

Spark gives the rows of one key in one batch, and keeps the key's entries in its state store. An access to the state
crosses two processes, so each entry is read and written at most once in a batch. Source:
``docs/pipelines/engine.md#the-operator``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessor, StatefulProcessorHandle

from wallaroo_spark.engine.isolation import FailedRows, RememberedRuns, failing
from wallaroo_spark.engine.operator.functions import StageFunctions
from wallaroo_spark.engine.operator.rows import OutputRow, output_rows
from wallaroo_spark.engine.operator.turn import FunctionRunner, InputRow, TurnResult, in_order, take_turn
from wallaroo_spark.engine.set_aside import NOTHING, SetAside
from wallaroo_spark.errors import CheckpointError, PipelineError
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache
from wallaroo_spark.runtime.python_tasks import TASK_PROCESS, without_collections
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.rows import OUTPUT, OUTPUT_DDL
from wallaroo_spark.streams.stream_table import TableReader

NOW = "now"
"""The column with the time of the batch: milliseconds since 1970 UTC, from ``current_timestamp()``."""
KEY = ("stream", "partition")
"""The columns of the grouping key."""
_ORDER = ("rank", "origin", "sequence", "place", "event")

_readers: dict[str, TableReader] = {}
"""The readers of this process, by folder; it runs many tasks, one after another."""
_caches: dict[str, SeenCache] = {}
"""The remembered ids of this process, by folder."""


def open_tables(folder: Location) -> TableReader:
    """The tables of an application; the tasks of a process share what they know about the files."""
    reader = _readers.get(str(folder))
    if reader is None:
        reader = _readers[str(folder)] = TableReader(folder)
    return reader


def run_keys(events: DataFrame, folder: Location, aside: SetAside = NOTHING) -> DataFrame:
    """The outputs of a streaming query's events: rows of INPUT in, rows of OUTPUT out.

    ``folder`` is the application's folder as tasks open it, and ``aside`` what the query goes on without. The query has
    to run with the RocksDB state store.
    """
    grouped = events.withColumn(NOW, F.unix_millis(F.current_timestamp())).groupBy(*KEY)
    return grouped.transformWithStateInPandas(KeyProcessor(folder, aside), OUTPUT_DDL, "Append", "None")


class KeyProcessor(StatefulProcessor):
    """Takes the turns of the keys of one task, for rows of INPUT that also have the column :data:`NOW`."""

    def __init__(self, folder: Location, aside: SetAside) -> None:
        self._folder, self._aside = folder, aside

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called once in each task."""
        TASK_PROCESS.prepare()
        self._entries = StateEntries(handle.getMapState("entries", "k binary", "v binary"))
        # Spark ends a task by killing its process, so nothing that a function raises is meant for the task.
        self._functions = StageFunctions(passing=())

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Take the turn of one key."""
        partition_key = PartitionKey(str(key[0]), int(key[1]))
        events: list[InputRow] = []
        now = 0
        for frame in rows:
            values = (frame[name].tolist() for name in _ORDER)
            events += (InputRow(*row) for row in zip(*values, strict=True))
            now = max(now, int(frame[NOW].max()))
        with without_collections():
            try:
                result, found = self._turn(partition_key, now, events, self._aside, self._functions)
            except (CheckpointError, OSError):
                # Files cannot be read. No row is the reason, and the same batch may succeed later.
                raise
            except Exception as error:
                self._note(partition_key, now, events, error)
                result, found = self._turn(partition_key, now, events, self._aside, self._functions)
            self._entries.write(result.changes)
        for row in found:
            yield as_frame(partition_key, row)

    def _turn(
        self, key: PartitionKey, now: int, rows: Sequence[InputRow], aside: SetAside, functions: FunctionRunner
    ) -> tuple[TurnResult, list[OutputRow]]:
        tables, cache = open_tables(self._folder), _caches.setdefault(str(self._folder), SeenCache())
        result = take_turn(key, now, rows, self._entries, tables, functions, cache=cache, aside=aside)
        return result, [*output_rows(key, now, result)]

    def _note(self, key: PartitionKey, now: int, rows: Sequence[InputRow], error: Exception) -> None:
        """Write a note of each row, or instance, at which a turn fails, and raise an error that names them.

        Returns when the turn succeeds now, and when it fails without any row and any instance.
        """
        rows = sorted(rows, key=in_order)
        functions = RememberedRuns(self._functions)

        def again(some: Sequence[InputRow], aside: SetAside) -> None:
            self._turn(key, now, some, aside, functions)

        found = failing(key, now, rows, self._entries, self._aside, again)
        if not found:
            return
        notes, events = FailedRows(self._folder), {row[:4]: row.event for row in rows}
        for one in found:
            notes.write(one, events.get(one.row))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise PipelineError(
            f"{key}: a task cannot process {str(found[0])[:400]}{more}: {found[0].error[:300]}; report this error, and "
            "set the events aside with `wallaroo-spark pipelines set-aside`: the application goes on without them when "
            "it is started again",
            code="row-failed",
            rows=[one.name for one in found],
        ) from error

    def close(self) -> None:
        """Nothing is open."""


class Rehearsal(StatefulProcessor):
    """Does for each key what Spark and the process of a task are slow at for the first time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called once in each task."""
        TASK_PROCESS.prepare()
        self._entries = StateEntries(handle.getMapState("entries", "k binary", "v binary"))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Read, write and delete an entry of one key."""
        for frame in rows:
            if self._entries.get(b"key") is None:
                self._entries.write({b"key": b"value", b"other": None})
            yield frame[["value"]]

    def close(self) -> None:
        """Called at the end of each task."""


class StateEntries(Mapping[bytes, bytes]):
    """The entries of the current key in Spark's state store."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def __getitem__(self, key: bytes) -> bytes:
        found = self._state.getValue((key,))
        if found is None:
            raise KeyError(key)
        return bytes(found[0])

    def __iter__(self) -> Iterator[bytes]:
        for row in self._state.keys():  # noqa: SIM118  # it is no mapping
            yield bytes(row[0])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write changed entries; None removes one."""
        for key, value in changes.items():
            if value is None:
                self._state.removeKey((key,))
            else:
                self._state.updateValue((key,), (value,))


def as_frame(key: PartitionKey, row: OutputRow) -> pd.DataFrame:
    """One row of OUTPUT as Spark takes it."""
    values = (key.stream, key.partition, row.kind.value, row.target, row.first, row.last, row.rows, row.body)
    frame = pd.DataFrame({name: [value] for name, value in zip(OUTPUT.names, values, strict=True)})
    # A column of integers with None would become one of floats.
    return frame.astype({"first": "Int64", "last": "Int64", "partition": "int32", "rows": "int32"})
