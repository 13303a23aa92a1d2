"""The tables of an application as DataFrames: records of a stream, and the history of instances in two forms.

Source: ``docs/pipelines/in-spark.md#tables-as-dataframes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from wallaroo_spark.errors import ArgumentValueError
from wallaroo_spark.pipelines.schema.names import ObjectKey, name_problem
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.storage.locations import open_location
from wallaroo_spark.streams.places import history_of, table_of
from wallaroo_spark.streams.rows import HISTORY_DDL, RECORDS_DDL, HistoryKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE_DDL = f"{RECORDS_DDL}, partition int"
"""The columns of a stream's table, as Spark's DDL."""
FOREVER_DAYS = 36_500
"""An age in days that no file has."""
_NO_PATH = "PATH_NOT_FOUND"


def read_stream(spark: SparkSession, folder: str, stream: str) -> DataFrame:
    """The records of ``stream`` (``namespace/name``) of the application in ``folder``, as a DataFrame.

    Its columns are ``offset``, ``written_at``, the attributes of CloudEvents, ``extensions``, ``data`` and
    ``partition``. It has all records that were moved into the table when this is called, each once, except those that
    retention removes before they are read; it is empty for a declared stream without records. Raises
    :class:`ArgumentValueError` for a stream that the application does not have.
    """
    namespace, slash, name = stream.partition("/")
    problem = name_problem(namespace) or name_problem(name) if slash else "it has no namespace"
    if problem:
        raise ArgumentValueError(
            f"stream {stream!r}: {problem}; give namespace/name, such as shop/orders",
            code="stream-unknown",
            stream=stream,
        )
    found = _parquet(spark, table_of(folder, stream), TABLE_DDL)
    if found is not None:
        return found
    declared = SchemaStore(folder, spark).newest().objects
    if ObjectKey("Stream", namespace, name) not in declared:
        streams = sorted(key.path for key in declared if key.kind == "Stream")
        raise ArgumentValueError(
            f"the application in {folder} has no stream {stream}; it has "
            f"{', '.join(streams) or 'none, so check the folder'}",
            code="stream-unknown",
            stream=stream,
        )
    return spark.createDataFrame([], TABLE_DDL)


def follow_stream(spark: SparkSession, folder: str, stream: str) -> DataFrame:
    """The records of ``stream`` as a streaming DataFrame, for a query of your own; the columns of :func:`read_stream`.

    The query reads the files of the table as they come: first all that are there, then each new one, in the order of
    their times. So each record is in one batch, also when the query starts again with its checkpoint. Records appear
    when the driver of the application has moved them (its setting ``move_seconds``). A query that is stopped for longer
    than the stream's ``ttl`` misses the records that were deleted meanwhile; one that plans a file which is deleted
    before it is read leaves it out. Raises as :func:`read_stream`.
    """
    read_stream(spark, folder, stream)
    table = open_location(table_of(folder, stream), spark)
    # Spark's source refuses a folder that does not exist yet.
    table.filesystem.create_dir(table.root, recursive=True)
    source = spark.readStream.schema(TABLE_DDL)
    # By default, the source forgets files of more than a week before the newest one, and leaves late ones out.
    source = source.option("maxFileAge", f"{FOREVER_DAYS}d").option("ignoreMissingFiles", "true")
    return source.parquet(table_of(folder, stream))


def read_history(spark: SparkSession, folder: str) -> DataFrame:
    """The history of all instances of the application in ``folder``: a row for each step of an instance.

    ``kind`` is ``began``, ``output`` (a stage is done), ``pointer`` (a stream output is written, or refused),
    ``nacked`` (a delivery of a stage has failed: ``attempts`` says how often it was delivered, ``reason`` why),
    ``ended``, or ``skipped`` (retention removed records before a pipeline had them). ``at`` is the time of the batch.
    """
    found = _parquet(spark, history_of(folder), HISTORY_DDL)
    return spark.createDataFrame([], HISTORY_DDL) if found is None else found


def read_instances(spark: SparkSession, folder: str) -> DataFrame:
    """The instances of all pipelines of the application in ``folder``: a row for each.

    The columns are ``pipeline``, ``partition``, ``instance`` (the offset of the record that began it), ``birth`` (the
    version of the schema with which the pipeline was declared first; it is another one after the pipeline was deleted
    and declared anew, and then instances have the same numbers again), ``version`` (of its declaration), ``outcome``
    (``done``, ``failed`` or ``cancelled``), ``reason``, ``began_at``, ``ended_at``, ``stages``, ``outputs`` and
    ``nacks``. An active instance has no outcome and no ``ended_at``. ``stages`` has a struct for each stage that is
    done, in the order of their ends: ``stage``, ``began_at``, ``ended_at``, ``seconds`` between the two, ``output``
    and ``content_type``. ``outputs`` has a struct for each stream output that is written: ``stream``, ``partition``,
    ``offsets``, and ``refused``, the reason if the stream did not accept it. ``nacks`` has a struct for each delivery
    that failed: ``at``, ``stage``, ``attempts`` and ``reason``. An instance is left out
    once the first of its rows have expired.
    """
    from pyspark.sql import functions as f

    def is_(kind: HistoryKind) -> Column:
        return f.col("kind") == str(kind)

    def when(kind: HistoryKind, column: str) -> Column:
        return f.max(f.when(is_(kind), f.col(column)))

    def sorted_list(kind: HistoryKind, *columns: Column) -> Column:
        return f.array_sort(f.collect_list(f.when(is_(kind), f.struct(*columns))))

    seconds = (f.unix_micros("at") - f.unix_micros("began_at")) / 1_000_000
    stage = [f.col("at").alias("ended_at"), f.col("stage"), f.col("began_at"), seconds.alias("seconds")]
    stage += [f.col("output"), f.col("content_type")]
    refused = f.when(f.col("reason") != "", f.col("reason"))
    output = [
        f.col("target_stream").alias("stream"),
        f.col("target_partition").alias("partition"),
        f.col("offsets"),
        refused.alias("refused"),
    ]
    key = ("pipeline", "partition", "instance", "birth")
    gathered = (
        read_history(spark, folder)
        .where(~is_(HistoryKind.SKIPPED))
        .groupBy(*key)
        .agg(
            when(HistoryKind.BEGAN, "version").alias("version"),
            when(HistoryKind.ENDED, "outcome").alias("outcome"),
            when(HistoryKind.ENDED, "reason").alias("reason"),
            when(HistoryKind.BEGAN, "at").alias("began_at"),
            when(HistoryKind.ENDED, "at").alias("ended_at"),
            sorted_list(HistoryKind.OUTPUT, *stage).alias("stages"),
            sorted_list(HistoryKind.POINTER, *output).alias("outputs"),
            sorted_list(HistoryKind.NACKED, *map(f.col, ("at", "stage", "attempts", "reason"))).alias("nacks"),
        )
    )
    fields = ("stage", "began_at", "ended_at", "seconds", "output", "content_type")
    return gathered.where("began_at is not null").withColumn(
        "stages", f.transform("stages", lambda one: f.struct(*(one[name].alias(name) for name in fields)))
    )


def _parquet(spark: SparkSession, path: str, ddl: str) -> DataFrame | None:
    """The Parquet files in a folder; None if there is no such folder.

    The DataFrame has a list of files, of which retention may delete some before they are read. Nothing else does.
    """
    try:
        return spark.read.schema(ddl).option("ignoreMissingFiles", "true").parquet(path)
    except AnalysisException as error:
        if error.getCondition() != _NO_PATH:
            raise
        return None
