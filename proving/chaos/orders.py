"""The connectors of a run, and the files that they send; their lines differ in content and length."""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from proving.chaos.judge import Acks, Verdict, Written, judge
from proving.chaos.report import Sent
from proving.chaos.schedule import Kind
from proving.chaos.stage import COLUMNS, Stage

REVISIONS = ("draft-be", "draft-le", "v3")
CONNECTORS = 6
STREAMS = 2


class Connectors:
    """The connectors, which send lines on a schedule. ``acks`` has, for each file, the acknowledgements that its
    connector saw: (seconds of the wall clock, reference).
    """

    kinds: Sequence[Kind] = tuple(Kind)
    columns: Sequence[str] = COLUMNS
    options: Mapping[str, Any] = {}

    def __init__(self, directory: Path, messages: int, minutes: float, seed: int) -> None:
        """Write the files; all messages together are sent within ``minutes``."""
        self.acks: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._files = write_files(directory, messages, seed)
        self._interval = 60 * minutes / max(1, messages // (CONNECTORS * STREAMS))
        self._began = 0.0

    def __len__(self) -> int:
        return len(self._files)

    @property
    def answers(self) -> int:
        """How many acknowledgements were seen."""
        return sum(map(len, self.acks.values()))

    def start(self, stage: Stage, began: float) -> None:
        """Start all connectors; their lines are due from ``began`` on, in seconds of the wall clock."""
        self._began = began
        for instance, (revision, files) in self._files.items():
            module = [sys.executable, "-m", "proving.chaos.connector"]
            command = [*module, instance, revision, repr(began), repr(self._interval), *map(str, files)]
            stage.add_sender(instance, command, self._acknowledged)

    def verdict(self, written: Written) -> Verdict:
        """Compare the committed rows with the files."""
        return judge([file for _, files in self._files.values() for file in files], written, self.acks)

    def sent(self) -> dict[str, list[Sent]]:
        """The lines of each connector's files."""
        line_times = partial(times, began=self._began, interval=self._interval)
        return {
            instance: [line_times(file, self.acks[str(file)]) for file in files]
            for instance, (_, files) in self._files.items()
        }

    def _acknowledged(self, line: str) -> None:
        said = json.loads(line)
        self.acks[said["file"]].append((said["time"], said["acknowledged"]))


def times(file: Path, acks: Acks, began: float, interval: float) -> Sent:
    """When each line of a file was due, and when it was acknowledged."""
    ends = np.cumsum([len(line) + 1 for line in file.read_bytes().split(b"\n")[:-1]])
    seen = np.array([*(at for at, _ in acks), np.inf])
    highest = np.maximum.accumulate([reference for _, reference in acks] or [0])
    answered = seen[np.searchsorted(highest, ends) if acks else np.full(len(ends), -1)]
    due = began + interval * np.arange(len(ends), dtype=np.float64)
    return Sent(file.name, due, answered, np.zeros(len(ends), dtype=np.bool_))


def write_files(directory: Path, messages: int, seed: int) -> dict[str, tuple[str, list[Path]]]:
    """Write ``messages`` lines, shared by all streams; revision and files by instance, two connectors a revision."""
    directory.mkdir(parents=True, exist_ok=True)
    total = CONNECTORS * STREAMS
    made: dict[str, tuple[str, list[Path]]] = {}
    for number in range(total):
        revision = REVISIONS[number % CONNECTORS % len(REVISIONS)]
        instance = f"{revision}-{1 + number % CONNECTORS // len(REVISIONS)}"
        file = directory / f"{instance}-{1 + number // CONNECTORS}.txt"
        _write(file, messages // total + (number < messages % total), random.Random(f"{seed}/{number}"))
        made.setdefault(instance, (revision, []))[1].append(file)
    return made


def _write(file: Path, count: int, dice: random.Random) -> None:
    with file.open("w", encoding="utf-8") as out:
        for number in range(1, count + 1):
            out.write(f"{file.stem} {number} {dice.getrandbits(4 * dice.randint(1, 60)):x}\n")
