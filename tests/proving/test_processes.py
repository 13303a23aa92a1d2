"""Programs that are started again, and signals that reach nobody but whom they are meant for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from proving.chaos.processes import Supervised, Victim, victim
from tests.waiting import SECONDS


def test_a_program_that_is_killed_is_started_again_and_one_that_is_done_is_not(tmp_path: Path) -> None:
    waits_at_first = (
        "import pathlib, sys, time; seen = pathlib.Path(sys.argv[1]); first = not seen.exists(); seen.touch()\n"
        "print('hello', flush=True)\n"
        # It waits to be killed, and would end by itself if the test could not.
        f"if first: time.sleep({2 * SECONDS})"
    )
    heard: list[str] = []
    spoke = threading.Event()

    def take(line: str) -> None:
        heard.append(line)
        spoke.set()

    command = [sys.executable, "-c", waits_at_first, str(tmp_path / "seen")]
    program = Supervised("program", command, dict(os.environ), tmp_path / "log", take)
    program.start()
    assert spoke.wait(SECONDS)
    assert program.kill()
    assert program.finished.wait(SECONDS)
    program.stop()

    assert heard == ["hello\n", "hello\n"]
    assert program.starts == 2
    assert program.failures == []
    assert program.pid is None


def test_an_end_that_no_kill_explains_is_remembered(tmp_path: Path) -> None:
    fails_once = (
        "import pathlib, sys; seen = pathlib.Path(sys.argv[1]); done = seen.exists(); seen.touch()\n"
        "sys.exit(0 if done else 3)"
    )
    command = [sys.executable, "-c", fails_once, str(tmp_path / "seen")]
    program = Supervised("program", command, dict(os.environ), tmp_path / "log", print)
    program.start()
    assert program.finished.wait(SECONDS)
    assert program.failures == [3]


def test_a_process_that_took_over_an_id_is_not_hit() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        known = victim("a process", process.pid)
        assert known is not None
        assert not Victim(known.name, known.pid, known.created - 1).send(signal.SIGKILL)
        assert known.send(signal.SIGKILL)
        assert process.wait(SECONDS) == -signal.SIGKILL
        assert not known.send(signal.SIGKILL)
    finally:
        process.communicate()
