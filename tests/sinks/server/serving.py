"""A sink server in a thread of the test, and everything that a test wants to know of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Self

from tests.waiting import SECONDS
from wallaroo_spark.sinks.server.output_directory import OutputDirectory
from wallaroo_spark.sinks.server.sink_server import SinkServer, SinkServerSettings
from wallaroo_spark.transport import Listener, serve


class ServingSink:
    """Serves the directory ``to`` on a port of the system's choice, or on ``port``."""

    def __init__(self, to: Path, port: int = 0, tls: Any = None, **settings: Any) -> None:
        self.to = to
        self.store = OutputDirectory(to)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sink server")
        self._thread.start()
        server = SinkServer(self.store, SinkServerSettings(**settings))
        self._listener: Listener = self.run(serve(server, "127.0.0.1", port, tls=tls))
        self.port = self._listener.address[1]
        self.address = f"127.0.0.1:{self.port}"

    def run(self, work: Any) -> Any:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._listener.close(1.0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()
        self.store.close()
        self.store.transactions.validate()

    def shown(self) -> dict[str, bytes]:
        """The rows that readers see, by worker."""
        return shown(self.to)


def shown(to: Path) -> dict[str, bytes]:
    """The rows that readers of a sink's directory see, by worker."""
    return {path.stem: path.read_bytes() for path in sorted(to.glob("*.out"))}
