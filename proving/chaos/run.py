"""One run from beginning to end: send, inject faults, wait, compare, report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from proving.chaos.faults import Blow, Hand
from proving.chaos.judge import judge, read_sink
from proving.chaos.orders import CONNECTORS, STREAMS, write_files
from proving.chaos.report import Run, draw_timeline, write_json
from proving.chaos.schedule import draw
from proving.chaos.stage import LEASE_SECONDS, Stage

LIVENESS_SECONDS = 60.0
"""Seconds after the last fault within which every reference that is not at its end must advance."""
FIRST_FAULT = 0.04
LAST_FAULT = 0.88
"""The faults lie in this part of the time of sending, so that messages are left to be sent after the last one."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a run."""

    directory: Path
    """Where everything is written."""
    seed: int
    """The seed of the files and of the schedule."""
    minutes: float
    """How long messages are sent."""
    messages: int
    """Messages of all connectors together."""
    kills: int
    """Faults that end a process."""
    patience: float = 300.0
    """Seconds allowed for acknowledgements after the last message."""
    cluster: Path | None = None
    """The state directory of a cluster to use; without it, one of its own."""


def run(
    plan: Plan,
    say: Callable[[str], None],
    progress: Callable[[str], None],
    watch: Callable[[Stage], AbstractContextManager[object]] = nullcontext,
) -> Run:
    """Carry out the plan and write ``chaos.json`` and ``chaos.png`` into its directory; ``watch`` may observe."""
    clear(plan.directory)
    connectors = write_files(plan.directory / "files", plan.messages, plan.seed)
    files = [file for _, own in connectors.values() for file in own]
    interval = 60 * plan.minutes / max(1, plan.messages // (CONNECTORS * STREAMS))
    schedule = draw(
        plan.seed, plan.kills, 60 * plan.minutes * FIRST_FAULT, 60 * plan.minutes * LAST_FAULT, LEASE_SECONDS
    )
    say(f"Starting a cluster, a Redis, a driver and {len(connectors)} connectors in {plan.directory} …")
    with Stage(plan.directory, cluster=plan.cluster) as stage, ExitStack() as watching:
        stage.await_ready()
        watching.enter_context(watch(stage))
        began = time.time()
        for instance, (revision, own) in connectors.items():
            stage.add_connector(instance, revision, began, interval, own)
        hand = Hand(stage, began)

        def idle() -> None:
            done = sum(len(acks) for acks in stage.acks.values())
            ended = sum(known.finished.is_set() for known in stage.connectors.values())
            progress(f"{time.time() - began:5.0f} s · {done} acknowledgements · {ended} connectors done")

        def tell(blow: Blow) -> None:
            say(f"{blow.time - began:6.1f} s  {blow.fault.kind}: {blow.hit or 'no victim was there'}")

        watching.callback(hand.end_stopped)
        hand.deal(schedule, tell, idle)
        complete = _await_all(stage, plan, began, idle)
        ended = time.time()
    programs = {**stage.connectors, **({"driver": stage.driver} if stage.driver else {})}
    written = read_sink(plan.directory)
    outcome = Run(
        plan.seed,
        began,
        ended,
        interval,
        {instance: own for instance, (_, own) in connectors.items()},
        dict(stage.acks),
        hand.blows,
        judge(files, written, stage.acks),
        written,
        {name: program.starts for name, program in programs.items()},
        {name: program.failures for name, program in programs.items()},
        complete,
    )
    write_json(outcome, plan.directory / "chaos.json")
    draw_timeline(outcome, plan.directory / "chaos.png")
    return outcome


def _await_all(stage: Stage, plan: Plan, began: float, idle: Callable[[], None]) -> bool:
    """Wait until every connector has received all acknowledgements; False when that takes too long."""
    until = max(time.time(), began + 60 * plan.minutes) + plan.patience
    while not all(known.finished.is_set() for known in stage.connectors.values()):
        if time.time() > until:
            return False
        idle()
        time.sleep(0.1)
    return True


def passed(outcome: Run, kills: int) -> bool:
    """Whether every promise was kept and all kills were carried out."""
    wait = outcome.to_json()["longest_wait_after_last_fault"]
    alive = wait is not None and wait <= LIVENESS_SECONDS
    return outcome.complete and outcome.verdict.clean and alive and sum(b.kills for b in outcome.blows) >= kills


def clear(directory: Path) -> None:
    """Remove the files of an earlier run and no others."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("files", "rows", "checkpoint", "cluster", "logs"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in ("chaos.json", "chaos.png", "receive.yaml", "driver.txt"):
        (directory / name).unlink(missing_ok=True)
