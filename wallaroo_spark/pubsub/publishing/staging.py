"""One Spark job writes the rows of a batch to the topic's files. No subscriber sees the rows before the commit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegralType

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.errors import PubSubError, split_code
from wallaroo_spark.pubsub.publishing.topic_log import StagedFile, TopicLog, TopicManifest
from wallaroo_spark.runtime.job_errors import in_short
from wallaroo_spark.runtime.python_tasks import collected, in_arrow
from wallaroo_spark.runtime.spark_checks import classic_context
from wallaroo_spark.storage.locations import Location, for_tasks

EpochArgument = None | int | str | tuple[int, str]
"""Type of the argument ``epoch`` of :meth:`Topic.publish`."""

BATCH_PROPERTY = "streaming.sql.batchId"
"""Spark's local property with the id of the running batch."""
QUERY_PROPERTY = "sql.streaming.queryId"
"""Spark's local property with the id of the query, as in the checkpoint's metadata."""
RUN_PROPERTY = "spark.jobGroup.id"
"""Spark's local property with the id of the query's run."""


@dataclass(frozen=True)
class Staged:
    """The files that the tasks of a batch have written, before their manifest is sealed."""

    manifest: TopicManifest
    schema: Any
    """``pyarrow`` schema of the rows; None when there are no rows."""
    run: str
    """Id of the query's run; empty where Spark does not report it."""


def stage(df: DataFrame, epoch: EpochArgument, files: CheckpointFiles, topic_log: TopicLog, *, pairs: bool) -> Staged:
    """Write the rows of ``df`` with its tasks, for a batch that is not committed yet. Raises :class:`PubSubError`."""
    topic = topic_log.topic
    number, column = _epoch_parts(epoch, topic, pairs=pairs)
    batch, run, query = _batch(df, number, topic)
    _check_column(df, column, topic)
    newest = files.committed()
    _check_query(files, query, batch, topic)
    if newest is not None and batch <= newest:
        raise PubSubError(
            f"batch {batch} is committed already, in {files.identity}, and subscribers have passed it; publish within "
            "the foreachBatch of the query that has this checkpoint",
            code="batch-published-already",
            topic=topic,
            batch=batch,
        )
    try:
        checkpoint = for_tasks(topic_log.checkpoint, df.sparkSession)
        write = _writer(checkpoint, topic, batch, column)
        rows = collected(in_arrow(df, write, "file string, columns binary"))
    except Exception as error:
        # The task's own message is clearer than the stack traces that Spark puts around it.
        if "PubSubError: " in str(error):
            message, code = split_code(in_short(error))
            raise PubSubError(message, code=code, topic=topic, batch=batch) from None
        raise
    written = sorted((StagedFile.of(json.loads(row.file)) for row in rows), key=lambda file: file.partition)
    schema = pa.ipc.read_schema(pa.py_buffer(bytes(rows[0].columns))) if rows else None
    return Staged(TopicManifest(batch, tuple(written)), schema, run)


def _writer(
    checkpoint: Location, name: str, batch: int, column: str | None
) -> Callable[[TaskContext, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(context: TaskContext, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(rows, None)
        if first is None:
            return
        all_rows, log = itertools.chain([first], rows), TopicLog(checkpoint, name)
        file = log.stage(batch, context.partitionId(), context.attemptNumber(), all_rows, column)
        if file is not None:
            columns = first.schema.serialize().to_pybytes()
            yield pa.record_batch({"file": [json.dumps(vars(file))], "columns": pa.array([columns], pa.binary())})

    return write


def _epoch_parts(epoch: EpochArgument, topic: str, *, pairs: bool) -> tuple[int | None, str | None]:
    number: Any
    column: Any
    number, column = epoch if isinstance(epoch, tuple) and len(epoch) == 2 else (epoch, None)
    if isinstance(number, str):
        number, column = None, number
    if not (number is None or type(number) is int) or not (column is None or isinstance(column, str)):
        raise PubSubError(
            f"epoch {epoch!r} is not a time; give a batch id, a column, (batch id, column), or nothing for the batch "
            "that runs",
            code="epoch-invalid",
            topic=topic,
        )
    if number is not None and number < 0:
        raise PubSubError(
            f"epoch {number} is not a batch id; Spark counts batches from 0", code="epoch-invalid", topic=topic
        )
    if pairs != (column is not None):
        has = "pairs of a batch and a column" if pairs else "batches"
        way_out = "name the column with epoch=" if pairs else "leave out the column, or start it with pairs=True"
        raise PubSubError(f"the times of topic {topic!r} are {has}; {way_out}", code="epoch-invalid", topic=topic)
    return number, column


def _check_query(files: CheckpointFiles, query: str | None, batch: int, topic: str) -> None:
    """Refuse a query of another checkpoint, because the commits of this one would publish its rows."""
    found = files.query_id()
    if query is not None and found != query:
        there = f"of the query {found}" if found else "of no query"
        raise PubSubError(
            f"topic {topic!r} has the checkpoint {files.identity}, which is {there}, and batch {batch} is of the "
            f"query {query}; start the topic with the checkpoint= of the query that publishes on it",
            code="checkpoint-of-other-query",
            topic=topic,
            query=query,
            found=found,
        )


def _batch(df: DataFrame, number: int | None, topic: str) -> tuple[int, str, str | None]:
    """Return the batch, the run of its query (empty where Spark does not report it) and the query's id, if known."""
    # Spark Connect has no local properties.
    context = classic_context(df.sparkSession)
    names = (BATCH_PROPERTY, RUN_PROPERTY, QUERY_PROPERTY)
    running, run, query = (context.getLocalProperty(name) if context is not None else None for name in names)
    if number is None and running is None:
        raise PubSubError(
            f"Spark does not report the running batch, for topic {topic!r}; call publish inside foreachBatch, or "
            "pass the batch id: publish(df, topic, epoch=batch_id)",
            code="batch-unknown",
            topic=topic,
        )
    return (int(running or 0) if number is None else number), (run or ""), query


def _check_column(df: DataFrame, column: str | None, topic: str) -> None:
    if column is None:
        return
    if column not in df.columns:
        raise PubSubError(
            f"epoch column {column!r} is not among the columns {', '.join(df.columns)}",
            code="epoch-invalid",
            topic=topic,
        )
    kind = df.schema[column].dataType
    if not isinstance(kind, IntegralType):
        raise PubSubError(
            f"epoch column {column} is {kind.simpleString()}; a part of a time is an integer from 0, so cast it",
            code="epoch-invalid",
            topic=topic,
        )
