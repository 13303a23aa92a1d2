"""Two programs: over the loopback, and over a cable that loses, delays and reorders packets and changes an address."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from proving.network.lossy import LossyCable, Weather
from tests.pems import Pems
from tests.waiting import SECONDS

PROGRAM = [sys.executable, "-m", "tests.aqueduct.two_programs"]


@contextmanager
def server(pems: Pems, host: str, prefix: Sequence[str] = ()) -> Iterator[str]:
    """The server as a program; its address."""
    command = [*prefix, *PROGRAM, "serve", host, pems.server, pems.server_key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield program.stdout.readline().strip()
        finally:
            program.kill()


def send(
    address: str,
    pems: Pems,
    channels: int,
    messages: int,
    prefix: Sequence[str] = (),
    in_the_middle: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """Run the client; what was lost and seen on each channel."""
    command = [*prefix, *PROGRAM, "send", address, pems.ca, str(channels), str(messages)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "half\n"
        in_the_middle()
        out, _ = program.communicate("\n", timeout=SECONDS)
        assert program.returncode == 0
    found: list[dict[str, Any]] = json.loads(out)["channels"]
    return found


def check(channels: list[dict[str, Any]], messages: int) -> int:
    """Everything has arrived once and in order, or was told to be lost; the number of those."""
    for channel in channels:
        lost, seen = channel["lost"], channel["seen"]
        assert seen["ordered"] == list(range(messages))
        assert sorted(seen["unordered"]) == list(range(messages))
        assert len(set(seen["unreliable"])) == len(seen["unreliable"])
        assert lost == {"ordered": 0, "unordered": 0, "unreliable": messages - len(seen["unreliable"])}
    return sum(channel["lost"]["unreliable"] for channel in channels)


def test_two_programs_send_in_every_manner(pems: Pems) -> None:
    with server(pems, "127.0.0.1") as address:
        check(send(address, pems, 2, 20), 20)


@pytest.fixture
def cable() -> Iterator[LossyCable]:
    try:
        made = LossyCable(Weather(loss=0.05, delay=0.05, late=0.1), seed=7).__enter__()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces and TUN devices cannot be made here; they need root")
    try:
        yield made
    finally:
        made.__exit__(None, None, None)


@pytest.mark.long
def test_a_network_that_loses_delays_and_reorders_loses_only_what_may_be_lost(pems: Pems, cable: LossyCable) -> None:
    with server(pems, cable.far_address, cable.far) as address:
        lost = check(send(address, pems, 3, 60, cable.near), 60)

    # More than the cable has dropped: what waits for too long in a slow network is lost, too.
    assert 0 < lost < 180


@pytest.mark.long
def test_a_client_whose_address_changes_goes_on(pems: Pems, cable: LossyCable) -> None:
    with server(pems, cable.far_address, cable.far) as address:
        check(send(address, pems, 3, 100, cable.near, cable.move_near), 100)


@pytest.mark.long
def test_a_client_whose_network_is_away_for_a_while_goes_on(pems: Pems, cable: LossyCable) -> None:
    def away() -> None:
        usual, cable.weather = cable.weather, Weather(loss=1.0)
        threading.Timer(3, setattr, (cable, "weather", usual)).start()

    with server(pems, cable.far_address, cable.far) as address:
        check(send(address, pems, 3, 100, cable.near, away), 100)
