"""A receiver on this machine with a query of the test, for tests of an application's transformations."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.event_loop import beside
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAIT_SECONDS = 120.0
"""Default limit in seconds of a test's wait for commits. A choice, generous for the first batch of a session."""

QUERY_SECONDS = 0.2
"""Interval in which a test that sends looks whether the query has ended. A choice: a person notices no such delay."""

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

        The arguments are those of ``send_many``; text is encoded as UTF-8. Raises the error with which the query has
        ended, at once, and :class:`TransportError` when the messages are not committed in time.
        """
        query, encoded = self.query, (one.encode() if isinstance(one, str) else one for one in payloads)
        try:
            with self.connect(instance) as connector, _closed_with(query, connector):
                connector.open(stream).send_many(encoded, ids, event_times, keys)
                connector.drain(WAIT_SECONDS)
        except Exception:
            _raise_error(query)
            if query.isActive:
                raise
            raise ConfigurationError("the query was stopped; call start() again", code="receiver-not-started") from None

    def results(self) -> DataFrame:
        """The output of the query for all sent messages, as a table. Raises the error that has ended the query."""
        _raise_error(self.query)
        return self._spark.table(self._results)

    def _stop_query(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None
            self._spark.catalog.dropTempView(self._results)


@contextlib.contextmanager
def _closed_with(query: StreamingQuery, connector: BlockingConnector) -> Iterator[None]:
    """Within the block the connector is closed as soon as the query ends: it would wait for commits in vain."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(QUERY_SECONDS):
            if not query.isActive:
                connector.close()
                return

    with beside(watch, "watch of the query", over.set, None):
        yield


def _raise_error(query: StreamingQuery) -> None:
    """Raise the error with which the query has ended; do nothing when there is none."""
    error = query.exception()
    if error is not None:
        raise error
