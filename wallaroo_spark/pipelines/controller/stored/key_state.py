"""The stored state of a key as values. Their entries: :class:`~wallaroo_spark.pipelines.controller.context.KeyEntries`.

The order of fields is part of the stored format: a new field stands at the end and has a default. Times are
milliseconds since 1970 UTC. Source: ``docs/pipelines/design.md#the-state-of-a-key``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wallaroo_spark.pipelines.controller import states
from wallaroo_spark.pipelines.controller.messages import values
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan, RetryPlan
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload


@dataclass(slots=True)
class OpenDelivery:
    """The state of a delivery that is not done."""

    state: states.DeliveryState
    began_at: int
    """When it could be delivered first."""
    number: int = 0
    """Number of its newest delivery; 0 before the first."""
    attempts: int = 0
    """How often it was delivered."""
    member: str = ""
    """The member that has it, while it is delivered or committing."""
    due: int = 0
    """When it is delivered again, while it is delayed; when its time is over, while a member has it; 0 for never."""
    place: int = 0
    """Its place in the queue of its stage, while it waits there."""

    def on(self, event: states.DeliveryEvent) -> None:
        """Go on to the state that follows."""
        self.state = states.next_state(states.DELIVERY, self.state, event)

    def hand_over(self, number: int, member: str) -> None:
        """A member is given it, under a new number."""
        self.on(states.DeliveryEvent.MEMBER_CHOSEN)
        self.number, self.member, self.attempts = number, member, self.attempts + 1


@dataclass(slots=True)
class Member:
    """A channel of a subscriber."""

    gateway: str
    generation: int
    """The gateway's generation."""
    group: str
    """The group that it is a member of; empty for a member of a stage."""
    pipeline: str = ""
    """The pipeline of its stage."""
    stage: str = ""
    limit: int = 1
    """For a group the most records of a delivery; for a stage the most open deliveries."""
    open: int = 0
    """Number of its open deliveries, with those that were taken away; only of stages."""
    overdue: list[int] = field(default_factory=list)
    """Deliveries that were taken away, and that it has not settled since: they keep their places."""
    window: int = 0
    """For a stage: the most deliveries that it has here; those beyond ``limit`` wait at its gateway. It follows the
    time that acks take. 0: as ``limit``."""
    left: int = 0
    """Acks until all that it had when its window was full are done; 0 while the window is not followed."""
    full_at: int = 0
    """When its window was full."""

    @property
    def most(self) -> int:
        """The most open deliveries that it is given."""
        return max(self.limit, self.window)


@dataclass(slots=True)
class Group:
    """A group of subscribers."""

    durable: bool
    """Whether it outlives its members."""
    cursor: int
    """The last offset that is done."""
    members: list[str] = field(default_factory=list)
    """Its members, in the order in which they joined."""
    first: int = 0
    """First offset of the open delivery."""
    last: int = 0
    """Last offset of the open delivery."""
    open: OpenDelivery | None = None
    """The open delivery; a group has at most one."""
    missed: int = 0
    """Records that retention removed before this group had them, and that no delivery has reported yet."""
    failed_until: int = 0
    """The last offset of a batch that has failed as often as it may: half of the records up to it are delivered."""
    paused: bool = False
    """Whether nothing is delivered, because an operator has said so."""
    idle_since: int = 0
    """When its last member left; 0 while it has one."""
    reason: str = ""
    """Why its last delivery failed, if one did; instances have a history for it."""
    letters_refused: int = 0
    """Dead letters that their stream has refused: these events are only where the group has read them."""
    refused_reason: str = ""
    """Why the last of them was refused; empty before the first."""
    size: int = 100
    """The most records of its next batch; it follows the time that batches take."""


@dataclass(slots=True)
class Queue:
    """The queue of a stage: its waiting deliveries are the places from ``head`` to ``tail - 1``."""

    head: int = 0
    """The first place."""
    tail: int = 0
    """The place that is used next."""
    members: list[str] = field(default_factory=list)
    """The members of the stage, in the order in which they joined."""


@dataclass(slots=True)
class PipelineProgress:
    """A pipeline on this partition."""

    version: int
    """Version of its newest plan."""
    cursor: int
    """The last offset that has begun an instance or did not match."""
    plans: dict[int, PipelinePlan]
    """The newest plan, and the older ones that active instances use, by version."""
    users: dict[int, int] = field(default_factory=dict)
    """Version → number of active instances; none are left out."""
    reading: int = 0
    """Offset from which records are asked for; 0 for none."""
    queues: dict[str, Queue] = field(default_factory=dict)
    """The queues of its stages, by name."""
    birth: int = 0
    """Version of the schema with which it was declared first; one that is deleted and declared anew has another."""

    @property
    def plan(self) -> PipelinePlan:
        """The newest plan."""
        return self.plans[self.version]

    def plan_of(self, version: int) -> PipelinePlan:
        """The plan of an instance: its stages are those that it began with, and their retry policies the newest."""
        plan, newest = self.plans[version], self.plan
        if version == self.version:
            return plan
        found = ((stage, newest.stage(stage.name)) for stage in plan.stages)
        return plan._replace(stages=tuple(old if new is None else old.under(new.retry) for old, new in found))

    @property
    def active(self) -> int:
        """Number of active instances."""
        return sum(self.users.values())

    @property
    def has_room(self) -> bool:
        """Whether another instance may begin."""
        return self.active < self.plan.max_parallel


