"""``spark.readStream.format("wallaroo")`` without an import.

Spark imports each installed package whose name begins with ``pyspark_``, once in a driver, and registers its
``DefaultSource`` in every session. Source: ``docs/decisions/any-query.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from wallaroo_spark.source import WallarooDataSource


class DefaultSource(DataSource):
    """Stands for the source of ``wallaroo_spark``, which is imported when a query names the format.

    So a driver that has the package and does not use it pays for no import, and an extra that is not installed fails a
    query of this format alone, and not Spark's look through the packages.
    """

    def __new__(cls, options: dict[str, str]) -> WallarooDataSource:  # type: ignore[misc]  # it is made in its place
        """The source itself. Raises :class:`wallaroo_spark.errors.PackageMissingError` when an extra is missing."""
        from wallaroo_spark.extras import needed_by

        with needed_by("format('wallaroo')", "spark"):
            from wallaroo_spark.source import WallarooDataSource
        return WallarooDataSource(options)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "wallaroo"
