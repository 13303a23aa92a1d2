"""A log of batches beside a checkpoint: for each batch a folder of files, and a manifest that names those that count.

    <checkpoint>/_wallaroo/<names…>/<batch>/<file>      files that the batch's tasks have written
                                    <batch>.json        the manifest of the batch
                                    kept.json           the oldest retained batch

The tasks of a batch write files, then the driver writes the manifest, both before the batch's commit. A reader acts on
them after the commit. A batch that runs again replaces its manifest, so files of an earlier try belong to no batch.
A process that looks at a folder again and again lists its names only when they may have changed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location, is_mounted

T = TypeVar("T")

_KEPT = "kept.json"


class BatchManifest(Protocol):
    """The manifest of a batch."""

    @property
    def batch(self) -> int:
        """Id of the batch."""

    def to_json(self) -> bytes:
        """Encode as a file."""


M = TypeVar("M", bound=BatchManifest)


class BatchLog(Generic[M]):
    """The log in the folder ``<location>/_wallaroo/<names…>``, on any file system that a checkpoint may be on.

    ``read`` decodes a manifest, and raises ValueError, KeyError or TypeError for a malformed one. ``not_kept`` makes
    the error that is raised for a batch that is no longer retained; ``way_out`` says in the message of a damaged file
    how to go on. The methods raise :class:`CheckpointError` when files cannot be read or written.
    """

    def __init__(
        self,
        location: Location,
        *names: str,
        read: Callable[[bytes], M],
        not_kept: Callable[[int], Exception],
        way_out: str,
        spark: Any = None,
    ) -> None:
        self._location, self._names = location, names
        self._read, self._not_kept, self._way_out = read, not_kept, way_out
        self._spark = spark
        self.folder = SidecarFolder(location, *names, spark=spark)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder.identity!r})"

    def seal(self, manifest: M) -> None:
        """Write the manifest of a batch; it replaces an earlier one."""
        self.folder.write(_manifest(manifest.batch), manifest.to_json())

    def manifest(self, batch: int) -> M | None:
        """Return the manifest of a batch; None if the batch has none.

        Raises the error of ``not_kept`` when the batch is no longer retained.
        """
        data = self.folder.read(_manifest(batch))
        # The order of these reads matters: ``kept.json`` is written before any file is deleted.
        if batch < self.kept_from():
            raise self._not_kept(batch)
        return None if data is None else self.parsed(_manifest(batch), lambda: self._read(data))

    def sealed(self) -> list[int]:
        """The batches that have a manifest, in their order."""
        names = (name.removesuffix(".json") for name in self.folder.names() if name.endswith(".json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def file_of(self, batch: int, name: str) -> str:
        """The path of a batch's file on the file system of :attr:`folder`."""
        return f"{self.folder.path}/{batch}/{name}"

    @contextlib.contextmanager
    def new_file(self, batch: int, name: str) -> Iterator[Any]:
        """Open a binary stream to a new file of a batch, durable when the block ends without an error.

        Every file system error in the block is raised as :class:`CheckpointError`.
        """
        folder = SidecarFolder(self._location, *self._names, str(batch), spark=self._spark)
        try:
            with folder.new_file(name) as stream:
                yield stream
        except OSError as error:
            raise CheckpointError(
                f"{folder.identity}/{name} cannot be written: {error}; check that executors may write to "
                "the checkpoint's file system, and that there is room",
                code="checkpoint-unwritable",
                batch=batch,
            ) from error

    @contextlib.contextmanager
    def reading(self, batch: int, name: str) -> Iterator[Any]:
        """Open a file of a batch for reading from its beginning.

        In the block, a missing file raises the error of ``not_kept``, other errors of the file system and of the format
        :class:`CheckpointError`.
        """
        try:
            with self.folder.filesystem.open_input_stream(self.file_of(batch, name)) as stream:
                yield stream
        except FileNotFoundError:
            raise self._not_kept(batch) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.folder.identity}/{batch}/{name} cannot be read: {error}; check that every executor "
                "reaches the checkpoint's file system",
                code="checkpoint-unreadable",
                batch=batch,
            ) from error

    def kept_from(self) -> int:
        """The oldest retained batch."""
        data = self.folder.read(_KEPT)
        return 0 if data is None else self.parsed(_KEPT, lambda: int(json.loads(data)["batch"]))

    def keep_from(self, batch: int) -> None:
        """Delete the files of batches before ``batch``."""
        names = self.folder.names()
        old = {int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal()}
        gone = sorted(number for number in old if number < batch)
        if not gone:
            return
        self.folder.write(_KEPT, json.dumps({"batch": batch}).encode())
        for number in gone:
            self.folder.delete(_manifest(number))
            self.folder.delete_folder(str(number))

    def parsed(self, name: str, read: Callable[[], T]) -> T:
        """Return the result of ``read``, which decodes a file; :class:`CheckpointError` when the file is malformed."""
        try:
            return read()
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.folder.identity}/{name} is damaged: {error!r}; {self._way_out}",
                code="checkpoint-damaged",
                file=name,
            ) from error


def _manifest(batch: int) -> str:
    return f"{batch}.json"


PACE_SECONDS = 0.25
"""Shortest time between two listings where a look is not cheap. A choice: an object store takes money and some 30 ms
for each, and messages wait for at most this time."""
LIST_SECONDS = 5.0
"""Longest time between two listings. A choice: the clock of a network file system may be another one than this
machine's, and then a change may have the same modification time as the one before it."""
COARSE_NS = 50_000_000
"""The age from which the modification time of a folder is trusted.

File systems take the time from a coarse clock (the kernel's tick, 1 to 10 ms), so two changes may have the same time.
The age is five of the longest ticks.
"""


class FolderListing:
    """The names in ``folder``, listed again only when they may have changed. Not for several threads at once.

    On a local disk a look costs one ``stat`` of the folder. On other file systems, mounted object stores among them,
    two listings are at least ``pace`` seconds apart.
    """

    def __init__(self, folder: SidecarFolder, pace: float = PACE_SECONDS) -> None:
        self._folder, self._pace = folder, pace
        self._stamped = folder.local and not is_mounted(folder.path)
        self._names: list[str] = []
        self._stamp: int | None = None
        self._listed_at = -math.inf

    def names(self, *, fresh: bool = False) -> list[str]:
        """Return the names, sorted; empty when the folder does not exist. ``fresh`` lists in any case.

        Raises :class:`wallaroo_spark.errors.CheckpointError` when the folder cannot be listed.
        """
        age = time.monotonic() - self._listed_at
        if self._stamped:
            self._list_if_changed(fresh or age >= LIST_SECONDS)
        elif fresh or age >= self._pace:
            self._list()
        return self._names

    def _list_if_changed(self, fresh: bool) -> None:
        # The time of the change is read before the names: a change in between is seen by the next look.
        try:
            stamp: int | None = os.stat(self._folder.path).st_mtime_ns
        except OSError:
            stamp = None
        if fresh or stamp is None or stamp != self._stamp:
            self._list()
            settled = stamp is not None and time.time_ns() - stamp >= COARSE_NS
            self._stamp = stamp if settled else None

    def _list(self) -> None:
        self._names, self._listed_at = self._folder.names(), time.monotonic()
