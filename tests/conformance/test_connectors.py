"""Checks of connectors: one that is right passes in each revision, and each of its planted faults is found."""

from __future__ import annotations

import shlex
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


LATE = 0.6
"""The time behind which a late OK comes."""


def peer(revision: str, variant: str = "") -> tuple[str, ...]:
    return (sys.executable, "-S", "-I", str(PEER), "{address}", "{cookie}", "{instance}", revision, variant)


def run(command: tuple[str, ...], *names: str, seconds: float = SECONDS, quiet: float = QUIET) -> list[CheckResult]:
    setting = CheckedConnector(command, seconds=seconds, quiet=quiet, late=LATE)
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


@pytest.mark.parametrize(
    ("variant", "revision"),
    [
        ("writes-in-small-pieces", "draft-be"),
        ("has-gaps-between-ids", "draft-le"),
        ("has-keys-and-times", "draft-le"),
        ("has-keys-and-times", "draft-be"),
        ("has-keys-and-times", "v3"),
        ("ends-with-its-last-line", "draft-be"),
        ("ends-above-its-last-id", "draft-le"),
        ("ends-without-an-id", "v3"),
        ("marks-its-place", "draft-be"),
        ("begins-at-the-beginning", "draft-be"),
        ("begins-at-the-beginning", "v3"),
        ("reconnects-after-a-second", "draft-le"),
    ],
)
def test_an_unusual_connector_that_breaks_no_rule_passes(variant: str, revision: str) -> None:
    assert failures(run(peer(revision, variant))) == []


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
    "says-hello-late": Planted("handshake", "nothing of it within 1 s", "session-states", seconds=1),
    "gives-up-early": Planted("late-ok", "the program has ended with exit status 1", "session-states"),
    "opens-two-connections": Planted("handshake", "a further connection", "session-states"),
    "forgets-the-cookie": Planted("handshake", "cookie b'conformance' in HELLO", "session-states"),
    "notify-before-ok": Planted("handshake", "is not allowed in state handshake", "session-states"),
    "length-counts-itself": Planted("messages", "line 1 of 6, 'first'", "frame-bodies"),
    "flags-in-the-wrong-order": Planted("messages", "MESSAGE flags are 0x0100", "frame-bodies"),
    "drops-empty-lines": Planted("messages", "line 2 of 6, ''", "frame-bodies"),
    "ids-repeat": Planted("messages", "a message id above 2", "points-of-reference"),
    "ignores-credits": Planted("credits", "sent with no credit left", "credits"),
    "end-without-credit": Planted("end-of-stream", "sent with no credit left", "credits", "draft-le"),
    "ends-below-its-last-id": Planted("end-of-stream", "the id of its last message, 40", "stream-states", "v3"),
    "closes-when-its-lines-are-acknowledged": Planted("late-end", "ends its stream", "stream-states"),
    "sends-before-notify-ack": Planted("refused-stream", "MESSAGE for stream 7, which is", "stream-states", "v3"),
    "never-ends-the-stream": Planted("end-of-stream", "and the end of the stream", "stream-states", "v3", SHORT),
    "leaves-early": Planted("end-of-stream", "closed the connection; 0 lines", "stream-states", quiet=SHORT),
    "whole-frames-only": Planted("split-frames", "half a frame", "framing"),
    "one-frame-a-read": Planted("joined-frames", "6 credits used", "framing", seconds=SHORT),
    "goes-on-behind-the-sent-message": Planted("lost-connection", "line 6 of 40", "points-of-reference", "v3"),
    "knows-streams-by-name": Planted("lost-connection", "an unknown stream", "points-of-reference"),
    "has-new-ids-in-each-run": Planted("killed", "line 6 of 40, 'line 6'", "points-of-reference"),
    "never-comes-back": Planted("worker-dies", "the connection is lost", "when-to-try-again"),
    "ignores-rewinds": Planted("rewind", "a NOTIFY for each of two NACKs", "rewinding", "draft-le", SHORT),
    "one-notify-for-two-nacks": Planted("rewind", "a NOTIFY for each of two NACKs", "rewinding", "draft-le", SHORT),
    "ignores-credits-of-nacks": Planted("rewind", "8 credits used", "rewinding", "draft-le", SHORT),
    "takes-the-end-of-a-connection-for-its-own": Planted("leaving", "ended with exit status 0", "rewinding", "v3"),
    "ignores-the-address-of-restart": Planted("restart-with-address", "the worker has left", "rewinding", "v3"),
    "goes-back-in-place-of-a-redirect": Planted("redirect", "the worker has left", "which-worker"),
    "ignores-redirects": Planted("redirect", "exit status 1", "which-worker"),
    "takes-later-for-never": Planted("try-again-later", "exit status 1", "reasons-that-a-connector-may-act-on"),
    "reconnects-without-a-pause": Planted("try-again-later", "pauses of ", "reasons-that-a-connector-may-act-on"),
    "stays-behind-a-refusal": Planted("refused-cookie", "it still runs after 1 s", "when-to-try-again", seconds=1),
    "never-notifies-again": Planted("refused-stream", "NOTIFY again behind", "stream-states", "v3", SHORT),
    "comes-back-after-a-refusal": Planted("refused-cookie", "has connected again", "when-to-try-again"),
    "comes-back-when-superseded": Planted("superseded", "connected again", "reasons-that-a-connector-may-act-on"),
}


