"""Transactional sinks: each batch of a query leaves Spark once, however often it is run.

Source: ``protocol.md``, Sinks (v3, roles reversed).
"""

from __future__ import annotations

from wallaroo_spark.sinks.interface import Prepared, Sink, Transaction
from wallaroo_spark.sinks.writer import BatchWriter, transactional

__all__ = ["BatchWriter", "Prepared", "Sink", "Transaction", "transactional"]
