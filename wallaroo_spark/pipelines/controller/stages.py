"""The stages of one instance: which may begin, which outputs are still needed, and whether an ack is complete.

Source: ``docs/pipelines/design.md#pipelines-and-instances``.
"""

from __future__ import annotations

from collections.abc import Iterator

from wallaroo_spark.pipelines.controller.messages.events import DeliveryAcked
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.partition_log import records_problem
from wallaroo_spark.pipelines.controller.states import DeliveryState
from wallaroo_spark.pipelines.controller.stored.key_state import Instance
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload


def is_done(instance: Instance, stage: str) -> bool:
    """Whether a stage of an instance is done."""
    found = instance.stages.get(stage)
    return found is not None and found.open.state is DeliveryState.DONE


def ready_stages(plan: PipelinePlan, instance: Instance) -> Iterator[StagePlan]:
    """The stages that have not begun and whose predecessors are all done."""
    for stage in plan.stages:
        if stage.name not in instance.stages and all(
            is_done(instance, name) for name in (*stage.after, *stage.dependencies)
        ):
            yield stage


def all_done(plan: PipelinePlan, instance: Instance) -> bool:
    """Whether every stage is done."""
    return all(is_done(instance, stage.name) for stage in plan.stages)


def inputs(stage: StagePlan, instance: Instance) -> tuple[CloudEvent | None, tuple[tuple[str, Payload], ...]]:
    """The root event and the outputs that a stage is given."""
    found = ((name, instance.stages[name].output) for name in stage.dependencies)
    outputs = tuple((name, output) for name, output in found if output is not None)
    return instance.root if stage.given_root else None, outputs


def release(plan: PipelinePlan, instance: Instance) -> None:
    """Remove the outputs, and the root event, that no stage needs any more."""
    open_stages = [stage for stage in plan.stages if not is_done(instance, stage.name)]
    needed = {name for stage in open_stages for name in stage.dependencies}
    for name, progress in instance.stages.items():
        if name not in needed:
            progress.output = None
    if not any(stage.given_root or stage.dead_letter for stage in open_stages):
        instance.root = None


def ack_problem(stage: StagePlan, ack: DeliveryAcked) -> str:
    """Why an ack is not complete, with the remedy; empty when it is."""
    if stage.output_required and ack.output is None:
        return f"stage {stage.name} requires an output, and the ack has none; the delivery is treated as nacked"
    named = {output.target.stream for output in ack.stream_outputs}
    for name in stage.stream_outputs:
        if name not in named:
            return (
                f"stage {stage.name} requires a stream output for {name}, and the ack has none; name the stream, with "
                "no record if there is nothing to write; the delivery is treated as nacked"
            )
    for output in ack.stream_outputs:
        if output.target.stream not in stage.stream_outputs:
            return f"stage {stage.name} does not declare the stream output {output.target.stream}; declare it"
        if output.records and (problem := records_problem(output.records)):
            return f"the stream output for {output.target.stream} is not valid: {problem}"
    return ""
