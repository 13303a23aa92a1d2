"""Makes a ``foreachBatch`` function of a transactional sink. Source: ``docs/sinks.md#a-batch-in-the-driver``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.errors import SinkError, one_line
from wallaroo_spark.runtime.python_tasks import collected, in_arrow
from wallaroo_spark.runtime.spark_checks import classic_context, tasks_python
from wallaroo_spark.sidecar.task_access import require_reach
from wallaroo_spark.sinks.coordinator import Coordinator, Vote, vote
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.sinks.interface import Sink, checked_name
from wallaroo_spark.storage.locations import session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame

log = one_line("wallaroo_spark.sinks")

_VOTES = "vote string"
_QUERY_ID = "sql.streaming.queryId"


def transactional(sink: Sink, *, checkpoint: str, shape: Callable[[DataFrame], DataFrame] | None = None) -> BatchWriter:
    """Return a writer that writes each batch of one query to ``sink`` once, also when Spark runs the batch again.

    ``checkpoint`` is the query's own checkpoint location: the decisions are logged beside Spark's logs, in
    ``_wallaroo/sinks/<name>``. ``shape``, if given, converts a batch to the rows that the sink accepts. Raises
    :class:`ConfigurationError` for a name or a location that cannot work.
    """
    return BatchWriter(sink, checkpoint, shape)


class BatchWriter:
    """A function for ``foreachBatch``: called with a DataFrame and its batch id, it writes the batch. Picklable.

    A call raises :class:`SinkError`, with the partition and the reason, when a partition votes to abort: then the whole
    batch fails, and no row of it becomes visible in the sink. An error that fails a task has the same effect. A writer
    belongs to one query.
    """

    def __init__(self, sink: Sink, checkpoint: str, shape: Callable[[DataFrame], DataFrame] | None = None) -> None:
        checked_name(sink.name)
        self.sink = sink
        self.checkpoint = checkpoint
        self._shape = shape
        self._coordinator: Coordinator | None = None
        # Opened now, so that a wrong location is refused before the query starts.
        DecisionLog(checkpoint, sink.name, spark=session())

    def __repr__(self) -> str:
        return f"BatchWriter({self.sink!r}, checkpoint={self.checkpoint!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_coordinator": None}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch, unless it has been written."""
        if self._coordinator is None:
            self._coordinator = self._start(df)
        rows = self._shape(df) if self._shape else df
        self._coordinator.deliver(batch_id, lambda batch: run_partitions(self.sink, rows, batch))

    def _start(self, df: DataFrame) -> Coordinator:
        spark = df.sparkSession
        files = CheckpointFiles(self.checkpoint, spark)
        query, running = files.query_id(), _running_query(df)
        if running is not None and query != running:
            owner = f"of the query {query}" if query else "no query's checkpoint"
            raise SinkError(
                f"sink {self.sink.name}: {files.identity} is {owner}, and this batch is of the query {running}, whose "
                "checkpoint is another: the decisions there would be about other batches; make the writer with the "
                "query's own location as checkpoint=",
                code="checkpoint-of-other-query",
                checkpoint=files.identity,
                found=query,
                query=running,
            )
        tasks_python(spark)
        for location in getattr(self.sink, "in_tasks", ()):
            require_reach(spark, location, f"sink {self.sink.name}")
        if query is None:
            log.warning(
                "sink %s: %s is no query's checkpoint; give the checkpoint of the query that this writer belongs to",
                self.sink.name,
                self.checkpoint,
            )
        decisions = DecisionLog(self.checkpoint, self.sink.name, spark=spark)
        decisions.claim(query)
        speculation = spark.conf.get("spark.speculation", "false")
        return Coordinator(self.sink, decisions, always_recover=speculation == "true")


def _running_query(df: DataFrame) -> str | None:
    """Return the id of the query to which a batch belongs; None outside a query and on Spark Connect."""
    context = classic_context(df.sparkSession)
    return context.getLocalProperty(_QUERY_ID) if context is not None else None


def run_partitions(sink: Sink, df: DataFrame, batch: int) -> list[Vote]:
    """Send each partition of ``df`` to ``sink`` on the executors, in one Spark job, and return the votes."""

    def task(context: TaskContext, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        cast = vote(sink, batch, context.partitionId(), rows, context.attemptNumber())
        yield pa.RecordBatch.from_pydict({"vote": [cast.to_json()]})

    return [Vote.from_json(row.vote) for row in collected(in_arrow(df, task, _VOTES))]
