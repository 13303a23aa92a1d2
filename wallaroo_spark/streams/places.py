"""The folders of an application.

    <folder>/_wallaroo/schema/           versions of the schema
                       tokens/           hashes of tokens
                       inbox/            events that gateways and the driver have received
                       batches/          outputs of batches, until they are moved into tables and read by gateways
                       tables/           how far batches were moved into tables
                       status/           the newest snapshot of the running application, and its figures so far
                       failed/           notes of rows at which a task has failed
                       set_aside/        those that an operator has set aside
             checkpoint/                 Spark's checkpoint of the query
             streams/<namespace>/<name>/partition=<p>/…    the tables of streams, as Parquet
             history/                    the history of instances, as Parquet

Source: ``docs/pipelines/engine.md#files``.
"""

from __future__ import annotations

from wallaroo_spark.storage.locations import within

CHECKPOINT = "checkpoint"
STREAMS = "streams"
HISTORY = "history"
INBOX = "inbox"
BATCHES = "batches"
TABLES = "tables"
STATUS = "status"
TOKENS = "tokens"
FAILED = "failed"
SET_ASIDE = "set_aside"


def checkpoint_of(folder: str) -> str:
    """The location of the query's checkpoint."""
    return str(within(folder, CHECKPOINT))


def table_of(folder: str, stream: str) -> str:
    """The location of a stream's table; ``stream`` is ``namespace/name``."""
    return str(within(folder, STREAMS, stream))


def history_of(folder: str) -> str:
    """The location of the history of instances."""
    return str(within(folder, HISTORY))
