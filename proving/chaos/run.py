"""One run from beginning to end: send, inject faults, wait, compare, report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from proving.chaos.doors.producers import Producers
from proving.chaos.faults import Blow, Hand
from proving.chaos.judge import Written, read_sink
from proving.chaos.orders import Connectors
from proving.chaos.report import Found, Run, Sent, draw_timeline, write_json
from proving.chaos.schedule import Kind, draw
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
    """Messages of all senders together."""
    kills: int
    """Faults that end a process."""
    patience: float = 300.0
    """Seconds allowed for acknowledgements after the last message."""
    cluster: Path | None = None
    """The state directory of a cluster to use; without it, one of its own."""
    doors: bool = False
    """Whether the clients of doors send, in place of connectors."""
    standby: bool = False
    """Whether a second driver waits to take over, and only drivers are killed."""


class Senders(Protocol):
    """The programs that send in a run, and the judge of what they have sent."""

    @property
    def kinds(self) -> Sequence[Kind]:
        """The faults that are drawn."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of rows that the judge reads."""

    @property
    def options(self) -> Mapping[str, Any]:
        """More options of the receiver."""

    @property
    def answers(self) -> int:
        """How many answers were seen until now."""

    def __len__(self) -> int:
        """The number of programs."""

    def start(self, stage: Stage, began: float) -> None:
        """Start all programs; sending begins at ``began``, in seconds of the wall clock."""

    def verdict(self, written: Written) -> Found:
        """Compare the committed rows with what was sent."""

    def sent(self) -> Mapping[str, Sequence[Sent]]:
        """What each program has sent."""


def run(
    plan: Plan,
    say: Callable[[str], None],
    progress: Callable[[str], None],
    watch: Callable[[Stage], AbstractContextManager[object]] = nullcontext,
) -> Run:
    """Carry out the plan and write ``chaos.json`` and ``chaos.png`` into its directory; ``watch`` may observe."""
    clear(plan.directory)
    senders = _senders(plan)
    seconds = 60 * plan.minutes
    kinds = [Kind.DRIVER] if plan.standby else senders.kinds
    schedule = draw(plan.seed, plan.kills, seconds * FIRST_FAULT, seconds * LAST_FAULT, LEASE_SECONDS, kinds)
    say(f"Starting a cluster, a Redis, a driver and {len(senders)} programs that send in {plan.directory} …")
    stage = Stage(
        plan.directory,
        cluster=plan.cluster,
        columns=senders.columns,
        options=senders.options,
        standby=plan.standby,
    )
    with stage, ExitStack() as watching:
        stage.await_ready()
        watching.enter_context(watch(stage))
        began = time.time()
        senders.start(stage, began)
        hand = Hand(stage, began)

        def idle() -> None:
            ended = sum(known.finished.is_set() for known in stage.senders.values())
            progress(f"{time.time() - began:5.0f} s · {senders.answers} answers · {ended} programs done")

        def tell(blow: Blow) -> None:
            say(f"{blow.time - began:6.1f} s  {blow.fault.kind}: {blow.hit or 'no victim was there'}")

        watching.callback(hand.end_stopped)
        hand.deal(schedule, tell, idle)
        complete = _await_all(stage, plan, began, idle)
        ended = time.time()
    programs = {**stage.senders, **stage.drivers}
    written = read_sink(plan.directory)
    outcome = Run(
        plan.seed,
        began,
        ended,
        senders.sent(),
        hand.blows,
        senders.verdict(written),
        written,
        {name: program.starts for name, program in programs.items()},
        {name: program.failures for name, program in programs.items()},
        complete,
    )
    write_json(outcome, plan.directory / "chaos.json")
    draw_timeline(outcome, plan.directory / "chaos.png")
    return outcome


def _senders(plan: Plan) -> Senders:
    if plan.doors:
        return Producers(plan.messages, plan.minutes)
    return Connectors(plan.directory / "files", plan.messages, plan.minutes, plan.seed)


def _await_all(stage: Stage, plan: Plan, began: float, idle: Callable[[], None]) -> bool:
    """Wait until every sender has all its answers and has ended; False when that takes too long."""
    until = max(time.time(), began + 60 * plan.minutes) + plan.patience
    while not stage.all_ended:
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
    for name in ("chaos.json", "chaos.png", "soak.json", "soak.png", "receive.yaml", "driver.txt"):
        (directory / name).unlink(missing_ok=True)
