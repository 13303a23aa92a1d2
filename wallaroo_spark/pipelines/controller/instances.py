"""The active instances of a partition's pipelines: the deliveries of their stages, their outputs and their end.

Functions here tell which stages of an instance may begin, which outputs are still needed, and whether an ack is whole.

Source: ``docs/pipelines/design.md#pipelines-and-instances``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.messages import events, instructions, values
from wallaroo_spark.pipelines.controller.messages.events import DeliveryAcked
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import DEAD_LETTER, Failure, dead_letter
from wallaroo_spark.pipelines.controller.partition_log import records_problem
from wallaroo_spark.pipelines.controller.states import DeliveryEvent, DeliveryState
from wallaroo_spark.pipelines.controller.stored import key_state
from wallaroo_spark.pipelines.controller.stored.key_state import Instance, OpenDelivery, PipelineProgress, next_size
from wallaroo_spark.pipelines.controller.transactions import Transactions
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload, inputs_problem

_HELD = (DeliveryState.DELIVERED, DeliveryState.COMMITTING)
AHEAD_BYTES = 4 << 20
"""The most bytes of deliveries that wait at its gateway for one member, of all partitions, because its window is larger
than its concurrency. A choice, below ``waiting_bytes`` of the gateway's limits."""
_DELIVERY_BYTES = 200
"""Bytes of a delivery beside its inputs, about."""


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
        self._context.emit(instructions.InstanceBegan(plan.name, number, pipeline.version, now, pipeline.birth))
        if (plan.name, number) in self._context.set_aside:
            self.set_aside()
        else:
            self._go_on(plan.name, number, instance)

    def _instance(self, name: str, number: int) -> Instance:
        """An active instance, to change."""
        instance = self._entries.instances.edit((name, number))
        assert instance is not None, (name, number)
        return instance

    def find(self, delivery: values.StageDelivery) -> OpenDelivery | None:
        """The open delivery of this name, None without one; it may be changed."""
        instance = self._entries.instances.edit((delivery.pipeline, delivery.instance))
        progress = instance.stages.get(delivery.stage) if instance is not None else None
        return progress.open if progress is not None and progress.open.number == delivery.number else None

    def stage(self, delivery: values.StageDelivery) -> StagePlan:
        """The plan of an open delivery's stage."""
        instance = self._instance(delivery.pipeline, delivery.instance)
        found = self._pipelines[delivery.pipeline].plan_of(instance.version).stage(delivery.stage)
        assert found is not None, delivery
        return found

    def inputs_problem(self, delivery: values.StageDelivery, output: Payload | None) -> str:
        """Why a stage could not be given its inputs if this output were one of them; empty when it could."""
        instance = self._instance(delivery.pipeline, delivery.instance)
        for stage in self._pipelines[delivery.pipeline].plans[instance.version].stages:
            if output is not None and delivery.stage in stage.dependencies:
                known = ((name, self._output(delivery, instance, name)) for name in stage.dependencies)
                outputs = {name: one for name, one in known if one is not None} | {delivery.stage: output}
                root = instance.root if stage.given_root else None
                if problem := inputs_problem(root, outputs.items()):
                    return f"stage {stage.name} could not be run: {problem}; the delivery is treated as nacked"
        return ""

    def _output(self, delivery: values.StageDelivery, instance: Instance, stage: str) -> Payload | None:
        """The output of a stage of the same instance, also while its transaction is not committed."""
        found = instance.stages.get(stage)
        if found is not None and found.open.state is DeliveryState.COMMITTING:
            transaction = self._transactions.get(delivery._replace(stage=stage, number=found.open.number))
            return transaction.output if transaction is not None else None
        return found.output if found is not None else None

    def finish(
        self,
        delivery: values.StageDelivery,
        event: DeliveryEvent,
        output: Payload | None,
        stream_outputs: Sequence[values.StreamOutput],
    ) -> None:
        """A stage is done: record its output, carry its stream outputs, and begin the stages that waited for it."""
        instance = self._instance(delivery.pipeline, delivery.instance)
        progress = instance.stages[delivery.stage]
        progress.open.on(event)
        self._give_back(progress.open, acked=True)
        progress.output = output
        self._context.emit(instructions.StoreOutput(delivery, output, progress.open.began_at, self._context.now))
        for place, one in enumerate(stream_outputs):
            if one.records:
                self._context.carry(one.target, events.AppendOutput(values.OutputId(delivery, place), one.records))
                instance.unplaced += 1
        self._go_on(delivery.pipeline, delivery.instance, instance)

    def redeliver(self, delivery: values.StageDelivery, event: DeliveryEvent, delay: int, reason: str) -> None:
        """A delivery has not succeeded: it waits for a member again, after a delay; or its instance has failed."""
        instance = self._instance(delivery.pipeline, delivery.instance)
        plan, found = self.stage(delivery), instance.stages[delivery.stage].open
        if (member := self._give_back(found)) is not None and member.left:
            # It may fail at everything, so it is given less; once for all that it gives back at a time.
            member.window, member.left = member.most // 2, 0
        found.on(event)
        self._context.emit(instructions.DeliveryFailed(delivery, found.attempts, reason, found.began_at))
        if plan.attempts and found.attempts >= plan.attempts:
            self._fail(delivery, instance, plan, reason)
        elif found.state is DeliveryState.DELAYED:
            self._context.delay(delivery, found, delay)
        else:
            self._offer(delivery.pipeline, plan, delivery.instance, instance)

    def due(self, delivery: values.StageDelivery) -> None:
        """The delay of a delivery is over."""
        found = self.find(delivery)
        if found is not None and found.state is DeliveryState.DELAYED:
            found.on(DeliveryEvent.DUE)
            instance = self._instance(delivery.pipeline, delivery.instance)
            self._offer(delivery.pipeline, self.stage(delivery), delivery.instance, instance)

    def held_by(self, name: str, member: key_state.Member) -> list[values.StageDelivery]:
        """The deliveries that a member has. This reads all active instances, when there is any."""
        return [one for one, found in self._held() if found.member == name] if member.open else []

    def timed(self) -> list[tuple[int, values.StageDelivery]]:
        """The deliveries of members, each with the end of its time. This reads all active instances, if any."""
        if not any(member.stage and member.open for member in self._context.head.members.values()):
            return []
        return [(found.due, delivery) for delivery, found in self._held() if found.due]

    def _held(self) -> Iterator[tuple[values.StageDelivery, OpenDelivery]]:
        """The deliveries of members."""
        for pipeline, number in self._entries.instances.all_keys():
            instance = self._entries.instances.get((pipeline, number))
            assert instance is not None, (pipeline, number)
            for stage, progress in instance.stages.items():
                if progress.open.state is DeliveryState.DELIVERED and progress.open.member != values.IN_SPARK:
                    birth = self._pipelines[pipeline].birth
                    yield values.StageDelivery(pipeline, number, stage, progress.open.number, birth), progress.open

    def taken(self, event: events.DeliveriesTaken) -> list[values.StageDelivery]:
        """The deliveries that an operator takes away."""
        return [
            delivery
            for delivery, _ in self._held()
            if (delivery.pipeline, delivery.instance) == (event.pipeline, event.instance)
            and event.stage in ("", delivery.stage)
        ]

    def placed(self, source: values.PartitionKey, answer: events.OutputAppended | events.OutputRefused) -> None:
        """The target of a stream output answers; an instance ends once all have."""
        assert isinstance(answer.output, values.OutputId), answer
        delivery, reason, places = answer.output.delivery, "", {source.partition: list[int]()}
        if isinstance(answer, events.OutputRefused):
            reason = answer.reason
        else:
            places = _by_partition(instructions.Written(source, answer.offsets, partitions=answer.partitions)) or places
        for partition, offsets in places.items():
            target = values.PartitionKey(source.stream, partition)
            self._context.emit(instructions.StorePointer(answer.output, target, tuple(offsets), reason))
        if self.find(delivery) is not None:
            instance = self._instance(delivery.pipeline, delivery.instance)
            instance.unplaced -= 1
            self._go_on(delivery.pipeline, delivery.instance, instance)

    def set_aside(self) -> None:
        """End the instances that an operator has set aside."""
        for key, reason in self._context.set_aside.items():
            if self._entries.instances.get(key) is not None:
                self.end(*key, instructions.Outcome.FAILED, f"it was set aside: {reason}")

    def end(self, name: str, number: int, outcome: instructions.Outcome, reason: str = "") -> None:
        """An instance ends, and its state is removed. Its open deliveries are withdrawn."""
        instance, pipeline = self._instance(name, number), self._pipelines[name]
        for stage, progress in instance.stages.items():
            found = progress.open
            if found.state in _HELD:
                delivery = values.StageDelivery(name, number, stage, found.number, pipeline.birth)
                self._transactions.give_up(delivery, reason)
                self._give_back(found)
                if found.member != values.IN_SPARK:
                    self._context.emit(instructions.WithdrawDelivery(found.member, delivery, reason))
            elif found.state is DeliveryState.WAITING:
                self._entries.waiting.remove((name, stage, found.place))
        self._entries.instances.remove((name, number))
        users = pipeline.users
        users[instance.version] -= 1
        if not users[instance.version]:
            del users[instance.version]
        times = instance.began_at, self._context.now
        self._context.emit(instructions.InstanceEnded(name, number, outcome, *times, reason, pipeline.birth))

    def end_all(self, name: str, reason: str) -> None:
        """End all instances of a pipeline. This reads all active instances."""
        for pipeline, number in list(self._entries.instances.all_keys()):
            if pipeline == name:
                self.end(name, number, instructions.Outcome.CANCELLED, reason)

    def deliver(self) -> None:
        """Deliver waiting stages to random members that have room."""
        for name, pipeline in self._pipelines.items():
            for stage, queue in pipeline.queues.items():
                if queue.head < queue.tail and queue.members:
                    self._deliver(name, pipeline, stage, queue)

    def _deliver(self, name: str, pipeline: PipelineProgress, stage: str, queue: key_state.Queue) -> None:
        members, waiting = self._context.head.members, self._entries.waiting
        free = [one for one in queue.members if members[one].open < members[one].limit]
        # Nothing waits at the gateway of one of them while another one could begin with it at once.
        ahead = [one for one in queue.members if members[one].limit <= members[one].open < members[one].most]
        while (free or ahead) and queue.head < queue.tail:
            place = (name, stage, queue.head)
            number = waiting.get(place)
            if number is None:
                # The instance of this place has ended.
                queue.head += 1
                continue
            instance = self._instance(name, number)
            plan = pipeline.plan_of(instance.version).stage(stage)
            assert plan is not None, place
            given = inputs(plan, instance)
            serial = self._context.number_delivery()
            chosen = self._context.draw(free or ahead, serial)
            member = members[chosen]
            if not free and self._size(*given) * member.most > AHEAD_BYTES:
                ahead.remove(chosen)
                continue
            waiting.remove(place)
            queue.head += 1
            found = instance.stages[stage].open
            found.hand_over(serial, chosen)
            member.open += 1
            if member.open >= member.most:
                (free or ahead).remove(chosen)
                if not member.left:
                    member.left, member.full_at = member.most, self._context.now
            elif member.open == member.limit:
                free.remove(chosen)
                ahead.append(chosen)
            delivery = values.StageDelivery(name, number, stage, serial, pipeline.birth)
            found.due = self._context.due_in(plan.timeout)
            self._context.emit(instructions.DeliverInputs(chosen, delivery, *given, plan.timeout))

    def _size(self, root: CloudEvent | None, outputs: Sequence[tuple[str, Payload]]) -> int:
        """The bytes that a delivery takes at its member's gateway, with as many of each other partition."""
        size = _DELIVERY_BYTES + (root.size if root is not None else 0) + sum(len(one.data) for _, one in outputs)
        return size * self._context.head.partitions[-1]

    def _go_on(self, name: str, number: int, instance: Instance) -> None:
        """Begin the stages that may begin, or end the instance when there is nothing left of it."""
        plan = self._pipelines[name].plan_of(instance.version)
        for stage in list(ready_stages(plan, instance)):
            waiting = OpenDelivery(DeliveryState.WAITING, self._context.now)
            instance.stages[stage.name] = key_state.StageProgress(waiting)
            self._offer(name, stage, number, instance)
        release(plan, instance)
        if not instance.unplaced and all_done(plan, instance):
            self.end(name, number, instructions.Outcome.DONE)

    def _offer(self, name: str, stage: StagePlan, number: int, instance: Instance) -> None:
        """A stage waits: run its function, or put it into its queue."""
        pipeline = self._pipelines[name]
        if stage.function:
            serial = self._context.number_delivery()
            instance.stages[stage.name].open.hand_over(serial, values.IN_SPARK)
            delivery = values.StageDelivery(name, number, stage.name, serial, pipeline.birth)
            run = instructions.RunFunction(
                delivery,
                stage.function,
                *inputs(stage, instance),
                stage.targets,
                stage.dependencies,
                stage.output_required,
                self._context.key.partition,
            )
            self._context.emit(run)
            return
        queue = pipeline.queues.setdefault(stage.name, key_state.Queue())
        instance.stages[stage.name].open.place = queue.tail
        self._entries.waiting.put((name, stage.name, queue.tail), number)
        queue.tail += 1

    def _give_back(self, found: OpenDelivery, *, acked: bool = False) -> key_state.Member | None:
        """The member of a delivery, if it is still there, may have another one in its place."""
        member = self._context.head.members.get(found.member)
        if member is not None:
            member.open -= 1
            if acked and member.left:
                member.left -= 1
                if not member.left:
                    member.window = next_size(member.most, member.most, self._context.now - member.full_at)
        return member

    def _fail(self, delivery: values.StageDelivery, instance: Instance, plan: StagePlan, why: str) -> None:
        """A stage was delivered as often as its plan permits: the instance has failed."""
        name, number, attempts = delivery.pipeline, delivery.instance, instance.stages[plan.name].open.attempts
        reason = f"stage {plan.name} did not succeed in {attempts} deliveries"
        if why:
            reason = f"{reason}; the last one: {why}"
        if plan.dead_letter and instance.root is not None:
            key, now = self._context.key, self._context.now
            failure = Failure(why, attempts, now, key, number, name, delivery.birth, plan.name)
            letter = values.OutputId(delivery, DEAD_LETTER), (dead_letter(instance.root, failure),)
            self._context.carry(plan.retry.dead_letter_key(number), events.AppendOutput(*letter))
        self.end(name, number, instructions.Outcome.FAILED, reason)


def _by_partition(written: instructions.Written) -> dict[int, list[int]]:
    """The offsets in each partition, as a rule one."""
    found: dict[int, list[int]] = {}
    for partition, offset in written.places():
        found.setdefault(partition, []).append(offset)
    return found


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
