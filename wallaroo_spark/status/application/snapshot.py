"""A snapshot of an application from the gauges of its keys, the shapes of its pipelines and the reports of gateways.

Pure. Source: ``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.status.application.cause import with_cause
from wallaroo_spark.status.application.gauges import GaugeSum
from wallaroo_spark.status.application.model import (
    ApplicationStatus,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)


@dataclass(frozen=True)
class StageShape:
    """A declared stage."""

    stage: str
    """Its name."""
    after: tuple[str, ...]
    """Stages that it waits for."""
    in_spark: bool
    """Whether it is a function that runs in Spark."""


@dataclass(frozen=True)
class PipelineShape:
    """A declared pipeline."""

    pipeline: str
    """Its path."""
    input: str
    """Its input stream."""
    most: int
    """Its ``maxParallel``."""
    stages: tuple[StageShape, ...]
    """Its stages."""


@dataclass(frozen=True)
class Shapes:
    """The shapes of a version of the schema."""

    version: int = 0
    """The version."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """Path of a stream → number of its partitions."""
    pipelines: tuple[PipelineShape, ...] = ()
    """The pipelines."""

    @property
    def keys(self) -> list[tuple[str, int]]:
        """All partitions of all streams."""
        return [(stream, number) for stream, partitions in self.streams.items() for number in range(partitions)]


def snapshot(
    base: ApplicationStatus, gauges: GaugeSum, shapes: Shapes, open_stages: Iterable[Mapping[str, float]] = ()
) -> ApplicationStatus:
    """The whole snapshot.

    ``base`` has the facts that the driver knows itself. ``open_stages`` has for each gateway the seconds for which its
    oldest open delivery of a stage is with its member, by ``pipeline stage``.
    """
    oldest: dict[str, float] = {}
    for found in open_stages:
        for stage, seconds in found.items():
            oldest[stage] = max(seconds, oldest.get(stage, 0.0))
    return with_cause(
        dataclasses.replace(
            base,
            schema=shapes.version or None,
            counted_from=gauges.first,
            partitions=tuple(_partition(base.time, gauges, *key) for key in shapes.keys),
            pipelines=tuple(_pipeline(gauges, shapes, one, oldest) for one in shapes.pipelines),
        )
    )


def report_of_gateway(gateway: GatewayStatus, report: Mapping[str, Any], age: float) -> GatewayStatus:
    """A gateway with the figures of its report, which is ``age`` seconds old. Unknown figures are left out."""
    known = {one.name for one in dataclasses.fields(GatewayStatus)} - {"gateway", "state", "address"}
    return dataclasses.replace(gateway, age=age, **{name: value for name, value in report.items() if name in known})


def _partition(time: float, gauges: GaugeSum, stream: str, partition: int) -> PartitionState:
    key = f"{stream}/{partition}"
    found = gauges.keys.get(key, {})
    last = found.get("last", 0)
    groups = tuple(
        GroupStatus(
            name,
            group["cursor"],
            max(0, last - group["cursor"]),
            group["members"],
            group["durable"],
            group.get("attempts", 0),
            max(0.0, time - group["since"] / 1000) if group.get("open") else None,
        )
        for name, group in sorted(found.get("groups", {}).items())
    )
    records = gauges.records.get(key, 0)
    return PartitionState(stream, partition, found.get("first", 1), last, records, found.get("delayed", 0), groups)


def _pipeline(gauges: GaugeSum, shapes: Shapes, shape: PipelineShape, oldest: Mapping[str, float]) -> PipelineStatus:
    counts = gauges.pipelines.get(shape.pipeline, {})
    keys = [f"{shape.input}/{number}" for number in range(shapes.streams.get(shape.input, 0))]
    found = list(_on_keys(gauges, keys, shape.pipeline))
    done = counts.get("stages", {})
    stages = []
    for stage in shape.stages:
        queues = [one["stages"][stage.stage] for _, one in found if stage.stage in one["stages"]]
        place = f"{shape.pipeline} {stage.stage}"
        unserved = [since for key in keys if (since := gauges.unserved.get(key, {}).get(place)) is not None]
        stages.append(
            StageStatus(
                stage.stage,
                stage.after,
                stage.in_spark,
                sum(queue["members"] for queue in queues),
                sum(queue["waiting"] for queue in queues),
                sum(queue["running"] for queue in queues),
                done.get(stage.stage, 0),
                oldest.get(place),
                min(unserved) / 1000 if unserved else None,
            )
        )
    return PipelineStatus(
        shape.pipeline,
        shape.input,
        shape.most,
        sum(one["active"] for _, one in found),
        sum(max(0, last - one["cursor"]) for last, one in found),
        began=counts.get("began", 0),
        done=counts.get("done", 0),
        failed=counts.get("failed", 0),
        cancelled=counts.get("cancelled", 0),
        dead_letters=counts.get("dead_letters", 0),
        skipped=counts.get("skipped", 0),
        stages=tuple(stages),
    )


def _on_keys(gauges: GaugeSum, keys: Iterable[str], pipeline: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The last offset of each key, and the gauges of the pipeline there."""
    for key in keys:
        state = gauges.keys.get(key, {})
        if (one := state.get("pipelines", {}).get(pipeline)) is not None:
            yield state["last"], one
