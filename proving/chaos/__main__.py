"""``python -m proving.chaos``: see ``--help``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from proving.chaos.report import Run
from proving.chaos.run import LIVENESS_SECONDS, Plan, passed, run
from proving.processes import exit_on_sigterm
from proving.reporting import reporting


def arguments() -> tuple[Plan, argparse.Namespace]:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="chaos",
        description="Kill each part of a real installation, then compare the committed rows with the sent lines.",
    )
    parser.add_argument(
        "--minutes", type=float, default=3.0, metavar="M", help="how long messages are sent (default: 3)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="the seed that decides the schedule (default: 1)"
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=0,
        metavar="N",
        help="messages of all senders together (default: 60,000 a minute, with --doors 6,000)",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=0,
        metavar="K",
        help="faults that end a process (default: 2.5 a minute, with --doors 1)",
    )
    parser.add_argument(
        "--doors",
        action="store_true",
        help="send with the clients of doors in place of connectors, and kill workers, executors and the driver",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        help="a second driver waits to take over, and only drivers are killed; tells how long each kill was felt",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/chaos"), help="where all files are written (default: %(default)s)"
    )
    given = parser.parse_args()
    if given.minutes <= 0 or given.messages < 0 or given.kills < 0:
        parser.error("--minutes must be above 0, --messages and --kills at least 0")
    messages = given.messages or int((6_000 if given.doors else 60_000) * given.minutes)
    kills = given.kills or max(1, int((1.0 if given.doors else 2.5) * given.minutes))
    modes = {"doors": given.doors, "standby": given.standby}
    return Plan(given.output.absolute(), given.seed, given.minutes, messages, kills, **modes), given


def summary(outcome: Run, directory: Path) -> str:
    """The result of a run in a few lines."""
    figures = outcome.to_json()
    counts = "\n".join(f"  {line}" for line in outcome.verdict.lines)
    wait = figures["longest_wait_after_last_fault"]
    advance = "not every reference advanced" if wait is None else f"every reference advanced within {wait:.1f} s"
    ends = figures["ends_that_no_kill_explains"]
    felt = "".join(
        f"A driver was killed with{'' if one.standby else 'out'} a standby: {one.commit:.1f} s to the next commit, "
        f"{one.answer:.1f} s to the next answer.\n"
        for one in outcome.driver_waits()
    )
    return (
        f"{counts}\n{felt}"
        f"{figures['kills']} kills in {figures['seconds']:.0f} s, {figures['batches']} batches; after the last fault "
        f"{advance} (limit {LIVENESS_SECONDS:.0f} s).\n"
        + (f"Programs that ended without a kill: {ends}\n" if ends else "")
        + ("" if outcome.complete else "Not everything was acknowledged in time.\n")
        + f"Figures and timeline: {directory}/chaos.json, {directory}/chaos.png"
    )


def main() -> int:
    """0 when no line was lost, repeated, disordered, altered or acknowledged early, and all streams went on in time."""
    plan, _ = arguments()
    with reporting() as (say, progress):
        outcome = run(plan, say, progress)
        say(summary(outcome, plan.directory))
    good = passed(outcome, plan.kills)
    print("PASSED" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
