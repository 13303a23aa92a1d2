"""Free ports of the loopback."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from pathlib import Path

LOWEST = 10_000
CHOSEN_BY_THE_SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")


def lasting_port(offsets: Iterable[int] = (0,)) -> int:
    """A port P with every P + offset free, all of them outside the range that the system gives to clients.

    So they are still free when a server is started, and when it is started again.
    """
    wanted = tuple(offsets)
    end = int(CHOSEN_BY_THE_SYSTEM.read_text().split()[0]) - max(wanted)
    while True:
        first = random.randrange(LOWEST, end)
        try:
            for offset in wanted:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", first + offset))
        except OSError:
            continue
        return first
