"""HDFS without Java: the package hdfs-native as a file system of ``pyarrow.fs``, if it is installed.

Source: ``docs/decisions/checkpoint-through-hadoop.md``.
"""

from __future__ import annotations

import functools
from typing import Any

from pyarrow import fs


def native_hdfs(host: str, port: int | None, settings: dict[str, Any]) -> Any:
    """Return a file system of ``pyarrow.fs`` for HDFS; None if the package hdfs-native is not installed.

    ``host`` is a name node, or a name service that ``settings`` (Hadoop's own names and values) define. Errors of the
    name node are raised as OSError.
    """
    try:
        from hdfs_native.fsspec import HdfsFileSystem
    except ImportError:
        return None
    filesystem: Any = HdfsFileSystem(host, port, **settings)
    filesystem.client = Translated(filesystem.client)
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem))


class Translated:
    """A wrapper of an object of hdfs-native that raises its RuntimeErrors as OSErrors, as other file systems do."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        return functools.partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Any, *values: Any, **named: Any) -> Any:
        try:
            answer = method(*values, **named)
            if name == "list_status":
                return list(answer)
        except RuntimeError as error:
            # The text contains Java's stack trace, with line breaks or with "\n" as two characters.
            raise OSError(str(error).partition("\n")[0].partition("\\n")[0]) from error
        return Translated(answer) if name in ("read", "create") and hasattr(answer, "close") else answer
