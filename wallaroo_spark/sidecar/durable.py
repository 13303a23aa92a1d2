"""Durable files: what is written is on the disk, under its name, before the write returns."""

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
    """Return when the names in a folder are on the disk."""
    if is_local(filesystem):
        sync(folder)


def through_hadoop(filesystem: Any) -> bool:
    """Whether it is one of Spark's Hadoop, which renames files only into folders that exist, on object stores too."""
    return isinstance(getattr(filesystem, "handler", None), HadoopHandler)


def make_folder(filesystem: Any, path: str) -> None:
    """Create a folder and the folders above it; does nothing if it exists."""
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
    """Open a binary stream to a new file; the file is durable when the block ends without an error.

    ``sync_name=False`` leaves the folder unsynced, for a file that is renamed before its name matters.
    """
    with filesystem.open_output_stream(path) as stream:
        yield stream
    if is_local(filesystem):
        sync(path)
        if sync_name:
            sync(os.path.dirname(path))


def write_file(filesystem: Any, path: str, data: bytes, *, sync_name: bool = True) -> None:
    """Write ``data`` to a :func:`new_file`."""
    with new_file(filesystem, path, sync_name=sync_name) as stream:
        stream.write(data)


def replace(filesystem: Any, temporary: str, target: str) -> None:
    """Rename a file, replacing the file that has the name ``target``. Atomic on a local file system."""
    if is_local(filesystem):
        os.replace(temporary, target)
        sync(os.path.dirname(target))
    elif through_hadoop(filesystem):
        filesystem.handler.replace(temporary, target)
    else:
        with contextlib.suppress(OSError):
            filesystem.delete_file(target)
        filesystem.move(temporary, target)


def rename_to_new(filesystem: Any, temporary: str, target: str) -> None:
    """Rename a file to a new name. Raises OSError if a file of that name exists and the file system can check that.

    On a local file system ``temporary`` may remain as a second name. :func:`sync_names` makes the name durable; it is a
    separate step, because an error in it does not mean that the name existed.
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
    """Delete a file; does nothing if it does not exist."""
    try:
        filesystem.delete_file(path)
    except OSError:
        if filesystem.get_file_info(path).type != fs.FileType.NotFound:
            raise
