"""What a task of a long job runs: a service on an event loop in a thread of its own, with heartbeats for Spark."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd

HEARTBEAT_SECONDS = 1.0
"""Spark may take a silent Python task for idle, so an empty frame leaves this often."""
END_SECONDS = 10.0


class Service(Protocol):
    """What a task runs on an event loop of its own."""

    async def run(self) -> None:
        """Serve until :meth:`stop_from_outside`, or until there is nothing more to do."""

    def stop_from_outside(self, reason: str) -> None:
        """Have it end in good order; called from another thread, perhaps before or after it runs."""


class ServiceThread:
    """A :class:`Service` on an event loop in a thread of its own; as a context manager it runs on entry."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.stop_from_outside("its task was ended")
        self._done.wait(END_SECONDS)

    def alive(self, seconds: float) -> bool:
        """Wait so long for the service to end; whether it goes on. Raises what it ended with."""
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
    """Run a service in mapInPandas, yielding empty frames as heartbeats; ends when it does, and raises what it raises.

    ``rows`` are the task's own, of which it has one that only places it. What this host lacks is said with its name.
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
        raise ConfigurationError(f"on {socket.gethostname()}: {error.message}", **error.fields) from None
