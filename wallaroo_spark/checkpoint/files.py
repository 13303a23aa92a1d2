"""A checkpoint's files, on every file system that ``pyarrow.fs`` can read; Spark's own are read only when new."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from pyarrow import fs

from wallaroo_spark.checkpoint.model import (
    PlannedBatch,
    QueryProgress,
    holes,
    is_commit,
    newest_committed,
    newest_planned,
    parse_offsets,
    receivers_in,
)
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location, open_location

# Object stores that look like directories.
_MOUNTS = ("/dbfs/", "/Volumes/")
_TRIES = 5
_RETRY_SECONDS = 0.02


@dataclass(frozen=True)
class _Entry:
    """A file of a log as its listing shows it; equal entries have equal content."""

    size: int
    modified: int | None


_Log = Mapping[int, _Entry]
_Result = TypeVar("_Result")


class CheckpointFiles:
    """The checkpoint of one query, at a path or a URI as Spark takes it.

    With ``spark``, a session that has a JVM gateway, it is the place that this session means, read through its Hadoop
    where it is not the local disk; else a plain path is local. As in Hadoop, and unlike in other URIs, ``%20`` is three
    characters and not a space. Raises :class:`ConfigurationError` when no file system can be opened for ``location``.
    Its methods may be called from several threads, and raise :class:`CheckpointError` when the files cannot be read.
    """

    def __init__(self, location: Location, spark: Any = None) -> None:
        self._location, self._spark = location, spark
        self.filesystem, self._root, self.identity = open_location(location, spark)
        self._remote = not isinstance(self.filesystem, fs.LocalFileSystem) or self._root.startswith(_MOUNTS)
        self._plans: dict[tuple[str, int, _Entry], PlannedBatch | None] = {}
        self._commits: tuple[int, _Entry] | None = None

    def __repr__(self) -> str:
        return f"CheckpointFiles({self.identity!r})"

    def progress(self, receiver: str) -> QueryProgress:
        """How far the query is with the streams of ``receiver``.

        It makes two listings; files are read only when they are new. Spark may add and remove files meanwhile: a file
        that vanished or is incomplete is read again, a few times within a tenth of a second.
        """
        return self._retrying(lambda: self._progress(receiver))

    def stamp(self) -> int | None:
        """When the commit log last changed, in ns since 1970 UTC by the file system's clock, 0 before there is one.

        None where looking is not cheap, or does not tell: on a file system that is not this machine's own.
        """
        if self._remote:
            return None
        try:
            return os.stat(os.path.join(self._root, "commits")).st_mtime_ns
        except OSError:
            return 0

    @property
    def local_folder(self) -> str | None:
        """The checkpoint's folder on a disk of this machine; None on another file system, mounted ones included."""
        return None if self._remote else self._root

    def exists(self) -> bool:
        """Whether a query has planned or committed a batch here."""
        return self._retrying(lambda: bool(self._list("offsets") or self._list("commits")))

    def committed(self) -> int | None:
        """The newest committed batch; None before the first."""
        return self._retrying(lambda: max(self._whole_commits(self._list("commits")), default=None))

    def holes(self) -> tuple[int, ...]:
        """Batches that asynchronous progress has left out; see :func:`wallaroo_spark.checkpoint.model.holes`."""
        return self._retrying(lambda: holes(self._list("offsets"), self._list("commits")))

    @cached_property
    def key(self) -> str:
        """An identity that distinguishes this checkpoint from every other, also from one at the same path of another
        machine.

        On a local disk it is a file beside the checkpoint, which is created now if there is none. Raises
        :class:`CheckpointError` when it cannot be created.
        """
        return (
            self.identity
            if self._remote
            else f"{self.identity}#{SidecarFolder(self._location, spark=self._spark).mark()}"
        )

    def receivers(self) -> tuple[str, ...]:
        """The names of the receivers with a source in the newest planned batch; none before the first."""

        def read() -> tuple[str, ...]:
            newest = max(self._list("offsets"), default=None)
            return () if newest is None else receivers_in(newest, self._read(f"offsets/{newest}"))

        return self._retrying(read)

    def query_id(self) -> str | None:
        """The id of the query that the checkpoint belongs to, or None before Spark has written it.

        It stays when a query is restarted, and changes when the checkpoint was removed and made again.
        """

        def read() -> str | None:
            try:
                value = json.loads(self._read("metadata"))
            except (FileNotFoundError, ValueError):
                return None
            return str(value["id"]) if isinstance(value, dict) and "id" in value else None

        return self._retrying(read)

    def _progress(self, receiver: str) -> QueryProgress:
        # Commits first: a plan that is listed after them can only be newer, never missing.
        commits = self._whole_commits(self._list("commits"))
        offsets = self._list("offsets")
        committed, planned = newest_committed(offsets, commits), newest_planned(offsets, commits)
        wanted = {(receiver, batch, offsets[batch]) for batch in (committed, planned) if batch is not None}
        # Where a file does not say when it was written, it is read each time.
        known = {key: plan for key, plan in self._plans.items() if key[2].modified is not None}
        plans = {key: known[key] if key in known else self._plan(key) for key in wanted}
        self._plans = plans
        found = {key[1]: plan for key, plan in plans.items()}
        return QueryProgress(
            found[committed] if committed is not None else None, found[planned] if planned is not None else None
        )

    def _plan(self, key: tuple[str, int, _Entry]) -> PlannedBatch | None:
        receiver, batch, _ = key
        return parse_offsets(batch, self._read(f"offsets/{batch}"), receiver)

    def _whole_commits(self, commits: _Log) -> list[int]:
        """The batches of ``commits``, less a newest one that is still being written."""
        batches = sorted(commits)
        while batches:
            newest = (batches[-1], commits[batches[-1]])
            if newest == self._commits or is_commit(self._read(f"commits/{batches[-1]}")):
                self._commits = newest
                break
            batches.pop()
        return batches

    def _list(self, log: str) -> _Log:
        """The files of a log by batch: no sub-directories, checksums, temporary or empty files."""
        selector = fs.FileSelector(self._path(log), allow_not_found=True)
        return {
            int(info.base_name): _Entry(info.size, info.mtime_ns)
            for info in self.filesystem.get_file_info(selector)
            if info.type == fs.FileType.File and re.fullmatch(r"[0-9]+", info.base_name) and info.size
        }

    def _read(self, name: str) -> str:
        with self.filesystem.open_input_stream(self._path(name)) as stream:
            content: bytes = stream.read()
        return content.decode()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def _retrying(self, read: Callable[[], _Result]) -> _Result:
        for left in reversed(range(_TRIES)):
            try:
                return read()
            except CheckpointError:
                if not left:
                    raise
            except (OSError, ValueError) as error:
                if not left:
                    raise CheckpointError(
                        f"checkpoint {self.identity} cannot be read: {error}; check that it is a directory that "
                        "this process may read",
                        location=self.identity,
                    ) from error
            time.sleep(_RETRY_SECONDS)
        raise AssertionError("the last try returns or raises")
