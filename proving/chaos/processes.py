"""Supervised processes, which are started again after an early end, and victims, known by id and creation time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

AGAIN_SECONDS = 0.5
STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Victim:
    """A process by its id and creation time, so that a later process with the same id is never hit."""

    name: str
    """Its name in the report."""
    pid: int
    """Its process id."""
    created: float
    """When it was created, in seconds of the wall clock; a later process with the same id differs in it."""

    def process(self) -> psutil.Process | None:
        """The process, None when it has ended."""
        try:
            found = psutil.Process(self.pid)
            same = found.create_time() == self.created and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return found if same else None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process has ended."""
        process = self.process()
        if process is None:
            return False
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        return True


def victim(name: str, pid: int) -> Victim | None:
    """The process that has this id now; None when there is none."""
    try:
        return Victim(name, pid, psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


class Supervised:
    """A program in a process session of its own, started again until it ends with status 0 or is stopped; without
    ``again`` it is started once.

    ``take`` gets each line of its standard output; its standard error goes to ``log``. ``starts`` counts its starts,
    and ``failures`` has the exit statuses that no SIGKILL explains.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str],
        log: Path,
        take: Callable[[str], None],
        *,
        again: bool = True,
    ) -> None:
        self.name = name
        self.starts = 0
        self.failures: list[int] = []
        self.finished = threading.Event()
        self._command = list(command)
        self._environment = environment
        self._log = log
        self._take = take
        self._again = again
        self._process: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def kill(self) -> bool:
        """SIGKILL the program and all processes of its session; False when it does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        _end_group(process)
        return True

    def stop(self) -> None:
        """Stop it in good order, and kill it when it does not end; what it has started ends with it."""
        self._stopping.set()
        process = self._process
        if process is not None and self._thread.is_alive():
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            _end_group(process)
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            status = self._run()
            if status == 0:
                break
            if status != -signal.SIGKILL and not self._stopping.is_set():
                self.failures.append(status)
            if not self._again:
                break
            self._stopping.wait(AGAIN_SECONDS)
        self.finished.set()

    def _run(self) -> int:
        self.starts += 1
        with self._log.open("ab") as log:
            log.write(f"== start {self.starts} at {time.strftime('%H:%M:%S')}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        if self._stopping.is_set():
            self._process.terminate()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A process that is killed in the middle of a line leaves half of the line.
            if line.endswith("\n"):
                self._take(line)
        status = self._process.wait()
        _end_group(self._process)
        return status


def _end_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL a program and what it has started, also where only that still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
