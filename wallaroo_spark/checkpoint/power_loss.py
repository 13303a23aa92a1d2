"""How far the batches of a query are on the disk, and what runs again after a loss of power: the option ``fsync``.

Spark syncs no file. With the option the driver of a receiver syncs a committed batch and then writes the file
``<checkpoint>/_wallaroo/synced``, before a worker hears of the commit. The source syncs the offsets of a batch, and
waits for the batch before it, before the sink gets rows. So after a loss of power only the newest planned batch may be
there in part. Source: ``docs/decisions/power-loss.md``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wallaroo_spark.checkpoint.files import CheckpointFiles, sync_log_file
from wallaroo_spark.checkpoint.model import is_commit
from wallaroo_spark.errors import CheckpointError, one_line
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.syncing import sync_file_system
from wallaroo_spark.storage.locations import open_location

FILE = "synced"
BOOT = Path("/proc/sys/kernel/random/boot_id")
_LOOK_SECONDS = 0.01
"""Pause between two looks for the driver's file. A choice: it delays a batch by at most this."""


class Synced(NamedTuple):
    """The content of the file."""

    batch: int
    """The newest batch that is on the disk with its commit; -1 before the first."""
    boot: str
    """The run of the machine in which it was written."""


class SyncedMark:
    """The file of the checkpoint at a local path. Methods raise :class:`CheckpointError`."""

    def __init__(self, checkpoint: str) -> None:
        self._folder = SidecarFolder(checkpoint)

    def read(self) -> Synced | None:
        """The content; None without a file, or for one that is not whole."""
        found = self._folder.read(FILE)
        try:
            value = json.loads(found or b"")
            return Synced(int(value["batch"]), str(value["boot"]))
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, batch: int) -> None:
        """Write the file durably."""
        self._folder.write(FILE, json.dumps(Synced(batch, boot())._asdict()).encode())

    def delete(self) -> None:
        """Delete the file: the query goes on without ``fsync``."""
        self._folder.delete(FILE)


def boot() -> str:
    """A text that another run of the machine does not have; empty where the system has none."""
    with contextlib.suppress(OSError):
        return BOOT.read_text(encoding="ascii").strip()
    return ""


