"""Listening on a port that a predecessor still holds for some seconds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
import time

from wallaroo_spark.errors import ConfigurationError, TransportError
from wallaroo_spark.transport.tcp import Handler, Listener, serve

FREE_SECONDS = 15.0
"""Limit of the wait for a port that is in use, in seconds.

A choice: the process of a cancelled Spark task lives on for some seconds.
"""
_PAUSE_SECONDS = 0.2
"""Seconds between two attempts to bind the port. A choice."""


async def serve_once_free(
    handler: Handler, host: str, port: int, *, tls: ssl.SSLContext | None = None, stopped: asyncio.Event
) -> Listener | None:
    """Listen as :func:`serve` does, and wait for a port that is in use; None when ``stopped`` is set meanwhile.

    Raises :class:`ConfigurationError` when the port does not become free, and at once for any other error.
    """
    until = time.monotonic() + FREE_SECONDS
    while not stopped.is_set():
        try:
            return await serve(handler, host, port, tls=tls)
        except TransportError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise ConfigurationError(error.message, code=error.code, **error.fields) from error
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"{error.message}; another program has held it for {FREE_SECONDS:g} seconds, which is longer than "
                    "a predecessor may take to end",
                    code="cannot-listen",
                    **error.fields,
                ) from error
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _PAUSE_SECONDS)
    return None
