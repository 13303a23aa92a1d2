"""A catalog of Iceberg in a file, with one table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table


class Lake:
    """A catalog in a file, with tables in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog", "warehouse": f"file://{folder}"}
        self._catalog = load_catalog("lake", **self.properties)
        self._catalog.create_namespace("shop")

    def create(self, schema: pa.Schema) -> Table:
        """Make the table."""
        return self._catalog.create_table("shop.orders", schema)

    def table(self) -> Table:
        """The table as it is now."""
        return self._catalog.load_table("shop.orders")

    def rows(self) -> pa.Table:
        """What a reader sees."""
        return self.table().scan().to_arrow()

    def drop(self) -> None:
        """Drop the table with its files."""
        shutil.rmtree(self.table().location().removeprefix("file://"))
        self._catalog.drop_table("shop.orders")
