"""Runs histories one after the other, prints what came of them, and makes those that fail smaller."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from proving.aqueduct.world import Report, World, simulate

PROGRESS_SECONDS = 2.0
SIMPLER: dict[str, tuple[Any, ...]] = {
    "actions": (1, 2, 4, 8, 12, 20, 40, 80),
    "cut": (None,),
    "closes": (None,),
    "loss": (0.0,),
    "doubling": (0.0,),
    "late": (0.0,),
    "early": (False,),
    "asks": (False,),
    "unreliable": (0.0,),
    "attaches": (0.0, 0.2),
}
"""What is tried for each property, the simplest first."""


def shrink(failed: Report) -> tuple[Report, dict[str, Any]]:
    """The history of the same seed with the simplest profile with which it still fails, and what was changed."""
    changes: dict[str, Any] = {}
    profile = World(failed.seed).profile
    again = True
    while again:
        again = False
        for name, values in SIMPLER.items():
            now = changes.get(name, getattr(profile, name))
            for value in values[: values.index(now) if now in values else None]:
                report = simulate(failed.seed, **{**changes, name: value})
                if report.violation and report.steps <= failed.steps:
                    failed, changes[name], again = report, value, True
                    break
    return failed, changes


def describe(report: Report) -> str:
    """A failure as text, with a smaller history of its seed and the commands that repeat both."""
    smaller, changes = shrink(report)
    given = "".join(f", {name}={value}" for name, value in changes.items())
    return (
        f"\nseed {report.seed}: {report.violation}\n\nthe end of its history:\n{report.history}\n\n"
        f"replay it with: ./scripts/simulate --aqueduct --seed {report.seed} --verbose\n"
        f"\na smaller history of {smaller.steps} steps instead of {report.steps}: {smaller.violation}\n\n"
        f"{smaller.history}\n\nreplay it with: python -c 'from proving.aqueduct.world import simulate; "
        f"simulate({report.seed}, verbose=True{given})'\n"
    )


def count_of(done: int, wanted: int) -> str:
    """The number of histories that were run, and of those that were wanted, where the run ended before these."""
    return f"{done} histories" if done == wanted else f"{done} of {wanted} histories"


def run(seeds: Sequence[int], *, verbose: bool, keep_going: bool) -> int:
    """Run the histories of the seeds; the exit status is 0 when none broke a promise, and 130 after Ctrl-C."""
    counts: Counter[str] = Counter()
    failed: list[int] = []
    done = steps = 0
    began = shown = time.monotonic()
    with suppress(KeyboardInterrupt):
        for seed in seeds:
            report = simulate(seed, verbose=verbose)
            counts.update(report.counts)
            done, steps = done + 1, steps + report.steps
            if report.violation:
                failed.append(seed)
                print(describe(report))
                if not keep_going:
                    break
            if sys.stderr.isatty() and time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                print(f"\r{done} of {len(seeds)} histories, {steps:,} steps", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{count_of(done, len(seeds))}, {steps:,} steps in {time.monotonic() - began:.1f} s")
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    if failed:
        print(f"FAILED: {len(failed)} histories: {', '.join(map(str, failed[:20]))}")
    return 1 if failed else 0 if done == len(seeds) else 130
