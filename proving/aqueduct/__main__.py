"""Runs simulated histories of Aqueduct: ``python -m proving.aqueduct --seeds N``."""

from __future__ import annotations

import argparse
import sys

from proving.aqueduct.histories import run


def main() -> int:
    """Run the histories; the exit status is 0 when none broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m proving.aqueduct", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many histories to run (default: 200)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--verbose", action="store_true", help="print every line of the histories")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure and count all failures")
    wanted = parser.parse_args()
    seeds = range(wanted.start, wanted.start + wanted.seeds)
    return run(seeds, verbose=wanted.verbose, keep_going=wanted.keep_going)


if __name__ == "__main__":
    sys.exit(main())
