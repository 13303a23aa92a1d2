"""Which address others reach this machine at, and whether anybody listens at one."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from wallaroo_spark.errors import TransportError
from wallaroo_spark.transport.address import parse_address
from wallaroo_spark.transport.tcp import connect

_PROBE_PAUSE = 0.5
_PROBE_SECONDS = 2.0
_WILDCARDS = ("", "0.0.0.0", "::")


def open_access_warning(who: str, host: str, cookie: str, authority: str = "") -> str:
    """A warning that anyone who reaches ``who`` is let in, with the way out; empty if that is not so.

    It is so if ``cookie`` is empty and no ``authority`` certifies peers, unless only this machine reaches ``host``.
    """
    if cookie or authority or _is_loopback(host):
        return ""
    return (
        f"{who} let in everybody who reaches them: the cookie is empty, and they listen at "
        f"{host if host not in _WILDCARDS else 'every interface'}; give a cookie, or ask for certificates by an "
        "authority (tls.ca), or listen on loopback (host=127.0.0.1)"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def refuses(address: str) -> bool:
    """Whether nobody listens at an address: it refuses two connections, half a second apart."""
    host, port = parse_address(address)
    for pause in (_PROBE_PAUSE, 0.0):
        try:
            stream = await connect(host, port, timeout=_PROBE_SECONDS)
        except TransportError as error:
            if error.fields["reason"] != "refused":
                return False
            await asyncio.sleep(pause)
        else:
            await stream.close()
            return False
    return True


def reachable_host(bound: str, registry: str) -> str:
    """The address others reach this machine at: the bound one, or, of a wildcard, the one that faces the registry."""
    if bound not in _WILDCARDS:
        return bound
    target = urlsplit(registry).hostname or "192.0.2.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only picks the route.
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
