"""Writes to an inbox in processes that die, one at each step, and prints what is there after each death.

``python tests/streams/inbox/deaths.py FOLDER``, where FOLDER is empty.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.steps import AnyStep, InboxStep, at_each
from wallaroo_spark.streams.inbox import InboxPosition, InboxReader, InboxWriter

EVENTS = [(PartitionKey("shop/orders", 0), b"one"), (PartitionKey("shop/orders", 1), b"two")]
MOST = 20
"""The most steps that are tried; a bound on the loop."""


def dies_at(number: int, note: Path) -> None:
    """Kill this process at its step of this number, from 0, with the step's name in the file ``note``."""
    steps = iter(range(MOST))

    def watch(step: AnyStep) -> None:
        if next(steps) == number:
            note.write_text(step.name, encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)

    at_each(watch)


def life(app: str, answers: Path) -> None:
    """A gateway that starts twice and writes, and a driver that deletes what was read; ``answers`` counts."""
    for _ in range(2):
        writer = InboxWriter(app, "g0")
        writer.open()
        for _ in range(2):
            writer.write(EVENTS)
            with answers.open("a") as file:
                file.write("answered\n")
    InboxReader(app).delete_read({"g0": InboxPosition(2, 1)})


def main(folder: Path) -> None:
    """Let a child die at each step; print what is there after each death."""
    deaths = []
    for number in range(MOST):
        app, note, answers = folder / f"app-{number}", folder / f"note-{number}", folder / f"answers-{number}"
        answers.touch()
        child = os.fork()
        if child == 0:
            dies_at(number, note)
            life(str(app), answers)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            break
        step = note.read_text(encoding="utf-8")
        reader = InboxReader(str(app))
        deaths.append(
            {
                "step": step,
                "unread": reader.unread({}).get("g0", {}),
                "answered": len(answers.read_text().splitlines()),
                "deleted": 3 if step == InboxStep.READ_HALF_DELETED.name else 0,
                "generation": InboxWriter(str(app), "g0").open(),
            }
        )
    print(json.dumps(deaths))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