def begin_batch(checkpoint: str, seconds: float) -> None:
    """Return when the offsets of the planned batch, and everything of the batches before it, are on the disk.

    ``checkpoint`` is a local path. Waits for the driver for at most ``seconds``, then raises :class:`CheckpointError`.
    """
    log = os.path.join(checkpoint, "offsets")
    with _syncing(log):
        batch = max(int(name) for name in os.listdir(log) if re.fullmatch(r"[0-9]+", name))
        sync_log_file(log, batch)
    mark, until = SyncedMark(checkpoint), time.monotonic() + seconds
    while (found := mark.read()) is None or found.batch < batch - 1:
        if time.monotonic() >= until:
            there = "no batch" if found is None else f"batch {found.batch}"
            raise CheckpointError(
                f"batch {batch} waits until the driver has synced batch {batch - 1} of {checkpoint}, and after "
                f"{seconds:g} s {there} is synced; the driver's log says why, or leave the option fsync out",
                code="sync-late",
                batch=batch,
            )
        time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def _syncing(path: str) -> Iterator[None]:
    """Raise an error in the block as one of the syncing of a path."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be synced: {error}; check the disk, or leave the option fsync out",
            code="checkpoint-unwritable",
            location=path,
        ) from error


def _is_offsets(text: str) -> bool:
    """Whether a text is a whole file of ``offsets/``: a version, and a JSON value or a dash in each line behind it."""
    lines = text.splitlines()[1:]
    try:
        return len(lines) >= 2 and all(line.strip() == "-" or json.loads(line) is not None for line in lines)
    except ValueError:
        return False


_LOGS: dict[str, Callable[[str], bool]] = {"offsets": _is_offsets, "commits": is_commit}
"""The logs of a query, with what is true of the text of a whole file."""
_STATE = "state"


def forget_torn_files(folder: str) -> list[str]:
    """Delete the newest files of the logs, and the snapshots of the state, that are not whole; return their names.

    ``folder`` is the path of a checkpoint on a disk of this machine that no query uses. Raises OSError.
    """
    torn = [*_torn_metadata(folder), *_torn_snapshots(os.path.join(folder, _STATE))]
    for log, is_whole in _LOGS.items():
        torn += _torn_in_log(os.path.join(folder, log), is_whole)
    for path in torn:
        _delete(path)
    return [os.path.relpath(path, folder) for path in torn]


def _torn_metadata(folder: str) -> Iterator[str]:
    path = os.path.join(folder, "metadata")
    if os.path.exists(path) and not os.path.getsize(path):
        yield path


def _torn_in_log(folder: str, whole: Callable[[str], bool]) -> Iterator[str]:
    """The files of a log behind the newest whole one, the newest first."""
    for _, name in sorted(((batch, name) for name, batch in _batches(folder).items()), reverse=True):
        path = os.path.join(folder, name)
        with open(path, encoding="utf-8", errors="replace") as file:
            if whole(file.read()):
                return
        yield path


def _torn_snapshots(folder: str) -> Iterator[str]:
    """The snapshots of RocksDB that are not whole. Spark uploads them in the background, after the commit; without one
    it begins with an older snapshot and the changes since, which it keeps longer."""
    for path, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".zip") and not _is_whole_snapshot(path, name):
                yield os.path.join(path, name)


def _is_whole_snapshot(folder: str, name: str) -> bool:
    """Whether an archive can be read, and the files that it names have the sizes that it names."""
    try:
        with zipfile.ZipFile(os.path.join(folder, name)) as archive:
            lines = archive.read("metadata").decode().splitlines()
        files = json.loads(lines[1])["sstFiles"]
        return all(
            os.path.getsize(os.path.join(folder, "SSTs", one["dfsSstFileName"])) == one["sizeBytes"] for one in files
        )
    except (KeyError, IndexError, TypeError, ValueError):
        # A format of another Spark: it decides itself.
        return True
    except (OSError, zipfile.BadZipFile):
        return False


log = one_line(logging.getLogger(__name__))

_SINK_LOG = "_spark_metadata"


def synced_batches(files: CheckpointFiles, *, wanted: bool, sink: str, spark: Any) -> SyncedBatches | None:
    """The batches of a checkpoint on a local disk, if that is ``wanted``; None otherwise.

    ``sink`` is the folder of Spark's file sink, as the query names it; empty for another sink.
    """
    if files.local_folder is None:
        return None
    if not wanted:
        # Batches that are not synced from now on must not be taken for those of a loss of power later.
        SyncedMark(files.local_folder).delete()
        return None
    at = open_location(sink, spark) if sink else None
    return SyncedBatches(files.local_folder, [at.root] if at is not None and at.local else [])


class SyncedBatches:
    """The batches of the checkpoint at a local path.

    ``sinks`` are local folders of Spark's file sink, which has a log of its own in them. Methods raise
    :class:`CheckpointError`.
    """

    def __init__(self, checkpoint: str, sinks: Sequence[str] = ()) -> None:
        self._checkpoint, self._sinks = checkpoint, sinks
        self._mark = SyncedMark(checkpoint)
        self._synced = -1

    def begin(self) -> None:
        """Forget what a loss of power has left in part, before the query starts. Those batches run again.

        Nobody was told of them, and the sink had rows of the newest planned batch alone. That batch has its offsets
        still, so it reads the same messages; connectors send them again.
        """
        found = self._mark.read()
        forgotten: list[str] = []
        with _syncing(self._checkpoint):
            if found is not None and found.boot != boot():
                forgotten = forget_torn_files(self._checkpoint)
                forgotten += _forget_behind(os.path.join(self._checkpoint, "commits"), found.batch)
                for sink in self._sinks:
                    forgotten += _forget_behind(os.path.join(sink, _SINK_LOG), found.batch)
            newest = max(_batches(os.path.join(self._checkpoint, "commits")).values(), default=-1)
        if forgotten:
            log.warning(
                "the machine of checkpoint %s was started again, and these files were not synced before, so they were "
                "deleted, and their batch runs again: %s",
                self._checkpoint,
                ", ".join(forgotten),
            )
        self._synced = -1
        self._sync(newest)

    def sync(self, batch: int) -> None:
        """Return when a committed batch is on the disk: its commit, its offsets, its state and the rows of the sink."""
        if batch > self._synced:
            self._sync(batch)

    def _sync(self, batch: int) -> None:
        with _syncing(self._checkpoint):
            devices: dict[int, str] = {}
            for folder in (self._checkpoint, *self._sinks):
                with contextlib.suppress(FileNotFoundError):
                    devices.setdefault(os.stat(folder).st_dev, folder)
            for folder in devices.values():
                sync_file_system(folder)
        self._mark.write(batch)
        self._synced = batch


def _batches(folder: str) -> dict[str, int]:
    """The files of a log, with their batches."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {name: int(found[1]) for name in names if (found := re.fullmatch(r"([0-9]+)(?:\.compact)?", name))}


def _forget_behind(folder: str, batch: int) -> list[str]:
    """Delete the files of later batches from a log, the newest first; return their paths."""
    later = sorted((number, name) for name, number in _batches(folder).items() if number > batch)
    for _, name in reversed(later):
        _delete(os.path.join(folder, name))
    return [os.path.join(folder, name) for _, name in later]


def _delete(path: str) -> None:
    """Delete a file, and its checksum if it has one."""
    os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.crc"))
