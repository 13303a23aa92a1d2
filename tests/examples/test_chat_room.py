"""The chat room over channels on QUIC, as programs of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.waiting import SECONDS

PROGRAM = [sys.executable, str(ROOT / "examples" / "chat_room.py")]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_members_of_a_room_read_what_the_others_write(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "room.pem"), str(tmp_path / "room.key")
    files = ("--certificate", certificate, "--key", key)
    with start("open", "--listen", "127.0.0.1:0", *files) as room:
        assert room.stdout is not None
        listening = re.match(r"listening on (\S+)", room.stdout.readline())
        assert listening is not None
        where = ("--room", listening[1], "--ca", certificate)
        with start("join", "Ann", *where) as ann:
            assert ann.stdin is not None
            assert ann.stdout is not None
            assert room.stdout.readline() == "Ann is here\n"
            bob = subprocess.run(
                [*PROGRAM, "join", "Bob", *where], input="hello\n", capture_output=True, text=True, timeout=SECONDS,
                check=True,
            )  # fmt: skip
            heard = [ann.stdout.readline() for _ in range(3)]
            ann.stdin.close()
            assert ann.wait(SECONDS) == 0
        room.send_signal(signal.SIGINT)
        assert room.wait(SECONDS) == 0

    assert heard == ["Bob is here\n", "Bob: hello\n", "Bob has left\n"]
    assert bob.stdout == ""
