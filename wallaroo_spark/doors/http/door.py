"""The HTTP door of one worker: it listens, reads requests and writes answers.

Source: ``docs/doors/http.md#requests-and-answers``.
"""

from __future__ import annotations

import asyncio
import logging

from wallaroo_spark import transport
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.doors.http.access import HttpAccess
from wallaroo_spark.doors.http.connection import Answer, HttpConnection
from wallaroo_spark.doors.http.parser import RequestHead
from wallaroo_spark.doors.http.problems import MEDIA_TYPE, Problem
from wallaroo_spark.doors.http.requests import DOOR, Requests
from wallaroo_spark.errors import TransportError, one_line
from wallaroo_spark.options import Options
from wallaroo_spark.transport import ByteStream, Listener

log = one_line(logging.getLogger("wallaroo_spark.doors"))

MOST_SHOWN = 128
"""The characters of a refused client's name that people are shown."""


async def open_door(ground: Ground, options: Options, stopped: asyncio.Event) -> HttpDoor | None:
    """Open the door at the port of the slot; None when ``stopped`` is set before the port is free."""
    assert options.http_port is not None
    tls = None
    if options.tls_certificate:
        tls = transport.server_context(options.tls_certificate, options.tls_key, options.tls_ca)
    door = HttpDoor(ground, options)
    port = options.http_port + ground.slot if options.http_port else 0
    door.listener = await transport.serve_once_free(door.serve, options.host, port, tls=tls, stopped=stopped)
    return door if door.listener is not None else None


class HttpDoor:
    """The connections of the door."""

    def __init__(self, ground: Ground, options: Options) -> None:
        self.listener: Listener | None = None
        self._options = options
        self._ground = ground
        self._slot = ground.slot
        self._access = HttpAccess(ground.senders, options.http_origins)
        self._requests = Requests(ground, options)
        self._connections: set[HttpConnection] = set()

    @property
    def url(self) -> str:
        """Where it is reached."""
        assert self.listener is not None
        host, port = self.listener.address
        if self._options.advertise:
            host, _ = transport.parse_address(transport.advertised(self._options.advertise, self._slot, port))
        else:
            host = transport.reachable_host(host, self._options.registry)
        scheme = "https" if self._options.tls_certificate else "http"
        return f"{scheme}://{transport.format_address(host, port)}"

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their answer."""
        return self._requests.waiting

    @property
    def ports(self) -> list[int]:
        """The ports on which it listens."""
        assert self.listener is not None
        return [self.listener.address[1]]

    @property
    def connections(self) -> int:
        """The number of its connections."""
        return len(self._connections)

    @property
    def requests(self) -> dict[str, int]:
        """The requests that wait for their commit, by the instance of their client."""
        return self._ground.requests(f"{DOOR}/")

    async def close(self, reason: str, seconds: float) -> None:
        """Take no new request, and end the connections once their requests are answered."""
        self._requests.leaving = reason or "it stops"
        assert self.listener is not None
        closing = asyncio.ensure_future(self.listener.close(seconds))
        for connection in [one for one in self._connections if one.idle]:
            connection.stream.abort()
        await closing
        for connection in list(self._connections):
            connection.stream.abort()

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection."""
        connection = HttpConnection(stream, self._options.handshake_timeout)
        self._connections.add(connection)
        try:
            while await self._serve_one(connection):
                pass
        finally:
            self._connections.discard(connection)

    async def _serve_one(self, connection: HttpConnection) -> bool:
        """Answer one request; returns whether another one may follow."""
        common: dict[str, str] = {}
        head: RequestHead | None = None
        # Behind bytes that are no request nothing can be read.
        keep = False
        try:
            head = await connection.head()
            if head is None:
                return False
            keep = head.keep_alive
            common = self._access.check_origin(head)
            if len(self._connections) > self._options.max_sessions:
                raise Problem("http-full", f"the door has {len(self._connections)} connections (maxSessions)")
            answer = await self._requests.answer(connection, head, self._access)
        except Problem as problem:
            self._ground.host.refuse(problem.code, connection.stream.peer, _instance(head), problem.detail)
            answer = Answer(problem.status, problem.body(), MEDIA_TYPE)
            answer.fields.update(problem.headers)
        except TransportError:
            raise
        except Exception:
            log.exception("slot %d: a request of %s could not be answered", self._slot, connection.stream.peer)
            self._ground.host.count("internal-errors", 1)
            failed = Problem("internal-error", "an error of this program; the worker's log has it")
            answer = Answer(failed.status, failed.body(), MEDIA_TYPE)
        keep = keep and connection.whole and not self._requests.leaving
        await connection.answer(answer, common, keep=keep)
        return keep


def _instance(head: RequestHead | None) -> str:
    """The instance that a refused request names; empty without one."""
    name = "" if head is None else head.get("wallaroo-instance")
    return f"{DOOR}/{name[:MOST_SHOWN]}" if name else ""
