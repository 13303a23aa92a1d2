"""A server process that ends when the test run that started it ends."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

# The shell holds one end of a pipe and this process the other: `read` returns when this process closes it or dies.
_GUARD = """
signal=$1
shift
"$@" &
read -r _
kill -s "$signal" $! 2>/dev/null
wait $!
"""
# Popen's own `user` forks this process, and a child of one with gRPC's threads may hang before it begins the program.
_AS_USER = "import os, sys; os.setuid(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
START_SECONDS = 120.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.05


class ServerFailed(Exception):
    """A server ended, or did not answer in time; the message has the end of its log."""


class Guarded:
    """A child process with a directory of its own; ``stop`` and the end of this process end it with ``signal``.

    ``unprivileged`` is for servers that refuse to run as root: they run as ``nobody``, which then owns the directory.
    """

    def __init__(self, name: str, signal: str = "KILL", *, unprivileged: bool = False) -> None:
        self._signal = signal
        self._process: subprocess.Popen[bytes] | None = None
        self.user = "nobody" if unprivileged and os.getuid() == 0 else None
        # Not below pytest's directory, because other users cannot enter that.
        self.directory = Path(tempfile.mkdtemp(prefix=f"wallaroo-{name}-"))
        self._as_user: list[str] = []
        if self.user is not None:
            number = pwd.getpwnam(self.user).pw_uid
            os.chown(self.directory, number, -1)
            self._as_user = [sys.executable, "-I", "-S", "-c", _AS_USER, str(number)]

    def may_enter(self, folder: Path) -> bool:
        """Whether the server's user may enter a folder."""
        return self.user is None or all(one.stat().st_mode & stat.S_IXOTH for one in (folder, *folder.parents))

    @property
    def pid(self) -> int:
        """The process above the server's; only while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """The file with the server's output."""
        return self.directory / "server.log"

    def run(self, command: Sequence[str]) -> None:
        """Run a command that prepares the server. Raises :class:`ServerFailed` with its output when it fails."""
        done = subprocess.run(
            [*self._as_user, *command],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )
        if done.returncode:
            raise ServerFailed(f"{command[0]}: {done.stderr or done.stdout}")

    def start(self, command: Sequence[str], answers: Callable[[], bool]) -> None:
        """Start the server and wait until it ``answers``. Raises :class:`ServerFailed` when it ends or is too late."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user, "/bin/sh", "-c", _GUARD, "wallaroo-server", self._signal, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        shell, begun = psutil.Process(self._process.pid), False
        while not answers():
            # A server that has ended stays a zombie below the shell, because the shell waits in `read`.
            children = shell.children()
            begun = begun or bool(children)
            ended = begun and all(child.status() == psutil.STATUS_ZOMBIE for child in children)
            if ended or time.monotonic() > deadline:
                self.stop()
                why = "ended" if ended else f"did not answer in {START_SECONDS:g} s"
                raise ServerFailed(f"{command[0]} {why}: {self._last_lines()}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End the server; its directory stays."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()

    def remove(self) -> None:
        """End the server and remove its directory."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class GuardedServer(ABC):
    """A server of one program: its subclass sets the guard and the command, and tells when it answers."""

    _guard: Guarded
    _command: list[str]

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._guard.start(self._command, self._answers)

    def stop(self) -> None:
        """End it with the signal of its guard; its files stay."""
        self._guard.stop()

    def remove(self) -> None:
        """End it and remove its files."""
        self._guard.remove()

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it serves already."""
