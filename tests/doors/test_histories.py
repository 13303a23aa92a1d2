"""Random histories of a door's clients, of workers that die with planned rows, and of a query; a judge at the end.

What was answered is in the table; what has a token is there once; and no batch waits for a client that is gone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.doors.ground_bench import GroundBench, messages
from wallaroo_spark.doors.client import DoorStream
from wallaroo_spark.doors.tickets import Ticket
from wallaroo_spark.references import PlannedRange, Reference, StreamKey

OWN = "http/worker-0"


class Sender:
    """A client that repeats each request until it is answered; with a name it has tokens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gone = False
        self.sent = 0
        self.values: tuple[str, ...] = ()
        self.ticket: Ticket | None = None
        self.answered: list[str] = []

    @property
    def instance(self) -> str:
        return f"http/{self.name}" if self.name else OWN

    def go_on(self, world: World, fresh: bool) -> None:
        """Take an answer, repeat what was lost, or send the next request where that is wanted."""
        if self.gone:
            return
        if self.ticket is not None and self.ticket.kept:
            self.answered += self.values
            self.ticket = None
        if self.ticket is None and fresh:
            self.sent += 1
            self.values = tuple(f"{self.name}/{self.sent}/{part}" for part in range(world.random.randint(1, 3)))
            self._send(world)
        elif self.ticket is not None and self.ticket.kept is False:
            self._send(world)

    def _send(self, world: World) -> None:
        stream = world.stream(self.instance)
        if stream is None:
            # The session begins again; the client comes back.
            self.ticket = Ticket()
            self.ticket.lose("a test")
        elif not self.name:
            world.clock += world.random.randint(-5, 50)
            self.ticket = stream.send(messages(*self.values), stream.next_reference(world.clock))
        elif stream.knows(self.sent):
            self.ticket = stream.wait(self.sent)
        else:
            self.ticket = stream.send(messages(*self.values), self.sent, step=0)


class World:
    """A worker and its successors, a query, and the clients."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now, self.clock = 0.0, 1_000_000
        self.worker = GroundBench()
        self.offsets: dict[StreamKey, Reference] = {}
        self.planned: Mapping[StreamKey, Reference] = {}
        self.batch = -1
        self.table: list[str] = []
        self.given_up = 0
        self.senders = [Sender(name) for name in ("a", "b", "", "")]

    def stream(self, instance: str) -> DoorStream | None:
        stream = self.worker.client(instance).stream("orders")
        self.worker.settle()
        return stream

    def die(self) -> None:
        """The worker dies with all that it holds; its clients notice."""
        for client in list(self.worker.ground.clients.values()):
            client.end("the worker has died")
        self.given_up += self.worker.counted.get("dropped-unanswered", 0)
        self.worker = GroundBench()
        self.worker.bench.rewind(self.offsets, self.batch)
        self.worker.tick(self.now)

    def plan(self) -> None:
        if not self.planned:
            self.planned = self.worker.bench.plan(self.random.choice((None, 1, 3)))

    def run(self) -> None:
        """Run the planned batch, unless rows of it are missing; then its read waits."""
        ranges = [PlannedRange(one, self.offsets.get(one), end) for one, end in self.planned.items()]
        found = [self.worker.bench.state.buffer.find(planned) for planned in ranges]
        if None in found:
            self.worker.want(*ranges)
            return
        self.worker.want()
        for one in found:
            assert one is not None
            for part, _ in one.slices:
                self.table += [value.decode() for value in part.stored["value"].to_pylist() if value is not None]
        self.offsets.update(self.planned)
        self.batch += 1
        self.worker.bench.commit(self.planned)
        self.worker.settle()
        self.planned = {}

    def pass_time(self, *, fresh: bool) -> None:
        self.now += 0.5
        self.worker.tick(self.now)
        for sender in self.senders:
            sender.go_on(self, fresh and self.random.random() < 0.5)
        self.worker.settle()

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.06:
            self.die()
        elif chance < 0.08:
            self.random.choice(self.senders).gone = True
        elif chance < 0.35:
            self.plan()
        elif chance < 0.6 and self.planned:
            self.run()
        else:
            self.pass_time(fresh=True)

    def finish(self) -> None:
        """Nothing more fails, and nothing new is sent: all that lives is answered, and no batch waits any longer."""
        for _ in range(100):
            self.pass_time(fresh=False)
            self.plan()
            if self.planned:
                self.run()
        self.given_up += self.worker.counted.get("dropped-unanswered", 0)


@pytest.mark.parametrize("seed", range(80))
def test_what_is_answered_is_in_the_table_and_tokens_are_there_once(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
    world.finish()

    assert not world.planned, "a batch waits for ever"
    counted = Counter(world.table)
    for sender in world.senders:
        assert set(sender.answered) <= counted.keys(), sender.name
        assert sender.gone or sender.ticket is None, sender.name
        if sender.name:
            mine = [value for value in world.table if value.startswith(f"{sender.name}/")]
            assert max(Counter(mine).values(), default=1) == 1
            assert sender.gone or mine == sender.answered
    # Whatever has come of a request of a nameless client has come whole.
    for value, times in counted.items():
        client, number, _ = value.split("/")
        assert {counted[other] for other in counted if other.startswith(f"{client}/{number}/")} == {times} or not client


def test_ranges_are_given_up_in_these_histories() -> None:
    given_up = 0
    for seed in range(10):
        world = World(seed)
        for _ in range(150):
            world.step()
        world.finish()
        given_up += world.given_up

    assert given_up
