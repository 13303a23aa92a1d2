"""A simulated history: what happens is drawn from the seed; then all is calm until everything is done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from unittest import mock

from proving.pipelines.batches import Batches, Turn
from proving.pipelines.feed import Feed
from proving.pipelines.judge import Judge
from proving.pipelines.people import Client, Gateway, Message, Work
from proving.pipelines.shop import FULFIL, LATER, NOTIFY, ORDERS, SHIPMENTS, fulfil, plans
from proving.simulator.engine.core import Violation
from wallaroo_spark.errors import WallarooError
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, GroupDelivery, PartitionKey
from wallaroo_spark.pipelines.controller.stored import seen_ids
from wallaroo_spark.pipelines.controller.stored.entries import KeyEntries
from wallaroo_spark.pipelines.declarations import StartPoint

STEPS = 500
LAST_ROUNDS = 300
LOSE = 0.2
REPEAT = 0.2
LATE = 0.4
MOST_RECORDS = 30
"""Records that are published in one history; acks add more."""
SMALL_CHUNK = 4
"""Ids in a small chunk: few, so that a key has several chunks."""
SKEWS = (0, 0, -300_000, 300_000)
"""Milliseconds between the clock of a gateway and that of the driver."""
HOUR = 3_600_000


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.judge = Judge()
        self.orders, self.shipments = ORDERS[:2], SHIPMENTS[:2]
        """The partitions that are declared by now."""
        self.feed = Feed(self.dice)
        self.work = Work(self.dice, self.judge, self.shipments)
        self.batches = Batches(self.dice, self.work.function)
        self.gateways = [Gateway(f"gateway-{number}", skew=self.dice.choice(SKEWS)) for number in range(2)]
        self.members: dict[str, Client] = {}
        self.unanswered: dict[tuple[str, ...], tuple[PartitionKey, tuple[CloudEvent, ...]]] = {}
        self.requests: dict[int, tuple[str, ...]] = {}
        self.operator: list[Message] = []
        self.plans = plans(self.dice)
        self.version = 0
        self.counts: Counter[str] = Counter()
        self._open: dict[tuple[PartitionKey, str], GroupDelivery] = {}
        self._names = 0
        self._published = 0
        self.delays: dict[tuple[str, ...], int] = {}
        """When the records of a publish are to be written, where they are delayed."""
        self.delayed: dict[tuple[str, ...], int] = {}
        """Milliseconds by which the records of a publish are delayed."""
        self.declare()

    def run(self) -> None:
        """The history. Raises :class:`Violation`."""
        actions: dict[Callable[[], bool], float] = {
            self.publish: 4,
            self.publish_again: 1,
            self.join: 2,
            self.act: 20,
            self.leave: 0.5,
            self.batch: 8,
            self.kill_gateway: 0.2,
            self.start_gateway: 1.5,
            self.cancel: 0.3,
            self.redeclare: 0.3,
            self.add_partitions: 0.1,
            self.expire: 0.4,
            self.set_clock_back: 0.1,
        }
        try:
            with mock.patch.object(seen_ids, "SMALL_CHUNK", SMALL_CHUNK):
                for _ in range(STEPS):
                    action = self.dice.choices([*actions], [*actions.values()])[0]
                    if action():
                        self.counts[action.__name__] += 1
                self.settle()
        except WallarooError as error:
            raise Violation(f"the controller complains: {error!r}") from error
        self.counts["lost batches"] += self.batches.lost
        self.counts["turns that ended at their limit"] += self.batches.paused

    @property
    def keys(self) -> list[PartitionKey]:
        """The partitions that are declared by now."""
        return [key for key in self.plans if key not in LATER or key in (*self.orders, *self.shipments)]

    def declare(self) -> None:
        """Tell every key its declaration."""
        self.version += 1
        for key in self.keys:
            self.judge.plans[key, self.version] = self.plans[key]
            self.operator.append((key, e.PartitionDeclared(self.version, self.plans[key])))

    def redeclare(self) -> bool:
        """The pipeline on orders is declared anew, with another limit, and stages that come and go."""
        plan = fulfil(self.dice)
        for key in ORDERS:
            self.plans[key] = self.plans[key]._replace(pipelines=(plan,))
        self.declare()
        return True

    def add_partitions(self) -> bool:
        """Each stream of the shop gets another partition."""
        if len(self.orders) == len(ORDERS):
            return False
        self.orders.append(ORDERS[2])
        self.shipments.append(SHIPMENTS[2])
        self.declare()
        return True

    def expire(self) -> bool:
        """Retention removes the oldest records of a partition."""
        key = self.dice.choice(self.keys)
        last = len(self.batches.tables.get(key, ()))
        if not last or self.work.calm:
            return False
        self.operator.append((key, e.RecordsExpired(self.dice.randint(1, max(1, last // 2)))))
        return True

    def set_clock_back(self) -> bool:
        """The clock of the driver is set back."""
        self.batches.clock -= self.dice.choice((50, 1000, HOUR))
        return True

    def cancel(self) -> bool:
        """An operator cancels an instance."""
        key = self.dice.choice(self.orders)
        found = [*KeyEntries(self.batches.stored.get(key, {})).instances.all_keys()]
        if found:
            name, number = self.dice.choice(found)
            self.operator.append((key, e.InstanceCancelled(self.work.reply(self.gateways[0]), name, number)))
        return bool(found)

    def publish(self) -> bool:
        """A publisher sends new records."""
        if self._published >= MOST_RECORDS:
            return False
        key = self.dice.choice([*self.orders, *self.orders, *self.shipments])
        records = tuple(self.work.record(key, "published") for _ in range(self.dice.randint(1, 4)))
        self._published += len(records)
        names = tuple(record.id for record in records)
        self.judge.may_exist[key].update(names)
        self.unanswered[names] = (key, records)
        self.delayed[names] = self.dice.choice((1, 300, 2000)) if self.dice.random() < 0.1 else 0
        return self._send(names)

    def publish_again(self) -> bool:
        """A publisher without an answer sends the same again."""
        return bool(self.unanswered) and self._send(self.dice.choice([*self.unanswered]))

    def _send(self, names: tuple[str, ...]) -> bool:
        gateway = self._gateway()
        if gateway is None:
            return False
        delay = self.delayed[names]
        if delay and names not in self.delays:
            # A delay is counted by the clock of the first gateway; the publisher gives the same time again.
            self.delays[names] = due = self.batches.clock + gateway.skew + delay
            self.judge.not_before.update(dict.fromkeys(names, due))
        key, records = self.unanswered[names]
        reply = self.work.reply(gateway)
        self.requests[reply.request] = names
        self.judge.published[reply.request] = (key, records)
        if names in self.delays:
            gateway.queue.append((key, e.RecordsDelayed(reply, records, self.delays[names])))
        else:
            gateway.queue.append((key, e.RecordsPublished(reply, records)))
        return True

    def _gateway(self) -> Gateway | None:
        alive = [gateway for gateway in self.gateways if gateway.alive]
        return self.dice.choice(alive) if alive else None

    def start_gateway(self) -> bool:
        """A gateway starts."""
        dead = [gateway for gateway in self.gateways if not gateway.alive]
        for gateway in dead[:1]:
            gateway.alive, gateway.generation = True, gateway.generation + 1
            started = e.GatewayStarted(gateway.name, gateway.generation)
            gateway.queue = [(key, started) for key in self.keys]
        return bool(dead)

    def kill_gateway(self) -> bool:
        """A gateway dies, with its members and the messages that no batch has."""
        gateway = self._gateway()
        if gateway is not None:
            gateway.alive, gateway.queue = False, []
            self.members = {name: one for name, one in self.members.items() if one.alive}
        return gateway is not None

    def join(self) -> bool:
        """A member joins a group or a stage."""
        places: list[tuple[PartitionKey, str, str]] = []
        for key in self.orders:
            stages = [stage.name for stage in self.plans[key].pipelines[0].stages if not stage.function]
            places += [(key, "billing", ""), *((key, FULFIL, stage) for stage in stages)]
        places += [place for key in self.shipments for place in ((key, "audit", ""), (key, NOTIFY, "mail"))]
        return self._join(*self.dice.choice(places))

    def _join(self, key: PartitionKey, name: str, stage: str) -> bool:
        gateway = self._gateway()
        if gateway is None:
            return False
        self._names += 1
        client = Client(f"{stage or name}-{self._names}", key, gateway, gateway.generation)
        self.members[client.name] = client
        reply, limit = self.work.reply(gateway), self.dice.randint(1, 3)
        beginning = StartPoint(location="beginning")
        joined: e.Event = (
            e.StageJoined(reply, client.name, name, stage, limit)
            if stage
            else e.GroupJoined(reply, client.name, name, True, beginning, limit)
        )
        gateway.queue.append((key, joined))
        return True

    def act(self) -> bool:
        """A member sends its next messages on one of its deliveries."""
        busy = [client for client in self.members.values() if client.work]
        if not busy:
            return False
        client = self.dice.choice(busy)
        steps = self.dice.choice(client.work)
        for _ in range(self.dice.choice((1, 1, 10))):
            event = next(steps, None)
            if event is None:
                client.work.remove(steps)
                break
            client.gateway.queue.append((client.key, event))
        return True

    def leave(self) -> bool:
        """A member's connection ends."""
        if not self.members:
            return False
        client = self.members.pop(self.dice.choice([*self.members]))
        client.gateway.queue.append((client.key, e.MemberLeft(client.name)))
        return True

    def batch(self) -> bool:
        """A batch is planned, run and committed."""
        calm = self.work.calm
        messages = list(self.operator)
        self.operator.clear()
        for gateway in self.gateways:
            taken = len(gateway.queue) if calm else self.dice.randint(0, len(gateway.queue))
            messages += gateway.queue[:taken]
            del gateway.queue[:taken]
        messages += self.feed.take(0.0 if calm else REPEAT, 0.0 if calm else LATE)
        inputs: dict[PartitionKey, list[e.Event]] = {}
        for key, event in messages:
            inputs.setdefault(key, []).append(event)
        self.batches.clock += self.dice.choice((10, 100, 400))
        planned = self.batches.plan(inputs)
        for turn in self.batches.run(planned, 0.0 if calm else LOSE, self._while_a_batch_is_lost) if planned else ():
            self._committed(turn)
        return bool(messages)

    def _while_a_batch_is_lost(self) -> None:
        for action in (self.kill_gateway, self.start_gateway, self.leave):
            if self.dice.random() < 0.2:
                action()

    def _committed(self, turn: Turn) -> None:
        key, said = turn.key, turn.said
        head = KeyEntries(self.batches.stored[key]).head
        self.judge.first[key] = head.first
        for group, state in head.groups.items():
            self.judge.cursor_moved(key, group, state.cursor, self._open.get((key, group)))
        self.judge.see(turn, head.pipelines)
        for one in said:
            match one:
                case i.DeliverRecords() | i.DeliverInputs():
                    if isinstance(one, i.DeliverRecords):
                        self._open[key, one.delivery.group] = one.delivery
                    client = self.members.get(one.member)
                    if client is not None and client.alive:
                        client.work.append(self.work.on(client, one.delivery))
                case i.CarryOut():
                    self.feed.add(key, one)
                case i.AnswerRequest():
                    self.unanswered.pop(self.requests.get(one.reply_to.request, ()), None)

    def settle(self) -> None:
        """Nothing goes wrong any more, until everything is done. Raises :class:`Violation` when it does not end."""
        self.work.calm = True
        while self.start_gateway():
            pass
        for key in self.orders:
            self._join(key, "billing", "")
            for stage in ("charge", "ship", "tidy", "extra"):
                self._join(key, FULFIL, stage)
        for key in self.shipments:
            self._join(key, "audit", "")
            self._join(key, NOTIFY, "mail")
        for _ in range(LAST_ROUNDS):
            for names in [*self.unanswered]:
                self._send(names)
            while self.act():
                pass
            moved = self.batch()
            if not moved and self.batches.timers:
                # Nothing but time passes, until the first timer is due.
                self.batches.clock = max(self.batches.clock, min(self.batches.timers.values()))
            if not moved and self._done():
                self.judge.finish(self.batches.tables, self.batches.leftovers())
                return
        raise Violation(f"it does not come to rest: {self.batches.leftovers()[:5]}")

    def _done(self) -> bool:
        idle = self.feed.empty and not self.unanswered and not self.batches.timers
        return idle and not any(client.work for client in self.members.values())
