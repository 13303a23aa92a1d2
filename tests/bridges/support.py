"""Bridges as processes in front of a real worker without Spark, and what is committed of what they send."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import SECONDS, eventually
from wallaroo_spark.testing import FakeWorker

PROGRAM = [sys.executable, "-m", "wallaroo_spark.cli.main", "bridge"]


class Bridging:
    """Bridges of one source to one worker, one at a time."""

    def __init__(self, worker: FakeWorker, folder: Path, *source: str) -> None:
        self.worker = worker
        self._log = folder / "bridge.log"
        self._command = [*PROGRAM, *source, "--workers", worker.address, "--every", "0.2"]

    @property
    def output(self) -> str:
        """What the bridges have printed."""
        return self._log.read_text(encoding="utf-8")

    @contextmanager
    def running(self, number: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """A bridge; behind the block it is killed, or has ended by the signal ``number``."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            yield process
            if number:
                process.send_signal(number)
                process.wait(SECONDS)
        finally:
            process.kill()
            process.wait(SECONDS)

    def killed_before_the_commit(self, at_least: int = 1) -> None:
        """Start a bridge, and kill it when the worker has messages of it that are not committed."""
        with self.running():
            self.worker.read(at_least, SECONDS)

    @contextmanager
    def again(self, number: int = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
        """A bridge behind one that was killed: what that one had sent is committed when this one has sent again."""
        with self.running(number) as process:
            eventually(lambda: self.worker.status()["sessions"] == 1, self.output)
            with self.worker.committing():
                yield process

    def wait(self, count: int) -> None:
        """Wait until so many messages are committed."""
        eventually(lambda: len(self.worker.committed) >= count, self.output)

    def values(self) -> list[bytes]:
        """The payloads of all committed messages."""
        found: Sequence[bytes] = self.worker.committed["value"].to_pylist()
        return list(found)


def refused(bridging: Bridging) -> str:
    """The output of bridges, of which the last one ends with an error."""
    with bridging.running() as process:
        assert process.wait(SECONDS) == 1
    return bridging.output


def numbers(first: int, last: int) -> list[bytes]:
    """The texts of numbers."""
    return [b"%d" % number for number in range(first, last)]
