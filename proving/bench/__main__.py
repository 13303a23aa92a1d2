"""``python -m proving.bench``: see ``--help``."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proving.bench.results.goals import goals_of
from proving.bench.results.page import PAGES, refresh
from proving.bench.results.pictures import draw_all
from proving.bench.results.report import text
from proving.bench.sections import active, decode, sdk
from proving.bench.stage import QUICK, Context, Lengths
from proving.processes import exit_on_sigterm
from proving.reporting import reporting

# Memory comes before the sections that make a worker large, because Spark reuses its Python processes.
SECTIONS = (
    "decode",
    "active",
    "sdk",
    "memory",
    "e2e",
    "latency",
    "fanin",
    "credits",
    "sessions",
    "leaving",
    "plans",
    "fleet",
    "durable",
    "channels",
    "kafka",
    "doors",
)
UNLESS_ASKED = ("kafka", "doors")
"""Sections that run only when they are named, because they download much from package registries."""
REPETITIONS = 5
SHARE_OF_CAPACITY = 0.25
"""The rate in the fan-in section, as a fraction of the measured capacity."""
FALLBACK_RATE = 400_000.0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure the speed of each part and write one report.")
    chosen = ",".join(name for name in SECTIONS if name not in UNLESS_ASKED)
    parser.add_argument(
        "--only", default=chosen, metavar="A,B", help="sections, also kafka, doors (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="a shorter run with less exact figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the figures (default: OUTPUT/bench.json)")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="where all files are written (default: %(default)s)"
    )
    parser.add_argument(
        "--from",
        dest="earlier",
        type=Path,
        metavar="FILE",
        help="measure nothing; write tables and pictures of an earlier run's bench.json",
    )
    parser.add_argument("--page", action="store_true", help="refresh the pages of docs/ with its figures, too")
    parser.add_argument("--rate", type=float, default=0.0, help="capacity in msg/s to assume when e2e is left out")
    parser.add_argument("--messages", type=int, default=0, help="messages of a decoding (default: 65,536)")
    given = parser.parse_args()
    given.sections = [name.strip() for name in given.only.split(",") if name.strip()]
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: the sections are {', '.join(SECTIONS)}")
    return given


def capacity(results: dict[str, Any], given: float) -> float:
    """Messages a second of 100 B into noop, as this run measured it."""
    if given:
        return given
    cases = results.get("e2e", {}).get("cases", ())
    return next((one["run"]["messages_per_second"]["median"] for one in cases), FALLBACK_RATE)


def sections(context: Context, given: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The function of each section; sections that need Spark import it when they run."""
    lengths, results = context.lengths, context.results

    def end_to_end() -> Any:
        from proving.bench.sections.endtoend import end_to_end

        return end_to_end(context)

    def latency() -> Any:
        from proving.bench.sections.endtoend import latency

        return latency(context, capacity(results, given.rate))

    def fan_in() -> Any:
        from proving.bench.sections.growth import fan_in

        return fan_in(context, SHARE_OF_CAPACITY * capacity(results, given.rate))

    def memory() -> Any:
        from proving.bench.sections.growth import held

        return held(context)

    def credits() -> Any:
        from proving.bench.sections.credits import measure

        return measure(context)

    def sessions() -> Any:
        from proving.bench.sections.sessions import measure

        return measure(context)

    def leaving() -> Any:
        from proving.bench.sections.leaving import leaving

        return leaving(context)

    def plans() -> Any:
        from proving.bench.sections.plans import measure

        return measure(context.progress, context.lengths.known)

    def fleet() -> Any:
        from proving.bench.sections.fleet import measure

        return measure(REPETITIONS, context.progress)

    def durable() -> Any:
        from proving.bench.durable.cases import measure

        return measure(context)

    def channels() -> Any:
        from proving.bench.channels.cases import measure

        return measure(context)

    def kafka() -> Any:
        from proving.bench.sections.kafka import measure

        return measure(context)

    def doors() -> Any:
        from proving.bench.doors.cases import measure

        return measure(context)

    return {
        "decode": lambda: decode.measure(given.messages or lengths.messages, REPETITIONS, context.progress),
        "active": lambda: active.measure(context.progress, given.messages or 100_000),
        "sdk": lambda: sdk.measure(context.directory, lengths.sdk_messages, REPETITIONS, context.progress),
        "e2e": end_to_end,
        "latency": latency,
        "fanin": fan_in,
        "memory": memory,
        "credits": credits,
        "sessions": sessions,
        "leaving": leaving,
        "plans": plans,
        "fleet": fleet,
        "durable": durable,
        "channels": channels,
        "kafka": kafka,
        "doors": doors,
    }


def run(context: Context, given: argparse.Namespace, write: Callable[[], None]) -> None:
    """Run the sections in order; a failed section is reported, and the others go on."""
    work = sections(context, given)
    try:
        for name in SECTIONS:
            if name not in given.sections:
                continue
            began = time.monotonic()
            try:
                context.results[name] = work[name]()
            except Exception as error:
                traceback.print_exc()
                context.results[name] = {"error": f"{type(error).__name__}: {error}"}
            context.results[name]["took_seconds"] = round(time.monotonic() - began, 1)
            context.say(f"{name}: {time.monotonic() - began:.0f} s")
            write()
    finally:
        context.close()


def machine() -> dict[str, Any]:
    """The machine and the time of a run."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def tidy(value: Any) -> Any:
    """A value for JSON: without NaN, and floats rounded to their significant digits."""
    if isinstance(value, float):
        return None if math.isnan(value) or math.isinf(value) else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: tidy(one) for key, one in value.items()}
    return [tidy(one) for one in value] if isinstance(value, list | tuple) else value


def show(found: dict[str, Any], directory: Path, page: bool, say: Callable[[str], None]) -> None:
    """Write the tables and pictures of a run, and the pages when asked for; print the tables."""
    directory.mkdir(parents=True, exist_ok=True)
    report = text(found["sections"])
    (directory / "bench.md").write_text(report + "\n", encoding="utf-8")
    pictures = draw_all(found["sections"], directory / "pictures")
    say(report)
    say(f"Tables: {directory}/bench.md; {len(pictures)} pictures: {directory}/pictures")
    if page:
        refresh(found)
        say(f"Pages: {', '.join(map(str, PAGES))}")


def main() -> int:
    """0 when it ran to its end; a bench measures and asserts nothing."""
    given = arguments()
    directory = given.output.absolute()
    if given.earlier is not None:
        show(json.loads(given.earlier.read_text(encoding="utf-8")), directory, given.page, print)
        return 0
    shutil.rmtree(directory / "work", ignore_errors=True)
    (directory / "work").mkdir(parents=True)
    before, began = machine(), time.monotonic()
    with reporting() as (say, progress):
        context = Context(directory / "work", QUICK if given.quick else Lengths(), say, progress)
        file = given.json or directory / "bench.json"

        def write() -> None:
            """Write the figures so far, so that an interrupted run leaves them."""
            found = {
                "command": " ".join(["./scripts/bench", *sys.argv[1:]]),
                "machine": {**before, "load_average_after": os.getloadavg()},
                "seconds": time.monotonic() - began,
                "goals": goals_of(context.results),
                "sections": context.results,
            }
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(tidy(found)) + "\n", encoding="utf-8")

        run(context, given, write)
        show(json.loads(file.read_text(encoding="utf-8")), directory, given.page, say)
        say(f"{time.monotonic() - began:.0f} s. Figures: {file}")
    shutil.rmtree(directory / "work", ignore_errors=True)
    return 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
