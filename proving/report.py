"""Everything that the fault report rests on, run again: ``./scripts/report``.

The parts are those of ``docs/reliability/report.md``, one after the other, each with its own verdict.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OUTPUT = Path("build/report")


@dataclass(frozen=True)
class Part:
    """One way in which the product is tried. ``{minutes}`` and ``{seed}`` of the command are the report's."""

    name: str
    tries: str
    command: str
    per_minute: int = 0
    """Simulated histories that two cores manage in a minute; they take the place of ``{seeds}``."""

    def words(self, minutes: int, seed: int) -> list[str]:
        """The command, as the words of a program."""
        given = {"minutes": minutes, "seed": seed, "seeds": self.per_minute * minutes}
        return [sys.executable, "-m", *shlex.split(self.command.format(**given))]


PARTS = (
    Part("histories", "receivers in simulated time", "proving.simulator --seeds {seeds} --start {seed}", 300),
    Part("doors", "with clients of doors", "proving.simulator --doors --seeds {seeds} --start {seed}", 120),
    Part("channels", "channels over QUIC", "proving.simulator --aqueduct --seeds {seeds} --start {seed}", 400),
    Part("pipelines", "durable streams", "proving.pipelines --seeds {seeds} --start {seed}", 120),
    Part("deaths", "a death at each step of a message", "pytest -q tests/crash"),
    Part("networks", "networks that fail", "pytest -q tests/network"),
    Part("power", "power cuts of a mounted disk", "pytest -q -rs tests/storage -k power"),
    Part("chaos", "real deaths on a cluster", "proving.chaos --minutes {minutes} --seed {seed}"),
    Part(
        "application", "the same of durable streams", "proving.application --cluster --minutes {minutes} --seed {seed}"
    ),
    Part("clients", "real deaths beside clients of doors", "proving.chaos --doors --minutes {minutes} --seed {seed}"),
)
HEAD = "| part | what is tried | command | result | took | its last line |\n|---|---|---|---|---|---|\n"


def run(part: Part, minutes: int, seed: int) -> tuple[bool, str]:
    """Run a part, with its output in a file; whether it has kept its promises, and its row of the table."""
    words = part.words(minutes, seed)
    log = OUTPUT / f"{part.name}.log"
    begun = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        ended = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, check=False)
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    took = time.monotonic() - begun
    kept = ended.returncode == 0
    result = "kept" if kept else f"BROKEN (exit status {ended.returncode})"
    last = textwrap.shorten((lines[-1] if lines else "").replace("|", "/"), 160, placeholder=" …")
    return kept, f"| {part.name} | {part.tries} | `{shlex.join(words[2:])}` | {result} | {took:.0f} s | {last} |\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; 0 when all of them have kept their promises."""
    parser = argparse.ArgumentParser(
        prog="scripts/report",
        description="Run what the fault report rests on: simulated histories, deaths, networks, power cuts and chaos.",
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--minutes", type=int, default=10, metavar="M", help="how long a part is run (default: 10)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="decides all that is random (default: 1)")
    parser.add_argument("--only", default=",".join(names), metavar="A,B", help=f"some of {', '.join(names)}")
    given = parser.parse_args(arguments)
    chosen = given.only.split(",")
    if given.minutes < 1:
        parser.error(f"--minutes is {given.minutes}; it is 1 or more")
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"--only: there is no part {unknown[0]!r}; they are {', '.join(names)}")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    where = f"{platform.platform()}, Python {platform.python_version()}"
    page = f"# Faults, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {where}\n\n{HEAD}"
    all_kept = True
    for part in PARTS:
        if part.name in chosen:
            print(f"{part.name}: {part.tries} …", flush=True)
            kept, row = run(part, given.minutes, given.seed)
            all_kept, page = all_kept and kept, page + row
            (OUTPUT / "report.md").write_text(page, encoding="utf-8")
            print(row, end="", flush=True)
    print(f"{OUTPUT}/report.md has the table, and beside it lies the output of each part.")
    return 0 if all_kept else 1


if __name__ == "__main__":
    sys.exit(main())
