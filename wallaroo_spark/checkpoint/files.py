"""Reads the files of a checkpoint, on every file system that ``pyarrow.fs`` or Spark's Hadoop can read.

Source: ``docs/decisions/acks-from-the-commit-log.md`` and ``docs/decisions/checkpoint-through-hadoop.md``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, TypeVar

from pyarrow import fs
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from wallaroo_spark.checkpoint import model
from wallaroo_spark.checkpoint.model import PlannedBatch, QueryProgress
from wallaroo_spark.errors import CheckpointError, WallarooError
from wallaroo_spark.references import References
from wallaroo_spark.sidecar.folder import SidecarFolder, lock_file
from wallaroo_spark.sidecar.given_up import FOLDER, GivenUpRanges
from wallaroo_spark.sidecar.plan_files import NamedPlan, PlanFiles, PlanReader, place_record
from wallaroo_spark.sidecar.syncing import sync
from wallaroo_spark.steps import Step, passed
from wallaroo_spark.storage.locations import Location, is_mounted, open_location

_TRIES = 5
"""Attempts to read files that Spark may be writing. A choice: with the pause, they take a tenth of a second."""
_LIST_SECONDS = 10.0
"""Longest time between two listings of the logs. A choice: a listing takes 1.3 ms of processor time with a hundred
batches in each log, and a look at single files 0.04 ms."""
_RETRY_SECONDS = 0.02
"""Pause between two attempts. A choice: Spark may meanwhile finish or rename the file."""
_retry = Retrying(
    stop=stop_after_attempt(_TRIES),
    wait=wait_fixed(_RETRY_SECONDS),
    retry=retry_if_exception_type(CheckpointError),
    reraise=True,
)


@dataclass(frozen=True)
class _Entry:
    """A file of a log as its listing shows it; files with equal entries have equal content."""

    size: int
    """Bytes."""
    modified: int | None
    """Time of its last write, in ns since 1970; None when the file system does not report it."""


def _entry(info: fs.FileInfo) -> _Entry | None:
    """The entry of a file with content; None for anything else."""
    return _Entry(info.size, info.mtime_ns) if info.type == fs.FileType.File and info.size else None


_Log = Mapping[int, _Entry]
_Result = TypeVar("_Result")


def sync_log_file(log: str, batch: int) -> None:
    """Return when a file of ``offsets/`` or ``commits/``, its checksum and their names are on the disk.

    ``log`` is the path of the folder. Raises OSError.
    """
    sync(os.path.join(log, str(batch)))
    with contextlib.suppress(FileNotFoundError):
        sync(os.path.join(log, f".{batch}.crc"))
    sync(log)


class NamedPlans:
    """The named plans of one checkpoint that were read, for the next reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[str, tuple[PlanFiles, PlanReader]] = {}
        self.bases: dict[tuple[str, int], int | None] = {}

    @property
    def any(self) -> bool:
        """Whether an offset named a plan."""
        return bool(self._readers)

    def read(self, receiver: str, named: NamedPlan, store: Callable[[str], PlanFiles]) -> References:
        """The references of a plan of a receiver."""
        with self._lock:
            if receiver not in self._readers:
                self._readers[receiver] = store(receiver), PlanReader()
            place, reader = self._readers[receiver]
            return reader.read(named, place)[0]

    def forget_bases(self, receiver: str, offsets: Mapping[int, Any]) -> None:
        """Forget the batches that are not in the offset log any more."""
        for key in [key for key in self.bases if key[0] == receiver and key[1] not in offsets]:
            del self.bases[key]


