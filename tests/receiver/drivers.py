"""Drivers as processes of their own, to be killed: each a session and a process group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Self

from proving.processes import processes_with
from tests.waiting import SECONDS, eventually

MARK = "WALLAROO_TEST_DRIVER"
"""A variable that all processes of a test's drivers have in their environment."""


class Drivers:
    """Starts ``tests/receiver/driver.py``, or another module, on one directory, one time after another; none is left
    in the end.
    """

    def __init__(self, directory: Path, module: str = "tests.receiver.driver") -> None:
        self._directory = directory
        self._module = module
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self._started:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
            assert driver.stdin is not None
            driver.stdin.close()
        # A look reads the environments of all processes.
        eventually(lambda: not self.processes(), pause=0.1)

    def start(self, port: int, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """A driver whose workers listen at ``port`` and the next one; see ``tests/receiver/driver.py``."""
        return self.launch(str(self._directory), str(port), *arguments, **variables)

    def launch(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """A driver with any arguments."""
        command = [sys.executable, "-m", self._module, *arguments]
        environment = os.environ | {MARK: self._mark} | variables
        with self._log(len(self._started)).open("wb") as log:
            driver = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._started.append(driver)
        return driver

    def go(self, driver: subprocess.Popen[bytes]) -> None:
        """Have a driver of ``tests/receiver/driver.py`` begin."""
        assert driver.stdin is not None
        driver.stdin.write(b"\n")
        driver.stdin.flush()

    def end(self, driver: subprocess.Popen[bytes]) -> None:
        """Have a driver end in good order."""
        assert driver.stdin is not None
        driver.stdin.close()
        assert driver.wait(SECONDS) == 0, self.log(driver)

    def log(self, driver: subprocess.Popen[bytes]) -> str:
        """The end of what a driver printed."""
        return self._log(self._started.index(driver)).read_text(errors="replace")[-5000:]

    def _log(self, number: int) -> Path:
        return self._directory / f"driver-{number}.log"

    def processes(self) -> list[int]:
        """The processes of all drivers, and of all that they have started; one that renames itself may be missing."""
        return processes_with(MARK, self._mark)

    def written(self) -> dict[str, list[str]]:
        """The rows of each stream that the drivers wrote, batch by batch."""
        found: dict[str, list[str]] = {}
        for path in sorted((self._directory / "rows").glob("*.json"), key=lambda path: int(path.stem)):
            for stream, _, value in json.loads(path.read_text()):
                found.setdefault(stream, []).append(value)
        return found
