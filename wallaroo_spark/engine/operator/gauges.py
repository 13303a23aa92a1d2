"""The gauges of a key after its turn: a small JSON object by which a reader sees the state without Spark. Pure.

They travel in the row of the key's timer, so a batch has no further row for them, and land in the batch's manifest.
Source: ``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import json
from typing import Any, TypeGuard

from wallaroo_spark.engine.operator.turn import TurnResult
from wallaroo_spark.pipelines.controller.instances import DEAD_LETTER
from wallaroo_spark.pipelines.controller.messages.carried import AppendOutput, Carried
from wallaroo_spark.pipelines.controller.messages.instructions import (
    CarryOut,
    InstanceBegan,
    InstanceEnded,
    SkippedRecords,
    StoreOutput,
)
from wallaroo_spark.pipelines.controller.stored.key_state import Group, Head, PipelineProgress


def turn_gauges(now: int, result: TurnResult) -> bytes | None:
    """The gauges of a key as JSON; None for a result without the state of its key.

    ``last`` and ``first`` are offsets, ``at`` is the time of the batch. ``groups`` and ``pipelines`` have the state
    after the turn, and ``did`` what the turn itself has done, which a reader adds up over the committed batches.
    """
    head = result.head
    if head is None:
        return None
    found: dict[str, Any] = {"at": now, "last": head.last, "first": head.first}
    if head.groups:
        found["groups"] = {name: _group(group) for name, group in head.groups.items()}
    if head.pipelines:
        found["pipelines"] = {name: _pipeline(head, one) for name, one in head.pipelines.items()}
    if head.delayed:
        found["delayed"] = len(head.delayed)
    if did := _did(result):
        found["did"] = did
    return json.dumps(found, separators=(",", ":")).encode()


def _group(group: Group) -> dict[str, Any]:
    """A group: its cursor, members, whether a delivery is open, and how often that was delivered."""
    found = {"cursor": group.cursor, "members": len(group.members), "durable": group.durable}
    if group.open is not None:
        found |= {"open": True, "since": group.open.began_at, "attempts": group.open.attempts}
    return found


def _pipeline(head: Head, progress: PipelineProgress) -> dict[str, Any]:
    """A pipeline: its cursor, active instances, and the queue and the members of each stage that takes members.

    A place in a queue whose instance has ended counts as waiting until the queue comes to it.
    """
    stages = {
        name: {
            "waiting": queue.tail - queue.head,
            "running": sum(head.members[one].open for one in queue.members),
            "members": len(queue.members),
        }
        for name, queue in progress.queues.items()
    }
    return {"cursor": progress.cursor, "active": progress.active, "most": progress.plan.max_parallel, "stages": stages}


def _is_dead_letter(message: Carried) -> TypeGuard[AppendOutput]:
    return isinstance(message, AppendOutput) and message.output.place == DEAD_LETTER


def _did(result: TurnResult) -> dict[str, Any]:
    """The number of appended records, and for each pipeline of begun and ended instances, outputs and dead letters."""
    pipelines: dict[str, dict[str, Any]] = {}

    def count(pipeline: str, name: str, number: int = 1) -> None:
        counts = pipelines.setdefault(pipeline, {})
        counts[name] = counts.get(name, 0) + number

    for one in result.said:
        if isinstance(one, StoreOutput):
            stages = pipelines.setdefault(one.delivery.pipeline, {}).setdefault("stages", {})
            stages[one.delivery.stage] = stages.get(one.delivery.stage, 0) + 1
        elif isinstance(one, InstanceBegan):
            count(one.pipeline, "began")
        elif isinstance(one, InstanceEnded):
            count(one.pipeline, one.outcome.value)
        elif isinstance(one, SkippedRecords):
            count(one.pipeline, "skipped", one.last - one.first + 1)
        elif isinstance(one, CarryOut) and _is_dead_letter(one.message):
            count(one.message.output.delivery.pipeline, "dead_letters")
    found: dict[str, Any] = {"records": len(result.fresh)} if result.fresh else {}
    return found | ({"pipelines": pipelines} if pipelines else {})
