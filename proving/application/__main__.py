"""``python -m proving.application``: see ``--help``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proving.application.run import ApplicationPlan, ApplicationRun, run
from proving.processes import exit_on_sigterm
from wallaroo_spark.errors import WallarooError


def plan() -> ApplicationPlan:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m proving.application",
        description="Run an application whose schema changes at random, kill its parts, and judge it by its tables and "
        "by what its clients were told.",
    )
    parser.add_argument("--minutes", type=float, default=5, metavar="M", help="time with faults (default: 5)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="decides what happens (default: 1)")
    parser.add_argument("--rate", type=float, default=1, metavar="N", help="events a second of a client (default: 1)")
    parser.add_argument("--pause", type=float, default=15, metavar="S", help="seconds between faults (default: 15)")
    parser.add_argument("--change", type=float, default=20, metavar="S", help="seconds between changes (default: 20)")
    parser.add_argument(
        "--limit", type=float, default=180, metavar="S", help="longest wait without progress at the end (default: 180)"
    )
    parser.add_argument("--cluster", action="store_true", help="a standalone cluster, whose executors are killed too")
    parser.add_argument(
        "--standby",
        action="store_true",
        help="a second driver waits to take over, and only drivers are killed; tells how long each kill was felt",
    )
    parser.add_argument("--keep-driver", action="store_true", help="do not kill the driver")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/application"),
        help="where all files are written (default: %(default)s)",
    )
    given = parser.parse_args()
    return ApplicationPlan(
        given.output.absolute(),
        given.minutes,
        given.seed,
        given.rate,
        given.pause,
        given.change,
        given.limit,
        given.cluster,
        not given.keep_driver,
        given.standby,
    )


def table(done: ApplicationRun) -> Table:
    """The figures of a run."""
    found = Table(title="The random application", box=None, title_justify="left")
    found.add_column("figure")
    found.add_column("number", justify="right")
    for name, count in sorted({**done.verdict.counts, **done.events}.items()):
        found.add_row(name, f"{count:,}")
    for pipeline, most in done.verdict.most_active.items():
        found.add_row(f"most active instances of {pipeline}", str(most))
    found.add_row("seconds until all was done behind the last fault", f"{done.rest_seconds:.0f}")
    found.add_row("seconds", f"{done.seconds:.0f}")
    return found


def main() -> None:
    """Run it, print the table, and end with 1 when a promise was broken."""
    console = Console(highlight=False, width=160)
    exit_on_sigterm()
    began = time.monotonic()
    chosen = plan()
    try:
        done = run(
            chosen,
            lambda text: console.print(f"{time.monotonic() - began:6.1f} s  {text}", markup=False, soft_wrap=True),
        )
    except WallarooError as error:
        sys.exit(f"The application cannot run: {error} The logs are in {chosen.output}.")
    console.print(table(done))
    for wait in done.waits:
        console.print(
            f"A driver was killed with{'' if wait.standby else 'out'} a standby: {wait.serving} s until a gateway "
            f"listened, {wait.commit} s to the next commit."
        )
    for sentence in done.verdict.broken[:50]:
        console.print(f"BROKEN: {sentence}", markup=False, style="red")
    for end in done.ends:
        console.print(f"ended without a kill: {end}", markup=False, style="red")
    console.print("Every promise was kept." if done.passed else "A promise was broken.")
    sys.exit(0 if done.passed else 1)


if __name__ == "__main__":
    main()
