"""A receiver on this machine with a query of the test, for tests of an application's transformations."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAIT_SECONDS = 120.0
"""Default limit in seconds of a test's wait for commits. A choice, generous for the first batch of a session."""

Transform = Callable[["DataFrame"], "DataFrame"]


class LocalReceiver:
    """A receiver with one worker and its own Redis, and a query whose results are a table in memory.

    The checkpoint is in ``folder``, for example pytest's ``tmp_path``. ``options`` are those of the options page. The
    Spark session needs two task slots, for example ``local[2]``. One query runs at a time; :meth:`start` stops the
    previous one.
    """

    def __init__(self, spark: SparkSession, folder: str | Path, **options: Any) -> None:
        self._spark = spark
        self._folder = Path(folder)
        self._cookie = str(options.get("cookie", ""))
        self._results = ""
        self._query: StreamingQuery | None = None
        self.receiver = Receiver(spark, f"test-{uuid.uuid4().hex[:8]}", **{"workers": 1, **options})

    def __enter__(self) -> Self:
        self.receiver.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.receiver.stop()
        if self._results:
            self._spark.catalog.dropTempView(self._results)

    @property
    def query(self) -> StreamingQuery:
        """The running query. Raises :class:`ConfigurationError` before :meth:`start`."""
        if self._query is None:
            raise ConfigurationError(
                "no query was started; call start() with the function under test", code="receiver-not-started"
            )
        return self._query

    def start(self, transform: Transform = lambda rows: rows, *, output_mode: str = "append") -> StreamingQuery:
        """Start a query of ``transform(rows)`` with a new checkpoint; :meth:`results` returns its output.

        ``rows`` is the receiver's stream, ``transform`` the function under test. A query that aggregates without a
        watermark needs the output mode ``complete``.
        """
        self._stop_query()
        self._results = f"results_{uuid.uuid4().hex}"
        writer = transform(self.receiver.stream()).writeStream.format("memory").queryName(self._results)
        checkpoint = str(self._folder / f"checkpoint-{self._results}")
        self._query = self.receiver.start_query(writer.outputMode(output_mode), checkpoint=checkpoint)
        return self.query

    def connect(self, instance: str = "shop-1", **settings: Any) -> BlockingConnector:
        """A connector to this receiver, for tests that need more than :meth:`send`; use it in a ``with`` statement."""
        return BlockingConnector(
            self.receiver.name,
            instance=instance,
            workers=self.receiver.addresses,
            **{"cookie": self._cookie, "drain_timeout": WAIT_SECONDS, **settings},
        )

    def send(
        self,
        payloads: Iterable[bytes | str],
        ids: Iterable[int] | None = None,
        event_times: Iterable[Any] | None = None,
        keys: Iterable[bytes | None] | None = None,
        *,
        instance: str = "shop-1",
        stream: str = "orders",
    ) -> None:
        """Send messages as a connector, and wait until the query has committed them. Then the results have them.

        The arguments are those of ``send_many``; text is encoded as UTF-8. Raises :class:`TransportError` when the
        messages are not committed in time.
        """
        _ = self.query
        with self.connect(instance) as connector:
            encoded = (payload.encode() if isinstance(payload, str) else payload for payload in payloads)
            connector.open(stream).send_many(encoded, ids, event_times, keys)

    def results(self) -> DataFrame:
        """The output of the query for all sent messages, as a table."""
        _ = self.query
        return self._spark.table(self._results)

    def _stop_query(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None
            self._spark.catalog.dropTempView(self._results)
