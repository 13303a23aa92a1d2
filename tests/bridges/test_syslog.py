"""Messages of syslog over UDP and TCP."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bridges.support import Bridging, refused
from tests.waiting import eventually
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.testing import FakeWorker

LINE = b"<165>1 2026-11-24T12:00:00Z host app 7 ID47 - "


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    def link() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            return None

    with eventually(link) as found:
        yield found


def test_messages_arrive_over_tcp_and_udp(worker: FakeWorker, tmp_path: Path) -> None:
    port = lasting_port()
    bridging = Bridging(worker, tmp_path, "syslog", f"127.0.0.1:{port}", "--longest", "1000")
    with bridging.running() as process, worker.committing():
        with connected(port) as link:
            # By lines, and with lengths in front, of which one has a line's end within.
            link.sendall(
                LINE + b"a\r\n" + b"<13>Nov 24 12:00:00 host app: b\n" + b"%d " % (len(LINE) + 3) + LINE + b"c\nd"
            )
            bridging.wait(3)
            with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
                datagrams.sendto(LINE + b"e\n", ("127.0.0.1", port))
                datagrams.sendto(b"", ("127.0.0.1", port))
                bridging.wait(5)
            link.sendall(b"5000 ")
            eventually(lambda: "a message has 5000 bytes, and at most 1000" in bridging.output)
        with connected(port) as link:
            link.sendall(b"x" * 2000)
            eventually(lambda: bridging.output.count("is closed") == 2, bridging.output)
        for evil in (b"1" * 3000, b"2026-11-24 a line\n"):
            with connected(port) as link:
                link.sendall(evil)
                link.shutdown(socket.SHUT_WR)
                assert link.recv(1) == b""
        eventually(lambda: "invalid literal" in bridging.output, bridging.output)
        assert "Traceback" not in bridging.output
        assert process.poll() is None
        second = Bridging(worker, tmp_path / "..", "syslog", f"127.0.0.1:{port}", "--instance", "second")
        assert f"cannot listen at 127.0.0.1:{port}" in refused(second)

    expected = [LINE + b"a", b"<13>Nov 24 12:00:00 host app: b", LINE + b"c\nd", LINE + b"e", b""]
    assert bridging.values() == expected
    assert set(worker.committed["key"].to_pylist()) == {b"127.0.0.1"}


@pytest.mark.parametrize("size", [50_000, 0])
def test_datagrams_that_find_the_buffer_full_are_counted(worker: FakeWorker, tmp_path: Path, size: int) -> None:
    port = lasting_port()
    bridging = Bridging(worker, tmp_path, "syslog", f"127.0.0.1:{port}", "--buffer", "65536")
    with bridging.running():
        with connected(port):
            pass
        # The worker has no more room than this, and nothing is committed.
        with socket.socket(type=socket.SOCK_DGRAM) as datagrams:

            def lost() -> bool:
                for _ in range(100):
                    datagrams.sendto(bytes(size), ("127.0.0.1", port))
                return "datagrams were lost" in bridging.output

            eventually(lost, bridging.output)
