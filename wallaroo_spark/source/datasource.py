"""``format("wallaroo")``. Source: ``docs/architecture.md#rows`` and ``docs/options.md``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from wallaroo_spark.columnar import row_ddl, row_schema
from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.options import Options, is_reference, table
from wallaroo_spark.runtime.spark_checks import classic_context
from wallaroo_spark.runtime.spark_sessions import registered
from wallaroo_spark.source.driver_files import DriverFiles
from wallaroo_spark.source.reader import WallarooStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = one_line(logging.getLogger("wallaroo_spark.source"))


@dataclass(frozen=True)
class Secrets:
    """Secrets that the source of one receiver needs: the registry's URL and the fleet's token."""

    registry: str = field(repr=False)
    token: str = field(repr=False)


class WallarooDataSource(DataSource):
    """A streaming source fed by connectors. It needs the option ``receiver``: the name of a receiver of this driver.

    Spark shows a source's options in plans, in its UI and in errors, so no option may contain a secret. The class that
    :func:`register` makes contains the secrets of each receiver instead. In a session in which no receiver was started,
    they are in a file of the driver's machine (:mod:`wallaroo_spark.source.driver_files`). A query of another driver
    gives the options ``registry`` and ``token``, each as ``env:NAME`` or ``file:PATH``. Raises
    :class:`ConfigurationError` for a secret in plain text.
    """

    values: ClassVar[Mapping[str, Secrets]] = {}
    """The secrets by receiver name. Of two receivers with one name, those of the last started one."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): value for name, value in dict(options).items()}
        for row in table():
            value = given.get(row.name.lower(), "")
            if row.secret and value and not (is_reference(value) or _is_open(row.name, value)):
                raise ConfigurationError(
                    f"format('wallaroo'): option {row.name} is given in plain text, and Spark shows options in plans "
                    "and in its UI; use Receiver.stream(), leave the option out in the driver that runs the receiver, "
                    "or give env:NAME or file:PATH",
                    code="secret-in-plain-text",
                    option=row.name,
                )

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "wallaroo"

    @classmethod
    def is_named(cls, format_name: str) -> bool:
        """Whether a format is this one: it has this name, or a name that :func:`register` has made in some session."""
        return format_name == cls.name() or format_name.startswith(f"{cls.name()}_")

    def schema(self) -> str:
        """The row schema, which is the same for every receiver but for the columns that two options add."""
        return row_ddl(headers=self._adds("includeHeaders"), corrupt=self._adds("includeCorrupt"))

    def _adds(self, option: str) -> bool:
        """Whether an option that adds a column is set; :meth:`streamReader` refuses values that cannot be read."""
        return str(self.options.get(option, "false")).strip().lower() == "true"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of the whole row schema. Raises :class:`ConfigurationError` for another schema or bad options."""
        # The process that runs this has no Spark session that could parse DDL, so the Arrow schemas are compared.
        wanted = row_schema(headers=self._adds("includeHeaders"), corrupt=self._adds("includeCorrupt"))
        if to_arrow_schema(schema, timezone="UTC") != wanted:
            raise ConfigurationError(
                f"format('wallaroo') has the schema {self.schema()}; leave .schema(…) out and select() the columns you "
                "need",
                code="source-misused",
            )
        options = Options.parse(dict(self.options))
        if not options.receiver:
            raise ConfigurationError(
                "format('wallaroo') needs the option receiver; Receiver.stream() sets it", code="source-misused"
            )
        secrets = self.values.get(options.receiver) or _left_for(options.receiver)
        if secrets is not None:
            names = {key.lower() for key in self.options}
            known = {name: value for name, value in vars(secrets).items() if name not in names}
            options = dataclasses.replace(options, **known)
        if not options.token or options.registry == "embedded":
            raise ConfigurationError(
                f"format('wallaroo'): receiver {options.receiver!r} was not started by this driver; start it with "
                "Receiver(…), or give the options registry and token, each as env:NAME or file:PATH",
                code="source-misused",
                receiver=options.receiver,
            )
        return WallarooStreamReader(options)


def _is_open(name: str, value: str) -> bool:
    """Whether the value contains no secret although the option may: the URL of a Redis without a password."""
    return name == "registry" and "@" not in value and "password=" not in value


_left_by: dict[str, int] = {}
"""For each receiver that has left a file, the process id of the driver's Java."""


def register(spark: SparkSession, receiver: str, secrets: Secrets) -> None:
    """Register ``format("wallaroo")`` in a session, with the secrets that the source of a receiver needs.

    Sources in other sessions of this driver find them in a file, until :func:`forget`; over Spark Connect they do not.
    """
    with registered(spark, WallarooDataSource, receiver, secrets):
        driver = _process_of(spark)
        if driver is not None:
            try:
                DriverFiles().write(driver, receiver, vars(secrets))
                _left_by[receiver] = driver
            except OSError as error:
                log.warning(
                    "format('wallaroo') knows receiver %r only in the session in which it was started: %s",
                    receiver,
                    error,
                )


def forget(receiver: str, secrets: Secrets) -> None:
    """Delete the file of a receiver that has stopped, unless another receiver of that name has replaced it."""
    driver = _left_by.get(receiver)
    if driver is not None:
        DriverFiles().delete(driver, receiver, vars(secrets))


def load(spark: SparkSession, receiver: str, secrets: Secrets, options: Mapping[str, str]) -> DataFrame:
    """The stream of exactly this receiver, even when another receiver of that name was started after it."""
    with registered(spark, WallarooDataSource, receiver, secrets) as name:
        return spark.readStream.format(name).options(**options).load()


def _left_for(receiver: str) -> Secrets | None:
    """The secrets that a receiver of this driver has left for sources that nobody has registered."""
    found = DriverFiles().read(receiver)
    return None if found is None else Secrets(found["registry"], found["token"])


def _process_of(spark: SparkSession) -> int | None:
    """The process id of the driver's Java, which starts the processes of sources; None on Spark Connect."""
    context = classic_context(spark)
    return None if context is None else int(context._jvm.java.lang.ProcessHandle.current().pid())
