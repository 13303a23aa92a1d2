"""Runs histories one after the other, and prints what came of them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from proving.aqueduct.shrinking import shrink
from proving.aqueduct.world import Report, simulate

PROGRESS_SECONDS = 2.0


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


def run(seeds: Sequence[int], *, verbose: bool, keep_going: bool) -> int:
    """Run the histories of the seeds; the exit status is 0 when none broke a promise."""
    counts: Counter[str] = Counter()
    failed: list[int] = []
    done = steps = 0
    began = shown = time.monotonic()
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
    print(f"{done} histories, {steps:,} steps in {time.monotonic() - began:.1f} s")
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    if failed:
        print(f"FAILED: {len(failed)} histories: {', '.join(map(str, failed[:20]))}")
    return 1 if failed else 0
