"""The processes of the shop's demo: the application, its workers, and how each of them is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from proving.processes import command_of, descendants, listeners

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "shop"
VERB = str(Path(sys.executable).with_name("wallaroo-spark"))


class Program:
    """A program with its log, that is started again after a kill."""

    def __init__(self, name: str, command: Iterable[str], log: Path, cwd: Path = ROOT) -> None:
        self.name = name
        self._command = list(command)
        self._log = log
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it, in a session of its own."""
        own = {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment = {**os.environ, **own}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._cwd, env=environment, start_new_session=True
            )

    def kill(self) -> None:
        """Kill it and all processes that it has started."""
        if self._process is not None:
            kill([*descendants(self.pid), self.pid])
            self._process.wait()

    def stop(self, seconds: float) -> int:
        """Let it end by SIGTERM, kill it when it does not, and return its exit status."""
        if self._process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        self.kill()
        return self._process.wait()


def kill(pids: Iterable[int]) -> bool:
    """Kill processes; False when there was none."""
    done = False
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            done = True
    return done


def kill_gateway(port: int, among: Iterable[int]) -> bool:
    """Kill the Python process of a gateway, a descendant of some processes; False when none listens on the port."""
    below = [pid for top in among for pid in descendants(top) if "java" not in command_of(pid).partition(" ")[0]]
    return kill(listeners(port, below))


def kill_executor(pids: Iterable[int]) -> bool:
    """Kill one executor among the descendants of some processes; False when there is none."""
    executors = [
        below for pid in pids for below in descendants(pid) if "CoarseGrainedExecutorBackend" in command_of(below)
    ]
    return kill(executors[:1])


def listens(port: int) -> bool:
    """Whether something listens on a port of the loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def cluster(state: Path, *arguments: str) -> str:
    """Start or stop a standalone cluster, whose state is in a folder; returns the address of its master."""
    command = [sys.executable, str(ROOT / "scripts" / "cluster.py"), "--state", str(state), *arguments]
    # After Ctrl-C it removes what it has started, so it is waited for and not killed, as subprocess.run would do.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=300)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    return said.strip()


def pids_of(state: object) -> list[int]:
    """The process ids in the state of a cluster."""
    if isinstance(state, dict):
        own = [state["pid"]] if isinstance(state.get("pid"), int) else []
        return own + [pid for value in state.values() for pid in pids_of(value)]
    return [pid for value in state for pid in pids_of(value)] if isinstance(state, list) else []
