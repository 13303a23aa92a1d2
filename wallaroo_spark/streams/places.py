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

from dataclasses import replace

from wallaroo_spark.storage.locations import Location, PortableLocation

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
    return _below(folder, CHECKPOINT)


def table_of(folder: str, stream: str) -> str:
    """The location of a stream's table; ``stream`` is ``namespace/name``."""
    return _below(folder, STREAMS, stream)


def history_of(folder: str) -> str:
    """The location of the history of instances."""
    return _below(folder, HISTORY)


def checkpoint_for_tasks(folder: Location) -> Location:
    """The location of the query's checkpoint, with the settings of the application's folder as tasks open it."""
    if isinstance(folder, PortableLocation):
        return replace(folder, uri=checkpoint_of(folder.uri))
    return checkpoint_of(folder)


def _below(folder: str, *names: str) -> str:
    path, mark, parameters = folder.partition("?") if "://" in folder else (folder, "", "")
    return "/".join((path.rstrip("/"), *names)) + mark + parameters
