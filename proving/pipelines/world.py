"""A simulated history: what happens is drawn from the seed; then all is calm until everything is done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

from proving.pipelines.batches import Batches, Turn
from proving.pipelines.feed import STEPS as CRONS
from proving.pipelines.feed import Feed
from proving.pipelines.judge import Judge
from proving.pipelines.people import Client, Gateway, Message, Work
from proving.pipelines.shop import (
    FULFIL,
    GROUPS,
    INPUT,
    MOST_PARTITIONS,
    NEWEST,
    NOTIFY,
    ORDERS,
    SHIPMENTS,
    TAIL,
    Schema,
)
from proving.simulator.engine.core import Violation
from wallaroo_spark.errors import WallarooError
from wallaroo_spark.pipelines.controller.context import KeyEntries
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import Delivery, GroupDelivery, PartitionKey
from wallaroo_spark.pipelines.controller.stored import seen_ids
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, partition_of
from wallaroo_spark.pipelines.schema.declarations import StartPoint

STEPS = (100, 200, 400)
"""The number of steps before all is calm is one of these."""
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
_DONE = e.MemberLeft("")
"""What a member sends that has nothing left to do on a delivery: nothing."""
STAGES = {FULFIL: ("charge", "ship", "tidy", "extra"), NOTIFY: ("mail",)}
"""The stages that have members."""


class Published(NamedTuple):
    """What a publisher sends until it is answered."""

    stream: str
    records: tuple[CloudEvent, ...]
    key: PartitionKey | None
    """The partition that the publisher names; None: each record goes where it belongs."""
    delay: int
    """Milliseconds by which they are delayed."""


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.judge = Judge()
        self.schema = Schema(self.dice)
        self.feed = Feed(self.dice)
        self.work = Work(self.dice, self.judge, self.schema)
        self.batches = Batches(self.dice, self.work.function)
        self.gateways = [Gateway(f"gateway-{number}", skew=self.dice.choice(SKEWS)) for number in range(2)]
        self.members: dict[str, Client] = {}
        self.unanswered: dict[tuple[str, ...], set[str]] = {}
        """Publishes without a whole answer, by the ids of their records → the ids that have none."""
        self.sent: dict[tuple[str, ...], Published] = {}
        """All publishes."""
        self.requests: dict[int, tuple[tuple[str, ...], set[str]]] = {}
        """Request → its publish, and its part of the ids."""
        self.declarations: list[Message] = []
        self.operator: list[Message] = []
        self.counts: Counter[str] = Counter()
        self._open: dict[tuple[PartitionKey, str], GroupDelivery] = {}
        self._names = 0
        self._published = 0
        self.delays: dict[tuple[str, ...], int] = {}
        """When the records of a publish are to be written, where they are delayed."""
        self._mark: dict[tuple[PartitionKey, PartitionKey], int] = {}
        """What the keys have to hear of each other, since the newest version, before messages of gateways are taken."""
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
            self.change_pipeline: 0.3,
            self.delete_pipeline: 0.2,
            self.declare_pipeline: 0.6,
            self.delete_stream: 0.1,
            self.declare_stream: 0.3,
            self.change_retry: 0.3,
            self.change_group: 0.8,
            self.take_away: 0.3,
            self.expire: 0.4,
            self.set_clock_back: 0.1,
            self.change_schedule: 0.3,
            self.pass_time: 0.3,
        }
        try:
            with mock.patch.object(seen_ids, "SMALL_CHUNK", SMALL_CHUNK):
                for _ in range(self.dice.choice(STEPS)):
                    action = self.dice.choices([*actions], [*actions.values()])[0]
                    self.counts["steps"] += 1
                    if action():
                        self.counts[action.__name__] += 1
                self.settle()
        except WallarooError as error:
            raise Violation(f"the controller complains: {error!r}") from error
        self.counts["lost batches"] += self.batches.lost
        self.counts["turns that ended at their limit"] += self.batches.paused

    def declare(self) -> None:
        """Tell every key its declaration."""
        self.declarations += [
            (key, e.PartitionDeclared(self.schema.version, plan)) for key, plan in self.schema.declarations()
        ]
        partitions = self.schema.partitions.get(ORDERS, 0)
        self.batches.alarm.applied(self.schema.version, partitions, self.batches.clock)

    def change_pipeline(self) -> bool:
        """A pipeline gets another limit, and stages that come and go."""
        return self._change(self.schema.change, [*self.schema.pipelines])

    def delete_pipeline(self) -> bool:
        """A pipeline is deleted."""
        return self._change(self.schema.delete_pipeline, [*self.schema.pipelines])

    def declare_pipeline(self) -> bool:
        """A deleted pipeline is declared anew."""
        absent = [name for name, stream in INPUT.items() if name not in self.schema.pipelines]
        return self._change(self.schema.change, [name for name in absent if INPUT[name] in self.schema.partitions])

    def delete_stream(self) -> bool:
        """A stream is deleted, with the pipelines that it begins, and perhaps declared anew at once."""
        names = [*self.schema.partitions]
        deleted = self._change(self.schema.delete_stream, names)
        if deleted and self.dice.random() < 0.5:
            self._change(self.schema.declare_stream, [name for name in names if name not in self.schema.partitions])
        return deleted

    def declare_stream(self) -> bool:
        """A stream gets another partition, or a deleted one is declared anew."""
        few = [name for name, most in MOST_PARTITIONS.items() if self.schema.partitions.get(name, 0) < most]
        return self._change(self.schema.declare_stream, few)

    def change_retry(self) -> bool:
        """The groups of a stream get another retry policy and time limit."""
        return self._change(self.schema.change_retry, [*GROUPS])

    def change_group(self) -> bool:
        """An operator pauses, resumes, moves or deletes a group."""
        places = [
            (key, group) for stream, groups in GROUPS.items() for key in self.schema.of(stream) for group in groups
        ]
        if places:
            key, group = self.dice.choice(places)
            action = self.dice.choice((*e.GroupAction, e.GroupAction.RESUME))
            offset = self.dice.randint(0, len(self.batches.tables.get(key, ())) + 1)
            starts = (StartPoint(), StartPoint(location="beginning"), StartPoint(location="offset", offset=offset))
            self._change_group(key, group, action, self.dice.choice(starts))
        return bool(places)

    def _change_group(self, key: PartitionKey, group: str, action: e.GroupAction, start: StartPoint) -> None:
        self.operator.append((key, e.GroupChanged(self.work.reply(self.gateways[0]), group, action, start)))

    def take_away(self) -> bool:
        """An operator takes deliveries away from their members."""
        held = self.judge.hands.held()
        if held:
            self._take_away(*self.dice.choice(held))
        return bool(held)

    def _take_away(self, key: PartitionKey, delivery: Delivery) -> None:
        reply = self.work.reply(self.gateways[0])
        if isinstance(delivery, GroupDelivery):
            taken = e.DeliveriesTaken(reply, group=delivery.group)
        else:
            stage = self.dice.choice(("", delivery.stage))
            taken = e.DeliveriesTaken(reply, "", delivery.pipeline, delivery.instance, stage)
        self.operator.append((key, taken))

    def _change(self, change: Callable[[str], None], names: Sequence[str]) -> bool:
        if names:
            change(self.dice.choice(names))
            self.declare()
        return bool(names)

    def expire(self) -> bool:
        """Retention removes the oldest records of a partition."""
        key = self.dice.choice(self.schema.keys or [PartitionKey(ORDERS, 0)])
        last = len(self.batches.tables.get(key, ()))
        if not last or self.work.calm:
            return False
        self.operator.append((key, e.RecordsExpired(self.dice.randint(1, max(1, last // 2)))))
        return True

    def set_clock_back(self) -> bool:
        """The clock of the driver is set back."""
        self.batches.clock -= self.dice.choice((50, 1000, HOUR))
        return True

    def change_schedule(self) -> bool:
        """The schedule is declared, changed, or deleted."""
        self.batches.alarm.cron = self.dice.choice(("", *CRONS))
        self.declare()
        return True

    def pass_time(self) -> bool:
        """Nothing happens for some minutes."""
        self.batches.clock += self.dice.randint(20_000, 200_000)
        return True

    def cancel(self) -> bool:
        """An operator cancels an instance."""
        key = PartitionKey(ORDERS, self.dice.randrange(MOST_PARTITIONS[ORDERS]))
        found = [*KeyEntries(self.batches.stored.get(key, {})).instances.all_keys()]
        if found:
            name, number = self.dice.choice(found)
            self.operator.append((key, e.InstanceCancelled(self.work.reply(self.gateways[0]), name, number)))
        return bool(found)

    def publish(self) -> bool:
        """A publisher sends new records, for a partition or for those to which they belong."""
        keys = [*self.schema.of(ORDERS), *self.schema.of(ORDERS), *self.schema.of(SHIPMENTS)]
        if self._published >= MOST_RECORDS or not keys:
            return False
        key = self.dice.choice(keys)
        records = tuple(self.work.record(key, "published") for _ in range(self.dice.randint(1, 4)))
        self._published += len(records)
        names = tuple(record.id for record in records)
        delay = self.dice.choice((1, 300, 2000)) if self.dice.random() < 0.1 else 0
        divided = self.dice.random() < 0.6
        for number in range(MOST_PARTITIONS[key.stream]) if divided else [key.partition]:
            self.judge.may_exist[PartitionKey(key.stream, number)].update(names)
        self.sent[names] = Published(key.stream, records, None if divided else key, delay)
        self.unanswered[names] = {*names}
        return self._send(names)

    def publish_again(self) -> bool:
        """A publisher without an answer sends the same again, or one has forgotten that it had one."""
        if self.sent and self.dice.random() < 0.3:
            names = self.dice.choice([*self.sent])
            self.unanswered[names] = {*names}
        return bool(self.unanswered) and self._send(self.dice.choice([*self.unanswered]))

    def _send(self, names: tuple[str, ...]) -> bool:
        gateway, published = self._gateway(), self.sent[names]
        if gateway is None:
            return False
        if published.stream not in self.schema.partitions:
            # A gateway refuses what is for a stream that it does not know.
            del self.unanswered[names]
            return True
        if published.delay and names not in self.delays:
            # A delay is counted by the clock of the first gateway; the publisher gives the same time again.
            self.delays[names] = due = self.batches.clock + gateway.skew + published.delay
            self.judge.not_before.update(dict.fromkeys(names, due))
        known = self.schema.known(published.stream) if published.key is None else 0
        parts: dict[PartitionKey, list[CloudEvent]] = {}
        for record in published.records:
            key = published.key or PartitionKey(published.stream, partition_of(record, known))
            parts.setdefault(key, []).append(record)
        for key, some in parts.items():
            reply, records = self.work.reply(gateway), tuple(some)
            self.requests[reply.request] = names, {record.id for record in records}
            self.judge.published[reply.request] = (published.stream, records)
            if names in self.delays:
                due = self.delays[names]
                gateway.queue.append((key, e.RecordsDelayed(reply, records, due, partitions=known)))
            else:
                gateway.queue.append((key, e.RecordsPublished(reply, records, partitions=known)))
        return True

    def _published_answered(self, said: i.AnswerRequest | i.RefuseRequest) -> None:
        names, some = self.requests.get(said.reply_to.request, ((), set()))
        if names in self.unanswered:
            self.unanswered[names] -= some
            if not self.unanswered[names] or isinstance(said, i.RefuseRequest):
                # A publisher is refused when the stream is deleted.
                del self.unanswered[names]

    def _gateway(self) -> Gateway | None:
        alive = [gateway for gateway in self.gateways if gateway.alive]
        return self.dice.choice(alive) if alive else None

    def start_gateway(self) -> bool:
        """A gateway starts."""
        dead = [gateway for gateway in self.gateways if not gateway.alive]
        for gateway in dead[:1]:
            gateway.alive, gateway.generation = True, gateway.generation + 1
            started = e.GatewayStarted(gateway.name, gateway.generation)
            gateway.queue = [(key, started) for key in self.schema.keys]
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
        for stream, groups in GROUPS.items():
            places += [(key, group, "") for key in self.schema.of(stream) for group in groups]
        for name, plan in self.schema.pipelines.items():
            stages = [stage.name for stage in plan.stages if not stage.function]
            places += [(key, name, stage) for key in self.schema.of(INPUT[name]) for stage in stages]
        return bool(places) and self._join_all(*self.dice.choice(places))

    def _join_all(self, key: PartitionKey, name: str, stage: str) -> bool:
        """A member joins a partition; one of the group that begins at the end joins all that its gateway knows."""
        if name != NEWEST:
            return self._join(key, name, stage)
        known = self.schema.known(key.stream)
        return all(self._join(PartitionKey(key.stream, number), name, stage, known) for number in range(known))

    def _join(self, key: PartitionKey, name: str, stage: str, known: int = 0) -> bool:
        gateway = self._gateway()
        if gateway is None:
            return False
        self._names += 1
        client = Client(f"{stage or name}-{self._names}", key, gateway, gateway.generation)
        self.members[client.name] = client
        reply, limit = self.work.reply(gateway), 20 if self.work.calm else self.dice.randint(1, 3)
        start = StartPoint(location="beginning" if name not in (NEWEST, TAIL) else "latest")
        joined: e.Event = (
            e.StageJoined(reply, client.name, name, stage, limit)
            if stage
            else e.GroupJoined(reply, client.name, name, name != TAIL, start, limit, known)
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
            event = next(steps, _DONE)
            if event is None:
                break
            if event is _DONE:
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
        calm, ready = self.work.calm, self.feed.has_passed(self._mark)
        declared, self.declarations = self.declarations, []
        carried = self.feed.take(0.0 if calm else REPEAT, 0.0 if calm else LATE)
        messages: list[Message] = [*declared, *carried]
        if not declared and ready:
            messages += self.operator
            self.operator.clear()
            for gateway in self.gateways:
                taken = len(gateway.queue) if calm else self.dice.randint(0, len(gateway.queue))
                messages += gateway.queue[:taken]
                del gateway.queue[:taken]
        inputs: dict[PartitionKey, list[e.Event]] = {}
        for key, event in messages:
            inputs.setdefault(key, []).append(event)
        self.batches.clock += self.dice.choice((10, 100, 400))
        planned = self.batches.plan(inputs, self.schema.version, ready)
        if planned and self.batches.scheduled:
            for number in range(MOST_PARTITIONS[ORDERS]):
                self.judge.may_exist[PartitionKey(ORDERS, number)].add(self.batches.scheduled)
        for turn in self.batches.run(planned, 0.0 if calm else LOSE, self._while_a_batch_is_lost) if planned else ():
            self._committed(turn)
        if planned and self.batches.scheduled:
            self.judge.must_be_there(ORDERS, self.batches.scheduled)
        if declared:
            self._mark = self.feed.mark()
        return bool(messages) or not ready

    def _while_a_batch_is_lost(self) -> None:
        for action in (self.kill_gateway, self.start_gateway, self.leave):
            if self.dice.random() < 0.2:
                action()

    def _committed(self, turn: Turn) -> None:
        key, said, head = turn.key, turn.said, turn.head
        self.judge.see_declarations(turn, head.first)
        self.judge.see_hands(turn)
        for group, state in head.groups.items():
            self.judge.cursor_moved(key, group, state.cursor, self._open.get((key, group)))
        self.judge.groups_are(key, head.groups)
        self.judge.see(turn, head.pipelines)
        for one in said:
            match one:
                case i.DeliverRecords() | i.DeliverInputs():
                    if isinstance(one, i.DeliverRecords):
                        self._open[key, one.delivery.group] = one.delivery
                    client = self.members.get(one.member)
                    if client is not None and client.alive:
                        client.work.append(self.work.on(client, one.delivery, one.timeout))
                case i.CarryOut():
                    self.feed.add(key, one)
                case i.AnswerRequest() | i.RefuseRequest():
                    self._published_answered(one)

    def settle(self) -> None:
        """Nothing goes wrong any more, until everything is done. Raises :class:`Violation` when it does not end."""
        self.work.calm = True
        while self.start_gateway():
            pass
        for stream, groups in GROUPS.items():
            for key in self.schema.of(stream):
                for group in groups:
                    self._change_group(key, group, e.GroupAction.RESUME, StartPoint())
                    self._join(key, group, "")
        for name in self.schema.pipelines:
            for key in self.schema.of(INPUT[name]):
                for stage in STAGES[name]:
                    self._join(key, name, stage)
        for _ in range(LAST_ROUNDS):
            for names in [*self.unanswered]:
                self._send(names)
            while self.act():
                pass
            moved = self.batch()
            if not moved and self.batches.timers:
                # Nothing but time passes, until the first timer is due.
                self.batches.clock = max(self.batches.clock, min(self.batches.timers.values()))
            elif not moved:
                # What has no time limit stays with a member that hangs, until an operator takes it away.
                for key, delivery in self.judge.hands.held(without_limit=True):
                    self._take_away(key, delivery)
            if not moved and self._done():
                self.judge.finish(self.batches.tables, self.batches.leftovers())
                return
        raise Violation(f"it does not come to rest: {self.batches.leftovers()[:5]}")

    def _done(self) -> bool:
        idle = self.feed.empty and not self.unanswered and not self.batches.timers and not self.operator
        return idle and not any(client.work for client in self.members.values())
