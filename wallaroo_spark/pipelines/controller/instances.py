"""Active instances: their stages are delivered, their outputs recorded, their stream outputs carried.

Source: ``docs/pipelines/design.md#pipelines-and-instances``.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from wallaroo_spark.pipelines.controller.context import CallContext, next_state
from wallaroo_spark.pipelines.controller.messages.carried import AppendOutput, OutputAppended, OutputRefused
from wallaroo_spark.pipelines.controller.messages.instructions import (
    DeliverInputs,
    InstanceBegan,
    InstanceEnded,
    Outcome,
    RunFunction,
    StoreOutput,
    StorePointer,
    WithdrawDelivery,
)
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import (
    IN_SPARK,
    CloudEvent,
    OutputId,
    PartitionKey,
    Payload,
    StageDelivery,
    StreamOutput,
)
from wallaroo_spark.pipelines.controller.stages import all_done, inputs, ready_stages, release
from wallaroo_spark.pipelines.controller.states import DELIVERY, DeliveryEvent, DeliveryState
from wallaroo_spark.pipelines.controller.stored.key_state import (
    Instance,
    Member,
    OpenDelivery,
    PipelineProgress,
    Queue,
    StageProgress,
)
from wallaroo_spark.pipelines.controller.transactions import Transactions

DEAD_LETTER = -1
"""Place of a dead letter among the stream outputs of a delivery."""
_HELD = (DeliveryState.DELIVERED, DeliveryState.COMMITTING)


class ActiveInstances:
    """The instances of all pipelines of a partition."""

    def __init__(self, context: CallContext, transactions: Transactions) -> None:
        self._context = context
        self._entries = context.entries
        self._pipelines = context.head.pipelines
        self._transactions = transactions

    def begin(self, pipeline: PipelineProgress, number: int, root: CloudEvent) -> None:
        """A record begins an instance with its own offset."""
        plan, now = pipeline.plan, self._context.now
        instance = Instance(pipeline.version, now, root)
        pipeline.users[pipeline.version] = pipeline.users.get(pipeline.version, 0) + 1
        self._entries.instances.put((plan.name, number), instance)
        self._context.say(InstanceBegan(plan.name, number, pipeline.version, now))
        self._go_on(pipeline, plan, number, instance)

    def find(self, delivery: StageDelivery) -> OpenDelivery | None:
        """The open delivery of this name, None without one; it may be changed."""
        instance = self._entries.instances.edit((delivery.pipeline, delivery.instance))
        progress = instance.stages.get(delivery.stage) if instance is not None else None
        return progress.open if progress is not None and progress.open.number == delivery.number else None

    def stage(self, delivery: StageDelivery) -> StagePlan:
        """The plan of an open delivery's stage."""
        instance = self._entries.instances.get((delivery.pipeline, delivery.instance))
        found = instance and self._pipelines[delivery.pipeline].plans[instance.version].stage(delivery.stage)
        assert found, delivery
        return found

    def finish(
        self,
        delivery: StageDelivery,
        event: DeliveryEvent,
        output: Payload | None,
        stream_outputs: Sequence[StreamOutput],
    ) -> None:
        """A stage is done: record its output, carry its stream outputs, and begin the stages that waited for it."""
        name, number, stage, _ = delivery
        instance = self._entries.instances.edit((name, number))
        assert instance is not None, delivery
        progress = instance.stages[stage]
        progress.open.state = next_state(DELIVERY, progress.open.state, event)
        self._give_back(progress.open)
        progress.output = output
        self._context.say(StoreOutput(delivery, output, progress.open.began_at, self._context.now))
        for place, one in enumerate(stream_outputs):
            if one.records:
                self._context.carry(one.target, AppendOutput(OutputId(delivery, place), one.records))
                instance.unplaced += 1
        pipeline = self._pipelines[name]
        self._go_on(pipeline, pipeline.plans[instance.version], number, instance)

    def redeliver(self, delivery: StageDelivery, event: DeliveryEvent, delay: int = 0, reason: str = "") -> None:
        """A delivery has not succeeded: it waits for a member again, after a delay; or its instance has failed."""
        name, number, stage, _ = delivery
        instance = self._entries.instances.edit((name, number))
        assert instance is not None, delivery
        plan, found = self.stage(delivery), instance.stages[stage].open
        self._give_back(found)
        found.state = next_state(DELIVERY, found.state, event)
        if plan.attempts and found.attempts >= plan.attempts:
            self._fail(name, number, instance, plan, delivery, reason)
        elif found.state is DeliveryState.DELAYED:
            found.due = self._context.now + delay
            insort(self._context.head.delayed, (found.due, delivery))
        else:
            self._offer(self._pipelines[name], plan, number, instance)

    def due(self, delivery: StageDelivery) -> None:
        """The delay of a delivery is over."""
        found = self.find(delivery)
        if found is not None and found.state is DeliveryState.DELAYED:
            found.state = next_state(DELIVERY, found.state, DeliveryEvent.DUE)
            instance = self._entries.instances.edit((delivery.pipeline, delivery.instance))
            assert instance is not None, delivery
            self._offer(self._pipelines[delivery.pipeline], self.stage(delivery), delivery.instance, instance)

    def held_by(self, name: str, member: Member) -> list[StageDelivery]:
        """The deliveries that a member has. This reads all active instances, when there is any."""
        found = []
        for pipeline, number in self._entries.instances.all_keys() if member.open else ():
            instance = self._entries.instances.get((pipeline, number))
            progress = instance.stages.get(member.stage) if instance and pipeline == member.pipeline else None
            if progress and progress.open.member == name and progress.open.state is DeliveryState.DELIVERED:
                found.append(StageDelivery(pipeline, number, member.stage, progress.open.number))
        return found

    def placed(self, source: PartitionKey, answer: OutputAppended | OutputRefused) -> None:
        """The target of a stream output answers; an instance ends once all have."""
        name, number, stage, serial = answer.output.delivery
        offsets, reason = ((), answer.reason) if isinstance(answer, OutputRefused) else (answer.offsets, "")
        self._context.say(StorePointer(answer.output, source, offsets, reason))
        instance = self._entries.instances.edit((name, number))
        progress = instance.stages.get(stage) if instance is not None else None
        if instance is None or progress is None or progress.open.number != serial:
            return
        instance.unplaced -= 1
        pipeline = self._pipelines[name]
        self._go_on(pipeline, pipeline.plans[instance.version], number, instance)

    def end(self, name: str, number: int, outcome: Outcome, reason: str = "") -> None:
        """An instance ends, and its state is removed. Its open deliveries are withdrawn."""
        instance = self._entries.instances.get((name, number))
        assert instance is not None, (name, number)
        for stage, progress in instance.stages.items():
            found = progress.open
            if found.state in _HELD:
                delivery = StageDelivery(name, number, stage, found.number)
                self._transactions.give_up(delivery, reason)
                self._give_back(found)
                if found.member != IN_SPARK:
                    self._context.say(WithdrawDelivery(found.member, delivery, reason))
            elif found.state is DeliveryState.WAITING:
                self._entries.waiting.remove((name, stage, found.place))
        self._entries.instances.remove((name, number))
        users = self._pipelines[name].users
        users[instance.version] -= 1
        if not users[instance.version]:
            del users[instance.version]
        self._context.say(InstanceEnded(name, number, outcome, instance.began_at, self._context.now, reason))

    def end_all(self, name: str, reason: str) -> None:
        """End all instances of a pipeline. This reads all active instances."""
        for pipeline, number in list(self._entries.instances.all_keys()):
            if pipeline == name:
                self.end(name, number, Outcome.CANCELLED, reason)

    def deliver(self) -> None:
        """Deliver waiting stages to random members that have room."""
        for name, pipeline in self._pipelines.items():
            for stage, queue in pipeline.queues.items():
                if queue.head < queue.tail and queue.members:
                    self._deliver(name, pipeline, stage, queue)

    def _deliver(self, name: str, pipeline: PipelineProgress, stage: str, queue: Queue) -> None:
        members, waiting = self._context.head.members, self._entries.waiting
        free = [one for one in queue.members if members[one].open < members[one].limit]
        while free and queue.head < queue.tail:
            place = (name, stage, queue.head)
            number = waiting.get(place)
            queue.head += 1
            if number is None:
                # The instance of this place has ended.
                continue
            waiting.remove(place)
            instance = self._entries.instances.edit((name, number))
            assert instance is not None, place
            found = instance.stages[stage].open
            serial = self._context.number_delivery()
            member = self._context.draw(free, serial)
            self._hand_over(found, serial, member)
            members[member].open += 1
            if members[member].open == members[member].limit:
                free.remove(member)
            plan = pipeline.plans[instance.version].stage(stage)
            assert plan is not None, stage
            delivery = StageDelivery(name, number, stage, serial)
            self._context.say(DeliverInputs(member, delivery, *inputs(plan, instance)))

    def _go_on(self, pipeline: PipelineProgress, plan: PipelinePlan, number: int, instance: Instance) -> None:
        """Begin the stages that may begin, or end the instance when there is nothing left of it."""
        for stage in list(ready_stages(plan, instance)):
            instance.stages[stage.name] = StageProgress(OpenDelivery(DeliveryState.WAITING, self._context.now))
            self._offer(pipeline, stage, number, instance)
        release(plan, instance)
        if not instance.unplaced and all_done(plan, instance):
            self.end(plan.name, number, Outcome.DONE)

    def _offer(self, pipeline: PipelineProgress, stage: StagePlan, number: int, instance: Instance) -> None:
        """A stage waits: run its function, or put it into its queue."""
        name = pipeline.plan.name
        if stage.function:
            serial = self._context.number_delivery()
            self._hand_over(instance.stages[stage.name].open, serial, IN_SPARK)
            delivery = StageDelivery(name, number, stage.name, serial)
            given = inputs(stage, instance)
            required = stage.output_required
            partition = self._context.key.partition
            run = RunFunction(delivery, stage.function, *given, stage.targets, stage.dependencies, required, partition)
            self._context.say(run)
            return
        queue = pipeline.queues.setdefault(stage.name, Queue())
        instance.stages[stage.name].open.place = queue.tail
        self._entries.waiting.put((name, stage.name, queue.tail), number)
        queue.tail += 1

    def _hand_over(self, found: OpenDelivery, serial: int, member: str) -> None:
        found.state = next_state(DELIVERY, found.state, DeliveryEvent.MEMBER_CHOSEN)
        found.number, found.member, found.attempts = serial, member, found.attempts + 1

    def _give_back(self, found: OpenDelivery) -> None:
        """The member of a delivery may have another one in its place."""
        member = self._context.head.members.get(found.member)
        if member is not None:
            member.open -= 1

    def _fail(
        self, name: str, number: int, instance: Instance, plan: StagePlan, delivery: StageDelivery, why: str
    ) -> None:
        """A stage was delivered as often as its plan permits: the instance has failed."""
        reason = f"stage {plan.name} did not succeed in {plan.attempts} deliveries"
        if why:
            reason = f"{reason}; the last one: {why}"
        if plan.dead_letter and instance.root is not None:
            partition = str(self._context.key.partition)
            extensions = (
                ("failedpipeline", name),
                ("failedpartition", partition),
                ("failedinstance", str(number)),
                ("failedstage", plan.name),
            )
            # An event that fails in two pipelines, or in two partitions, is two dead letters.
            identity = f"{instance.root.id}:{name}:{partition}/{number}"
            letter = instance.root._replace(id=identity, attributes=(*instance.root.attributes, *extensions))
            self._context.carry(plan.dead_letter_key(number), AppendOutput(OutputId(delivery, DEAD_LETTER), (letter,)))
        self.end(name, number, Outcome.FAILED, reason)
