"""A key with its controller, for tests: events in, instructions out, the state kept as bytes between the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from proving.pipelines.validation import validate
from wallaroo_spark.pipelines.controller.context import CallContext, KeyEntries
from wallaroo_spark.pipelines.controller.controller import KeyController
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.events import Carried
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import Delivery, PartitionKey, ReplyTo, StreamOutput
from wallaroo_spark.pipelines.controller.stored.entries import Changes, Stored
from wallaroo_spark.pipelines.controller.stored.key_state import Head
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.pipelines.schema.declarations import StartPoint

I = TypeVar("I")  # noqa: E741  # an instruction

ORDERS = PartitionKey("shop/orders", 0)
SHIPMENTS = PartitionKey("shop/shipments", 1)
REPLY = ReplyTo("gateway-0", 1, 1)
BEGINNING = StartPoint(location="beginning")
LATEST = StartPoint(location="latest")


def start_at(offset: int) -> StartPoint:
    """The start point of an offset."""
    return StartPoint(location="offset", offset=offset)


def record(number: int | str, kind: str = "shop.order.created") -> CloudEvent:
    """A record that differs from those with other numbers."""
    return CloudEvent(str(number), "tests", kind, f"data of {number}".encode())


def reply(request: int, generation: int = 1, gateway: str = "gateway-0") -> ReplyTo:
    """A request of a client."""
    return ReplyTo(gateway, generation, request)


def fulfil(**changes: Any) -> PipelinePlan:
    """A pipeline of three tiers: charge and reserve, then ship, then tidy."""
    stages = (
        StagePlan("charge", given_root=True, output_required=True),
        StagePlan("reserve", given_root=True, output_required=True),
        StagePlan("ship", (), ("charge", "reserve"), stream_outputs=("shop/shipments",)),
        StagePlan("tidy", ("ship",)),
    )
    return PipelinePlan("shop/fulfil", stages, start=BEGINNING)._replace(**changes)


def handle(
    key: PartitionKey, now: int, stored: Stored, events: Sequence[e.Event]
) -> tuple[list[i.Instruction], Changes, int, list[CloudEvent]]:
    """The instructions and the changed entries of one batch, and the first offset and the records that it appends."""
    controller = KeyController(CallContext(key, now, stored))
    said = controller.handle(events)
    return said, controller.take_changes(), controller.fresh_from, list(controller.fresh)


class Key:
    """One key. ``said`` and ``fresh`` have the instructions and the records of the last call, ``log`` all records."""

    def __init__(self, *pipelines: PipelinePlan, key: PartitionKey = ORDERS, declared: bool = True) -> None:
        self.key = key
        self.now = 1_000
        self.stored: dict[bytes, bytes] = {}
        self.log: list[CloudEvent] = []
        self.said: list[i.Instruction] = []
        self.fresh: list[CloudEvent] = []
        self.version = 0
        if declared:
            self.declare(*pipelines)

    def do(self, *events: e.Event) -> list[i.Instruction]:
        """One batch. Records behind a cursor are read within it, as a shell may do."""
        self.said, self.fresh = [], []
        waiting = list(events)
        while True:
            said, changes, first, fresh = handle(self.key, self.now, self.stored, waiting)
            again = handle(self.key, self.now, dict(self.stored), waiting)
            assert (said, changes, first, fresh) == again, "a batch that runs again says something else"
            for name, value in changes.items():
                if value is None:
                    self.stored.pop(name, None)
                else:
                    self.stored[name] = value
            validate(KeyEntries(self.stored))
            self.said += said
            assert not fresh or first == len(self.log) + 1
            self.log += fresh
            self.fresh += fresh
            waiting = [self.answer(one) for one in said if isinstance(one, i.ReadRecords)]
            if not waiting:
                return self.said

    def answer(self, question: i.ReadRecords) -> e.Event:
        """The records that a pipeline asks for."""
        first = max(question.first, self.head.first)
        found = tuple(self.log[first - 1 : first - 1 + question.limit])
        return e.RecordsRead(question.pipeline, question.first, first, found)

    def of(self, kind: type[I]) -> list[I]:
        """The instructions of one kind in the last call."""
        return [one for one in self.said if isinstance(one, kind)]

    def one(self, kind: type[I]) -> I:
        """The only instruction of a kind in the last call."""
        (found,) = self.of(kind)
        return found

    @property
    def head(self) -> Head:
        """The head of the state, to read."""
        return KeyEntries(self.stored).head

    @property
    def active(self) -> list[tuple[str, int]]:
        """The active instances."""
        return [*KeyEntries(self.stored).instances.all_keys()]

    def declare(self, *pipelines: PipelinePlan, **changes: Any) -> None:
        """Declare the partition anew."""
        self.version += 1
        self.do(e.PartitionDeclared(self.version, PartitionPlan(pipelines)._replace(**changes)))

    def publish(self, *records: CloudEvent, request: int = 1) -> None:
        """Publish records."""
        self.do(e.RecordsPublished(reply(request), records))

    def join(self, member: str, group: str = "billing", **changes: Any) -> None:
        """A member joins a group."""
        self.do(e.GroupJoined(REPLY, member, group, start=changes.pop("start", BEGINNING))._replace(**changes))

    def serve(self, member: str, stage: str, concurrency: int = 10, pipeline: str = "shop/fulfil") -> None:
        """A member joins a stage."""
        self.do(e.StageJoined(REPLY, member, pipeline, stage, concurrency))

    def ack(self, member: str, delivery: Delivery, output: bytes | None = None, *outputs: StreamOutput) -> None:
        """A member acks a delivery."""
        payload = None if output is None else Payload(output)
        self.do(e.DeliveryAcked(REPLY, member, delivery, payload, outputs))

    def nack(self, member: str, delivery: Delivery, delay: int = 0, reason: str = "") -> None:
        """A member nacks a delivery."""
        self.do(e.DeliveryNacked(REPLY, member, delivery, delay, reason))

    def leave(self, member: str) -> None:
        """A member leaves."""
        self.do(e.MemberLeft(member))

    def carried(self, message: Carried, source: PartitionKey = SHIPMENTS, sequence: int | None = None) -> None:
        """A message of another key arrives."""
        following = self.head.received.get(source, 0) + 1
        self.do(e.CarriedIn(source, following if sequence is None else sequence, message))

    def at(self, now: int) -> None:
        """Time passes, with an empty batch."""
        self.now = now
        self.do()
