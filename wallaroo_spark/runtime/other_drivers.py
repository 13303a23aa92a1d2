"""Finds out that another driver is gone before the locks in its name expire.

The owner of a driver's locks is written ``HOST/PID/RANDOM`` and, where the driver has its Spark in its own process,
``/ADDRESS``, at which that Spark listens for its executors. Its query runs in that process, so nothing commits once no
process listens there. Source: ``docs/reliability.md#a-standby-driver``.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.runtime.spark_checks import classic_context
from wallaroo_spark.transport import format_address, listens, parse_address

_LOOK_SECONDS = 1.0
"""Pause between two probes of one driver. A choice: small beside the seconds that a driver takes to start."""


def owner_of(spark: Any) -> str:
    """A new owner for the locks of a driver with this session, with its address where that can be read."""
    owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
    context: Any = classic_context(spark)
    try:
        conf = context.getConf()
        host, port = conf.get("spark.driver.host"), int(conf.get("spark.driver.port"))
    except Exception:
        # Spark Connect, a stand-in of a test, or a platform that lets nobody read this.
        return owner
    return f"{owner}/{format_address(host.strip('[]'), port)}"


class OtherDrivers:
    """What is known of the drivers that have a lock which this one waits for.

    A refused connection shows that no process listens at an address, and counts only where it cannot be a firewall that
    refuses: when an earlier connection was accepted, or the address is one of this machine and so is the driver. A
    connection that gets no answer shows nothing; then the lock has to expire.
    """

    def __init__(self) -> None:
        self._accepted: set[str] = set()
        self._gone: set[str] = set()
        self._looked: dict[str, float] = {}

    def gone(self, owner: str) -> bool:
        """Whether the driver with this owner's name is known to be gone. It looks once a second at most."""
        address = owner.split("/", 3)[3] if owner.count("/") > 2 else ""
        if not address or owner in self._gone:
            return owner in self._gone
        now = time.monotonic()
        if now < self._looked.get(owner, now):
            return False
        self._looked[owner] = now + _LOOK_SECONDS
        try:
            with ThreadPoolExecutor(1, "wallaroo-probe") as aside:  # The thread of a notebook runs a loop of its own.
                listening = aside.submit(asyncio.run, listens(address)).result()
        except ConfigurationError:
            listening = None  # That is no address.
        if listening:
            self._accepted.add(owner)
        elif listening is False and (owner in self._accepted or _of_this_machine(owner, address)):
            self._gone.add(owner)
        return owner in self._gone


def _of_this_machine(owner: str, address: str) -> bool:
    """Whether a driver runs, or ran, on this machine, and its address is one of this machine's interfaces."""
    if owner.split("/", 1)[0] != socket.gethostname():
        return False
    host, _ = parse_address(address)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
            return True
    except OSError:
        return False
