"""Processes of the crash-point sweep: drivers, tasks and servers that die where they are told to.

One process (:func:`main`) imports what there is to import, does nothing itself, and forks every life: a driver that
delivers batches, a fork of it that forks the tasks (so that nothing a driver has opened is carried into them), and
servers that are started again when they have died. It reads one JSON object a line, and answers each with one.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from wallaroo_spark.sinks.coordinator import Coordinator, Vote, vote
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.sinks.interface import Sink
from wallaroo_spark.steps import at_each

LONGEST_LIFE = 60
"""Seconds; a limit, never an expectation."""
PARTITIONS = 2
PIECES = 3
ROWS_A_PIECE = 2
TRIES = 2
FAILED = 1


def row(batch: int, partition: int, number: int) -> str:
    """The content of a row."""
    return f"batch {batch} partition {partition} row {number}"


def rows_of(batch: int) -> list[str]:
    """All rows of a batch."""
    return [row(batch, p, n) for p in range(PARTITIONS) for n in range(PIECES * ROWS_A_PIECE)]


def pieces(batch: int, partition: int) -> Iterator[pa.RecordBatch]:
    """A partition's rows as its task gets them: columns ``batch``, ``partition``, ``number`` and ``value``."""
    for piece in range(PIECES):
        numbers = list(range(piece * ROWS_A_PIECE, (piece + 1) * ROWS_A_PIECE))
        yield pa.RecordBatch.from_pydict(
            {
                "batch": [batch] * ROWS_A_PIECE,
                "partition": [partition] * ROWS_A_PIECE,
                "number": numbers,
                "value": [row(batch, partition, number) for number in numbers],
            }
        )


def find(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def follow_orders(orders: str, *, group: bool = False) -> None:
    """Have this process die at the step that is ordered, a file of the step's name, once; or all its group."""

    def die(step: Any) -> None:
        try:
            os.rename(Path(orders, step.name), Path(orders, step.name + ".done"))
        except FileNotFoundError:
            return
        if group:
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    at_each(die)


def forked(work: Callable[[], None], log: str) -> int:
    """Fork a process that does ``work`` and ends; return its pid. Errors are in the file ``log``."""
    pid = os.fork()
    if pid:
        return pid
    status = 0
    try:
        signal.alarm(LONGEST_LIFE)
        work()
    except BaseException:
        Path(log).write_text(traceback.format_exc())
        status = FAILED
    finally:
        os._exit(status)


class Tasks:
    """Forks a task a time, from a process that has opened nothing yet."""

    def __init__(self, life: dict[str, Any], sink: Sink) -> None:
        self._life = life
        self._sink = sink
        ours, theirs = os.pipe(), os.pipe()
        self._pid = os.fork()
        if not self._pid:
            with contextlib.suppress(BaseException):
                os.close(ours[1])
                os.close(theirs[0])
                self._serve(os.fdopen(ours[0]), os.fdopen(theirs[1], "w"))
            os._exit(0)
        os.close(ours[0])
        os.close(theirs[1])
        self._asked, self._answers = os.fdopen(ours[1], "w"), os.fdopen(theirs[0])

    def run(self, batch: int) -> list[Vote]:
        """Every partition of a batch, one after the other; each is tried again when its task has died."""
        votes = []
        for partition in range(PARTITIONS):
            for attempt in range(TRIES if self._life["retry"] else 1):
                # Shipped for each task, as Spark does it.
                shipped = base64.b64encode(pickle.dumps(self._sink)).decode()
                print(json.dumps([batch, partition, attempt, shipped]), file=self._asked, flush=True)
                answer = json.loads(self._answers.readline())
                if answer is not None:
                    votes.append(Vote.from_json(answer))
                    break
            else:
                raise RuntimeError(f"the task of partition {partition} died")
        return votes

    def _serve(self, asked: Any, answers: Any) -> None:
        result = Path(self._life["log"] + ".vote")
        for line in asked:
            batch, partition, attempt, shipped = json.loads(line)
            result.unlink(missing_ok=True)

            def task(
                batch: int = batch, partition: int = partition, attempt: int = attempt, shipped: str = shipped
            ) -> None:
                sink = pickle.loads(base64.b64decode(shipped))
                result.write_text(vote(sink, batch, partition, pieces(batch, partition), attempt).to_json())

            os.waitpid(forked(task, self._life["log"]), 0)
            print(json.dumps(result.read_text() if result.exists() else None), file=answers, flush=True)


def drive(life: dict[str, Any]) -> None:
    """The driver: delivers the batches of a life."""
    os.setsid()
    follow_orders(life["orders"], group=life["group"])
    sink = find(life["factory"])(life["name"], **life["settings"])
    tasks = Tasks(life, sink)
    coordinator = Coordinator(sink, DecisionLog(life["checkpoint"], life["name"]))
    for batch in life["batches"]:
        coordinator.deliver(batch, tasks.run)


def supervise(server: dict[str, Any]) -> None:
    """Run a server, again each time it has died of an order, until the end of this process."""
    os.setsid()
    signal.alarm(0)
    while True:
        pid = forked(lambda: _serve(server), server["log"])
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            os._exit(FAILED)


def _serve(server: dict[str, Any]) -> None:
    signal.alarm(0)
    follow_orders(server["orders"])
    find(server["run"])(**server["settings"])


def main() -> None:
    """Fork lives as they are asked for."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # Arrow loads pandas with the first column that it makes: once, rather than in every task.
    assert list(pieces(0, 0))
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "serve":
            answer: dict[str, Any] = {"pid": forked(lambda asked=asked: supervise(asked), asked["log"])}
        else:
            log = Path(asked["log"])
            log.unlink(missing_ok=True)
            pid = forked(lambda asked=asked: drive(asked), asked["log"])
            _, status = os.waitpid(pid, 0)
            text = log.read_text() if log.exists() else ""
            answer = {"status": os.waitstatus_to_exitcode(status), "text": text}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
