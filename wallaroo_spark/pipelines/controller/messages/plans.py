"""The declarations of one partition, reduced to the facts that its controller needs.

They are a part of the state, because an instance ends with the plan that it began with. So the order of the fields is
part of the stored format: a new field stands at the end and has a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.declarations import PipelineDeclaration, StageDeclaration, StartPoint, StreamDeclaration
from wallaroo_spark.pipelines.names import ROOT_EVENT, ObjectKey, stream_key

WINDOW_RECORDS = 1_000_000
"""How many ids of records a partition remembers at most. A choice; it bounds the state where the window is long."""


class StagePlan(NamedTuple):
    """A stage."""

    name: str
    """Name, unique in its pipeline."""
    after: tuple[str, ...] = ()
    """Stages that are done before it begins, without those of ``dependencies``."""
    dependencies: tuple[str, ...] = ()
    """Stages whose outputs it is given."""
    given_root: bool = False
    """Whether it is given the root event."""
    output_required: bool = False
    """Whether an ack without an output is a nack."""
    stream_outputs: tuple[str, ...] = ()
    """Streams that each ack names, as ``namespace/name``."""
    function: str = ""
    """``package.module:function`` of a stage in Spark; empty for a program outside."""
    attempts: int = 0
    """Deliveries after which the stage has failed; 0 for no limit."""
    delay: int = 0
    """Milliseconds between the first nack and the next delivery; they double with each."""
    longest_delay: int = 0
    """The most milliseconds between a nack and the next delivery."""
    dead_letter: str = ""
    """Stream that gets the root event of a failed instance; empty for none."""
    dead_letter_partitions: int = 1
    """Number of partitions of that stream."""
    stream_output_partitions: tuple[int, ...] = ()
    """Number of partitions of each of ``stream_outputs``."""

    @property
    def targets(self) -> tuple[tuple[str, int], ...]:
        """The streams of the stream outputs of a function, each with its number of partitions."""
        return tuple(zip(self.stream_outputs, self.stream_output_partitions, strict=False))

    def dead_letter_key(self, instance: int) -> PartitionKey:
        """The partition that gets the root event of a failed instance."""
        return PartitionKey(self.dead_letter, instance % self.dead_letter_partitions)

    def retry_delay(self, attempt: int) -> int:
        """Milliseconds between the nack of a delivery and the next delivery."""
        doubled = self.delay << min(attempt - 1, 32)
        return min(doubled, self.longest_delay)


class PipelinePlan(NamedTuple):
    """A pipeline."""

    name: str
    """Name as ``namespace/name``."""
    stages: tuple[StagePlan, ...]
    """Its stages, without a cycle."""
    triggers: tuple[str, ...] = ()
    """Patterns over the type of records; none matches everything."""
    max_parallel: int = 50
    """The most active instances of this partition."""
    start: StartPoint | None = StartPoint()
    """Where it begins when it is declared first; None once it has begun."""

    def stage(self, name: str) -> StagePlan | None:
        """The stage of a name, None without one."""
        return next((stage for stage in self.stages if stage.name == name), None)


class PartitionPlan(NamedTuple):
    """A partition of a stream, with the pipelines whose input it is."""

    pipelines: tuple[PipelinePlan, ...] = ()
    """The pipelines, in the order of their names."""
    window_millis: int = 120_000
    """How long the source and id of a record are remembered, in active time; the default is that of a stream."""
    window_records: int = WINDOW_RECORDS
    """How many are remembered at most."""


def partition_plan(
    stream: StreamDeclaration, pipelines: Iterable[PipelineDeclaration], partitions: Mapping[ObjectKey, int]
) -> PartitionPlan:
    """The plan of each partition of a stream. ``partitions`` has the number of partitions of every stream."""
    used = sorted((one for one in pipelines if one.input_key == stream.key), key=lambda one: one.key.path)
    return PartitionPlan(tuple(pipeline_plan(one, partitions) for one in used), round(stream.idempotency_window * 1000))


def pipeline_plan(pipeline: PipelineDeclaration, partitions: Mapping[ObjectKey, int]) -> PipelinePlan:
    """The plan of a pipeline. ``partitions`` has the number of partitions of every stream."""
    return PipelinePlan(
        pipeline.key.path,
        tuple(_stage_plan(pipeline, stage, partitions) for stage in pipeline.stages),
        pipeline.triggers,
        pipeline.max_parallel,
        pipeline.start_point,
    )


def _stage_plan(
    pipeline: PipelineDeclaration, stage: StageDeclaration, partitions: Mapping[ObjectKey, int]
) -> StagePlan:
    dependencies = tuple(name for name in stage.dependencies if name != ROOT_EVENT)
    letters = stage.retry.dead_letter_stream
    letters_key = stream_key(letters, pipeline.namespace)
    return StagePlan(
        stage.name,
        tuple(name for name in stage.after if name not in dependencies),
        dependencies,
        stage.is_entry or ROOT_EVENT in stage.dependencies,
        pipeline.output_required(stage),
        tuple(key.path for key in pipeline.stream_output_keys(stage)),
        stage.run,
        stage.retry.max_attempts or 0,
        round(stage.retry.delay * 1000),
        round(stage.retry.max_delay * 1000),
        letters_key.path if letters else "",
        partitions[letters_key] if letters else 1,
        tuple(partitions[key] for key in pipeline.stream_output_keys(stage)) if stage.run else (),
    )
