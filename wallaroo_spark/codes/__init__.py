"""The codes of errors, of protocol violations and of causes in a status: one table, and the search in it.

A code has one meaning wherever it appears. ``docs/errors.md`` is generated from this table.
"""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup
from wallaroo_spark.codes.search import CodesFound, search
from wallaroo_spark.codes.table import ENTRIES, GROUPS

__all__ = ["ENTRIES", "GROUPS", "CodeEntry", "CodeGroup", "CodesFound", "search"]
