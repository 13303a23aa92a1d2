"""A folder of this package's own files beside Spark's: ``<checkpoint>/_wallaroo/…``, which Spark ignores."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from typing import IO, Any

from pyarrow import fs
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from wallaroo_spark.errors import CheckpointError, ConfigurationError, WallarooError
from wallaroo_spark.sidecar import durable
from wallaroo_spark.storage.locations import Location, locks_are_local, open_location

FOLDER = "_wallaroo"
_TEMPORARY = ".tmp"
_READING = ("read", "listed")
three_times = Retrying(
    stop=stop_after_attempt(3), wait=wait_fixed(0.1), retry=retry_if_exception_type(CheckpointError), reraise=True
)
"""Tries a call that may be repeated. A choice: on a file system that is mounted, a file may appear a moment late."""


class SidecarFolder:
    """The folder ``<location>/_wallaroo/<names…>``, on any file system that a checkpoint may be on.

    ``spark`` is a Spark session of this process, if it has one; the location is resolved with its settings. A file is
    written completely or not at all, and on a local file system a written file survives a crash of the machine. Each
    name is a single part of a path and does not begin with a dot. The constructor raises :class:`ConfigurationError`
    for other names and when no file system can be opened. The methods raise :class:`CheckpointError` when a file cannot
    be read or written.

    Callers that open streams themselves use ``filesystem`` (of ``pyarrow.fs``) and ``path``, the folder's path on it.
    ``local`` says whether it is this machine's disk, ``identity`` names the folder in messages, without secrets.
    """

    def __init__(self, location: Location, *names: str, spark: Any = None) -> None:
        opened = open_location(location, spark)
        self.filesystem, root, identity = opened
        self.local, self._objects = opened.local, opened.objects
        self._parts = (FOLDER, *(_checked(name) for name in names))
        self._root = root
        self.path = "/".join(part for part in (root, *self._parts) if part)
        self.identity = "/".join((identity.rstrip("/"), *self._parts))

    def __repr__(self) -> str:
        return f"SidecarFolder({self.identity!r})"

    @property
    def exclusive(self) -> bool:
        """Whether exactly one of several concurrent calls of :meth:`create` succeeds; not so on object stores."""
        return not self._objects

    def write(self, name: str, data: bytes) -> None:
        """Write a file, replacing the file of that name if there is one."""
        with self._explained("written", name):
            target = self._file(_checked(name))
            if self._objects:
                durable.write_file(self.filesystem, target, data)
            else:
                durable.replace(self.filesystem, self._temporary(name, data), target)

    def create(self, name: str, data: bytes) -> bool:
        """Create a file unless a file of that name exists; return whether this call created it.

        On a local file system and on HDFS, exactly one of several concurrent calls succeeds. Object stores, mounted
        ones too, have no such operation: there the method checks first, and two concurrent calls may both succeed.
        """
        with self._explained("created", name):
            target = self._file(_checked(name))
            if self.filesystem.get_file_info(target).type != fs.FileType.NotFound:
                return False
            if self._objects:
                durable.write_file(self.filesystem, target, data)
                return True
            temporary = self._temporary(name, data)
            try:
                durable.rename_to_new(self.filesystem, temporary, target)
            except OSError:
                if self.filesystem.get_file_info(target).type == fs.FileType.NotFound:
                    raise
                return False
            finally:
                durable.delete_file(self.filesystem, temporary)
            durable.sync_names(self.filesystem, self.path)
            return True

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is no file of that name."""
        with self._explained("read", name):
            try:
                with self.filesystem.open_input_stream(self._file(_checked(name))) as stream:
                    content: bytes = stream.read()
            except FileNotFoundError:
                return None
            return content

    def mark(self, name: str = "identity") -> str:
        """Return a random text that identifies this folder. It is created once, and deleted with the checkpoint."""
        while (identity := self.read(name)) is None:
            self.create(name, uuid.uuid4().hex.encode())
        return identity.decode()

    def names(self) -> list[str]:
        """Return the names of the files and folders in the folder, sorted; empty when the folder does not exist."""
        with self._explained("listed", ""):
            selector = fs.FileSelector(self.path, allow_not_found=True)
            try:
                entries = self.filesystem.get_file_info(selector)
            except FileNotFoundError:
                # The folder was made between Arrow's two looks at it.
                entries = self.filesystem.get_file_info(selector)
            return sorted(entry.base_name for entry in entries if not entry.base_name.startswith("."))

    def delete(self, name: str) -> None:
        """Delete a file; does nothing if it does not exist."""
        with self._explained("deleted", name):
            durable.delete_file(self.filesystem, self._file(_checked(name)))

    def delete_drafts(self) -> None:
        """Delete the temporary files of writers that have died. Only for a folder that no other process writes to."""
        with self._explained("deleted", ""):
            for entry in self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True)):
                if entry.base_name.startswith(".") and entry.base_name.endswith(_TEMPORARY):
                    durable.delete_file(self.filesystem, self._file(entry.base_name))

    def delete_folder(self, name: str) -> None:
        """Delete a folder and its content; does nothing if it does not exist."""
        with self._explained("deleted", name):
            target = self._file(_checked(name))
            if self.filesystem.get_file_info(target).type == fs.FileType.Directory:
                with contextlib.suppress(FileNotFoundError):
                    self.filesystem.delete_dir(target)

    def folder(self) -> str:
        """Create the folder durably unless it exists; return its path on :attr:`filesystem`."""
        with self._explained("made", ""):
            self._make()
        return self.path

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[Any]:
        """Open a binary stream to a new file, durable when the block ends without an error. Raises OSError."""
        self._make()
        with durable.new_file(self.filesystem, self._file(_checked(name))) as stream:
            yield stream

    def file(self, name: str) -> str:
        """Return the path of a file on :attr:`filesystem`."""
        return self._file(_checked(name))

    def _temporary(self, name: str, data: bytes) -> str:
        """Write the content durably to a new file with a temporary name; return its path."""
        self._make()
        temporary = self._file(f".{name}.{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            durable.write_file(self.filesystem, temporary, data, sync_name=False)
        except OSError:
            durable.delete_file(self.filesystem, temporary)
            raise
        return temporary

    def _make(self) -> None:
        if not self._objects:
            durable.make_folder(self.filesystem, self.path)

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    @contextlib.contextmanager
    def _explained(self, verb: str, name: str) -> Iterator[Any]:
        """Raise an OSError in the block as a CheckpointError; ``verb`` is a participle, such as ``written``."""
        try:
            yield
        except OSError as error:
            where = f"{self.identity}/{name}" if name else self.identity
            code = "checkpoint-unreadable" if verb in _READING else "checkpoint-unwritable"
            raise CheckpointError(
                f"{where} cannot be {verb}: {error}; check that this process may use the checkpoint's file system and "
                "that the file system has free space",
                code=code,
                location=where,
            ) from error


def _checked(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\\" in name or "\0" in name:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a file beside a checkpoint; give a single part of a path that does not "
            "begin with a dot",
            code="name-invalid",
            name=name,
        )
    return name


LOCK_FILE = "driver.lock"


def lock_file(folder: SidecarFolder, owner: str, in_use: Callable[[str], WallarooError]) -> IO[str] | None:
    """Lock a file of the folder, and return the file, whose end releases the lock.

    It is a lock of the operating system, which lasts as long as this process lives. Unlike a lock in the registry it
    does not expire, so a driver that is only stopped (SIGSTOP) and goes on later still has it, and no other driver
    writes the folder meanwhile. Source: ``docs/decisions/one-writer-per-checkpoint.md``.

    None where no lock excludes other machines: on other file systems than local ones, on mounts that grant a lock to
    each machine, and on those without locks. Raises the error that ``in_use`` makes for the owner of the lock when
    another process has it, and :class:`CheckpointError` when the file cannot be written.
    """
    if not folder.local or locks_are_local(folder.folder()):
        return None
    path = os.path.join(folder.folder(), LOCK_FILE)
    try:
        with contextlib.ExitStack() as unlocked:
            file = unlocked.enter_context(open(path, "a+", encoding="utf-8"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise in_use(file.read().strip() or "an unknown process") from None
            except OSError:
                return None
            # On a full disk the lock would exclude others without its owner's name, too, but nothing else could be
            # written.
            file.truncate(0)
            file.write(owner)
            file.flush()
            # The lock lasts as long as the file is open.
            unlocked.pop_all()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}; check that this process may write to that folder, "
            "that its file system is not read-only, and that it has free space",
            code="checkpoint-unwritable",
            location=path,
        ) from error
    return file
