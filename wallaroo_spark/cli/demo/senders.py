"""The demo's connector processes, and the progress that each of them reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wallaroo_spark.cli.demo.connector import COOKIE_VARIABLE, REGISTRY_VARIABLE

CONNECTORS = 4
_REVISIONS = ("draft-be", "draft-le", "v3", "draft-be")
_STOP_SECONDS = 5.0


@dataclass
class Sender:
    """One connector process and its progress."""

    instance: str
    """The connector's instance name."""
    revision: str
    """The revision of the protocol that it speaks."""
    files: list[str]
    """The paths of its files, which are also the names of its streams."""
    process: subprocess.Popen[str] | None = None
    """The process; None before it is started."""
    messages: dict[str, int] = field(default_factory=dict)
    """Messages sent, by file."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    """The last acknowledged reference (a byte offset), by file."""
    finished: bool = False
    """Whether the process has ended."""

    @property
    def sent(self) -> int:
        """Messages sent so far, each counted once."""
        return sum(self.messages.values())

    def take(self, line: str) -> None:
        """Record a line of progress from the connector."""
        report = json.loads(line)
        self.messages[report["file"]] = report["messages"]
        if report["acknowledged"] is not None:
            self.acknowledged[report["file"]] = report["acknowledged"]


def plan_senders(files: Sequence[Path], names: Sequence[str] | None = None) -> list[Sender]:
    """Distribute the files over four connectors. ``names`` are their instance names, if there are any."""
    groups = [[str(path) for path in files[number::CONNECTORS]] for number in range(CONNECTORS)]
    return [
        Sender(names[number] if names else f"connector-{number + 1}", _REVISIONS[number], group)
        for number, group in enumerate(groups)
        if group
    ]


class Senders:
    """The running connectors; a context manager that leaves none behind."""

    def __init__(self, senders: list[Sender], registry: str, cookie: str, log: Path) -> None:
        self.senders = senders
        self._environment = {**os.environ, REGISTRY_VARIABLE: registry, COOKIE_VARIABLE: cookie}
        self._log_path = log

    def __enter__(self) -> Senders:
        with self._log_path.open("a") as log:
            for sender in self.senders:
                command = [sys.executable, "-m", connector_module(), sender.instance, sender.revision, *sender.files]
                sender.process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
                )
                threading.Thread(target=self._listen, args=(sender,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self.senders:
            if sender.process is not None and sender.process.poll() is None:
                sender.process.terminate()
        for sender in self.senders:
            if sender.process is not None:
                try:
                    sender.process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    sender.process.kill()

    def _listen(self, sender: Sender) -> None:
        assert sender.process is not None
        assert sender.process.stdout is not None
        for line in sender.process.stdout:
            sender.take(line)
        sender.process.wait()
        sender.finished = True

    @property
    def finished(self) -> bool:
        """Whether all have ended."""
        return all(sender.finished for sender in self.senders)

    def failed(self) -> list[str]:
        """The instances whose process ended with an error."""
        return [s.instance for s in self.senders if s.finished and s.process is not None and s.process.returncode]


def connector_module() -> str:
    """The module that a connector process runs."""
    return "wallaroo_spark.cli.demo.connector"
