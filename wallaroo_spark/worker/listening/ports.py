"""A worker's two ports, for connectors and for the driver and tasks: their numbers and the announced addresses."""

from __future__ import annotations

import asyncio

from wallaroo_spark import transport
from wallaroo_spark.options import Options, resolve_secret
from wallaroo_spark.transport import ByteStream


async def free_inner_port(options: Options, slot: int, stopped: asyncio.Event) -> int | None:
    """Return the slot's inner port (0: any) once a predecessor has freed it; None when ``stopped`` is set meanwhile.

    Raises :class:`ConfigurationError` when it does not become free or cannot be bound.
    """
    if not options.inner_port:
        return 0
    # Arrow's error does not say whether a port is in use, so a plain socket is bound to it first.
    port = options.inner_port + slot
    trial = await transport.serve_once_free(_turn_away, inner_host(options), port, stopped=stopped)
    if trial is None:
        return None
    await trial.close()
    return port


def warnings(options: Options) -> list[str]:
    """Warnings about ports that accept every peer, as sentences."""
    cookie = resolve_secret(options.cookie)
    warning = transport.open_access_warning(
        f"receiver {options.receiver!r}: its workers", options.host, cookie, options.tls_ca
    )
    return [warning] if warning else []


def inner_host(options: Options) -> str:
    """The address to which the inner port is bound."""
    return options.inner_host or options.host


def addresses(options: Options, slot: int, bound: tuple[str, int], inner_port: int) -> tuple[str, str]:
    """The announced addresses of the slot: for connectors, and for driver and tasks. ``bound`` is the listener's
    address.
    """
    registry = resolve_secret(options.registry)
    host = options.advertise or transport.reachable_host(bound[0], registry)
    connect = transport.advertised(host, slot, bound[1])
    inner = options.inner_advertise
    if not inner and options.tls_certificate and options.advertise:
        inner = transport.parse_address(connect)[0]
    inner = inner or transport.reachable_host(options.inner_host or bound[0], registry)
    return connect, transport.advertised(inner, slot, inner_port)


async def _turn_away(stream: ByteStream) -> None:
    """Close the connections that arrive while a port is tried."""
    stream.abort()
