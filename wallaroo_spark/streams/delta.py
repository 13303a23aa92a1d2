"""A log of Delta Lake beside the Parquet files of each stream's table, so that readers of Delta know the files.

The log is written with the package ``deltalake``, without Spark. A move adds the files that it has moved, in one commit
with the move's newest batch as the version of an application's transaction; so a move that is repeated adds nothing
twice. Retention removes files from the log before it deletes them. Source: ``docs/pipelines/in-spark.md#delta-tables``.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.extras import command, installed
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.storage.locations import Location, PortableLocation, open_location
from wallaroo_spark.streams.places import STREAMS
from wallaroo_spark.streams.rows import RECORDS
from wallaroo_spark.streams.table_files import TableFile, TableFolders

APPLICATION = "wallaroo_spark"
"""The id of the application in the transactions of the logs."""
PARTITION = "partition"
SCHEMA = pa.schema([*RECORDS, pa.field(PARTITION, pa.int32(), nullable=False)])
"""The columns of a stream's table, as readers of its log see them."""
_CONFIGURATION = {"delta.logRetentionDuration": "interval 1 days"}
"""Entries of a log are deleted after a day, with the next checkpoint of the log. A move every 5 s makes
17,280 of them."""

MovedFile = tuple[PartitionKey, TableFile]
"""A file of a table, and its partition."""


