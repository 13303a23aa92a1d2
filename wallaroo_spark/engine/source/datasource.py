"""``format("wallaroo_pipelines")``: the inputs of an application as a stream of rows.

Source: ``docs/pipelines/engine.md#the-source``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from wallaroo_spark.engine.source.reader import InputReader
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.slots.data_sources import registered
from wallaroo_spark.storage.locations import Location, for_tasks
from wallaroo_spark.streams.rows import INPUT_DDL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

MAX_ROWS = 100_000
"""The default of the option ``maxRows``. A choice."""


class PipelinesDataSource(DataSource):
    """The streaming source of an application.

    The option ``folder`` names the application's folder, ``maxRows`` the number of events after which a batch takes no
    further file. Spark shows options in plans and in its UI, so the class that :func:`register` makes has the location
    with its credentials. Raises :class:`ConfigurationError` for other options.
    """

    locations: ClassVar[Mapping[str, Location]] = {}
    """The locations of the registered applications, by the option ``folder``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "wallaroo_pipelines"

    def schema(self) -> str:
        """The columns of INPUT."""
        return INPUT_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of all rows."""
        options = {name.lower(): value for name, value in dict(self.options).items()}
        location = self.locations.get(options.get("folder", ""))
        if location is None:
            raise ConfigurationError(
                f"format('wallaroo_pipelines'): the folder {options.get('folder')!r} is not registered; start an "
                "Application on it, which registers the folder",
                code="source-misused",
            )
        max_rows = options.get("maxrows", str(MAX_ROWS))
        if not max_rows.isdecimal() or not int(max_rows):
            raise ConfigurationError(
                f"format('wallaroo_pipelines'): maxRows is {max_rows!r}; give a number of rows from 1",
                code="source-misused",
            )
        return InputReader(location, int(max_rows))


_registering = threading.Lock()
_locations: dict[str, Location] = {}
"""The locations of all applications of this process."""


def register(spark: SparkSession, location: Location) -> DataStreamReader:
    """Register the source for the application at ``location``; return a reader of Spark that ``load()`` completes.

    ``location`` is resolved with the settings of the session, so that tasks open it as the driver does.
    """
    in_tasks = for_tasks(location, spark)
    folder = str(in_tasks)
    with _registering:
        _locations[folder] = in_tasks
        known = dict(_locations)
        name = registered(spark, PipelinesDataSource.name(), lambda name: _source_with(known, name))
        return spark.readStream.format(name).option("folder", folder)


def _source_with(known: Mapping[str, Location], format_name: str) -> type[PipelinesDataSource]:
    class SourceWithLocations(PipelinesDataSource):
        locations = known

        @classmethod
        def name(cls) -> str:
            return format_name

    return SourceWithLocations
