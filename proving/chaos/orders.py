"""The files that connectors send; their lines differ in content and length."""

from __future__ import annotations

import random
from pathlib import Path

REVISIONS = ("draft-be", "draft-le", "v3")
CONNECTORS = 6
STREAMS = 2


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
