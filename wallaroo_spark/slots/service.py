"""Runs a service in the task of a long job: on an event loop in a thread of its own, with heartbeats for Spark.

Source: ``docs/spark.md#tasks-and-jobs``.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, Self

from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd

HEARTBEAT_SECONDS = 1.0
"""Pause between two empty frames that the task yields, because Spark may treat a silent Python task as idle.

A choice, not a measurement: it costs one empty Arrow frame a second.
"""
END_SECONDS = 10.0
"""How long the service may take to end when its task ends. A choice: above the time that services give their peers."""


class Service(Protocol):
    """A service that a task runs on an event loop of its own."""

    async def run(self) -> None:
        """Serve until :meth:`stop_from_outside` is called or the service has ended. Raises the error that ends it."""

    def stop_from_outside(self, reason: str) -> None:
        """Ask the service to end in good order. Called from another thread, also before or after :meth:`run`."""


class ServiceThread:
    """A :class:`Service` on an event loop in a thread of its own.

    It is a context manager: the service starts on entry, and is asked to stop on exit. ``name`` names the thread.
    """

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop_from_outside("its task was ended")
        self._done.wait(END_SECONDS)

    def alive(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; return whether the service still runs. Raises the error that ended it."""
        self._done.wait(seconds)
        if self._error is not None:
            raise self._error
        return not self._done.is_set()

    def _run(self) -> None:
        try:
            asyncio.run(self._service.run())
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()


def serve(service: ServiceThread, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Run a service within mapInPandas until it ends, yielding empty frames as heartbeats.

    ``rows`` is the task's partition; its one row only makes Spark run the task, and is ignored. Raises the error that
    ends the service; a :class:`ConfigurationError` gets the host's name, because it may be about this host.
    """
    import pandas
    import pyarrow

    for _ in rows:
        pass
    heartbeat = pandas.DataFrame({"slot": pandas.Series([], dtype=pandas.ArrowDtype(pyarrow.int32()))})
    try:
        with service as running:
            while running.alive(HEARTBEAT_SECONDS):
                yield heartbeat
    except ConfigurationError as error:
        raise ConfigurationError(
            f"on {socket.gethostname()}: {error.message}", code=error.code, **error.fields
        ) from None
