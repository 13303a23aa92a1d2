"""``format("wallaroo")``. Source: ``design.md``, Rows and Options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from wallaroo_spark.columnar import ROW_DDL, ROW_SCHEMA
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import Options
from wallaroo_spark.source.reader import WallarooStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WallarooDataSource(DataSource):
    """A streaming source fed by connectors. It needs the options ``receiver`` and ``registry``.

    ``Receiver.stream()`` sets both; a query that reads by format name must name the receiver that runs the workers.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "wallaroo"

    def schema(self) -> str:
        """The row schema, which is the same for every receiver."""
        return ROW_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of the whole row schema. Raises :class:`ConfigurationError` for another schema or bad options."""
        # Spark cannot parse DDL in the process that runs this, so Arrow's form is compared.
        if to_arrow_schema(schema, timezone="UTC") != ROW_SCHEMA:
            raise ConfigurationError(
                f"format('wallaroo') has the schema {ROW_DDL}; leave .schema(…) out and select() what you need"
            )
        options = Options.parse(dict(self.options))
        for name in ("receiver", "registry"):
            if name not in {key.lower() for key in self.options}:
                raise ConfigurationError(f"format('wallaroo') needs the option {name}; Receiver.stream() sets it")
        return WallarooStreamReader(options)


def register(spark: SparkSession) -> None:
    """Make ``format("wallaroo")`` known to a session; does no harm when it is known."""
    spark.dataSource.register(WallarooDataSource)
