"""Two drivers of one receiver as processes of their own: one waits as standby, and takes over from the other.

The driver that is killed or stopped is alone with its Java in a process group, so nothing of it goes on meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.receiver.driver import LEASE, STANDBY
from tests.receiver.drivers import Drivers
from tests.receiver.support import Feeders, numbered, payloads
from tests.waiting import SECONDS, eventually
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.registry.embedded import lasting_port

MESSAGES = 600


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    with Drivers(tmp_path) as drivers:
        yield drivers


def owner(registry: Registry, driver: subprocess.Popen[bytes], lock: str) -> bool:
    return f"/{driver.pid}/" in (registry.locked_by(lock) or "")


@pytest.mark.long
@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped and continued"])
def test_a_standby_takes_over_and_nothing_is_lost_or_repeated(
    stopped: bool, drivers: Drivers, own_redis: EmbeddedRedis, feeders: Feeders
) -> None:
    # The lock of a killed driver does not expire in time: the standby sees that no process is at its address any more.
    lease = 3 if stopped else 600
    port, variables = lasting_port(range(4)), {STANDBY: own_redis.url, LEASE: str(lease)}
    active, standby = drivers.start(port, **variables), drivers.start(port + 2, **variables)
    with Registry(own_redis.url, "orders", lease_seconds=lease) as registry:
        drivers.go(active)
        eventually(lambda: owner(registry, active, "receiver"), seconds=120)
        drivers.go(standby)
        eventually(lambda: owner(registry, standby, "standby"), seconds=120)
        feeders.feed(feeders.connect("shop", registry=own_redis.url), numbered("a", 1, MESSAGES))
        eventually(lambda: len(drivers.written().get("a", ())) >= 100, seconds=120)

        os.killpg(active.pid, signal.SIGSTOP if stopped else signal.SIGKILL)
        eventually(lambda: owner(registry, standby, "receiver"), seconds=120)
        if stopped:
            os.killpg(active.pid, signal.SIGCONT)
            # It notices that it has lost the name, and says so at its end.
            assert active.stdin is not None
            active.stdin.close()
            assert active.wait(SECONDS) != 0
            assert "is run by another driver" in drivers.log(active)
        eventually(lambda: len(drivers.written().get("a", ())) >= MESSAGES, seconds=120)
        assert registry.locked_by("standby") is None
    assert drivers.written() == {"a": [text.decode() for text in payloads("a", 1, MESSAGES)]}
    drivers.end(standby)
