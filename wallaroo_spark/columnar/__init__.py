"""Converts runs of MESSAGE frames to Arrow record batches, and defines the schema of the rows that Spark reads.

Source: ``docs/architecture.md#rows``; ``docs/protocol.md#frame-bodies``; ``docs/decisions/runs.md``.
"""

from wallaroo_spark.columnar.decode import ROW_OVERHEAD, Decoded, decode_run, decode_runs
from wallaroo_spark.columnar.find import find_messages
from wallaroo_spark.columnar.group import Grouped, Lot, RunRows, StreamRows, by_stream
from wallaroo_spark.columnar.schema import (
    CORRUPT,
    HEADERS,
    ROW_DDL,
    ROW_SCHEMA,
    STORED_SCHEMA,
    CommonColumns,
    row_ddl,
    row_schema,
    to_rows,
)
