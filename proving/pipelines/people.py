"""The clients of a simulated history: members that ack, nack, forget an output, or use a transaction."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from proving.pipelines.judge import Judge
from proving.pipelines.shop import DEAD, GHOST, ORDERS, POISON, SHIPMENTS, TRIGGER, Schema
from wallaroo_spark.engine.operator.functions import SHORTEST_DELAY, events_of
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages.instructions import RunFunction
from wallaroo_spark.pipelines.controller.messages.values import (
    IN_SPARK,
    Delivery,
    GroupDelivery,
    PartitionKey,
    ReplyTo,
    StreamOutput,
)
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload

Message = tuple[PartitionKey, e.Event]


@dataclass
class Gateway:
    """A gateway; ``queue`` has the messages that no batch has yet, which die with it."""

    name: str
    generation: int = 0
    """Number of its start."""
    alive: bool = False
    """Whether it runs."""
    queue: list[Message] = field(default_factory=list)
    """Messages of clients, in their order."""
    skew: int = 0
    """Milliseconds by which its clock differs from the driver's."""


@dataclass
class Client:
    """A member's process: the deliveries that it works on, each as the messages that are left to send."""

    name: str
    """Name of the member."""
    key: PartitionKey
    """The key that it has joined."""
    gateway: Gateway
    generation: int
    """The generation of its gateway."""
    work: list[Iterator[e.Event | None]] = field(default_factory=list)
    """Its open deliveries; None: it does nothing at the moment."""

    @property
    def alive(self) -> bool:
        """Whether its gateway still runs."""
        return self.gateway.alive and self.gateway.generation == self.generation


class Work:
    """Makes records, and the messages with which a member works on a delivery."""

    def __init__(self, dice: random.Random, judge: Judge, schema: Schema) -> None:
        self._dice = dice
        self._judge = judge
        self._schema = schema
        self._requests = 0
        self._records = 0
        self.calm = False

    def reply(self, gateway: Gateway) -> ReplyTo:
        """A new request at a gateway."""
        self._requests += 1
        return ReplyTo(gateway.name, gateway.generation, self._requests)

    def record(self, key: PartitionKey, kind: str) -> CloudEvent:
        """A new record for a key."""
        self._records += 1
        name = f"{kind}-{self._records}"
        data = POISON if self._dice.random() < 0.1 else b"data"
        return CloudEvent(name, "people", TRIGGER if self._dice.random() < 0.8 else "order.seen", data)

    def on(self, client: Client, delivery: Delivery, timeout: int) -> Iterator[e.Event | None]:
        """The messages of a member on one delivery, each made when it is sent."""
        dice, judge, key = self._dice, self._judge, client.key
        attempt = judge.attempts[key, delivery]
        if timeout and not self.calm and dice.random() < 0.2:
            # It works for long, and perhaps says so; or it hangs, and perhaps for ever.
            extends, ends = dice.random() < 0.5, dice.random() < 0.7
            for _ in range(dice.choice((2, 5, 20))):
                if extends:
                    yield e.DeliveryExtended(client.name, delivery)
                if not self.calm:
                    yield None
            if not ends:
                return
        if key.stream == ORDERS and dice.random() < 0.3:
            yield e.TransactionBegun(self.reply(client.gateway), client.name, delivery)
            for _ in range(dice.randint(0, 2)):
                targets = [*self._schema.of(SHIPMENTS), *self._schema.of(DEAD), *([] if self.calm else [GHOST])]
                if not targets:
                    break
                target = dice.choice(targets)
                records = tuple(self.record(target, "statement") for _ in range(dice.randint(1, 2)))
                attempt.statements.append((target, tuple(record.id for record in records)))
                reply = self.reply(client.gateway)
                yield e.StatementAdded(reply, client.name, delivery, target, records)
        if judge.is_poisoned(key, delivery) or (not self.calm and dice.random() < 0.3):
            delay = dice.choice((0, 0, 300))
            yield e.DeliveryNacked(self.reply(client.gateway), client.name, delivery, delay)
            return
        ack = self._ack(client, delivery)
        yield ack
        if not self.calm and dice.random() < 0.1:
            yield ack
            target = PartitionKey(DEAD, 0)
            late = (self.record(target, "late"),)
            yield e.StatementAdded(self.reply(client.gateway), client.name, delivery, target, late)

    def _ack(self, client: Client, delivery: Delivery) -> e.DeliveryAcked:
        dice, attempt = self._dice, self._judge.attempts[client.key, delivery]
        reply = self.reply(client.gateway)
        self._judge.acks[reply.request] = (client.key, delivery)
        if isinstance(delivery, GroupDelivery):
            return e.DeliveryAcked(reply, client.name, delivery)
        forgetful = not self.calm and dice.random() < 0.1
        output = Payload(f"output of {delivery}".encode())
        given = None if (delivery.stage != "charge" and dice.random() < 0.5) or forgetful else output
        attempt.outputs.append(given)
        streams: tuple[StreamOutput, ...] = ()
        if delivery.stage == "ship" and not forgetful and self._judge.stage(client.key, delivery).stream_outputs:
            # A gateway lets a stream pass that is not declared any more; the controller refuses it.
            target = dice.choice(self._schema.of(SHIPMENTS) or [PartitionKey(SHIPMENTS, 0)])
            records = tuple(self.record(target, "shipment") for _ in range(dice.randint(0, 2)))
            attempt.records.update({record.id: target for record in records})
            streams = (StreamOutput(target, records),)
        return e.DeliveryAcked(reply, client.name, delivery, given, streams)

    def function(self, key: PartitionKey, run: RunFunction) -> e.Event:
        """The result of a function in Spark; each run of it has another one."""
        delivery, dice = run.delivery, self._dice
        poisoned = delivery.stage == "reserve" and run.root is not None and run.root.data == POISON
        if poisoned or (not self.calm and dice.random() < 0.2):
            return e.DeliveryNacked(None, IN_SPARK, delivery, SHORTEST_DELAY)
        self._records += 1
        output = Payload(f"{self._records}".encode())
        attempt = self._judge.attempts[key, delivery]
        attempt.outputs.append(output)
        streams: list[StreamOutput] = []
        for stream, partitions in run.targets:
            events = [{"type": "order.reserved", "subject": str(number)} for number in range(dice.choice((0, 0, 1, 2)))]
            streams += events_of(delivery, run.partition, stream, partitions, events)
        attempt.records = {record.id: one.target for one in streams for record in one.records}
        return e.DeliveryAcked(None, IN_SPARK, delivery, output, tuple(streams))
