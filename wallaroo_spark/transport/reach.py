"""The address at which other machines reach this one, and whether a listener is at an address."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from urllib.parse import urlsplit

from wallaroo_spark.errors import TransportError
from wallaroo_spark.transport.address import parse_address
from wallaroo_spark.transport.tcp import connect

_PROBE_PAUSE = 0.5
"""Seconds between the two probes of :func:`listens`. A choice: a restarting listener is back by then."""
_PROBE_SECONDS = 2.0
"""Limit of one probe, in seconds. A choice."""
_WILDCARDS = ("", "0.0.0.0", "::")


def open_access_warning(who: str, host: str, cookie: str, authority: str = "") -> str:
    """A warning that ``who`` accepts every peer that can connect, with the way out; empty if that is not the case.

    It is the case if ``cookie`` is empty and no ``authority`` certifies peers, unless ``host`` is a loopback address.
    """
    if cookie or authority or is_loopback(host):
        return ""
    return (
        f"{who} accept every peer that reaches them: the cookie is empty, and they listen at "
        f"{host if host not in _WILDCARDS else 'every interface'}; set a cookie, or require certificates of an "
        "authority (tls.ca), or listen on loopback (host=127.0.0.1)"
    )


@functools.lru_cache(256)
def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach the host. A name other than ``localhost`` counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def listens(address: str) -> bool | None:
    """Whether a listener is at an address; None when no answer comes, which shows nothing.

    False: it refuses two connections in a row, ``_PROBE_PAUSE`` seconds apart.
    """
    host, port = parse_address(address)
    for pause in (_PROBE_PAUSE, 0.0):
        try:
            stream = await connect(host, port, timeout=_PROBE_SECONDS)
        except TransportError as error:
            if error.fields["reason"] != "refused":
                return None
            await asyncio.sleep(pause)
        else:
            await stream.close()
            return True
    return False


def reachable_host(bound: str, registry: str) -> str:
    """The address at which other machines reach this one: the bound address, or, for a wildcard, the address of the
    interface that leads to the registry."""
    if bound not in _WILDCARDS:
        return bound
    target = urlsplit(registry).hostname or "192.0.2.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends no packet; it only selects the route.
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
