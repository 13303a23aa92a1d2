"""Runs simulated histories of durable streams: ``python -m proving.pipelines --seeds N``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import suppress

from proving.aqueduct.histories import count_of
from proving.pipelines.world import World
from proving.simulator.engine.core import Violation


def main() -> int:
    """Run the histories; the exit status is 0 when none broke a promise, and 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m proving.pipelines", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many histories to run (default: 200)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default: 0)")
    wanted = parser.parse_args()
    counts: Counter[str] = Counter()
    failed, done, began = [], 0, time.monotonic()
    with suppress(KeyboardInterrupt):
        for seed in range(wanted.start, wanted.start + wanted.seeds):
            world = World(seed)
            try:
                world.run()
            except Violation as violation:
                failed.append(seed)
                print(f"seed {seed}: {violation}")
            counts.update(world.counts)
            counts.update(world.judge.counts)
            counts.update(world.judge.hands.counts)
            counts["batches"] += world.batches.count
            done += 1
    print(f"{count_of(done, wanted.seeds)} in {time.monotonic() - began:.1f} s")
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    if failed:
        print(f"FAILED: {len(failed)} histories: {failed[:20]}; repeat one with --start N --seeds 1")
    return 1 if failed else 0 if done == wanted.seeds else 130


if __name__ == "__main__":
    sys.exit(main())
