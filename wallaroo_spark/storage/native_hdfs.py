"""HDFS without Java: the package hdfs-native as a file system of ``pyarrow.fs``, where it is installed."""

from __future__ import annotations

import functools
from typing import Any

from pyarrow import fs


def native_hdfs(host: str, port: int | None, settings: dict[str, Any]) -> Any:
    """The HDFS of a name node, or of a name service that ``settings`` tell of; None where the package is missing."""
    try:
        from hdfs_native.fsspec import HdfsFileSystem
    except ImportError:
        return None
    filesystem: Any = HdfsFileSystem(host, port, **settings)
    filesystem.client = Translated(filesystem.client)
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem))


class Translated:
    """A part of hdfs-native; what the name node refuses comes as an OSError, as from other file systems."""

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
            # Java's stack is in it, with its line breaks written out.
            raise OSError(str(error).partition("\n")[0].partition("\\n")[0]) from error
        return Translated(answer) if name in ("read", "create") and hasattr(answer, "close") else answer
