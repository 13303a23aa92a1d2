"""Programs that are started again, and signals that reach nobody but whom they are meant for."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from proving.chaos.processes import Supervised, Victim, victim
from tests.waiting import SECONDS, eventually


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


def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    starts_another = (
        "import subprocess, sys\n"
        f"other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({4 * SECONDS})'])\n"
        "print(other.pid, flush=True)\n"
        "sys.exit(other.wait() if sys.argv[1] == 'waits' else 0)"
    )
    for ends in ("waits", "leaves"):
        heard: queue.Queue[str] = queue.Queue()
        command = [sys.executable, "-c", starts_another, ends]
        program = Supervised("program", command, dict(os.environ), tmp_path / "log", heard.put)
        program.start()
        other = victim("the other", int(heard.get(timeout=SECONDS)))
        assert other is not None
        program.stop()
        assert program.finished.is_set()
        eventually(lambda other=other: other.process() is None)


def test_a_program_ends_what_it_has_started_though_it_gets_sigterm_twice() -> None:
    ends_late = (
        "import time\n"
        "from proving.processes import exit_on_sigterm\n"
        "exit_on_sigterm()\n"
        "try:\n"
        "    print('begun', flush=True)\n"
        f"    time.sleep({2 * SECONDS})\n"
        "finally:\n"
        "    print('ending', flush=True)\n"
        "    input()\n"
        "    print('ended', flush=True)"
    )
    command = [sys.executable, "-c", ends_late]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in ("begun\n", "ending\n"):
            assert process.stdout.readline() == line
            process.terminate()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"
        assert process.wait(SECONDS) == 128 + signal.SIGTERM


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
