"""The pipelines of a partition: declared, subscribed to, and moved along the stream.

Source: ``docs/pipelines/design.md#pipelines-and-instances``.
"""

from __future__ import annotations

from collections.abc import Sequence

from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.instances import ActiveInstances
from wallaroo_spark.pipelines.controller.messages import instructions
from wallaroo_spark.pipelines.controller.messages.events import InstanceCancelled, RecordsRead, StageJoined
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan
from wallaroo_spark.pipelines.controller.stored.key_state import Member, PipelineProgress, Queue
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.names import matches

READ_LIMIT = 1000
"""The most records of one read behind a cursor. It bounds an event's size."""


class PipelineRuns:
    """The pipelines whose input is this partition."""

    def __init__(self, context: CallContext, instances: ActiveInstances) -> None:
        self._context = context
        self._pipelines = context.head.pipelines
        self._instances = instances
        self._read: dict[str, tuple[int, Sequence[CloudEvent]]] = {}
        self.paused = False
        """Whether no records may be asked for any more in this batch."""
        self.held_up = False
        """Whether a pipeline would ask for records, if it were not paused."""

    def declared(self, version: int, plans: Sequence[PipelinePlan]) -> None:
        """The declaration of the partition has a new version."""
        for name in [*self._pipelines]:
            if name not in {plan.name for plan in plans}:
                self._instances.end_all(name, "the pipeline is deleted")
                self._end_members(name, [*self._pipelines[name].queues], "the pipeline is deleted")
                del self._pipelines[name]
        for plan in plans:
            progress, begun = self._pipelines.get(plan.name), plan._replace(start=None)
            if progress is None:
                head = self._context.head
                cursor = max(plan.start.cursor(head.last) if plan.start is not None else 0, head.first - 1)
                self._pipelines[plan.name] = PipelineProgress(version, cursor, {version: begun}, birth=version)
            elif progress.plan != begun:
                progress.plans[version], progress.version = begun, version

    def problem(self, event: StageJoined) -> str:
        """Why a member cannot join, with the remedy; empty when it can."""
        progress = self._pipelines.get(event.pipeline)
        if progress is None:
            return f"there is no pipeline {event.pipeline} on {self._context.key}"
        # An instance of an older plan may still need a stage that the newest plan does not have.
        plans = (plan for _, plan in sorted(progress.plans.items(), reverse=True))
        found = [stage for plan in plans if (stage := plan.stage(event.stage)) is not None]
        stage = next((stage for stage in found if not stage.function), found[0] if found else None)
        if stage is None:
            names = ", ".join(one.name for one in progress.plan.stages)
            return f"pipeline {event.pipeline} has no stage {event.stage}; it has {names}"
        if stage.function:
            return f"stage {event.stage} runs in Spark ({stage.function}); a stage without `run` takes subscribers"
        if event.concurrency < 1:
            return f"a concurrency of {event.concurrency} is asked for; ask for 1 or more"
        return ""

    def joined(self, event: StageJoined) -> None:
        """A member joins the subscribers of a stage."""
        queue = self._pipelines[event.pipeline].queues.setdefault(event.stage, Queue())
        queue.members.append(event.member)
        gateway, generation, _ = event.reply_to
        member = Member(gateway, generation, "", event.pipeline, event.stage, event.concurrency)
        self._context.head.members[event.member] = member

    def left(self, name: str, member: Member) -> None:
        """A member has left."""
        self._pipelines[member.pipeline].queues[member.stage].members.remove(name)

    def cancel(self, event: InstanceCancelled) -> None:
        """An operator cancels an instance."""
        if self._context.entries.instances.get((event.pipeline, event.instance)) is None:
            text = f"pipeline {event.pipeline} has no active instance {event.instance} on {self._context.key}"
            self._context.refuse(event.reply_to, text)
            return
        reason = "an operator has cancelled it"
        self._instances.end(event.pipeline, event.instance, instructions.Outcome.CANCELLED, reason)
        self._context.answer(event.reply_to)

    def read(self, event: RecordsRead) -> None:
        """Records behind the cursor have been read. An answer to a question that is no longer open is ignored."""
        progress = self._pipelines.get(event.pipeline)
        if progress is None or progress.reading != event.asked:
            return
        if not event.records and event.first <= event.asked:
            raise PipelineError(f"{self._context.key}: records from {event.asked} on are asked for, and none were read")
        progress.reading = 0
        self._skip(event.pipeline, progress, event.first)
        self._read[event.pipeline] = (event.first, event.records)

    def advance(self) -> None:
        """Begin instances as far as there is room, and ask for the records that are not at hand."""
        self.held_up = False
        for name, progress in self._pipelines.items():
            self._skip(name, progress, self._context.head.first)
            self._advance(name, progress)
            self._tidy(name, progress)

    def _advance(self, name: str, progress: PipelineProgress) -> None:
        last = self._context.head.last
        while progress.cursor < last:
            number = progress.cursor + 1
            record = self._at_hand(name, number)
            if record is None:
                if progress.has_room and self.paused:
                    self.held_up = True
                elif progress.has_room and not progress.reading:
                    progress.reading = number
                    self._context.emit(instructions.ReadRecords(name, number, min(READ_LIMIT, last - progress.cursor)))
                return
            if matches(progress.plan.triggers, record.type):
                if not progress.has_room:
                    return
                self._instances.begin(progress, number, record)
            progress.cursor = number

    def _at_hand(self, name: str, offset: int) -> CloudEvent | None:
        """A record that this call has appended or read; None for any other."""
        for first, records in ((self._context.fresh_from, self._context.fresh), self._read.get(name, (0, ()))):
            if first <= offset < first + len(records):
                return records[offset - first]
        return None

    def _skip(self, name: str, progress: PipelineProgress, first: int) -> None:
        """Retention has removed the records before ``first``."""
        if progress.cursor + 1 < first:
            self._context.emit(instructions.SkippedRecords(name, progress.cursor + 1, first - 1))
            progress.cursor, progress.reading = first - 1, 0

    def _tidy(self, name: str, progress: PipelineProgress) -> None:
        """Forget plans that no active instance has, and the stages that only they have."""
        unused = [one for one in progress.plans if one != progress.version and one not in progress.users]
        for version in unused:
            del progress.plans[version]
        if unused:
            known = {stage.name for plan in progress.plans.values() for stage in plan.stages if not stage.function}
            gone = [stage for stage in progress.queues if stage not in known]
            self._end_members(name, gone, "the stage is not declared any more")
            for stage in gone:
                del progress.queues[stage]

    def _end_members(self, pipeline: str, stages: Sequence[str], reason: str) -> None:
        members = self._context.head.members
        for stage in stages:
            for name in self._pipelines[pipeline].queues[stage].members:
                del members[name]
                self._context.emit(instructions.EndSubscription(name, reason))
