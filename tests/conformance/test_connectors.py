"""Checks of connectors: one that is right passes in each revision, and each of its planted faults is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.conftest import PROGRAM
from tests.conftest import ROOT
from tests.waiting import SECONDS, eventually
from wallaroo_spark.codes import ENTRIES
from wallaroo_spark.conformance import connectors
from wallaroo_spark.conformance.checks import CheckOutcome, CheckResult
from wallaroo_spark.conformance.connector_runs import CheckedConnector
from wallaroo_spark.protocol import REVISIONS

PEER = Path(__file__).with_name("peer.py")
QUIET = 0.2
"""A peer that is wrong here is wrong at once, or its next frames tell."""
SHORT = 5.0
"""The wait for what a peer never does."""


def peer(revision: str, fault: str = "") -> tuple[str, ...]:
    return (sys.executable, "-S", "-I", str(PEER), "{address}", "{cookie}", "{instance}", revision, fault)


def run(command: tuple[str, ...], *names: str, seconds: float = SECONDS, quiet: float = QUIET) -> list[CheckResult]:
    setting = CheckedConnector(command, seconds=seconds, quiet=quiet)
    checks = [check for check in connectors.CHECKS if not names or check.name in names]
    return list(connectors.plan(setting, checks).results())


def failures(results: list[CheckResult]) -> list[str]:
    return [f"{one.check}: expected {one.expected}; came {one.came}" for one in results if one.outcome == "failed"]


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_correct_connector_passes_every_check_of_its_revision(revision: str) -> None:
    results = run(peer(revision))

    assert failures(results) == []
    left_out = {one.check for one in results if one.outcome is CheckOutcome.LEFT_OUT}
    assert left_out == {check.name for check in connectors.CHECKS if revision not in (check.revisions or REVISIONS)}


class Planted(NamedTuple):
    """A fault of the peer, and where it has to be found."""

    check: str
    found: str
    """A part of what was expected and what came."""
    page: str
    revision: str = "draft-be"
    seconds: float = SECONDS
    quiet: float = QUIET


FAULTS: Mapping[str, Planted] = {
    "forgets-the-cookie": Planted("handshake", "cookie b'conformance' in HELLO", "session-states"),
    "notify-before-ok": Planted("handshake", "is not allowed in state handshake", "session-states"),
    "length-counts-itself": Planted("messages", "line 1 of 6, 'first'", "frame-bodies"),
    "flags-in-the-wrong-order": Planted("messages", "MESSAGE flags are 0x0100", "frame-bodies"),
    "drops-empty-lines": Planted("messages", "line 2 of 6, ''", "frame-bodies"),
    "ids-repeat": Planted("messages", "a message id above 2", "points-of-reference"),
    "ignores-credits": Planted("credits", "sent with no credit left", "credits"),
    "end-without-credit": Planted("end-of-stream", "sent with no credit left", "credits", "draft-le"),
    "never-ends-the-stream": Planted("end-of-stream", "and the end of the stream", "stream-states", "v3", SHORT),
    "leaves-early": Planted("end-of-stream", "closed the connection; 0 lines", "stream-states", quiet=SHORT),
    "whole-frames-only": Planted("split-frames", "half a frame", "framing"),
    "one-frame-a-read": Planted("joined-frames", "6 credits used", "framing", seconds=SHORT),
    "goes-on-behind-the-sent-message": Planted("lost-connection", "line 6 of 40", "points-of-reference", "v3"),
    "knows-streams-by-name": Planted("lost-connection", "an unknown stream", "points-of-reference"),
    "never-comes-back": Planted("worker-dies", "the connection is lost", "when-to-try-again"),
    "ignores-rewinds": Planted("rewind", "a NOTIFY for each of two NACKs", "rewinding", "draft-le", SHORT),
    "one-notify-for-two-nacks": Planted("rewind", "a NOTIFY for each of two NACKs", "rewinding", "draft-le", SHORT),
    "ignores-redirects": Planted("redirect", "exit status 1", "which-worker"),
    "takes-later-for-never": Planted("try-again-later", "exit status 1", "reasons-that-a-connector-may-act-on"),
    "comes-back-after-a-refusal": Planted("refused-cookie", "has connected again", "when-to-try-again"),
    "comes-back-when-superseded": Planted("superseded", "connected again", "reasons-that-a-connector-may-act-on"),
}


@pytest.fixture(scope="module")
def found() -> Iterator[Mapping[str, CheckResult]]:
    """For each fault the result of the check that has to find it; their waits pass together."""

    def result(fault: str) -> CheckResult:
        planted = FAULTS[fault]
        (one,) = run(peer(planted.revision, fault), planted.check, seconds=planted.seconds, quiet=planted.quiet)
        return one

    with ThreadPoolExecutor(6) as pool:
        yield dict(zip(FAULTS, pool.map(result, FAULTS), strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, found: Mapping[str, CheckResult]) -> None:
    one, planted = found[fault], FAULTS[fault]

    assert one.outcome is CheckOutcome.FAILED
    assert planted.found in f"{one.expected}; {one.came}"
    assert one.page.endswith(f"docs/protocol.md#{planted.page}")


def test_a_wrong_frame_is_shown_with_the_place_of_its_wrong_byte(found: Mapping[str, CheckResult]) -> None:
    flags, line = found["flags-in-the-wrong-order"], found["length-counts-itself"]

    assert flags.bytes.startswith("00 00 00 18 4d 01 00")
    assert flags.offset is not None
    assert line.frame.startswith("MESSAGE stream=7, id=1, payload='first")
    # HELLO, NOTIFY, and of MESSAGE the head of 23 bytes and the line itself: behind it the next frame has been read.
    assert line.offset is not None
    assert line.bytes.split(" ")[23:28] == [f"{byte:02x}" for byte in b"first"]
    assert {one.page for one in ENTRIES.values()} >= {flags.page}


@pytest.mark.parametrize(
    ("program", "came", "seconds"),
    [
        ("raise SystemExit(3)", "the program has ended with exit status 3", SECONDS),
        ("print('no\\x1b[2J'); raise SystemExit(0)", "| no\\x1b[2J", SECONDS),
        ("import time; time.sleep(600)", "none within 1 s", 1),
        (
            "import socket, sys; socket.create_connection(sys.argv[1].split(':')).sendall(b'GET /')",
            "this is not the protocol",
            SECONDS,
        ),
    ],
    ids=["exits", "prints-control-characters", "never-connects", "another-protocol"],
)
def test_a_program_that_is_no_connector_is_named_as_what_it_does(program: str, came: str, seconds: float) -> None:
    (one,) = run((sys.executable, "-S", "-I", "-c", program, "{address}"), "handshake", seconds=seconds)

    assert came in one.came


def test_the_packages_own_program_passes() -> None:
    results = run((*PROGRAM, "send", "{input}", "--stream", "lines"), "messages", "worker-dies")

    assert failures(results) == []


def test_ctrl_c_ends_the_programs_that_run(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    command = f"{sys.executable} -S -I -c {program!r}"
    verb = subprocess.Popen([*PROGRAM, "conformance", "--connector", command], cwd=ROOT, stderr=subprocess.PIPE)
    try:
        eventually(lambda: pids.exists() and pids.read_text().count("\n") >= 4)
        verb.send_signal(signal.SIGINT)
        _, errors = verb.communicate(timeout=SECONDS)
    finally:
        verb.kill()
    assert verb.returncode == 130, errors
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
