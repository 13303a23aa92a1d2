"""``python -m proving.shop``: see ``--help``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proving.processes import exit_on_sigterm
from proving.shop.judge import MAX_PARALLEL
from proving.shop.run import ShopPlan, ShopRun, run
from wallaroo_spark.errors import WallarooError


def plan() -> ShopPlan:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="shop",
        description="Run the shop of examples/shop, kill its parts at random, and judge it by its history.",
    )
    parser.add_argument("--orders", type=int, default=200, metavar="N", help="orders to publish (default: 200)")
    parser.add_argument("--kills", type=int, default=8, metavar="K", help="processes to kill (default: 8)")
    parser.add_argument("--pause", type=float, default=8, metavar="S", help="seconds between kills (default: 8)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="decides what is killed (default: 1)")
    parser.add_argument(
        "--limit", type=float, default=300, metavar="S", help="longest wait without progress at the end (default: 300)"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="worker programs in Python (default: 2)")
    parser.add_argument("--no-javascript", action="store_true", help="ship in Python alone; without npm this is so")
    parser.add_argument("--local", action="store_true", help="Spark in one process, without executors to kill")
    parser.add_argument("--keep-driver", action="store_true", help="do not kill the driver")
    parser.add_argument(
        "--output", type=Path, default=Path("build/shop"), help="where all files are written (default: %(default)s)"
    )
    given = parser.parse_args()
    if given.orders < 1 or given.kills < 0 or given.workers < 1:
        parser.error("--orders and --workers must be at least 1, --kills at least 0")
    return ShopPlan(
        given.output.absolute(),
        given.orders,
        given.kills,
        given.seed,
        given.pause,
        given.limit,
        given.workers,
        not given.no_javascript,
        not given.local,
        not given.keep_driver,
    )


def table(done: ShopRun) -> Table:
    """The figures of a run."""
    found = Table(title="The shop", box=None, title_justify="left")
    found.add_column("figure")
    found.add_column("number", justify="right")
    for name, count in sorted(done.verdict.counts.items()):
        found.add_row(name, f"{count:,}")
    for pipeline, most in done.verdict.most_active.items():
        found.add_row(f"most active instances of {pipeline} (limit {MAX_PARALLEL[pipeline]})", str(most))
    for kind, count in sorted(done.kills.items()):
        found.add_row(f"kills: {kind}", str(count))
    found.add_row("seconds", f"{done.seconds:.0f}")
    return found


def main() -> None:
    """Run it, print the table, and end with 1 when a promise was broken."""
    console = Console(highlight=False)
    exit_on_sigterm()
    began = time.monotonic()
    chosen = plan()
    # The client warns of gateways that do not answer, and their deaths are the purpose of a run.
    logging.getLogger("wallaroo_spark").setLevel(logging.ERROR)
    try:
        done = run(
            chosen,
            lambda text: console.print(f"{time.monotonic() - began:6.1f} s  {text}", markup=False, soft_wrap=True),
        )
    except KeyboardInterrupt:
        console.print("Interrupted; every program of the shop has ended. There is no verdict.")
        sys.exit(130)
    except WallarooError as error:
        sys.exit(f"The shop cannot run: {error} The logs are in {chosen.output}.")
    console.print(table(done))
    for sentence in done.verdict.broken:
        console.print(f"BROKEN: {sentence}", markup=False, style="red")
    for end in done.ends:
        console.print(f"ended without a kill: {end}", markup=False, style="red")
    if not done.complete:
        console.print(f"not every order has ended, and nothing was done for {chosen.limit:g} s", style="red")
    console.print("Every promise was kept." if done.passed else "A promise was broken.")
    sys.exit(0 if done.passed else 1)


if __name__ == "__main__":
    main()
