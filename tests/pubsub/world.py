"""Histories of a topic, made only of the state machines: publishers, subscribers, and the failures between them.

A seed is one history. Publishers see commits late and each at its own time, die and are replaced; connections are cut
with what is in them; subscribers come, go, stop reading, and go on in another process from where one has ended.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.pubsub.audience import Audience, Violation
from wallaroo_spark.errors import WallarooError
from wallaroo_spark.pubsub.messages import VERSION, Closed, Data, Snapshot, SubscriberHello, Update, Why
from wallaroo_spark.pubsub.publishing.publication import BatchPart, Publication
from wallaroo_spark.pubsub.subscribing.merger import Merger
from wallaroo_spark.pubsub.times import Time, batch_of

STEPS = 700
LAST_ROUNDS = 4000
BYTES = 10
"""The bytes that a message counts."""

Wire = Snapshot | Update | Data | Closed


@dataclass
class Connection:
    """One subscriber's connection to one publisher, with the messages on their way."""

    session: int
    publication: Publication
    pipe: deque[Wire] = field(default_factory=deque)


@dataclass
class Subscriber:
    """A process that follows the topic, until it has ``ended`` for some reason."""

    merger: Merger
    audience: Audience
    connections: dict[int, Connection] = field(default_factory=dict)
    asleep: bool = False
    ended: str = ""


