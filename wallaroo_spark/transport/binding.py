"""Listening sockets: one port for every address of a host, and both address families for an empty host."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Sequence
from typing import Any

from wallaroo_spark.errors import TransportError
from wallaroo_spark.transport.address import format_address
from wallaroo_spark.transport.base import check_port, describe

_BIND_TRIES = 10
"""Attempts to find a port that is free on every address of a host. A choice; a collision is rare."""
_WHILE = " (while attempting to bind"
"""What Python adds to the system's own words, with the address."""


async def bind(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Bind sockets to every address of ``host``, all on one port; one dual-stack socket for an empty host.

    Raises :class:`TransportError` with the address and the cause.
    """
    shown = format_address(host or "*", port)
    try:
        check_port(port)
        if not host:
            return [_bind_everywhere(port, backlog)]
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        targets = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
        for _ in range(_BIND_TRIES - 1):
            try:
                return _bind_each(targets, backlog)
            except OSError as error:
                # The port that the system chose for one address may be taken on another.
                if port or error.errno != errno.EADDRINUSE:
                    raise
        return _bind_each(targets, backlog)
    except (OSError, OverflowError) as error:
        problem, _, _ = describe(error).partition(_WHILE)
        raise TransportError(
            f"cannot listen on {shown}: {problem}; free the address, use another one, or use port 0",
            code="cannot-listen",
            address=shown,
            reason="bind",
        ) from error


def _bind_everywhere(port: int, backlog: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return socket.create_server(("", port), backlog=backlog)


def _bind_each(targets: Sequence[tuple[int, Any]], backlog: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as undo:
        for family, address in targets:
            port = sockets[0].getsockname()[1] if sockets else address[1]
            try:
                made = socket.create_server((address[0], port, *address[2:]), family=family, backlog=backlog)
                sockets.append(undo.enter_context(made))
            except OSError as error:
                # "localhost" may resolve to ::1 on a machine without IPv6; then the other address suffices.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error
        undo.pop_all()
    if not sockets:
        raise missing or OSError(errno.EADDRNOTAVAIL, "the host has no address")
    return sockets
