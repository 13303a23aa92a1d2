"""A Spark session whose default file system is not the local one, without a server: a mount table of folders."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Elsewhere:
    """``/data`` of the session's default file system is the folder ``data`` of ``folder``, and ``/tmp`` is ``tmp``."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        # Hadoop keeps a file system for good once it has opened it.
        name = uuid.uuid4().hex[:8]
        self.root = f"viewfs://{name}"
        self.spark = spark.newSession()
        self.spark.conf.set("fs.defaultFS", self.root)
        for mounted in ("tmp", "data"):
            (folder / mounted).mkdir()
            self.spark.conf.set(f"fs.viewfs.mounttable.{name}.link./{mounted}", (folder / mounted).as_uri())