class CheckpointFiles:
    """The files in the checkpoint of one query. ``location`` is a path or a URI as for ``checkpointLocation``.

    With ``spark``, a session that has a JVM gateway, the location is resolved as that session resolves it, and read
    through its Hadoop when it is not on the local disk. Without it, a path without a scheme is local. As in Hadoop, and
    unlike in other URIs, ``%20`` is three characters and not a space. The constructor raises
    :class:`ConfigurationError` when no file system can be opened for the location. The methods may be called from
    several threads, and raise :class:`CheckpointError` when the files cannot be read.

    ``fsync``: on a disk of this machine a batch is committed for this object once its commit is on the disk. Spark
    syncs no file, so without it a machine that loses power may forget a commit that was seen.
    """

    def __init__(self, location: Location, spark: Any = None, *, fsync: bool = False) -> None:
        self._location, self._spark = location, spark
        self.filesystem, self._root, self.identity = open_location(location, spark)
        self._remote = not isinstance(self.filesystem, fs.LocalFileSystem) or is_mounted(self._root)
        self._fsync = fsync and not self._remote
        self._plans: dict[tuple[str, int, _Entry], PlannedBatch | None] = {}
        self._commits: tuple[int, _Entry] | None = None
        self._known_logs: tuple[float, _Log, _Log] | None = None
        self._named = NamedPlans()

    def __repr__(self) -> str:
        return f"CheckpointFiles({self.identity!r})"

    def progress(self, receiver: str) -> QueryProgress:
        """Return the newest committed and the newest planned batch, with the references of ``receiver``.

        Reads only new files, and seldom lists a folder on a local disk. Spark may add and remove files at the same
        time: after a missing or incomplete file the reading is repeated, a few times within a tenth of a second.
        """
        return self._retrying(lambda: self._progress(receiver))

    def stamp(self, log: str = "commits") -> int | None:
        """Return when the log ``commits`` or ``offsets`` last changed, in ns since 1970 UTC by the file system's clock.

        0 while there is no such log; None on a file system that is not this machine's own, where the question is not
        cheap or the answer not reliable.
        """
        if self._remote:
            return None
        try:
            return os.stat(os.path.join(self._root, log)).st_mtime_ns
        except OSError:
            return 0

    def next_commit(self) -> int | None:
        """The batch behind the newest one that was read, if a local disk has its commit; costs one ``stat``."""
        following = 0 if self._commits is None else self._commits[0] + 1
        there = not self._remote and os.path.exists(os.path.join(self._root, "commits", str(following)))
        return following if there else None

    @property
    def local_folder(self) -> str | None:
        """The checkpoint's path on a disk of this machine; None on other file systems and mounted object stores."""
        return None if self._remote else self._root

    def exists(self) -> bool:
        """Whether a query has planned or committed a batch in this checkpoint."""
        return self._retrying(lambda: bool(self._list("offsets") or self._list("commits")))

    def committed(self) -> int | None:
        """Return the newest committed batch; None before the first commit."""
        return self._retrying(lambda: max(self._whole_commits(self._logs()[0]), default=None))

    def holes(self) -> tuple[int, ...]:
        """Return the batches that the logs lack; see :func:`wallaroo_spark.checkpoint.model.holes`."""
        return self._retrying(lambda: model.holes(self._list("offsets"), self._list("commits")))

    @cached_property
    def place(self) -> str:
        """The record by which sources find this checkpoint; see :mod:`wallaroo_spark.sidecar.plan_files`."""
        return place_record(self._location, self._spark)

    def purge_plans(self, receiver: str) -> int:
        """Delete the plans of ``receiver`` that no offset leads to any more; the number of deleted files.

        Spark's own purge of the offset log decides that. Does nothing where no plan was named yet.
        """
        return self._retrying(lambda: self._purge_plans(receiver)) if self._named.any else 0

    def _purge_plans(self, receiver: str) -> int:
        offsets = self._list("offsets")
        base = next((found for batch in sorted(offsets) if (found := self._base(receiver, batch)) is not None), None)
        store = self._plan_store(receiver)
        # Every chain ends at a base, and the bases of later offsets are not older than that of the oldest one.
        deleted = [name for number, name in sorted(store.files()) if base is not None and number < base]
        for name in deleted:
            store.delete(name)
            passed(Step.PLANS_HALF_PURGED)
        self._named.forget_bases(receiver, offsets)
        return len(deleted)

    def _base(self, receiver: str, batch: int) -> int | None:
        """The number of the base of a batch's plan; an offset file never changes, so it is read once."""
        bases, key = self._named.bases, (receiver, batch)
        if key in bases:
            return bases[key]
        base = bases[key] = model.oldest_base(batch, self._read(f"offsets/{batch}"), receiver)
        return base

    def _plan_store(self, receiver: str) -> PlanFiles:
        return PlanFiles(self._location, receiver, self._spark)

    def given_up(self, receiver: str) -> GivenUpRanges:
        """The ranges of doors' streams of a receiver that were given up."""
        return GivenUpRanges(lambda: SidecarFolder(self._location, FOLDER, f"of-{receiver}", spark=self._spark))

    @cached_property
    def key(self) -> str:
        """The name of this checkpoint's lock; no other checkpoint has it, not even at the same path on another machine.

        On a local disk it contains a random text from a file beside the checkpoint, which is created if there is none.
        Raises :class:`CheckpointError` when that file cannot be created.
        """
        if self._remote:
            return self.identity
        return f"{self.identity}#{SidecarFolder(self._location, spark=self._spark).mark()}"

    def lock_file(self, owner: str, in_use: Callable[[str], WallarooError]) -> IO[str] | None:
        """Lock a file beside the checkpoint; see :func:`wallaroo_spark.sidecar.folder.lock_file`."""
        return lock_file(SidecarFolder(self._location, spark=self._spark), owner, in_use)

    def receivers(self) -> tuple[str, ...]:
        """Return the names of the receivers with a source in the newest planned batch; empty before the first."""
        return self._in_newest(model.receivers_in, ())

    def settings(self) -> dict[str, str]:
        """Return Spark's settings that the newest planned batch has recorded; empty before the first batch."""
        return self._in_newest(model.settings_in, {})

    def source_offsets(self, batch: int) -> tuple[Any, ...]:
        """Return the offset of each source in a planned batch, as JSON values; empty when the log has no such batch."""

        def read() -> tuple[Any, ...]:
            try:
                return model.offsets_in(batch, self._read(f"offsets/{batch}"))
            except FileNotFoundError:
                return ()

        return self._retrying(read)

    def newest_offsets(self) -> tuple[Any, ...]:
        """Return the offset of each source in the newest planned batch, as JSON values; empty before the first."""
        return self._in_newest(model.offsets_in, ())

    def _in_newest(self, parse: Callable[[int, str], _Result], without: _Result) -> _Result:
        """What ``parse`` finds in the newest file of ``offsets/``; ``without`` such a file that value."""

        def read() -> _Result:
            newest = max(self._list("offsets"), default=None)
            return without if newest is None else parse(newest, self._read(f"offsets/{newest}"))

        return self._retrying(read)

    def query_id(self) -> str | None:
        """Return the id of the query to which the checkpoint belongs; None before Spark has written it.

        The id stays the same when the query is restarted, and differs when the checkpoint was deleted and created anew.
        """

        def read() -> str | None:
            try:
                value = json.loads(self._read("metadata"))
            except (FileNotFoundError, ValueError):
                return None
            return str(value["id"]) if isinstance(value, dict) and "id" in value else None

        return self._retrying(read)

    def _progress(self, receiver: str) -> QueryProgress:
        commit_files, offsets = self._logs()
        commits = self._whole_commits(commit_files)
        committed, planned = model.newest_committed(offsets, commits), model.newest_planned(offsets, commits)
        # The older one first: the plan of the other is mostly its child.
        wanted = [(receiver, batch, offsets[batch]) for batch in (committed, planned) if batch is not None]
        # A file without a modification time is read each time.
        known = {key: plan for key, plan in self._plans.items() if key[2].modified is not None}
        plans = {key: known[key] if key in known else self._plan(key) for key in wanted}
        self._plans = plans
        by_batch: dict[int | None, PlannedBatch | None] = {batch: plan for (_, batch, _), plan in plans.items()}
        return QueryProgress(by_batch.get(committed), by_batch.get(planned))

    def _logs(self) -> tuple[_Log, _Log]:
        """The files of ``commits/`` and of ``offsets/``.

        On a local disk the newest known files and those with the next numbers are looked at; the folders are listed
        when a known file has changed, and every few seconds, because Spark's numbers could have a gap.
        """
        known, now = self._known_logs, time.monotonic()
        if known is not None and now < known[0] + _LIST_SECONDS:
            commits = self._extended("commits", known[1])
            committed = model.newest_committed(known[2], [self._commits[0]] if self._commits else [])
            offsets = self._extended("offsets", known[2], committed) if commits is not None else None
            if commits is not None and offsets is not None:
                self._known_logs = known[0], commits, offsets
                return commits, offsets
        # Commits are listed first, so that the plan of every listed commit is in the second listing.
        logs = self._list("commits"), self._list("offsets")
        self._known_logs = None if self._remote else (now, *logs)
        return logs

    def _extended(self, log: str, known: _Log, needed: int | None = None) -> _Log | None:
        """The files of a log, from those known so far; None when the newest, or the needed one, is another now."""
        if not known:
            return None
        last = max(known)
        stand = [last] if needed is None or needed == last else [last, needed]
        found = [_entry(info) for info in self._look_at(log, *stand, last + 1)]
        if found[:-1] != [known[batch] for batch in stand]:
            return None
        files = dict(known)
        while (entry := found[-1]) is not None:
            last += 1
            files[last] = entry
            found = [_entry(info) for info in self._look_at(log, last + 1)]
        return files

    def _look_at(self, log: str, *batches: int) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = self.filesystem.get_file_info([self._path(f"{log}/{batch}") for batch in batches])
        return found

    def _plan(self, key: tuple[str, int, _Entry]) -> PlannedBatch | None:
        receiver, batch, _ = key
        text = self._read(f"offsets/{batch}")
        return model.parse_offsets(
            batch, text, receiver, lambda named: self._named.read(receiver, named, self._plan_store)
        )

    def _whole_commits(self, commits: _Log) -> list[int]:
        """Return the batches of ``commits``, sorted, without the newest ones whose file is still being written."""
        batches = sorted(commits)
        while batches:
            newest = (batches[-1], commits[batches[-1]])
            if newest == self._commits or model.is_commit(self._read(f"commits/{batches[-1]}")):
                if self._fsync and newest != self._commits:
                    sync_log_file(os.path.join(self._root, "commits"), batches[-1])
                self._commits = newest
                break
            batches.pop()
        return batches

    def _list(self, log: str) -> _Log:
        """Return the files of a log, by batch. Folders, checksums, temporary files and empty files are left out."""
        selector = fs.FileSelector(self._path(log), allow_not_found=True)
        return {
            int(info.base_name): entry
            for info in self.filesystem.get_file_info(selector)
            if re.fullmatch(r"[0-9]+", info.base_name) and (entry := _entry(info)) is not None
        }

    def _read(self, name: str) -> str:
        with self.filesystem.open_input_stream(self._path(name)) as stream:
            content: bytes = stream.read()
        return content.decode()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def _retrying(self, read: Callable[[], _Result]) -> _Result:
        found: _Result = _retry(self._translated, read)
        return found

    def _translated(self, read: Callable[[], _Result]) -> _Result:
        try:
            return read()
        except (OSError, ValueError) as error:
            self._known_logs = None
            raise CheckpointError(
                f"checkpoint {self.identity} cannot be read: {error}; check that it is a directory that this process "
                "may read",
                code="checkpoint-unreadable",
                location=self.identity,
            ) from error
