"""The files of an application of durable streams: its inputs, the outputs of its batches, and its tables.

The public names read the tables as DataFrames. They load on first use, because the other files are read without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from wallaroo_spark.streams.dataframes import follow_stream, read_history, read_instances, read_stream

__all__ = ["follow_stream", "read_history", "read_instances", "read_stream"]

_HOMES = {"wallaroo_spark.streams.dataframes": __all__}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, dict.fromkeys(__all__, ("spark", "pipelines")))
