"""Another driver is known to be gone when its Spark's port refuses connections, and only where that shows it."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from wallaroo_spark.registry import Registry
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.runtime import other_drivers
from wallaroo_spark.runtime.handle import Waits
from wallaroo_spark.runtime.other_drivers import OtherDrivers

HERE = socket.gethostname()


class Locks:
    """Two locks of a registry."""

    def __init__(self, **owners: str) -> None:
        self.owners = owners

    def lock(self, name: str, owner: str, seconds: float) -> bool:
        """Take or renew one."""
        return self.owners.setdefault(name, owner) == owner

    def unlock(self, name: str, owner: str) -> None:
        """Release one."""
        if self.owners.get(name) == owner:
            del self.owners[name]

    def locked_by(self, name: str) -> str | None:
        """The owner of one."""
        return self.owners.get(name)


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_drivers, "_LOOK_SECONDS", 0.0)


def test_a_driver_whose_port_accepted_and_then_refuses_is_gone() -> None:
    others = OtherDrivers()
    with socket.create_server(("127.0.0.1", 0)) as port:
        owner = f"elsewhere/7/cafe/127.0.0.1:{port.getsockname()[1]}"
        assert not others.gone(owner)
    assert others.gone(owner)


def test_a_refusal_alone_shows_nothing_of_another_machine() -> None:
    assert not OtherDrivers().gone(f"elsewhere/7/cafe/127.0.0.1:{lasting_port()}")


def test_a_refusal_alone_shows_that_a_driver_of_this_machine_is_gone() -> None:
    assert OtherDrivers().gone(f"{HERE}/7/cafe/127.0.0.1:{lasting_port()}")


def test_a_machine_with_the_same_name_and_another_address_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(address: str) -> bool:
        return False

    monkeypatch.setattr(other_drivers, "listens", refused)
    assert not OtherDrivers().gone(f"{HERE}/7/cafe/203.0.113.9:7078")
    assert not OtherDrivers().gone(f"{HERE}/7/cafe/[2001:db8::9]:7078")


def test_a_driver_that_does_not_answer_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool | None] = [True, None, None]

    async def answer(address: str) -> bool | None:
        return answers.pop(0)

    monkeypatch.setattr(other_drivers, "listens", answer)
    others = OtherDrivers()
    assert [others.gone(f"{HERE}/7/cafe/127.0.0.1:7078") for _ in range(3)] == [False] * 3
    assert not answers


@pytest.mark.parametrize("owner", ["", "an unknown process", f"{HERE}/7/cafe", f"{HERE}/7/cafe/", f"{HERE}/7/cafe/x:y"])
def test_an_owner_without_an_address_is_not_known_to_be_gone(owner: str) -> None:
    assert not OtherDrivers().gone(owner)


def test_a_driver_is_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answer(address: str) -> None:
        asked.append(address)

    monkeypatch.setattr(other_drivers, "listens", answer)
    monkeypatch.setattr(other_drivers, "_LOOK_SECONDS", 3600.0)
    others = OtherDrivers()
    for _ in range(3):
        others.gone("elsewhere/7/cafe/10.0.0.7:7078")
        others.gone("elsewhere/8/cafe/10.0.0.7:7079")
    assert asked == ["10.0.0.7:7078", "10.0.0.7:7079"]


def test_the_lock_of_a_driver_that_is_gone_is_taken_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "wallaroo_spark.runtime")
    waits, gone = Waits("receiver 'orders'"), f"{HERE}/7/cafe/127.0.0.1:{lasting_port()}"
    with socket.create_server(("127.0.0.1", 0)) as port:
        lives = f"{HERE}/8/cafe/127.0.0.1:{port.getsockname()[1]}"
        locks = Locks(receiver=gone, checkpoint=lives)
        taken = [waits.take(cast("Registry", locks), name, "me", 10.0) for name in ("receiver", "checkpoint")]
    assert taken == [True, False]
    assert locks.owners == {"receiver": "me", "checkpoint": lives}
    assert [record.getMessage() for record in caplog.records] == [
        f"receiver 'orders': the driver {gone} is gone; its lock is released"
    ]
