"""Tables of OpenTelemetry: the rows of a receiver's OTLP clients as logs, spans and metrics.

    from wallaroo_spark import otel

    spans = otel.spans(receiver.stream())

Each function takes the DataFrame of :meth:`Receiver.stream`, a streaming one or a stored copy of it, and reads the
bodies in Spark's tasks. The columns are those of Databricks' OpenTelemetry tables. A body that cannot be read is logged
and left out; when the DataFrame has the column ``error_bytes`` (the option ``includeCorrupt``), it is a row of nulls
with the body there. Source: ``docs/doors/opentelemetry.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.extras import needed_by

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["logs", "metrics", "spans"]


def logs(rows: DataFrame) -> DataFrame:
    """A row for each log record. Raises :class:`PackageMissingError` without the extra ``otlp``."""
    return _table(rows, "logs")


def spans(rows: DataFrame) -> DataFrame:
    """A row for each span. Raises :class:`PackageMissingError` without the extra ``otlp``."""
    return _table(rows, "traces")


def metrics(rows: DataFrame) -> DataFrame:
    """A row for each data point of a metric. Raises :class:`PackageMissingError` without the extra ``otlp``."""
    return _table(rows, "metrics")


def _table(rows: DataFrame, signal: str) -> DataFrame:
    from pyspark.sql import functions

    with needed_by(f"wallaroo_spark.otel of {signal}", "otlp"):
        from wallaroo_spark.otel.expand import Expansion
    from wallaroo_spark.otel.tables import ddl

    expansion = Expansion(signal, "error_bytes" in rows.columns)
    wanted = rows.where(functions.col("instance").startswith("otlp/") & (functions.col("stream") == signal))
    texts = wanted.mapInArrow(expansion, ddl(expansion.schema))
    return texts.select(
        *(_typed(texts[field.name], field.name, field.dataType).alias(field.name) for field in texts.schema)
    )


def _typed(column: Column, name: str, kind: DataType) -> Column:
    """The column with VARIANT where the table has it, which was written as JSON."""
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, StructType

    from wallaroo_spark.otel.tables import VARIANTS

    if name in VARIANTS:
        return functions.try_parse_json(column)
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        inner = kind.elementType
        return functions.transform(column, lambda one: _typed(one, "", inner))
    if isinstance(kind, StructType):
        fields = [_typed(column[field.name], field.name, field.dataType).alias(field.name) for field in kind]
        return functions.when(column.isNotNull(), functions.struct(*fields))
    return column
