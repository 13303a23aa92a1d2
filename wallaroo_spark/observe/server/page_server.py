"""The HTTP server of a receiver's driver: bounded, read-only, in one thread of its own and two that make responses.

A slow, silent or half-open client costs one of a bounded number of connections, for a bounded time. When all are
taken, the connection that has been silent longest makes room for a new one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from wallaroo_spark.errors import ConfigurationError, TransportError, one_line
from wallaroo_spark.event_loop import LoopThread
from wallaroo_spark.observe.server.access import Access, PageAddress
from wallaroo_spark.observe.server.messages import (
    HEAD_END,
    LONGEST_HEAD,
    BadRequestError,
    Response,
    Routes,
    encode,
    parse,
)
from wallaroo_spark.transport.address import format_address
from wallaroo_spark.transport.binding import bind

log = one_line("wallaroo_spark.observe")

MOST_CONNECTIONS = 64
"""Connections that are open at the same time. A choice: a browser opens at most six, and few people watch one page."""
CONNECTION_SECONDS = 20.0
"""The longest time of a connection, from its start to the last byte of the response.

A choice: it bounds what a slow client holds; a response has some 100 KB.
"""
ANSWER_SECONDS = 10.0
"""Limit in seconds of one response's computation. A choice: less than CONNECTION_SECONDS, so that the client is told of
a timeout."""
ANSWER_THREADS = 2
"""Threads that make responses. A choice: a slow route leaves one for the others."""
PORTS_TRIED = 16
"""Ports that are tried one after another when the first one is taken, as Spark does for its own page."""
BACKLOG = 64
STOP_SECONDS = 5.0
"""How long a stop waits for a response in the making. A choice that bounds a stop."""


class PageServer:
    """Serves routes over HTTP, from :meth:`start` to :meth:`stop`."""

    def __init__(self, place: PageAddress, routes: Routes, name: str) -> None:
        """``name`` is the name for people and threads, such as ``receiver orders``."""
        self._place = place
        self._routes = routes
        self._name = name
        self._address = ""
        self._thread: LoopThread | None = None
        self._pool = ThreadPoolExecutor(ANSWER_THREADS, f"wallaroo-{name}-page")
        self._servers: list[asyncio.Server] = []
        self._connections: dict[asyncio.Task[None], bool] = {}
        """The connections in the order of their starts, each with whether it is silent: it has sent no request yet."""
        self._access = Access(place.host, place.port, place.token)

    @property
    def address(self) -> str:
        """The URL of the page, such as ``http://127.0.0.1:4140/``; empty when it is not served."""
        return self._address

    def start(self) -> None:
        """Listen on the place's port, or on the next one that is free.

        Raises :class:`ConfigurationError` when none of them can be used; nothing is left open then.
        """
        self._thread = LoopThread(f"wallaroo-{self._name}-page")
        try:
            port = self._thread.call(self._listen)
        except BaseException:
            self.stop()
            raise
        self._address = f"http://{format_address(self._place.host, port)}/"
        log.info("%s: the status page is %s", self._name, self._address)

    def stop(self) -> None:
        """Close the listening port and every connection, and end the threads. May be called again."""
        thread, self._thread, self._address = self._thread, None, ""
        if thread is not None:
            with contextlib.suppress(concurrent.futures.CancelledError):
                thread.call(self._close)
            thread.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _listen(self) -> int:
        host, first = self._place.host, self._place.port
        last = min(first + PORTS_TRIED - 1, 65_535) if first else 0
        for port in range(first, last + 1):
            try:
                sockets = await bind(host, port, BACKLOG)
                break
            except TransportError as error:
                cause = error.__cause__
                if port == last or not (isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE):
                    tried = f", nor on the ports after {first}" if port > first else ""
                    raise ConfigurationError(
                        f"option {self._place.option}: {error.message}{tried}; or off for no page",
                        code=error.code,
                        option=self._place.option,
                    ) from None
        for bound in sockets:
            self._servers.append(
                await asyncio.start_server(self._connected, sock=bound, limit=LONGEST_HEAD, backlog=BACKLOG)
            )
        chosen: int = sockets[0].getsockname()[1]
        self._access = Access(host, chosen, self._place.token)
        return chosen

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in (tasks := list(self._connections)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # An aborted transport closes its socket in the next round of the loop.
        await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MOST_CONNECTIONS and not self._make_room():
            writer.transport.abort()
            return
        self._connections[task] = True
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                await self._serve(reader, writer, task)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The connection is over; a browser asks again.
            pass
        except Exception:
            log.exception("%s: a request to the status page failed", self._name)
        finally:
            del self._connections[task]
            writer.transport.abort()

    def _make_room(self) -> bool:
        """End the connection that has waited longest without sending a request. False when there is none."""
        oldest = next((task for task, silent in self._connections.items() if silent), None)
        if oldest is None:
            return False
        self._connections[oldest] = False
        oldest.cancel()
        return True

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        with_body = True
        try:
            head = await reader.readuntil(HEAD_END)
            self._connections[task] = False
            request = parse(head)
            with_body = request.method != "HEAD"
            found = self._access.decide(request, self._routes)
            answer = found if isinstance(found, Response) else found.answer
            if not isinstance(answer, Response):
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await loop.run_in_executor(self._pool, answer, request)
        except asyncio.LimitOverrunError:
            answer = Response.text(
                f"a request has at most {LONGEST_HEAD} bytes", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            )
        except BadRequestError as error:
            answer = Response.text(error.reason, error.status)
        except TimeoutError:
            answer = Response.text(
                f"the driver has not answered within {ANSWER_SECONDS:g} s", HTTPStatus.SERVICE_UNAVAILABLE
            )
        except (ConnectionError, asyncio.IncompleteReadError):
            raise
        except Exception:
            log.exception("%s: the status page cannot answer", self._name)
            answer = Response.text("the driver cannot answer; its log says why", HTTPStatus.INTERNAL_SERVER_ERROR)
        writer.write(encode(answer, body=with_body))
        await writer.drain()
        # After the end of the response the client closes first. Closing at once while the client still sends would make
        # the kernel reset the connection, and the client would lose the response.
        writer.write_eof()
        while await reader.read(LONGEST_HEAD):
            pass