class World:
    """One history; ``product`` and ``retain`` are left to the dice where they are not given."""

    def __init__(self, seed: int, *, product: bool | None = None, retain: int | None = None) -> None:
        self.dice = random.Random(seed)
        dice = self.dice
        self.partitions = dice.randint(1, 4)
        self.product = dice.random() < 0.4 if product is None else product
        self.retain = retain or dice.choice((3, 8, 64))
        self.limit = dice.choice((200, 100_000))
        self.hold = dice.choice((30, 100_000))
        self.committed = 0
        self.begun = 0
        self.parts: list[dict[int, list[BatchPart]]] = [{} for _ in range(self.partitions)]
        self.truth: dict[Time, list[bytes]] = {}
        self.removed = [0] * self.partitions
        self.publications: list[Publication | None] = [None] * self.partitions
        self.subscribers: list[Subscriber] = []
        self.sessions = 0
        self.counts: dict[str, int] = {}
        for partition in range(self.partitions):
            self.publications[partition] = self.publication(partition, 0)

    def run(self) -> None:
        """The history, then calm until everybody has everything. Raises :class:`Violation`."""
        try:
            for _ in range(STEPS):
                self.step()
            self.settle()
        except WallarooError as error:
            raise Violation(f"a machine complains: {error!r}") from error
        for one in self.subscribers:
            one.audience.finish(one.merger.frontier, self.committed, ended=one.ended)

    def step(self) -> None:
        """One thing that happens."""
        actions = {
            self.commit: 6,
            self.notice: 12,
            self.connect: 14,
            self.transfer: 40,
            self.deliver: 40,
            self.arrive: 1,
            self.leave: 0.5,
            self.cut: 2,
            self.kill: 0.7,
            self.replace: 2,
            self.doze: 0.5,
            self.restart: 0.5,
        }
        action = self.dice.choices(list(actions), list(actions.values()))[0]
        if not action():
            return
        self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
        for publication in self.publications:
            if publication is not None:
                publication.validate()
        for one in self.subscribers:
            if not one.ended:
                one.merger.validate()

    def commit(self) -> bool:
        """A batch is staged by every partition, and committed."""
        batch, rows = self.committed, self.dice.choice((0, 1, 2, 4))
        for partition in range(self.partitions):
            parts = []
            for _ in range(self.dice.randint(0, rows)):
                messages = [self.message(batch, partition) for _ in range(self.dice.randint(1, 2))]
                parts.append(BatchPart(tuple(data.time for data in messages), BYTES * len(messages), messages))
            self.parts[partition][batch] = parts
        self.committed += 1
        return True

    def message(self, batch: int, partition: int) -> Data:
        """Rows of a partition at some time of a batch."""
        time: Time = (batch, self.dice.randint(0, 3)) if self.product else batch
        rows = self.truth.setdefault(time, [])
        payload = f"{partition}:{time}:{len(rows)}".encode()
        rows.append(payload)
        return Data(time, payload.ljust(BYTES))

    def publication(self, partition: int, newest_seen: int) -> Publication:
        """A new publisher, which finds the committed batches; its listing may be a little stale."""
        made = Publication(
            "totals", partition, "query-1", product=self.product, retain=self.retain, max_subscriber_bytes=self.limit
        )
        made.begin(newest_seen - 1 if newest_seen else None, self.removed[partition], self.parts[partition])
        return made

    def notice(self) -> bool:
        """A publisher sees the next commit."""
        found = [p for p in self.publications if p is not None and batch_of(p.lower[0]) < self.committed]
        if not found:
            return False
        publication = self.dice.choice(found)
        batch = batch_of(publication.lower[0])
        publication.committed(batch, self.parts[publication.partition][batch])
        self.forget(publication)
        return True

    def forget(self, publication: Publication) -> None:
        """Delete the batches that a publisher no longer retains."""
        self.begun = max(self.begun, batch_of(publication.lower[0]))
        self.removed[publication.partition] = max(self.removed[publication.partition], publication.oldest)

    def kill(self) -> bool:
        """A publisher dies, and its connections with it."""
        partition = self.dice.randrange(self.partitions)
        self.publications[partition] = None
        for one in self.subscribers:
            if partition in one.connections:
                self.drop(one, partition)
        return True

    def replace(self) -> bool:
        """Another publisher takes a dead one's place."""
        dead = [partition for partition in range(self.partitions) if self.publications[partition] is None]
        if not dead:
            return False
        partition = self.dice.choice(dead)
        seen = max(self.removed[partition], self.committed - self.dice.choice((0, 0, 1)))
        self.publications[partition] = self.publication(partition, seen)
        self.forget(self.publications[partition])  # type: ignore[arg-type]  # None only before the start
        return True

    def arrive(self) -> bool:
        """A new subscriber."""
        if sum(1 for one in self.subscribers if not one.ended) >= 4:
            return False
        atomic = self.dice.random() < 0.8
        audience = Audience(self.truth, self.partitions, atomic=atomic)
        merger = Merger(self.partitions, atomic=atomic, max_held_bytes=self.hold)
        self.subscribers.append(Subscriber(merger, audience))
        return True

    def leave(self) -> bool:
        """A subscriber goes for good."""
        one = self.someone()
        if one is not None:
            self.end(one, "left")
        return one is not None

    def restart(self) -> bool:
        """A subscriber's process ends, and another goes on from the frontier that it had."""
        one = self.someone()
        if one is None or not one.audience.atomic or not one.merger.frontier:
            return False
        frontier = one.merger.frontier
        for partition in list(one.connections):
            self.drop(one, partition)
        one.merger = Merger(self.partitions, resume=frontier, max_held_bytes=self.hold)
        one.audience.restarted(frontier)
        return True

    def connect(self) -> bool:
        """A subscriber connects to a publisher that it has no connection with."""
        one = self.someone()
        free = [] if one is None else [p for p in range(self.partitions) if p not in one.connections]
        if one is None or not free:
            return False
        partition = self.dice.choice(free)
        publication = self.publications[partition]
        if publication is None:
            return False
        self.sessions += 1
        connection = Connection(self.sessions, publication)
        publication.join(
            self.sessions,
            SubscriberHello(VERSION, "", "totals", partition, "board", resume=one.merger.resumes_at(partition)),
        )
        one.connections[partition] = connection
        return True

    def transfer(self) -> bool:
        """A publisher sends a subscriber the next thing."""
        one = self.someone()
        if one is None or one.asleep or not one.connections:
            return False
        connection = one.connections[self.dice.choice(list(one.connections))]
        return self.send(connection)

    def send(self, connection: Connection) -> bool:
        """Whether there was something."""
        found = connection.publication.take(connection.session)
        if found is None:
            return False
        said: Any = found.source if isinstance(found, BatchPart) else [found]
        connection.pipe.extend(said)
        return True

    def deliver(self) -> bool:
        """A subscriber reads the next thing."""
        one = self.someone()
        if one is None or one.asleep:
            return False
        full = [partition for partition, connection in one.connections.items() if connection.pipe]
        return bool(full) and self.read(one, self.dice.choice(full))

    def read(self, one: Subscriber, partition: int) -> bool:
        """Whether it was willing to."""
        if not one.merger.may_read(partition):
            return False
        message = one.connections[partition].pipe.popleft()
        if isinstance(message, Closed):
            one.audience.closed(message, one.merger, partition, one.connections[partition].publication)
            if message.why in (Why.SLOW, Why.NOT_KEPT, Why.REFUSED):
                self.end(one, message.why)
            else:
                self.drop(one, partition)
            return True
        began = one.merger.frontier is not None
        if isinstance(message, Snapshot):
            one.audience.snapshot(partition, message)
        one.audience.items(one.merger.received(partition, message))
        if not began and one.merger.frontier is not None:
            one.audience.began(self.begun)
        return True

    def cut(self) -> bool:
        """A connection breaks, and the messages on their way are lost."""
        one = self.someone()
        if one is None or not one.connections:
            return False
        self.drop(one, self.dice.choice(list(one.connections)))
        return True

    def doze(self) -> bool:
        """A subscriber stops reading, or goes on."""
        one = self.someone()
        if one is not None:
            one.asleep = not one.asleep
        return one is not None

    def someone(self) -> Subscriber | None:
        """A subscriber that runs."""
        running = [one for one in self.subscribers if not one.ended]
        return self.dice.choice(running) if running else None

    def drop(self, one: Subscriber, partition: int) -> None:
        """Take a connection away from both sides."""
        connection = one.connections.pop(partition)
        connection.publication.left(connection.session)
        one.merger.lost(partition)

    def end(self, one: Subscriber, why: str) -> None:
        """A subscriber's process ends."""
        for partition in list(one.connections):
            self.drop(one, partition)
        one.ended = why

    def settle(self) -> None:
        """Nothing goes wrong any more: everything is noticed, sent and read."""
        for one in self.subscribers:
            one.asleep = False
        for _ in range(LAST_ROUNDS):
            moved = [self.replace(), self.notice()]
            for one in [one for one in self.subscribers if not one.ended]:
                moved += [self.connect_all(one)]
                for partition, connection in list(one.connections.items()):
                    moved.append(self.send(connection))
                    if partition in one.connections and connection.pipe:
                        moved.append(self.read(one, partition))
            if not any(moved):
                return
        raise Violation("it does not come to rest")

    def connect_all(self, one: Subscriber) -> bool:
        """Connect one that runs to every publisher; it is chosen by asking for it alone."""
        others, self.subscribers = self.subscribers, [one]
        try:
            return sum(self.connect() for _ in range(self.partitions)) > 0
        finally:
            self.subscribers = others
