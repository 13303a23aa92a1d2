"""The gauges of a key after its turn, by which a reader sees the state without Spark. Pure.

They travel in the row of the key's timer, so a batch has no further row for them, and land in the batch's manifest.
Source: ``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from wallaroo_spark.engine.operator.turn import TurnResult
from wallaroo_spark.observe.application import GroupStatus, KeyGauges, PartitionState, PipelineStatus, StageStatus
from wallaroo_spark.observe.faces.records import record_to_json
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.events import AppendOutput, Carried
from wallaroo_spark.pipelines.controller.messages.values import DEAD_LETTER, OutputId, PartitionKey, StageDelivery
from wallaroo_spark.pipelines.controller.stored.key_state import Group, Head, PipelineProgress, Queue

LONGEST_REASON = 200
"""The most characters of a reason. Gauges have some hundred bytes; the history has the whole reason."""


def turn_gauges(key: PartitionKey, now: int, result: TurnResult) -> bytes:
    """The :class:`KeyGauges` of a key as JSON."""
    head, did = result.head, _Did(now, result)
    groups = tuple(_group(head, name, group) for name, group in head.groups.items())
    found = KeyGauges(
        now / 1000,
        PartitionState(*key, head.first, head.last, len(result.fresh), len(head.delayed), groups),
        tuple(_pipeline(head, name, one, did) for name, one in head.pipelines.items()),
    )
    return json.dumps(record_to_json(found, sparse=True), separators=(",", ":")).encode()


def _group(head: Head, name: str, group: Group) -> GroupStatus:
    found = group.open
    return GroupStatus(
        name,
        group.cursor,
        max(0, head.last - group.cursor),
        len(group.members),
        group.durable,
        found.attempts if found is not None else 0,
        since=found.began_at / 1000 if found is not None else None,
        paused=group.paused,
        idle_since=group.idle_since / 1000 if group.idle_since else None,
        overdue=sum(len(head.members[one].overdue) for one in group.members),
        reason=group.reason[:LONGEST_REASON] if found is not None and found.attempts > 1 else "",
        letters_refused=group.letters_refused,
        refused_reason=group.refused_reason[:LONGEST_REASON],
    )


class _Did:
    """What a turn has done and, for deliveries that wait for their next attempt, what is left to do."""

    def __init__(self, now: int, result: TurnResult) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """The counts of each pipeline, by the name of its figure."""
        self.done: Counter[tuple[str, str]] = Counter()
        """Pipeline and stage → outputs."""
        self.failed: defaultdict[tuple[str, str], list[i.DeliveryFailed]] = defaultdict(list)
        """Pipeline and stage → failed deliveries."""
        self.reasons: dict[str, str] = {}
        """Pipeline → why an instance has failed."""
        self.now = now / 1000
        delayed = (one for _, one in result.head.delayed if isinstance(one, StageDelivery))
        self.retrying = Counter((one.pipeline, one.stage) for one in delayed)
        """Pipeline and stage → deliveries that wait. Those of an instance that has ended wait until their time."""
        for one in result.instructions:
            match one:
                case i.StoreOutput():
                    self.done[one.delivery.pipeline, one.delivery.stage] += 1
                case i.DeliveryFailed():
                    self.failed[one.delivery.pipeline, one.delivery.stage].append(one)
                case i.InstanceBegan():
                    self.counts[one.pipeline]["began"] += 1
                case i.InstanceEnded():
                    self.counts[one.pipeline][one.outcome.value] += 1
                    if one.outcome is i.Outcome.FAILED:
                        self.reasons[one.pipeline] = one.reason[:LONGEST_REASON]
                case i.SkippedRecords():
                    self.counts[one.pipeline]["skipped"] += one.last - one.first + 1
                case i.CarryOut() if pipeline := _dead_letter_of(one.message):
                    self.counts[pipeline]["dead_letters"] += 1

    def stages(self, pipeline: str) -> set[str]:
        """The stages of a pipeline of which there is something to say."""
        return {stage for of, stage in (*self.done, *self.failed, *self.retrying) if of == pipeline}


def _pipeline(head: Head, name: str, progress: PipelineProgress, did: _Did) -> PipelineStatus:
    counts: Mapping[str, Any] = did.counts[name]
    stages = sorted(progress.queues.keys() | did.stages(name))
    return PipelineStatus(
        name,
        active=progress.active,
        lag=max(0, head.last - progress.cursor),
        done_at=did.now if counts.get("done") else None,
        failed_at=did.now if counts.get("failed") else None,
        reason=did.reasons.get(name, ""),
        stages=tuple(_stage(head, progress, name, stage, did) for stage in stages),
        **counts,
    )


def _stage(head: Head, progress: PipelineProgress, pipeline: str, stage: str, did: _Did) -> StageStatus:
    """A stage, its queue and its members, with the ends of its deliveries in this turn.

    A place whose instance has ended counts until the queue comes to it.
    """
    queue = progress.queues.get(stage) or Queue()
    members = [head.members[one] for one in queue.members]
    # What waits at a gateway for its member waits.
    running = sum(min(one.open, one.limit) for one in members)
    ahead = sum(one.open for one in members) - running
    place = pipeline, stage
    found = StageStatus(
        stage,
        members=len(members),
        waiting=queue.tail - queue.head + ahead,
        running=running,
        places=sum(one.limit for one in members),
        overdue=sum(len(one.overdue) for one in members),
        done=did.done[place],
        retrying=did.retrying[place],
    )
    if not (failed := did.failed.get(place)):
        return found
    worst = min(failed, key=lambda one: (one.began_at, -one.attempts))
    return dataclasses.replace(
        found,
        failed=len(failed),
        failing_since=worst.began_at / 1000,
        failed_at=did.now,
        attempts=worst.attempts,
        reason=worst.reason[:LONGEST_REASON],
    )


def _dead_letter_of(message: Carried) -> str:
    """The pipeline whose dead letter a message has; empty for any other message."""
    output = message.output if isinstance(message, AppendOutput) else None
    return output.delivery.pipeline if isinstance(output, OutputId) and output.place == DEAD_LETTER else ""
