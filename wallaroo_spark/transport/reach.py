"""Which address others reach this machine at, and whether anybody listens at one."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from wallaroo_spark.errors import TransportError
from wallaroo_spark.transport.address import parse_address
from wallaroo_spark.transport.tcp import connect

_PROBE_PAUSE = 0.5
_PROBE_SECONDS = 2.0


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
    if bound not in ("", "0.0.0.0", "::"):
        return bound
    target = urlsplit(registry).hostname or "192.0.2.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only picks the route.
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
