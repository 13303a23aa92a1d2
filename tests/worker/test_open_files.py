"""A worker whose process may not have as many files open as ``maxSessions`` needs: it says so, and goes on."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from proving.bench.stage import ROOT
from proving.processes import end
from tests.waiting import SECONDS
from tests.worker.bench import Bench
from wallaroo_spark.protocol import DRAFT_BE, ConnectorSession, Error, Frame, Ok
from wallaroo_spark.transport import parse_address
from wallaroo_spark.worker.open_files import HANDSHAKES, RESERVED, OpenFiles

SESSIONS = 20
LIMIT = SESSIONS + HANDSHAKES + RESERVED


def test_files_are_reserved_for_everything_else() -> None:
    assert (OpenFiles(LIMIT).sessions, OpenFiles(LIMIT).connections) == (SESSIONS, SESSIONS + HANDSHAKES)
    assert (OpenFiles(None).sessions, OpenFiles(None).connections) == (None, None)
    assert OpenFiles(10).sessions == 1


def test_an_operator_is_told_the_limit_to_raise() -> None:
    assert OpenFiles(LIMIT).warning(SESSIONS) is None
    assert OpenFiles(None).warning(10**6) is None
    warning = OpenFiles(LIMIT).warning(1000)
    assert warning is not None
    for part in ("maxSessions is 1000", f"{LIMIT} files", f"{SESSIONS} sessions", "ulimit -Hn", str(1000 + LIMIT - 20)):
        assert part in warning


def test_the_limit_is_raised_as_far_as_the_system_allows() -> None:
    program = """
import resource
from wallaroo_spark.worker.open_files import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 500))
print(raise_limit(50).limit, raise_limit(100_000).limit, resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout.split() == [str(50 + HANDSHAKES + RESERVED), "500", "(500,", "500)"]


class TestMachine:
    def test_a_session_too_many_is_told_to_come_later(self) -> None:
        bench = Bench()
        bench.state.bound(100, 1)
        first, second = bench.join(DRAFT_BE, "shop-1"), bench.connect(DRAFT_BE, "shop-2")
        second.hello()
        assert "no open files" in second.error
        assert "ulimit -Hn" in second.error
        first.leave()
        second.leave()
        bench.join(DRAFT_BE, "shop-2")

    def test_a_connection_too_many_is_closed_before_it_says_anything(self) -> None:
        bench = Bench()
        bench.state.bound(2, 2)
        for number in range(3):
            bench.connect(DRAFT_BE, f"shop-{number}")
        closed = [connector.closed for connector in bench.connectors.values()]
        assert [one is not None for one in closed] == [False, False, True]
        assert any("ulimit -Hn" in line for line in bench.warnings())


@contextmanager
def worker(limit: int) -> Iterator[tuple[str, int]]:
    """A worker in a process of its own, with a hard limit of open files."""
    settings = json.dumps({"options": {"cookie": "c", "max_sessions": 1000}})
    command = f'ulimit -n {limit} && exec "$0" -m proving.bench.lone_worker "$1"'
    process = subprocess.Popen(
        ["bash", "-c", command, sys.executable, settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        yield parse_address(json.loads(process.stdout.readline())["address"])
    finally:
        end(process)
        process.stdout.close()


def knock(stack: ExitStack, address: tuple[str, int], number: int) -> Frame:
    """The answer to a HELLO; the connection stays open."""
    peer: Any = stack.enter_context(socket.create_connection(address, 30))
    session = ConnectorSession(DRAFT_BE)
    peer.sendall(session.hello(version="0.0.1", cookie=b"c", program="a test", instance=f"shop-{number}"))
    while (frame := session.next_event()) is None:
        data = peer.recv(1 << 16)
        assert data, "the worker has closed the connection without an answer"
        session.receive(data)
    return frame


def test_a_real_worker_takes_as_many_as_it_has_files_for_and_refuses_the_next() -> None:
    with worker(LIMIT) as address, ExitStack() as stack:
        answers = [knock(stack, address, number) for number in range(SESSIONS + 3)]
    assert [type(answer) for answer in answers] == [Ok] * SESSIONS + [Error] * 3
    last = answers[-1]
    assert isinstance(last, Error)
    assert last.reason.startswith("try again later")
    assert "ulimit -Hn" in last.reason
