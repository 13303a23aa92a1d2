"""A gateway without its shell: requests of clients become events, and instructions become answers. Pure.

Source: ``docs/pipelines/gateway.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api.limits import GROUP_EVENTS, STAGE_DELIVERIES
from wallaroo_spark.gateway.cloud_events import events_of
from wallaroo_spark.gateway.limits import ByteBudget, GatewayLimits, Refused, busy, ended, ends, invalid
from wallaroo_spark.gateway.state.calls import (
    Answer,
    GroupCall,
    PublishCall,
    RequestsInFlight,
    ToInbox,
    WaitingCall,
    by_partition,
    require_partition,
)
from wallaroo_spark.gateway.state.members import GroupJoining, JoinedMember, StageJoining
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import Durability, PartitionKey, ReplyTo
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration, StartPoint, StreamDeclaration
from wallaroo_spark.pipelines.schema.names import name_problem

Changed = Callable[[], None]
_DURABILITY = {pb.COMMITTED: Durability.COMMITTED, pb.RECEIVED: Durability.RECEIVED}
_LOCATIONS = {pb.StartPoint.LATEST: "latest", pb.StartPoint.BEGINNING: "beginning", pb.StartPoint.OFFSET: "offset"}

_ACTIONS = {pb.ChangeGroupRequest.Action.Value(action.name): action for action in e.GroupAction}


class GatewayCore:
    """The state of one gateway in one generation."""

    def __init__(self, gateway: str, generation: int, schema: SchemaView, limits: GatewayLimits) -> None:
        self.schema = schema
        self.limits = limits
        self.requests = RequestsInFlight(gateway, generation)
        self.ended: Refused | None = None
        """Why the gateway takes no more requests; None while it does."""
        self._prefix = f"{gateway}.{generation}."
        self.members: dict[int, JoinedMember] = {}
        """The members, by number."""
        self.calls: set[WaitingCall] = set()
        """The calls that wait for their commit."""
        self.call_bytes = ByteBudget(limits.request_bytes)
        """Their bytes."""
        self.delivery_bytes = ByteBudget(limits.delivery_bytes)
        """The bytes of the deliveries that wait for the members."""
        self._last_member = 0

    def started(self) -> list[ToInbox]:
        """The first events of this generation: the members of earlier ones are gone."""
        event = e.GatewayStarted(self.requests.gateway, self.requests.generation)
        return [(key, event) for key in self.schema.keys]

    def publish(self, request: pb.PublishRequest, changed: Changed) -> tuple[PublishCall, list[ToInbox]]:
        """Begin a publish. Raises :class:`Refused`."""
        stream = self.schema.find(StreamDeclaration, request.stream)
        self._room_for_a_call()
        if request.durability not in _DURABILITY:
            raise invalid(f"durability {request.durability} is not known; give COMMITTED (0) or RECEIVED (1)")
        events = events_of(request.events, self.limits)
        if not events:
            raise invalid("the batch is empty; publish at least one event")
        chosen = request.partition if request.HasField("partition") else None
        parts = by_partition(stream.key.path, stream.partitions, events, chosen)
        # A controller may refuse delayed events, because too many wait; so their answer always waits for the commit.
        durability = Durability.COMMITTED if request.not_before else _DURABILITY[request.durability]
        divided = stream.partitions if chosen is None else 0
        call = PublishCall(self.requests, changed, parts, events, durability, request.not_before, divided)
        if durability is Durability.COMMITTED:
            call.size = request.ByteSize()
            if not self.call_bytes.has_room(call.size):
                raise busy(
                    f"calls of {self.call_bytes.used} bytes wait for their commit, which is the limit; try again "
                    "later, or with another gateway"
                )
            self.call_bytes.add(call.size)
            self.calls.add(call)
        return call, call.begin()

    def change_instance(
        self, request: pb.CancelRequest | pb.TakeAwayRequest, changed: Changed
    ) -> tuple[WaitingCall, list[ToInbox]]:
        """Begin to cancel an instance, or to take its deliveries away. Raises :class:`Refused`."""
        pipeline = self.schema.find(PipelineDeclaration, request.pipeline)
        self._room_for_a_call()
        stream = pipeline.input_key.path
        require_partition(stream, self.schema.partitions(stream), request.partition)
        if request.instance >= 1 << 63:
            raise invalid(f"there is no instance {request.instance}; give the number of a delivery's instance")
        call = WaitingCall(self.requests, changed)
        self.calls.add(call)
        event: Callable[..., e.Event] = e.InstanceCancelled
        if isinstance(request, pb.TakeAwayRequest):
            event = partial(e.DeliveriesTaken, stage=request.stage)
        make = partial(event, pipeline=pipeline.key.path, instance=request.instance)
        return call, [call.ask(PartitionKey(stream, request.partition), make)]

    def change_group(self, request: pb.ChangeGroupRequest, changed: Changed) -> tuple[GroupCall, list[ToInbox]]:
        """Begin to change a group. Raises :class:`Refused`."""
        stream = self.schema.find(StreamDeclaration, request.stream)
        self._room_for_a_call()
        if problem := name_problem(request.group):
            raise invalid(f"group: {problem}")
        # Each is asked once: a message has room for a million numbers.
        chosen = sorted(set(request.partitions)) or range(stream.partitions)
        require_partition(stream.key.path, stream.partitions, max(chosen))
        keys = [PartitionKey(stream.key.path, one) for one in chosen]
        event: Callable[[ReplyTo], e.Event] = partial(e.DeliveriesTaken, group=request.group)
        if request.action != pb.ChangeGroupRequest.TAKE_AWAY:
            if request.action not in _ACTIONS:
                raise invalid(f"action {request.action} is not known; give one of ChangeGroupRequest.Action")
            action, start = _ACTIONS[request.action], _start_point(request.start)
            event = partial(e.GroupChanged, group=request.group, action=action, start=start)
        call = GroupCall(self.requests, changed)
        self.calls.add(call)
        return call, [call.ask(key, event) for key in keys]

    def forget(self, call: WaitingCall) -> None:
        """Nobody waits for a call any more."""
        call.forget()
        if call in self.calls:
            self.calls.remove(call)
            self.call_bytes.add(-call.size)

    def join(self, join: pb.JoinGroup | pb.JoinStage, changed: Changed) -> tuple[JoinedMember, list[ToInbox]]:
        """A client joins a group, or the workers of a stage. Raises :class:`Refused`."""
        joining = self._group(join) if isinstance(join, pb.JoinGroup) else self._stage(join)
        self.require_life()
        if len(self.members) >= self.limits.members:
            raise busy(f"this gateway has {len(self.members)} members, which is its limit; try another gateway")
        self._last_member += 1
        member = JoinedMember(self._last_member, joining, self.requests, self.limits, changed, self.delivery_bytes)
        self.members[member.number] = member
        return member, member.join(joining.partitions or range(self.schema.partitions(joining.stream)))

    def _group(self, join: pb.JoinGroup) -> GroupJoining:
        stream = self.schema.find(StreamDeclaration, join.stream)
        if problem := name_problem(join.group):
            raise invalid(f"group: {problem}")
        start = _start_point(join.start)
        if join.max_events > self.limits.records:
            raise invalid(f"max_events is {join.max_events}, and {self.limits.records} are permitted; ask for fewer")
        require_partition(stream.key.path, stream.partitions, max(join.partitions, default=0))
        return GroupJoining(
            stream.key.path,
            join.group,
            join.durable,
            start,
            join.max_events or GROUP_EVENTS,
            self._concurrency(join.concurrency, 1),
            tuple(sorted(set(join.partitions))),
            0 if join.partitions else stream.partitions,
        )

    def _stage(self, join: pb.JoinStage) -> StageJoining:
        pipeline = self.schema.find(PipelineDeclaration, join.pipeline)
        stage = next((one for one in pipeline.stages if one.name == join.stage), None)
        otherwise: Refused | None = None
        if stage is None:
            names = ", ".join(one.name for one in pipeline.stages)
            otherwise = Refused(
                f"pipeline {join.pipeline} has no stage {join.stage[:200]!r}, and no active instance began with one; "
                f"it has {names}",
                code="object-unknown",
            )
            if name_problem(join.stage):
                raise otherwise
        elif stage.run:
            otherwise = Refused(
                f"stage {join.stage} of pipeline {join.pipeline} runs inside Spark ({stage.run}), so no program can "
                "work on it; remove run from its declaration, or join another stage",
                code="join-refused",
            )
        concurrency = self._concurrency(join.concurrency, STAGE_DELIVERIES)
        # An instance of an older version may need a stage that the newest one does not have: its controller knows.
        path = pipeline.input_key.path
        return StageJoining(path, pipeline.key.path, join.stage, concurrency, otherwise=otherwise)

    def leave(self, member: JoinedMember) -> list[ToInbox]:
        """A client's channel has ended."""
        self.members.pop(member.number, None)
        return member.leave()

    def handle(self, instruction: i.Instruction, records: tuple[CloudEvent, ...] | None = None) -> None:
        """Take an instruction of a committed batch."""
        if isinstance(instruction, Answer):
            self.requests.answered(instruction)
            return
        assert isinstance(instruction, i.ForMember), instruction
        if (found := self._member(instruction.member)) is None:
            return
        member, partition = found
        match instruction:
            case i.DeliverRecords() | i.DeliverInputs():
                member.deliver(partition, instruction, records)
            case i.WithdrawDelivery():
                member.withdraw(partition, instruction.delivery, instruction.reason, instruction.timed_out)
            case i.EndSubscription():
                member.lose(partition, ended(f"{instruction.reason}; join again when it is declared again"))

    def schema_changed(self, schema: SchemaView) -> list[ToInbox]:
        """A new version of the schema: members join the partitions that were added."""
        self.schema = schema
        events: list[ToInbox] = []
        for member in self.members.values():
            if not member.joining.partitions:
                events += member.join(range(schema.partitions(member.joining.stream)), added=True)
        return events

    def end(self, reason: str) -> None:
        """The gateway ends: every call and every channel ends with an error that says so."""
        self.ended = self.ended or ends(reason)
        for call in list(self.calls):
            call.fail(self.ended)
            self.forget(call)
        for member in list(self.members.values()):
            member.end(self.ended)

    def _member(self, name: str) -> tuple[JoinedMember, int] | None:
        """The member of a name, and the partition in it; None for a member that is gone."""
        if not name.startswith(self._prefix):
            return None
        number, _, partition = name.removeprefix(self._prefix).partition(".")
        member = self.members.get(int(number))
        return None if member is None else (member, int(partition))

    def require_life(self) -> None:
        """Raise :class:`Refused` when the gateway ends."""
        if self.ended is not None:
            raise self.ended

    def _room_for_a_call(self) -> None:
        self.require_life()
        if len(self.calls) >= self.limits.requests:
            raise busy(f"{len(self.calls)} calls wait for their commit, which is the limit; try again, or later")

    def _concurrency(self, asked: int, usual: int) -> int:
        if asked > self.limits.concurrency:
            raise invalid(f"concurrency is {asked}, and {self.limits.concurrency} is permitted; ask for less")
        return asked or usual


def _start_point(start: pb.StartPoint) -> StartPoint:
    """The start point of a message. Raises :class:`Refused`."""
    if start.location not in _LOCATIONS:
        raise invalid(f"start.location {start.location} is not known; give LATEST, BEGINNING or OFFSET")
    location = _LOCATIONS[start.location]
    return StartPoint(location=location, offset=min(start.offset, (1 << 63) - 1) if location == "offset" else None)