class DeltaLogs:
    """The logs of the tables in ``folder``, a location as :func:`for_tasks` makes it; for one thread at a time.

    Raises :class:`ConfigurationError` when ``deltalake`` is not installed or does not know the file system. The methods
    raise :class:`CheckpointError` when a log cannot be read or written; the call can be repeated.
    """

    def __init__(self, folder: Location) -> None:
        if not installed("deltalake"):
            raise ConfigurationError(
                f"delta: the driver's Python lacks deltalake; run there: {command(['delta'])}, or leave delta out",
                code="package-missing",
                packages=["deltalake"],
            )
        self._root, self._options = delta_address(folder)
        self._tables: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"DeltaLogs({self._root!r})"

    def add(self, tables: TableFolders, batch: int, files: Iterable[MovedFile]) -> None:
        """Add files that a move up to ``batch`` has moved. Does nothing if that was done before."""
        streams: dict[str, list[MovedFile]] = {}
        for one in files:
            streams.setdefault(one[0].stream, []).append(one)
        for stream, moved in streams.items():
            with self._log(stream, create=True) as log:
                known = log.transaction_version(APPLICATION)
                if known is None or known < batch:
                    self._commit(log, [_added(tables, *one) for one in moved], batch)

    def remove(self, tables: TableFolders, key: PartitionKey, files: Sequence[TableFile]) -> None:
        """Remove files of a partition, which are there still."""
        with self._log(key.stream) as log:
            if log is not None and files:
                self._commit(log, [_removed(key, file.name) for file in files])

    def forget(self, stream: str) -> None:
        """The log of a stream was deleted."""
        self._tables.pop(stream, None)

    def adopt(self, tables: TableFolders) -> None:
        """Make every log agree with the files of its table, which other processes may have changed without it."""
        streams: dict[str, dict[str, MovedFile]] = {}
        for key in tables.partitions():
            here = streams.setdefault(key.stream, {})
            here.update({_path(key, file.name): (key, file) for file in tables.listed(key)})
        for stream, there in streams.items():
            with self._log(stream, create=bool(there)) as log:
                if log is None:
                    continue
                known = set(pa.table(log.get_add_actions()).column("path").to_pylist())
                new = [_added(tables, *one) for path, one in there.items() if path not in known]
                gone = [_removed(*_parsed(stream, path)) for path in sorted(known - there.keys())]
                if new or gone:
                    self._commit(log, [*new, *gone])

    def _commit(self, log: Any, actions: Sequence[Any], batch: int | None = None) -> None:
        from deltalake import CommitProperties, Schema, Transaction

        properties = None
        if batch is not None:
            properties = CommitProperties(app_transactions=[Transaction(APPLICATION, batch)])
        schema = Schema.from_arrow(SCHEMA)
        log.create_write_transaction(list(actions), "append", schema, [PARTITION], commit_properties=properties)

    @contextlib.contextmanager
    def _log(self, stream: str, *, create: bool = False) -> Iterator[Any]:
        """The log of a stream as it is now; None without one, unless it is to be created."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError, TableNotFoundError

        place = f"{self._root}/{STREAMS}/{stream}"
        try:
            log = self._tables.pop(stream, None)
            try:
                if log is None:
                    log = DeltaTable(place, storage_options=self._options)
                else:
                    log.update_incremental()
            except TableNotFoundError:
                log = None
            if log is None and create:
                log = DeltaTable.create(
                    place,
                    Schema.from_arrow(SCHEMA),
                    mode="ignore",
                    partition_by=[PARTITION],
                    name=stream,
                    configuration=_CONFIGURATION,
                    storage_options=self._options,
                )
            yield log
            # After an error the log is opened anew.
            if log is not None:
                self._tables[stream] = log
        except (DeltaError, OSError) as error:
            raise CheckpointError(
                f"the Delta log of stream {stream} in {place} cannot be read or written: {error}; check that the "
                "driver may write there, and that nobody else changes the table",
                code="checkpoint-unwritable",
                stream=stream,
            ) from error


def delta_address(folder: Location) -> tuple[str, dict[str, str]]:
    """The folder and its storage options, as ``deltalake`` takes them. Raises :class:`ConfigurationError`."""
    uri = folder.uri if isinstance(folder, PortableLocation) else folder
    scheme = (
        uri.partition("://")[0].lower() if "://" in uri else uri.partition(":")[0] if uri.startswith("file:") else ""
    )
    if scheme in ("", "file"):
        return open_location(folder).root, {}
    if scheme in ("s3", "s3a") and "?" not in uri:
        settings = folder.settings if isinstance(folder, PortableLocation) else {}
        return "s3://" + uri.partition("://")[2].rstrip("/"), _s3_options(settings)
    raise ConfigurationError(
        f"delta: logs are written to local folders and to s3a, and {folder} is on {scheme}; put it there, or leave "
        "delta out",
        code="delta-not-supported",
        scheme=scheme,
    )


def _s3_options(settings: dict[str, Any]) -> dict[str, str]:
    names = {
        "access_key": "AWS_ACCESS_KEY_ID",
        "secret_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
        "region": "AWS_REGION",
    }
    options = {name: str(settings[given]) for given, name in names.items() if settings.get(given)}
    if endpoint := settings.get("endpoint_override"):
        scheme = settings.get("scheme") or "https"
        options |= {"AWS_ENDPOINT_URL": f"{scheme}://{endpoint}", "AWS_ALLOW_HTTP": str(scheme == "http").lower()}
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(bool(settings.get("force_virtual_addressing"))).lower()
    if settings.get("anonymous"):
        options["AWS_SKIP_SIGNATURE"] = "true"
    return options


def _path(key: PartitionKey, name: str) -> str:
    """The path of a file in the folder of its stream."""
    return f"{PARTITION}={key.partition}/{name}"


def _parsed(stream: str, path: str) -> tuple[PartitionKey, str]:
    folder, _, name = path.rpartition("/")
    return PartitionKey(stream, int(folder.partition("=")[2])), name


def _added(tables: TableFolders, key: PartitionKey, file: TableFile) -> Any:
    from deltalake.transaction import AddAction

    size, modified = tables.size_and_time(tables.records(key, file.first, file.last))
    # Without ranges of columns: deltalake's reader finds no rows by a column that lacks one which others have.
    statistics = {"numRecords": file.last - file.first + 1}
    values = {PARTITION: str(key.partition)}
    return AddAction(_path(key, file.name), size, values, modified, True, json.dumps(statistics))


def _removed(key: PartitionKey, name: str) -> Any:
    from deltalake.transaction import RemoveAction

    values: dict[str, str | None] = {PARTITION: str(key.partition)}
    return RemoveAction(_path(key, name), True, time.time_ns() // 1_000_000, partition_values=values)
