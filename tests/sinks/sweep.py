"""The crash-point sweep: a process dies at a step, another delivers the batch again, and a reader counts.

A sink takes part with a :class:`Subject`, and a test that is parametrised with :data:`CASES` (or :func:`cases`) and
calls :func:`sweep`. The requirements are the same for all: while a batch is not decided a reader sees nothing of it,
and in the end each row once, in the order of its partition.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from tests.sinks.life import PARTITIONS, rows_of
from tests.waiting import SECONDS
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.steps import SinkStep

IN_TASKS = (SinkStep.ROWS_HALF_HANDED_OVER, SinkStep.PREPARED)
IN_THE_DRIVER = (
    SinkStep.VOTED,
    SinkStep.DECIDED,
    SinkStep.HALF_COMMITTED,
    SinkStep.COMMITTED,
    SinkStep.FINISHED,
)
UNDECIDED = (*IN_TASKS, SinkStep.VOTED)
IN_THE_SERVER = tuple(step for step in SinkStep if step.name.startswith("SERVER"))


@dataclass(frozen=True)
class Case:
    """``who`` dies at ``step``: the ``task`` alone (its Spark tries it again), the task with which the ``batch`` fails,
    the ``driver``, ``everybody``, or the ``server``; and the process that takes over dies at ``then``.
    """

    step: SinkStep
    who: str
    then: SinkStep | None = None

    def __str__(self) -> str:
        return f"{self.step.name}, {self.who}" + (f", then {self.then.name}" if self.then else "")


def cases(*without: SinkStep) -> list[Any]:
    """Every case of a sink that passes all steps but these, as parameters of a test."""
    told = (SinkStep.HALF_COMMITTED, SinkStep.COMMITTED, SinkStep.FINISHED)
    found = [Case(step, who) for step in IN_TASKS for who in ("task", "batch", "everybody")]
    found += [Case(step, "driver") for step in IN_THE_DRIVER]
    found += [Case(SinkStep.DECIDED, "driver", then) for then in told]
    found += [Case(SinkStep.HALF_COMMITTED, "driver", then) for then in told]
    return [pytest.param(case, id=str(case)) for case in found if case.step not in without and case.then not in without]


CASES = cases()
"""Those of a sink that passes every step outside a server of ours."""


@dataclass(frozen=True)
class Subject:
    """A sink in the sweep.

    ``factory`` names a function, ``module:function``, that every process calls as ``function(name, **settings)`` for
    the sink; settings are JSON. ``shown(name)`` returns that sink's visible rows (their column ``value``): those of a
    partition in order. Rows have the columns of :func:`tests.sinks.life.pieces`.
    """

    factory: str
    shown: Callable[[str], Iterable[str]]
    settings: dict[str, Any] = field(default_factory=dict)


class Lives:
    """The process that forks all others. Use it as a context; ``folder`` has their logs."""

    def __init__(self, folder: Path, *modules: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.sinks.life", *modules]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._servers: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._servers:
            os.killpg(pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def live(self, **life: Any) -> tuple[int, str]:
        """A driver's life: its exit status (negative for a signal), and the traceback if it raised."""
        answer = self._ask({"do": "live", "log": str(self.folder / "life"), **life})
        return answer["status"], answer["text"]

    def serve(self, run: str, orders: Path, **settings: Any) -> None:
        """A server, ``module:function``, that is started again when it has died of an order."""
        asked = {"do": "serve", "run": run, "orders": str(orders), "settings": settings}
        self._servers.append(self._ask({**asked, "log": str(self.folder / "server")})["pid"])

    def _ask(self, asked: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the process that forks all others is gone; see {self.folder}"
        return json.loads(line)


def sweep(lives: Lives, subject: Subject, case: Case, folder: Path, orders: Path | None = None) -> None:
    """One case from its beginning: batch 0 is delivered, batch 1 meets with the death, batch 2 follows.

    ``orders`` is the server's folder of orders where the server dies.
    """
    name = "sweep-" + "".join(character if character.isalnum() else "_" for character in str(case))
    ours = folder / "orders"
    ours.mkdir(exist_ok=True)
    life = {
        "factory": subject.factory,
        "settings": subject.settings,
        "name": name,
        "checkpoint": str(folder / "checkpoint"),
        "orders": str(ours),
        "retry": case.who in ("task", "server"),
        "group": case.who == "everybody",
    }
    status, text = lives.live(**life, batches=[0])
    assert status == 0, text
    assert sorted(subject.shown(name)) == sorted(rows_of(0))

    order = (orders or ours) / case.step.name
    order.touch()
    status, text = lives.live(**life, batches=[1])
    assert order.with_name(order.name + ".done").exists(), f"nobody came to {case.step.name}: {status} {text}"
    assert status == {"task": 0, "server": 0, "batch": 1}.get(case.who, -signal.SIGKILL), text
    if case.step in UNDECIDED and case.who != "task":
        assert sorted(subject.shown(name)) == sorted(rows_of(0)), "a reader sees what is not decided"
    if case.then is not None:
        (ours / case.then.name).touch()
        status, text = lives.live(**life, batches=[1])
        assert status == -signal.SIGKILL, f"nobody came to {case.then.name}: {text}"

    for batches in ([1, 2], [2]):
        status, text = lives.live(**life, batches=batches)
        assert status == 0, text
        _all_is_there_once(list(subject.shown(name)))
    log = DecisionLog(str(folder / "checkpoint"), name)
    log.load()
    assert log.newest() == (2, "finished")


def _all_is_there_once(seen: list[str]) -> None:
    wanted = [row for batch in range(3) for row in rows_of(batch)]
    lost, repeated = set(wanted) - set(seen), len(seen) - len(set(seen))
    assert (sorted(lost), repeated, sorted(set(seen) - set(wanted))) == ([], 0, [])
    for partition in range(PARTITIONS):
        its = f" partition {partition} row"
        assert [row for row in seen if its in row] == [row for row in wanted if its in row]
