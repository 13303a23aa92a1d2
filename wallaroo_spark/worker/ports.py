"""A worker's two ports, that of connectors and the inner one: their numbers, and the addresses that others are told."""

from __future__ import annotations

import asyncio

from wallaroo_spark import transport
from wallaroo_spark.options import Options, resolve_secret
from wallaroo_spark.transport import ByteStream


async def free_inner_port(options: Options, slot: int, stopped: asyncio.Event) -> int | None:
    """The number of the slot's inner port (0: any) once a predecessor has freed it; None when told to stop.

    Raises :class:`ConfigurationError` when it does not become free, or cannot be listened at.
    """
    if not options.inner_port:
        return 0
    # Arrow says neither that a port is held nor what else is wrong, so it is listened at in vain first.
    port = options.inner_port + slot
    trial = await transport.serve_once_free(_turn_away, inner_host(options), port, stopped=stopped)
    if trial is None:
        return None
    await trial.close()
    return port


def warnings(options: Options) -> list[str]:
    """Warnings about doors that let everybody in, as sentences."""
    cookie = resolve_secret(options.cookie)
    warning = transport.open_access_warning(
        f"receiver {options.receiver!r}: its workers", options.host, cookie, options.tls_ca
    )
    return [warning] if warning else []


def inner_host(options: Options) -> str:
    """The address that the inner port is bound to."""
    return options.inner_host or options.host


def addresses(options: Options, slot: int, bound: tuple[str, int], inner_port: int) -> tuple[str, str]:
    """The addresses that connectors, and that driver and tasks, are told of the slot.

    ``bound`` is where its listener is.
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
