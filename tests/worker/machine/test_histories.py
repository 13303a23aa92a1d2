"""Whatever happens, in whatever order: the rows that are committed are the messages, in order, once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.worker.world import Source, World
from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, REVISIONS, V3
from wallaroo_spark.worker.machine.pressure import pace

pytestmark = pytest.mark.no_cover

BUDGET = 1 << 20
NUMBERS = st.integers(0, 3)


@st.composite
def sources(draw: st.DrawFn, stream_id: int, opaque: bool, flags: bool) -> Source:
    """A stream of up to forty messages; its last one can always be resumed from."""
    count = draw(st.integers(1, 40))
    steps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    ids = [sum(steps[: at + 1]) for at in range(count)]
    if opaque:
        ids = draw(st.permutations(ids))
    sizes = draw(st.lists(st.sampled_from((0, 100, 40_000)), min_size=count, max_size=count))
    ephemeral = flags and draw(st.integers(0, 5)) == 0
    unstable = draw(st.frozensets(st.integers(0, count - 2))) if flags and not ephemeral and count > 1 else frozenset()
    if sum(sizes[at] for at in unstable) > BUDGET // 2:
        unstable = frozenset()
    return Source(stream_id, sorted(ids) if ephemeral else ids, sizes, unstable, ephemeral)


class Histories(RuleBasedStateMachine):
    """Draws the next step of a :class:`World`."""

    message_ids = "increasing"

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.world = World(self.message_ids, BUDGET)
        self.generation = 7
        for number in range(data.draw(st.integers(1, 3))):
            revision = data.draw(st.sampled_from(list(REVISIONS.values())))
            draft = revision is not V3
            opaque = draft and self.message_ids == "opaque"
            streams = [
                data.draw(sources(number * 10 + stream_id, opaque, draft))
                for stream_id in range(data.draw(st.integers(1, 2)))
            ]
            self.world.add(f"shop-{number}", revision, streams)

    def sender(self, number: int) -> Any:
        return self.world.senders[number % len(self.world.senders)]

    @rule(number=NUMBERS)
    def connect(self, number: int) -> None:
        sender = self.sender(number)
        if sender.connector is None or sender.over:
            sender.disconnect()
            sender.connect()

    @rule(number=NUMBERS)
    def connect_before_the_worker_notices_that_the_last_one_is_gone(self, number: int) -> None:
        sender = self.sender(number)
        gone = sender.connector
        sender.connect()
        if gone is not None and sender.revision is V3:
            # In v3 the streams are the old session's until it is gone; its end is noticed soon enough.
            gone.leave()

    @rule(number=NUMBERS)
    def disconnect(self, number: int) -> None:
        self.sender(number).disconnect()

    @rule()
    def answer(self) -> None:
        self.world.answer_registry()

    @rule(number=NUMBERS, data=st.data())
    def open(self, number: int, data: st.DataObject) -> None:
        sender = self.sender(number)
        sender.open(data.draw(st.sampled_from(sorted(sender.sources))))

    @rule(number=NUMBERS, count=st.integers(1, 30), data=st.data())
    def send(self, number: int, count: int, data: st.DataObject) -> None:
        sender = self.sender(number)
        sender.send(data.draw(st.sampled_from(sorted(sender.sources))), count)

    @rule(number=NUMBERS, count=st.sampled_from((1, 7, 60, 5_000, 200_000)))
    def deliver(self, number: int, count: int) -> None:
        self.sender(number).deliver(count)

    @rule(number=NUMBERS)
    def be_busy(self, number: int) -> None:
        """The usual steps, as one."""
        sender = self.sender(number)
        if sender.connector is None or sender.over:
            sender.disconnect()
            sender.connect()
        for _ in range(3):
            sender.deliver(200_000)
            while self.world.bench.held_back:
                self.world.answer_registry()
            for stream_id in sender.sources:
                sender.open(stream_id)
                sender.send(stream_id, 10)

    @rule(rows=st.none() | st.integers(1, 20), size=st.none() | st.sampled_from((1, 500, 100_000)))
    def plan(self, rows: int | None, size: int | None) -> None:
        self.world.plan(rows, size)

    @rule()
    def read(self) -> None:
        self.world.read()

    @rule()
    def retry(self) -> None:
        self.world.retry()

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule()
    def tell(self) -> None:
        self.world.tell()

    @rule()
    def run_a_batch(self) -> None:
        self.world.plan(None, None)
        if self.world.read():
            self.world.commit()
            self.world.tell()

    @rule()
    def restart_query(self) -> None:
        self.world.restart_query()

    @rule(batches=st.integers(1, 3))
    def go_back_to_an_older_checkpoint(self, batches: int) -> None:
        self.world.go_back(batches)

    @rule()
    def lose_worker(self) -> None:
        self.generation += 1
        self.world.lose_worker(self.generation)

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @invariant()
    def what_must_hold_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


class OpaqueHistories(Histories):
    """The same with opaque ids in the drafts."""

    message_ids = "opaque"


class TightHistories(OpaqueHistories):
    """The same where credits are for a message or two, and a batch may need all that the budget allows."""

    def __init__(self) -> None:
        super().__init__()
        patched = pytest.MonkeyPatch()
        patched.setattr(pace, "SMALLEST_BATCH", 20_000)
        patched.setattr(pace, "START_PART", 64)
        self.undo = patched.undo

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.undo()


thorough = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestHistories = Histories.TestCase
TestHistories.settings = thorough
TestOpaqueHistories = OpaqueHistories.TestCase
TestOpaqueHistories.settings = thorough
TestTightHistories = TightHistories.TestCase
TestTightHistories.settings = thorough

assert {DRAFT_BE, DRAFT_LE, V3} == set(REVISIONS.values())
