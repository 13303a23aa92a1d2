"""A host that is gone is noticed while data is under way to it; a peer that answers and does not read is left alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.errors import TransportError
from wallaroo_spark.transport import ByteStream, base, connect, serve
from wallaroo_spark.transport.base import GONE_SECONDS, PeerLiveness, TcpState

BURST = bytes(256 * 1024)
SPACE = f"wallaroo-liveness-{os.getpid()}"
NEAR, FAR = (f"198.18.{os.getpid() % 251}.{last}" for last in (1, 2))

LISTEN = f"""
import socket, sys
with socket.create_server(("{FAR}", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    while connection.recv(65536):
        print("taken", flush=True)
"""


class TestPeerLiveness:
    def test_a_peer_that_does_not_acknowledge_for_too_long_is_gone(self) -> None:
        liveness, silent = PeerLiveness(), [TcpState(100, True, 5.0 * look) for look in range(20)]
        found = [liveness.gone(sight, 1000.0 + 5 * number) for number, sight in enumerate(silent)]
        assert found.index(True) == GONE_SECONDS / 5
        assert not any(found[: int(GONE_SECONDS / 5)])

    def test_an_idle_hour_in_front_of_it_does_not_count(self) -> None:
        liveness = PeerLiveness()
        assert not liveness.gone(TcpState(100, True, 3600.0), 5000.0)
        assert not liveness.gone(TcpState(100, True, 0.2), 5005.0)
        assert not liveness.gone(TcpState(100, True, 3600.0), 5000.0 + GONE_SECONDS)

    def test_a_peer_that_answers_is_there_however_much_waits_for_it(self) -> None:
        liveness = PeerLiveness()
        assert not any(liveness.gone(TcpState(10**6, number % 2 == 0, 1.0), 5.0 * number) for number in range(1000))

    def test_a_peer_that_lets_nothing_more_in_is_there(self) -> None:
        liveness = PeerLiveness()
        assert not any(liveness.gone(TcpState(10**6, False, 100.0), 5.0 * number) for number in range(1000))


def _ip(*words: str, inside: bool = False) -> None:
    prefix = ["ip", "netns", "exec", SPACE, "ip"] if inside else ["ip"]
    subprocess.run([*prefix, *words], check=True, capture_output=True)


@pytest.fixture
def far_host() -> Iterator[int]:
    """A machine of its own behind a cable of its own, on which somebody listens: the port."""
    try:
        _ip("netns", "add", SPACE)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces cannot be made here; they need root")
    cable = f"wv{os.getpid()}"[:14]
    try:
        _ip("link", "add", f"{cable}a", "type", "veth", "peer", "name", f"{cable}b", "netns", SPACE)
        _ip("addr", "add", f"{NEAR}/30", "dev", f"{cable}a")
        _ip("link", "set", f"{cable}a", "up")
        _ip("addr", "add", f"{FAR}/30", "dev", f"{cable}b", inside=True)
        _ip("link", "set", f"{cable}b", "up", inside=True)
        program = ["ip", "netns", "exec", SPACE, sys.executable, "-c", LISTEN]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as listener:
            try:
                assert listener.stdout is not None
                yield int(listener.stdout.readline())
            finally:
                listener.kill()
    finally:
        # The cable goes with it, but later, and its address would be in the way of the next one.
        subprocess.run(["ip", "link", "del", f"{cable}a"], check=False, capture_output=True)
        _ip("netns", "del", SPACE)


def _cut_off() -> None:
    """From now on the far host answers nothing; nobody is told."""
    _ip("route", "add", "blackhole", f"{NEAR}/32", inside=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "GONE_SECONDS", 1.0)
    monkeypatch.setattr(base, "LOOK_SECONDS", 0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
@pytest.mark.usefixtures("quick")
class TestConnections:
    async def test_a_host_that_goes_while_data_is_under_way_to_it_is_noticed(self, far_host: int) -> None:
        stream = await connect(FAR, far_host, timeout=SECONDS)
        stream.write(b"while all is well")
        await stream.drain()
        _cut_off()
        stream.write(b"under way")
        with pytest.raises(TransportError, match="has acknowledged no sent bytes for 1 s; its host may be gone"):
            await asyncio.wait_for(stream.read(), SECONDS)
        with pytest.raises(TransportError):
            await stream.drain()

    async def test_a_peer_that_does_not_read_is_left_alone_and_gets_everything(self) -> None:
        """Both ways and for much longer than the limit, as a worker that is short of memory does not read."""
        taken = 0
        go_on = asyncio.Event()

        async def stubborn(stream: ByteStream) -> None:
            nonlocal taken
            await go_on.wait()
            while data := await stream.read():
                taken += len(data)

        async with _serving(stubborn) as address:
            stream = await connect(*address, timeout=SECONDS)
            for _ in range(40):
                stream.write(BURST)
            waiting = asyncio.ensure_future(stream.drain())
            for _ in range(40):
                # So many looks have found it waiting, with the window closed.
                await asyncio.sleep(base.LOOK_SECONDS)
            assert not waiting.done()
            go_on.set()
            await waiting
            await stream.close()
        assert taken == 40 * len(BURST)


@asynccontextmanager
async def _serving(handler: object) -> AsyncIterator[tuple[str, int]]:
    listener = await serve(handler, "127.0.0.1", 0)  # type: ignore[arg-type]  # a handler of either kind
    try:
        yield listener.address
    finally:
        await listener.close()
