"""The one writer of files that must survive a crash of the machine: synced files, synced folders, exclusive names.

The functions take a file system of ``pyarrow.fs`` and a path on it. On this machine's own file system they return when
the disk has the data and the names. Other file systems make a file durable when it is closed. A mounted object store
looks like the machine's own file system and has nothing to sync and no hard links; both are tolerated. The functions
raise OSError as file systems do.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from pyarrow import fs

from wallaroo_spark.sidecar.syncing import sync
from wallaroo_spark.storage.hadoop import HadoopHandler
from wallaroo_spark.storage.locations import is_local

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of a file system without hard links: mounted object stores, some network shares."""


def sync_names(filesystem: Any, folder: str) -> None:
    """Return when the disk has the names in a folder."""
    if is_local(filesystem):
        sync(folder)


def make_folder(filesystem: Any, path: str) -> None:
    """Make a folder and the folders above it; nothing happens if it exists."""
    if not is_local(filesystem):
        filesystem.create_dir(path, recursive=True)
        return
    missing, at = [], path
    while not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    os.makedirs(path, exist_ok=True)
    for made in missing:
        sync(os.path.dirname(made))


@contextlib.contextmanager
def new_file(filesystem: Any, path: str, *, sync_name: bool = True) -> Iterator[Any]:
    """A binary stream to a new file; when the block ends without an error, the file is durable.

    ``sync_name=False`` leaves the folder unsynced: for a file that is renamed before anybody relies on it.
    """
    with filesystem.open_output_stream(path) as stream:
        yield stream
    if is_local(filesystem):
        sync(path)
        if sync_name:
            sync(os.path.dirname(path))


def write_file(filesystem: Any, path: str, data: bytes, *, sync_name: bool = True) -> None:
    """:func:`new_file` with all its data."""
    with new_file(filesystem, path, sync_name=sync_name) as stream:
        stream.write(data)


def replace(filesystem: Any, temporary: str, target: str) -> None:
    """Rename a file to a name that another file may have; a local file system replaces it atomically."""
    handler = getattr(filesystem, "handler", None)
    if is_local(filesystem):
        os.replace(temporary, target)
        sync(os.path.dirname(target))
    elif isinstance(handler, HadoopHandler):
        handler.replace(temporary, target)
    else:
        with contextlib.suppress(OSError):
            filesystem.delete_file(target)
        filesystem.move(temporary, target)


def rename_to_new(filesystem: Any, temporary: str, target: str) -> None:
    """Give a file a name that no file has. Raises an OSError if one has it, where the file system can tell.

    On a local file system ``temporary`` may be left behind. :func:`sync_names` makes the name durable; that is a step
    of its own, because an error of it does not mean that the name was taken.
    """
    if not is_local(filesystem):
        filesystem.move(temporary, target)
        return
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(temporary, target)


def delete_file(filesystem: Any, path: str) -> None:
    """Delete a file; nothing happens if there is none."""
    try:
        filesystem.delete_file(path)
    except OSError:
        if filesystem.get_file_info(path).type != fs.FileType.NotFound:
            raise
