"""Files of our own beside Spark's in a checkpoint, under ``<checkpoint>/_wallaroo``, which Spark passes over."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from typing import Any

from pyarrow import fs

from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.storage.hadoop import HadoopHandler
from wallaroo_spark.storage.locations import Location, open_location

FOLDER = "_wallaroo"
_TEMPORARY = ".tmp"
# What a file system without hard links answers: mounted object stores, some shares.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class SidecarFolder:
    """One folder, ``<location>/_wallaroo/<names…>``, on any file system that a checkpoint may be on.

    ``spark`` is a session of the process, if it has one: its settings say where the location is.
    ``filesystem`` (of ``pyarrow.fs``) and ``path`` are for streams of one's own; ``local`` says that it is this
    machine's disk. A file is there whole or not at all,
    and on a local file system it outlives the machine's crash once it is written. Names are single parts of a path,
    and begin with no dot. Raises :class:`ConfigurationError` as :class:`CheckpointFiles` does, and for such names; its
    methods raise :class:`CheckpointError` when a file cannot be read or written.
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

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, in place of one of that name."""
        with self._explained("written", name):
            target = self._file(_checked(name))
            if self._objects:
                self._put(target, data)
                return
            temporary = self._temporary(name, data)
            if not self.local:
                replace(self.filesystem, temporary, target)
                return
            os.replace(temporary, target)
            sync(self.path)

    def create(self, name: str, data: bytes) -> bool:
        """Put a file there unless one of that name is; whether it is ours.

        On a local file system and on HDFS one of several that try at once succeeds. Object stores, also those that are
        mounted as directories, have nothing to do this with: there a look comes first, and who comes at the same moment
        is not seen.
        """
        with self._explained("created", name):
            target = self._file(_checked(name))
            if self.filesystem.get_file_info(target).type != fs.FileType.NotFound:
                return False
            if self._objects:
                self._put(target, data)
                return True
            temporary = self._temporary(name, data)
            try:
                if not self.local:
                    self.filesystem.move(temporary, target)
                    return True
                _link(temporary, target)
            except OSError:
                if self.filesystem.get_file_info(target).type == fs.FileType.NotFound:
                    raise
                return False
            finally:
                self._drop(temporary)
            sync(self.path)
            return True

    def read(self, name: str) -> bytes | None:
        """What a file holds, or None when there is none of that name."""
        with self._explained("read", name):
            try:
                with self.filesystem.open_input_stream(self._file(_checked(name))) as stream:
                    content: bytes = stream.read()
            except FileNotFoundError:
                return None
            return content

    def mark(self, name: str = "identity") -> str:
        """What tells this folder from one of the same name elsewhere: made once, and gone with the checkpoint."""
        while (known := self.read(name)) is None:
            self.create(name, uuid.uuid4().hex.encode())
        return known.decode()

    def names(self) -> list[str]:
        """The names of the files and folders there, sorted; empty when there is no such folder."""
        with self._explained("listed", ""):
            found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
            return sorted(info.base_name for info in found if not info.base_name.startswith("."))

    def delete(self, name: str) -> None:
        """Remove a file; nothing when there is none."""
        with self._explained("deleted", name):
            self._drop(self._file(_checked(name)))

    def delete_folder(self, name: str) -> None:
        """Remove a folder with all that is in it; nothing when there is none."""
        with self._explained("deleted", name):
            target = self._file(_checked(name))
            if self.filesystem.get_file_info(target).type == fs.FileType.Directory:
                with contextlib.suppress(FileNotFoundError):
                    self.filesystem.delete_dir(target)

    def folder(self) -> str:
        """Make the folder if need be, durably; its path on :attr:`filesystem`."""
        with self._explained("made", ""):
            self._make()
        return self.path

    def _temporary(self, name: str, data: bytes) -> str:
        """A file of another name with that content, on the disk."""
        self._make()
        temporary = self._file(f".{name}.{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            self._put(temporary, data)
        except OSError:
            self._drop(temporary)
            raise
        return temporary

    def _put(self, path: str, data: bytes) -> None:
        with self.filesystem.open_output_stream(path) as stream:
            stream.write(data)
        if self.local:
            sync(path)

    def _make(self) -> None:
        if self._objects:
            return
        if not self.local:
            self.filesystem.create_dir(self.path, recursive=True)
            return
        missing = []
        path = self.path
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        os.makedirs(self.path, exist_ok=True)
        for made in missing:
            sync(os.path.dirname(made))

    def _drop(self, path: str) -> None:
        try:
            self.filesystem.delete_file(path)
        except OSError:
            if self.filesystem.get_file_info(path).type != fs.FileType.NotFound:
                raise

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    @contextlib.contextmanager
    def _explained(self, what: str, name: str) -> Iterator[Any]:
        try:
            yield
        except OSError as error:
            where = f"{self.identity}/{name}" if name else self.identity
            raise CheckpointError(
                f"{where} cannot be {what}: {error}; check that this process may use the checkpoint's file system and "
                "that there is room",
                location=where,
            ) from error


def _checked(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\\" in name or "\0" in name:
        raise ConfigurationError(
            f"{name!r} cannot be a file's name beside a checkpoint; give one part of a path that begins with no dot",
            name=name,
        )
    return name


def replace(filesystem: Any, temporary: str, target: str) -> None:
    """Rename a file in place of another, on a file system that renames nothing over what is there. Raises OSError."""
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, HadoopHandler):
        handler.replace(temporary, target)
        return
    with contextlib.suppress(OSError):
        filesystem.delete_file(target)
    filesystem.move(temporary, target)


def _link(temporary: str, target: str) -> None:
    """Give a file its name; raises FileExistsError when one has it."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(temporary, target)


def sync(path: str) -> None:
    """Have the disk hold a local file, or a folder's list of names, before this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Mounted object stores have nothing to sync.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