def test_each_check_finds_a_planted_fault() -> None:
    assert {one.check for one in FAULTS.values()} == {check.name for check in connectors.CHECKS}


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
        ("import os\nwhile True: os.write(1, b'much\\n' * 9999)", "none within 1 s (--timeout)\n    | much\n", 1),
        (
            "import socket, sys, time; one = socket.create_connection(sys.argv[1].split(':')); one.send(b'\\0' * 3)\n"
            "time.sleep(600)",
            "nothing of it within 1 s, and 3 bytes of a frame",
            1,
        ),
        (
            "import socket, sys; one = socket.create_connection(sys.argv[1].split(':'))\n"
            "while True: one.send(bytes.fromhex('00000001ff') * 999)",
            "this is not the protocol",
            SECONDS,
        ),
        (
            "import socket, sys; socket.create_connection(sys.argv[1].split(':')).sendall(b'GET /')",
            "this is not the protocol",
            SECONDS,
        ),
    ],
    ids=[
        "exits",
        "prints-control-characters",
        "never-connects",
        "prints-without-end",
        "says-half-of-hello",
        "floods",
        "another-protocol",
    ],
)
def test_a_program_that_is_no_connector_is_named_as_what_it_does(program: str, came: str, seconds: float) -> None:
    (one,) = run((sys.executable, "-S", "-I", "-c", program, "{address}"), "handshake", seconds=seconds)

    assert came in one.came


def test_the_packages_own_program_passes() -> None:
    assert failures(run((*PROGRAM, "send", "{input}", "--stream", "lines"))) == []


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    program = tmp_path / "connector"
    program.write_bytes(b"\0")
    program.chmod(0o755)
    (one,) = run((str(program),), "handshake")

    assert (one.expected, one.came) == ("a program that can be started", f"{program}: Exec format error")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_programs_that_run_and_what_they_have_started(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    program = f"import os, time; os.fork(); open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    command = f"{sys.executable} -S -I -c {shlex.quote(program)}"
    verb = subprocess.Popen([*PROGRAM, "conformance", "--connector", command], cwd=ROOT, stderr=subprocess.PIPE)
    try:
        eventually(lambda: pids.exists() and pids.read_text().count("\n") >= 8)
        verb.send_signal(number)
        _, errors = verb.communicate(timeout=SECONDS)
    finally:
        verb.kill()
    assert (verb.returncode, b"defect" in errors, b"Traceback" in errors) == (status, False, False), errors
    for pid in map(int, pids.read_text().split()):
        eventually(lambda pid=pid: not alive(pid))


def alive(pid: int) -> bool:
    try:
        # What nobody has waited for yet is over, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
