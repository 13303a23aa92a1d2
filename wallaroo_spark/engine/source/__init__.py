"""The source of an application: it plans what each batch reads, and reads it in executors.

Source: ``docs/pipelines/engine.md#the-source``.
"""

from __future__ import annotations

from wallaroo_spark.engine.source.datasource import MAX_ROWS, PipelinesDataSource, register
from wallaroo_spark.engine.source.inputs import offset_of
from wallaroo_spark.engine.source.plan import InputOffset

__all__ = ["MAX_ROWS", "InputOffset", "PipelinesDataSource", "offset_of", "register"]
