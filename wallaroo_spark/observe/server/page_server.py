"""The HTTP server of a receiver's driver: bounded, read-only, in one thread of its own and two that make responses.

A slow, silent or half-open client costs one of a bounded number of connections, for a bounded time. When all are
taken, the connection that has been silent longest makes room for a new one.

A page on a loopback address is protected by the Host header: a site whose name is suddenly resolved to 127.0.0.1 (DNS
rebinding) sends its own name there. A page with a token is protected by the token: a program sends it as
``Authorization: Bearer …``, and a browser sends a cookie that is derived from it, which ``/login`` sets.
Source: ``docs/status-page.md#who-sees-it``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import hashlib
import hmac
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

from wallaroo_spark.errors import ConfigurationError, TransportError, one_line
from wallaroo_spark.event_loop import LoopThread
from wallaroo_spark.observe.server.messages import (
    HEAD_END,
    LONGEST_HEAD,
    TEXT,
    BadRequestError,
    Request,
    Response,
    Route,
    Routes,
    encode,
    host_name,
    parse,
)
from wallaroo_spark.transport.address import format_address, parse_address
from wallaroo_spark.transport.binding import bind
from wallaroo_spark.transport.reach import is_loopback

OPTIONS = ("statusPage", "statusPageToken")
"""The options of a receiver for the address and the token."""
OFF = "off"
"""The value of the option ``statusPage`` that starts no server."""
SHORTEST_TOKEN = 16
"""Minimum length of a token in characters. A choice: a random token of this length cannot be guessed over a network."""


@dataclass(frozen=True)
class PageAddress:
    """The address at which the status page listens, and the token that a browser must present there."""

    host: str
    """The host name or address, without brackets."""
    port: int
    """The first port that is tried; 0 lets the system choose."""
    token: str
    """The token that a request must present; empty: none, which only a loopback address allows."""
    option: str = OPTIONS[0]
    """The name of the option that gives the address, for errors."""

    @classmethod
    def parse(cls, text: str, token: str, options: tuple[str, str] = OPTIONS) -> Self | None:
        """Read the address and the token, which are the values of ``options``; None when there is no page.

        Raises :class:`ConfigurationError` for an address that cannot be read, and for an address that other machines
        reach without a token, or with a short one.
        """
        option, of_token = options
        if text.strip().lower() == OFF:
            return None
        try:
            host, port = parse_address(text, least=0)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"option {option}: {error.message}; or off for no page", code=error.code, option=option
            ) from None
        if token and len(token) < SHORTEST_TOKEN:
            raise ConfigurationError(
                f"option {of_token} has {len(token)} characters, and needs {SHORTEST_TOKEN} or more, so that "
                "nobody guesses it",
                code="option-out-of-range",
                option=of_token,
            )
        if not token and not is_loopback(host):
            raise ConfigurationError(
                f"option {option}: other machines reach {host}, so the page needs a token; set {of_token} to "
                f"{SHORTEST_TOKEN} characters or more, or use 127.0.0.1 in place of {host}",
                code="option-missing",
                option=of_token,
            )
        return cls(host, port, token, option)


LOGIN = "/login"
METHODS = ("GET", "HEAD")


class Access:
    """Decides about the requests of one server."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._host = host.lower()
        self._token = token
        self._cookie_name = f"wallaroo_page_{port}"
        # A browser sends cookies to every port of a host, so the cookie is not the token itself.
        self._cookie = hmac.digest(token.encode(), b"wallaroo_spark status page", hashlib.sha256).hex()

    def decide(self, request: Request, routes: Routes) -> Route | Response:
        """Return the route that answers the request, or the response that refuses it."""
        if request.method not in METHODS:
            return Response.text(
                "this server only shows; use GET or HEAD", HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD"
            )
        name = host_name(request.headers.get("host", ""))
        if not self._token and name != self._host and not is_loopback(name):
            return Response.text(
                "this page answers to localhost and its own address alone; open it as localhost, or set the option "
                "statusPageToken",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        if request.path == LOGIN:
            return self._login(request)
        route = routes.get(request.path)
        if route is None:
            return Response.text("there is no such page; / is the status page", HTTPStatus.NOT_FOUND)
        if route.open or self._may_see(request):
            return route
        return _token_needed()

    def _may_see(self, request: Request) -> bool:
        cookie = request.cookie(self._cookie_name).encode("latin-1")
        return not self._token or self._has_token(request) or hmac.compare_digest(cookie, self._cookie.encode())

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # compare_digest takes the same time for every difference, so the time reveals nothing of the token.
        same = hmac.compare_digest(given.strip().encode("latin-1"), self._token.encode())
        return same and scheme.lower() == "bearer"

    def _login(self, request: Request) -> Response:
        if self._token and not self._has_token(request):
            return _token_needed()
        cookie = f"{self._cookie_name}={self._cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000"
        return Response(TEXT, b"", HTTPStatus.OK, {"Set-Cookie": cookie} if self._token else {})


def _token_needed() -> Response:
    return Response.text(
        "this page needs the token of the option statusPageToken: send it as Authorization: Bearer TOKEN",
        HTTPStatus.UNAUTHORIZED,
        WWW_Authenticate="Bearer",
    )


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
