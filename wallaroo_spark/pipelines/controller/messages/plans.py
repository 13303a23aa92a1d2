"""The declarations of one partition, reduced to the facts that its controller needs.

They are a part of the state, because an instance ends with the plan that it began with. So the order of the fields is
part of the stored format: a new field stands at the end and has a default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.declarations import (
    Declaration,
    PipelineDeclaration,
    RetryPolicy,
    StageDeclaration,
    StartPoint,
    StreamDeclaration,
)
from wallaroo_spark.pipelines.schema.names import ROOT_EVENT, ObjectKey, stream_key

WINDOW_RECORDS = 1_000_000
"""How many ids of records a partition remembers at most. A choice; it bounds the state where the window is long."""


class RetryPlan(NamedTuple):
    """The treatment of a delivery that did not succeed, of a stage or of the groups of a stream."""

    attempts: int = 0
    """Deliveries after which it has failed; 0 for no limit."""
    delay: int = 0
    """Milliseconds between the first nack and the next delivery; they double with each."""
    longest_delay: int = 0
    """The most milliseconds between a nack and the next delivery."""
    dead_letter: str = ""
    """Stream that gets the event; empty for none."""
    dead_letter_partitions: int = 1
    """Number of partitions of that stream."""
    timeout: int = 0
    """Milliseconds within which a member has to settle a delivery; 0 for no limit."""

    def dead_letter_key(self, offset: int) -> PartitionKey:
        """The partition that gets the dead letter of a record."""
        return PartitionKey(self.dead_letter, offset % self.dead_letter_partitions)

    def retry_delay(self, attempt: int) -> int:
        """Milliseconds between the nack of a delivery and the next delivery."""
        doubled = self.delay << min(max(0, attempt - 1), 32)
        return min(doubled, self.longest_delay)


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
    timeout: int = 0
    """Milliseconds within which a member has to settle a delivery; 0 for no limit."""

    @property
    def retry(self) -> RetryPlan:
        """The treatment of a delivery that did not succeed."""
        return RetryPlan(
            self.attempts, self.delay, self.longest_delay, self.dead_letter, self.dead_letter_partitions, self.timeout
        )

    def under(self, retry: RetryPlan) -> StagePlan:
        """This stage with another treatment of deliveries that did not succeed."""
        return self._replace(**retry._asdict())

    @property
    def targets(self) -> tuple[tuple[str, int], ...]:
        """The streams of the stream outputs of a function, each with its number of partitions."""
        return tuple(zip(self.stream_outputs, self.stream_output_partitions, strict=False))


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
    partitions: int = 1
    """Number of partitions of the stream. When it is raised, the partitions tell each other what they know."""
    retry: RetryPlan = RetryPlan()
    """The treatment of deliveries of groups that did not succeed."""


def partition_plans(objects: Iterable[Declaration]) -> dict[str, PartitionPlan]:
    """The plan of the partitions of each stream of a schema, by the stream's path."""
    declared = sorted(objects, key=lambda one: one.key.path)
    streams = [one for one in declared if isinstance(one, StreamDeclaration)]
    partitions = {one.key: one.partitions for one in streams}
    pipelines: defaultdict[ObjectKey, list[PipelinePlan]] = defaultdict(list)
    for one in declared:
        if isinstance(one, PipelineDeclaration):
            pipelines[one.input_key].append(_pipeline_plan(one, partitions))
    return {
        one.key.path: PartitionPlan(
            tuple(pipelines[one.key]),
            round(one.idempotency_window * 1000),
            partitions=one.partitions,
            retry=_retry_plan(one.retry, one.namespace, one.delivery_timeout, partitions),
        )
        for one in streams
    }


def _pipeline_plan(pipeline: PipelineDeclaration, partitions: Mapping[ObjectKey, int]) -> PipelinePlan:
    return PipelinePlan(
        pipeline.key.path,
        tuple(_stage_plan(pipeline, stage, partitions) for stage in pipeline.stages),
        pipeline.triggers,
        pipeline.max_parallel,
        pipeline.start_point,
    )


def _retry_plan(retry: RetryPolicy, namespace: str, timeout: float, partitions: Mapping[ObjectKey, int]) -> RetryPlan:
    letters = stream_key(retry.dead_letter_stream, namespace) if retry.dead_letter_stream else None
    return RetryPlan(
        retry.max_attempts or 0,
        round(retry.delay * 1000),
        round(retry.max_delay * 1000),
        letters.path if letters is not None else "",
        partitions[letters] if letters is not None else 1,
        round(timeout * 1000),
    )


def _stage_plan(
    pipeline: PipelineDeclaration, stage: StageDeclaration, partitions: Mapping[ObjectKey, int]
) -> StagePlan:
    dependencies = tuple(name for name in stage.dependencies if name != ROOT_EVENT)
    plan = StagePlan(
        stage.name,
        tuple(name for name in stage.after if name not in dependencies),
        dependencies,
        stage.is_entry or ROOT_EVENT in stage.dependencies,
        pipeline.output_required(stage),
        tuple(key.path for key in pipeline.stream_output_keys(stage)),
        stage.run,
        stream_output_partitions=(
            tuple(partitions[key] for key in pipeline.stream_output_keys(stage)) if stage.run else ()
        ),
    )
    return plan.under(_retry_plan(stage.retry, pipeline.namespace, stage.delivery_timeout, partitions))
