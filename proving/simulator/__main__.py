"""Runs simulated histories: ``python -m proving.simulator --seeds N``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from contextlib import suppress

from proving.aqueduct.histories import count_of, run
from proving.simulator.run import Report, simulate

PROGRESS_SECONDS = 2.0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/simulate", description="Runs simulated histories and checks every promise in each."
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many histories to run (default: 200)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="run this seed alone; a failure prints its seed")
    parser.add_argument("--verbose", action="store_true", help="print every line of the history, and the product's log")
    parser.add_argument("--doors", action="store_true", help="let producers send through the workers' doors, too")
    parser.add_argument("--aqueduct", action="store_true", help="run histories of Aqueduct instead")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure and count all failures")
    return parser.parse_args()


def describe(report: Report, more: str) -> str:
    """A failure as text, with the command that repeats it."""
    return (
        f"\nseed {report.seed}: {report.violation}\n\nthe end of its history:\n{report.history}\n\n"
        f"replay it with: ./scripts/simulate --seed {report.seed}{more} --verbose\n"
    )


def main() -> int:
    """Run the histories; the exit status is 0 when none broke a promise, and 130 after Ctrl-C."""
    wanted = arguments()
    if not wanted.verbose:
        # The product warns of each misfortune, and misfortunes are the purpose of a history.
        logging.getLogger("wallaroo_spark").setLevel(logging.CRITICAL + 1)
    seeds = [wanted.seed] if wanted.seed is not None else range(wanted.start, wanted.start + wanted.seeds)
    if wanted.aqueduct:
        return run(seeds, verbose=wanted.verbose, keep_going=wanted.keep_going)
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    slowest = (0.0, 0)
    failed: list[int] = []
    began = shown = time.monotonic()
    with suppress(KeyboardInterrupt):
        for seed in seeds:
            report = simulate(seed, verbose=wanted.verbose, doors=wanted.doors)
            totals.update(seeds=1, steps=report.steps, messages=report.messages, batches=report.batches)
            totals["seconds"] += round(report.seconds)
            faults.update(report.counts)
            slowest = max(slowest, (report.recovery, seed))
            if report.violation:
                failed.append(seed)
                print(describe(report, " --doors" if wanted.doors else ""))
                if not wanted.keep_going:
                    break
            if sys.stderr.isatty() and time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                print(
                    f"\r{totals['seeds']} of {len(seeds)} histories, {totals['steps']:,} steps", end="", file=sys.stderr
                )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(
        f"{count_of(totals['seeds'], len(seeds))}, {totals['steps']:,} steps, {totals['batches']:,} batches, "
        f"{totals['messages']:,} messages, {totals['seconds']:,} simulated seconds in {time.monotonic() - began:.1f} s"
    )
    print("faults: " + ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in sorted(faults.items())))
    print(f"longest recovery: {slowest[0]:.1f} simulated seconds after the last fault (seed {slowest[1]})")
    if failed:
        print(f"FAILED: {len(failed)} histories: {', '.join(map(str, failed[:20]))}")
    return 1 if failed else 0 if totals["seeds"] == len(seeds) else 130


if __name__ == "__main__":
    sys.exit(main())
