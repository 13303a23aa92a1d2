"""``python -m proving.chaos.soak``: a steady rate for some minutes, in which memory must not grow."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from proving.chaos.judge import Verdict, read_sink
from proving.chaos.memory import Growth, Sampler, draw_memory, growths, is_java
from proving.chaos.orders import CONNECTORS, STREAMS, Connectors
from proving.chaos.run import clear
from proving.chaos.stage import QUICK_JAVA, Stage
from proving.processes import exit_on_sigterm
from proving.reporting import reporting

WARM_UP = 0.4
"""The first part of the run, which is not judged: imports, pools, the first batches and Java's compiler use memory."""
PATIENCE_SECONDS = 120.0
PYTHON_LIMIT = 0.5
"""MiB a minute that a Python process or Redis may grow after warm-up: one step of a heap in a run of minutes."""
JAVA_LIMIT = 8.0
"""The same for Java. Its heap is touched completely at the start, so only memory outside of it grows."""
SETTINGS = {
    "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Xms1g -XX:+AlwaysPreTouch",
    "spark.executor.extraJavaOptions": f"{QUICK_JAVA} -Xms768m -XX:+AlwaysPreTouch",
}


def limit(growth: Growth) -> float:
    """MiB a minute that a process may grow."""
    return JAVA_LIMIT if is_java(growth.role) else PYTHON_LIMIT


def soak(
    directory: Path,
    minutes: float,
    rate: int,
    say: Callable[[str], None],
    progress: Callable[[str], None],
    *,
    cluster: Path | None = None,
) -> tuple[Verdict, list[Growth]]:
    """Send ``rate`` messages a second for ``minutes``; writes ``soak.json`` and ``soak.png``.

    ``cluster`` is the state directory of a cluster to use; without it, the run starts its own.
    """
    clear(directory)
    messages = max(CONNECTORS * STREAMS, int(60 * minutes * rate))
    connectors = Connectors(directory / "files", messages, minutes, 0)
    say(f"Starting a cluster, a Redis, a driver and {len(connectors)} connectors in {directory} …")
    with Stage(directory, settings=SETTINGS, cluster=cluster) as stage:
        stage.await_ready()
        with Sampler(stage) as sampler:
            began = time.time()
            connectors.start(stage, began)
            while time.time() < began + 60 * minutes:
                time.sleep(0.2)
                progress(f"{time.time() - began:5.0f} s · {connectors.answers} acknowledgements")
        until = time.time() + PATIENCE_SECONDS
        while time.time() < until and not stage.all_ended:
            time.sleep(0.2)
    verdict = connectors.verdict(read_sink(directory))
    judged = growths(sampler.series, 60 * minutes * WARM_UP, 60 * minutes)
    report = {
        "minutes": minutes,
        "messages_per_second": rate,
        "counts": asdict(verdict),
        "limits_in_MiB_a_minute": {"Python and Redis": PYTHON_LIMIT, "Java": JAVA_LIMIT},
        "processes": [asdict(growth) for growth in judged],
        "samples_of_workers": [asdict(one) for one in sampler.series.values() if one.role.startswith("worker of")],
    }
    (directory / "soak.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    title = f"{messages:,} messages at {rate}/s: growth after warm-up (limits: {PYTHON_LIMIT:g}, Java {JAVA_LIMIT:g})"
    draw_memory(sampler.series, judged, 60 * minutes * WARM_UP, title, directory / "soak.png")
    return verdict, judged


def main() -> int:
    """0 when no process grew faster than its limit, and the committed rows are the sent lines."""
    parser = argparse.ArgumentParser(prog="soak", description="Send at a steady rate and check that no process grows.")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="how long to send (default: 10)")
    parser.add_argument("--rate", type=int, default=1000, metavar="N", help="messages a second (default: 1000)")
    parser.add_argument(
        "--output", type=Path, default=Path("build/soak"), help="where all files are written (default: %(default)s)"
    )
    given = parser.parse_args()
    if given.minutes <= 0 or given.rate <= 0:
        parser.error("--minutes and --rate must be above 0")
    directory = given.output.absolute()
    with reporting() as (say, progress):
        verdict, judged = soak(directory, given.minutes, given.rate, say, progress)
        for growth in judged:
            mark = "above its limit" if growth.slope > limit(growth) else "within its limit"
            size = f"{growth.first:7.1f} → {growth.last:7.1f} MiB"
            say(f"  {growth.role:<36} {size}  {growth.slope:+7.2f} MiB/min  {mark}")
        for line in verdict.lines:
            say(f"  {line}")
        say(f"Figures and picture: {directory}/soak.json, {directory}/soak.png")
    good = verdict.clean and bool(judged) and all(growth.slope <= limit(growth) for growth in judged)
    print("PASSED" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