@dataclass(slots=True)
class Head:
    """The state of a key that every batch needs."""

    last: int = 0
    """The last offset."""
    first: int = 1
    """The first offset that retention has left."""
    version: int = -1
    """Version of the declaration; -1 before the first."""
    declared: bool = False
    """Whether the stream is declared."""
    window_millis: int = 0
    """How long the source and id of a record are remembered."""
    window_records: int = 0
    """How many are remembered at most."""
    groups: dict[str, Group] = field(default_factory=dict)
    """The groups, by name."""
    members: dict[str, Member] = field(default_factory=dict)
    """All members, of groups and stages, by name."""
    pipelines: dict[str, PipelineProgress] = field(default_factory=dict)
    """The pipelines, by name."""
    sent: dict[values.PartitionKey, int] = field(default_factory=dict)
    """Key → sequence number of the last message that was carried to it."""
    received: dict[values.PartitionKey, int] = field(default_factory=dict)
    """Key → sequence number of the last message that came from it."""
    gateways: dict[str, int] = field(default_factory=dict)
    """Gateway → its newest generation."""
    deliveries: int = 0
    """Number of deliveries so far; it gives each its number."""
    seen_from: int = 1
    """The first offset whose event's id is remembered."""
    delayed: list[tuple[int, values.Delivery | values.DelayedRecords]] = field(default_factory=list)
    """Due time and name of deliveries and records, the earliest first. A withdrawn delivery may still be in it."""
    armed: int | None = None
    """The time of the armed timer."""
    seen_chunks: list[int] = field(default_factory=list)
    """First offsets of the chunks of remembered ids."""
    seen_trace: bytes = b""
    """A hash of all ids that were remembered and forgotten so far."""
    transactions: int = 0
    """Number of transactions of its deliveries; most keys have none, and then no entry is looked for."""
    paged: bool = True
    """Always true: instances and waiting places are in pages. It keeps the places of the fields behind it."""
    seen_clock: int = 0
    """The active time of the window of remembered ids; 0 before the first record."""
    seen_now: int = 0
    """The time of the batch at which it stands."""
    born: int = -1
    """Version with which the stream was declared, or the partition added; that of a deleted stream does not count."""
    partitions: list[int] = field(default_factory=list)
    """The numbers of partitions that the stream has had since it was declared, the newest last."""
    raised: int = -1
    """Version with which the number of partitions was raised last; that of ``born`` before."""
    seen_elsewhere: list[tuple[int, int]] = field(default_factory=list)
    """Number, and active time of the arrival, of each entry with ids that other partitions have."""
    retry: RetryPlan = RetryPlan()
    """The treatment of deliveries of groups that did not succeed."""
    deadline: int | None = None
    """The time of no open delivery is over before this; None while no delivery has a limit."""
    committing: list[tuple[values.PartitionKey, values.StatementId]] = field(default_factory=list)
    """Source and name of staged statements that are committed, and that later batches append."""


@dataclass(slots=True)
class StageProgress:
    """A stage of an instance that has begun."""

    open: OpenDelivery
    output: Payload | None = None
    """Its output, while a stage that is not done depends on it."""


@dataclass(slots=True)
class Instance:
    """An active instance."""

    version: int
    """Version of the plan that it ends with."""
    began_at: int
    """When it began."""
    root: CloudEvent | None
    """The root event; None once no stage can need it."""
    stages: dict[str, StageProgress] = field(default_factory=dict)
    """The stages that have begun."""
    unplaced: int = 0
    """Number of stream outputs whose offsets have not come back."""


@dataclass(slots=True)
class Statement:
    """A statement at the driver of its transaction."""

    state: states.StatementState
    target: values.PartitionKey
    """Where its records go."""
    reply_to: values.ReplyTo
    """The member's request."""
    offsets: tuple[int, ...] = ()
    """The offsets of its records, once it is committed."""
    reason: str = ""
    """Why its records are not written although it is committed."""
    partitions: tuple[int, ...] = ()
    """As those of Written."""

    def on(self, event: states.StatementEvent) -> None:
        """Go on to the state that follows."""
        self.state = states.next_state(states.STATEMENT, self.state, event)


@dataclass(slots=True)
class DeliveryTransaction:
    """The transaction of a delivery."""

    state: states.TxState = states.TxState.PENDING
    statements: list[Statement] = field(default_factory=list)
    """Its statements, in the order in which they came."""
    acked: bool = False
    """Whether its delivery is acked."""
    acked_by: values.ReplyTo | None = None
    """The request of the ack, once it has come."""
    output: Payload | None = None
    """The output of that ack."""
    stream_outputs: tuple[values.StreamOutput, ...] = ()
    """The stream outputs of that ack."""

    def on(self, event: states.TxEvent) -> None:
        """Go on to the state that follows."""
        self.state = states.next_state(states.TRANSACTION, self.state, event)


QUICK_MILLIS = 5_000
"""What is acked within this time may be twice as much next. A choice."""
SLOW_MILLIS = 20_000
"""What takes longer is to be half as much next: what a member loses by its death is delivered again. A choice."""


def next_size(given: int, most: int, took: int) -> int:
    """The most that may be given next, after ``given`` of at most ``most`` were acked within ``took`` milliseconds.

    Source: ``docs/pipelines/design.md#windows``.
    """
    if took > SLOW_MILLIS:
        return max(1, given // 2)
    return 2 * most if took <= QUICK_MILLIS and given == most else most
