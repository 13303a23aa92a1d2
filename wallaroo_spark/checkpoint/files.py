"""A checkpoint's files, wherever ``pyarrow.fs`` can read them. Only reads, and only what has changed."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow
from pyarrow import fs

from wallaroo_spark.checkpoint.model import (
    PlannedBatch,
    Progress,
    holes,
    is_commit,
    newest_committed,
    newest_planned,
    parse_offsets,
)
from wallaroo_spark.errors import CheckpointError, ConfigurationError

SCHEMES = ("file", "hdfs", "viewfs", "s3", "s3a", "gs", "abfs", "abfss", "dbfs")
"""Schemes that are known to work, some of them only with what they need installed and configured."""

# Hadoop's names for the same stores.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_DATABRICKS_MOUNT = "/dbfs"
# Object stores that look like directories.
_MOUNTS = (f"{_DATABRICKS_MOUNT}/", "/Volumes/")
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
    """The checkpoint of one query, at a local path or a URI as Spark takes it.

    A plain path is local. As in Hadoop, and unlike in other URIs, ``%20`` is three characters and not a space. Raises
    :class:`ConfigurationError` when no file system can be opened for ``location``, naming the schemes that there are.
    Its methods may be called from several threads, and raise :class:`CheckpointError` when the files cannot be read.
    """

    def __init__(self, location: str) -> None:
        self.filesystem, self._root, self.identity = open_location(location)
        self._remote = not isinstance(self.filesystem, fs.LocalFileSystem) or self._root.startswith(_MOUNTS)
        self._plans: dict[tuple[str, int, _Entry], PlannedBatch | None] = {}
        self._commits: tuple[int, _Entry] | None = None

    def __repr__(self) -> str:
        return f"CheckpointFiles({self.identity!r})"

    def progress(self, receiver: str) -> Progress:
        """How far the query is with the streams of ``receiver``.

        Two listings; files are read only when they are new. Spark may be adding and cleaning up files meanwhile: what
        vanished or is not whole yet is looked for again, a few times within a tenth of a second.
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

    def exists(self) -> bool:
        """Whether a query has planned or committed a batch here."""
        return self._retrying(lambda: bool(self._list("offsets") or self._list("commits")))

    def committed(self) -> int | None:
        """The newest batch that is committed; None before the first."""
        return self._retrying(lambda: max(self._whole_commits(self._list("commits")), default=None))

    def holes(self) -> tuple[int, ...]:
        """Batches that are missing inside either log; see :func:`wallaroo_spark.checkpoint.model.holes`."""
        return self._retrying(lambda: tuple(sorted({*holes(self._list("offsets")), *holes(self._list("commits"))})))

    def query_id(self) -> str | None:
        """The id of the query that the checkpoint belongs to, or None before Spark has written it.

        It stays when a query is restarted, and is another one when the checkpoint was removed and made anew.
        """

        def read() -> str | None:
            try:
                value = json.loads(self._read("metadata"))
            except (FileNotFoundError, ValueError):
                return None
            return str(value["id"]) if isinstance(value, dict) and "id" in value else None

        return self._retrying(read)

    def _progress(self, receiver: str) -> Progress:
        # Commits first: a plan that is listed after them can only be newer, never missing.
        commits = self._whole_commits(self._list("commits"))
        offsets = self._list("offsets")
        committed, planned = newest_committed(offsets, commits), newest_planned(offsets, commits)
        wanted = {(receiver, batch, offsets[batch]) for batch in (committed, planned) if batch is not None}
        plans = {key: self._plans[key] if key in self._plans else self._plan(key) for key in wanted}
        self._plans = plans
        found = {key[1]: plan for key, plan in plans.items()}
        return Progress(
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


def open_location(location: str) -> tuple[Any, str, str]:
    """The file system, the path in it, and a name of the place that says nothing secret."""
    scheme, colon, rest = location.partition(":")
    if not location.strip():
        raise ConfigurationError("the checkpoint has no location; give a directory or a URI", location=location)
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme):
        return _open_local(location)
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        return _open_local(re.sub(r"^//[^/]*", "", rest))
    if scheme == "dbfs":
        return _open_local(f"{_DATABRICKS_MOUNT}/{rest.lstrip('/')}")
    return _open_uri(scheme, rest)


def _open_local(path: str) -> tuple[Any, str, str]:
    # The way there may lead over symbolic links, and two ways to one place are one place.
    real = os.path.realpath(path)
    return fs.LocalFileSystem(), real, f"file://{real}"


def _open_uri(scheme: str, rest: str) -> tuple[Any, str, str]:
    path, mark, query = rest.partition("?")
    authority = ""
    if path.startswith("//"):
        authority, slash, path = path[2:].partition("/")
        path = slash + path
    path = re.sub(r"/+", "/", path).rstrip("/")
    # What stands before the last @ is a user and a password; in Azure it is a container, and a password at most.
    before, at, host = authority.rpartition("@")
    shown = before.partition(":")[0] + at + host if scheme.startswith("abfs") else host
    identity = f"{scheme}://{shown}{path}"
    try:
        filesystem, root = fs.FileSystem.from_uri(f"{scheme}://{authority}{quote(path)}{mark}{query}")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        # Neither the text nor the cause may carry the credentials of the URI, and Arrow repeats the URI.
        raise _not_opened(identity, scheme, error) from None
    return filesystem, root.rstrip("/"), identity


def _not_opened(identity: str, scheme: str, error: Exception) -> ConfigurationError:
    if scheme not in SCHEMES:
        problem = f"no file system is known for it; use a path or one of the schemes {', '.join(SCHEMES)}"
    elif isinstance(error, ValueError):
        problem = f"the file system of {scheme} does not accept the URI; check its host or bucket and its parameters"
    else:
        # libhdfs lists every place in which it looked for a JVM, a line each.
        reason = str(error).partition("\n")[0]
        hint = "set JAVA_HOME, HADOOP_HOME and CLASSPATH" if scheme in ("hdfs", "viewfs") else "check its configuration"
        problem = f"the file system of {scheme} cannot be opened on the driver: {reason}; {hint}"
    return ConfigurationError(f"checkpoint {identity}: {problem}", location=identity)
