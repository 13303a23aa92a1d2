"""The driver's process: it submits workers, starts queries, reads the checkpoint and notifies the workers.

The announcer and the checkpoint's watcher are the product's own; their threads are processes of steps here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast

from proving.simulator.engine.core import Part, Promise, Steps
from proving.simulator.engine.flight import Client, InnerPort
from proving.simulator.parts.checkpoint import RECEIVER, SimulatedFiles
from proving.simulator.parts.query import Query
from proving.simulator.parts.surroundings import Surroundings
from proving.simulator.parts.worker import Worker
from wallaroo_spark.checkpoint.commits import CheckpointWatcher
from wallaroo_spark.checkpoint.model import QueryProgress
from wallaroo_spark.errors import CheckpointError, RegistryError, TransportError
from wallaroo_spark.inner.calls import FollowedScopes
from wallaroo_spark.inner.notices import LastCommit, NoticeSender
from wallaroo_spark.receiver.announcer import SETTLE_SECONDS, Announcer
from wallaroo_spark.references import References

ROUND_SECONDS = 0.5
POLL_SECONDS = 1.0
QUESTION_SECONDS = 1.0
"""Longest wait of one question for the scopes that a worker follows.

It is shorter than the product's, as each call ends after two seconds here.
"""
ZOMBIE_SECONDS = (1.0, 4.0, 20.0)
"""The longest times in seconds that the process of a cancelled task goes on: mostly short, sometimes long."""


class Watcher(CheckpointWatcher):
    """The product's watcher without its thread."""

    def look(self) -> None:
        """Look once; the next look repeats a failed one."""
        try:
            self._look()
        except CheckpointError as error:
            self.error = error.message


class AnnouncerByHand(Announcer):
    """The product's announcer without threads: it notifies the workers at once, one after the other."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.sim = driver.sim
        self._inner = driver.world.inner
        self.when_asked: Callable[[], None] | None = None
        """What happens when a worker asks for references the next time, in place of an answer."""
        super().__init__(
            cast(Any, RegistryAtOnce(driver.world)),
            driver.token,
            cast(Any, lambda address, token: Client(driver.world.inner, address, token)),
        )

    def commit(
        self, epoch: int, batch: int, references: References, undecided: Collection[tuple[str, str]] = ()
    ) -> None:
        """Spark has committed a batch."""
        super().commit(epoch, batch, references, undecided)
        self.settle()

    def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Notify every known worker of the query's position now."""
        for sender in self._senders.values():
            sender.send()
        return True

    def round(self) -> None:
        """Look for workers, and send each the notices that it has not received."""
        self.find_workers()
        self.settle()

    def _start_sender(self, sender: NoticeSender) -> None:
        self.sim.spawn(self.driver, self._keep_asking(sender))

    def _keep_asking(self, sender: NoticeSender) -> Steps:
        """Ask a worker which scopes it follows, and tell it their references, as two threads of the product do."""
        while self._senders.get(sender.slot) is sender:
            if not sender.asked:
                yield ROUND_SECONDS
                continue
            cursor, seconds, everything = sender.question(QUESTION_SECONDS)
            try:
                answer = yield self._inner.call(
                    sender.client.address, self._token, partial(_followed, cursor, seconds, everything)
                )
            except TransportError:
                yield ROUND_SECONDS
                continue
            named = FollowedScopes.decode(answer)
            if named.new and self.when_asked is not None:
                self.when_asked()
                return
            sender.answered(named)
            sender.send()


def _followed(cursor: int, seconds: float, everything: bool, worker: InnerPort) -> Promise:
    return worker.followed(cursor, seconds, everything)


class RegistryAtOnce:
    """The registry as the announcer asks it: the answer or error comes before any other event."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world

    def leases(self) -> Any:
        """The live leases by slot."""
        return self._world.registry.at_once(lambda r: r.leases())


class Driver(Part):
    """One driver, with a fleet of ``workers`` slots and one query after the other."""

    def __init__(self, world: Surroundings, workers: int) -> None:
        super().__init__(f"driver#{world.next_number()}")
        self.world = world
        self.sim = world.sim
        self.workers = workers
        self.token = f"token of {self.name}"
        self.query: Query | None = None
        self.fleet: dict[int, Worker] = {}
        self.announcer = AnnouncerByHand(self)
        self._watcher: Watcher | None = None
        self.sim.log(self.name, f"starts, {workers} slots")
        self.sim.spawn(self, self._run())

    def each_round(self) -> None:
        """Renew the fleet's record."""
        self.world.registry.at_once(lambda r: r.publish_fleet({"workers": str(self.workers)}))

    def _run(self) -> Steps:
        yield from self._until_answered(lambda r: r.forget_slots_from(self.workers))
        for slot in range(self.workers):
            self.sim.spawn(self, self._supervise(slot))
        self.sim.spawn(self, self._rounds())
        self.sim.spawn(self, self._watch())
        yield self.sim.random.uniform(0.0, 1.0)
        self.sim.spawn(self, self._queries())

    def _until_answered(self, work: Any) -> Steps:
        while True:
            try:
                return (yield self.world.registry.ask(work))
            except RegistryError:
                yield 0.5

    # The fleet.

    def _supervise(self, slot: int) -> Steps:
        """The job of a slot: it is submitted again after each end; a killed task is retried within the job."""
        submission = 0
        while True:
            again = submission and self.fleet[slot].ended.value == "killed" and self.sim.random.random() < 0.6
            if not again:
                submission = yield from self._until_answered(lambda r: r.next_submission())
            worker = self.fleet[slot] = Worker(self.world, slot, submission, self.token, self.workers)
            yield worker.ended
            yield self.sim.random.uniform(0.3, 1.5)

    # The query.

    def _queries(self) -> Steps:
        while True:
            yield from self._begin()
            self.query = Query(self.world, self.workers, self.token, self.wake_watcher)
            yield self.query.ended
            yield self.sim.random.uniform(0.1, 2.0)

    def _begin(self) -> Steps:
        """Notify the workers of the position from which the query continues, and let the watcher follow from there."""
        files = SimulatedFiles(self.world.checkpoint, lambda: 0)
        committed = files.progress(RECEIVER).committed
        epoch = yield from self._until_answered(lambda r: r.next_submission())
        epoch = self.announcer.next_epoch(epoch)
        batch = committed.batch if committed else -1
        self.sim.log(self.name, f"begins epoch {epoch % 10_000_000} behind batch {batch}")
        last_commit = LastCommit(epoch, batch, committed.references if committed else {})
        self.announcer.begin(last_commit, files.given_up(RECEIVER))
        lagging = SimulatedFiles(self.world.checkpoint, lambda: int(self.sim.chance(0.1)))
        self._watcher = Watcher(lagging, RECEIVER, partial(self._progressed, epoch))

    def _progressed(self, epoch: int, progress: QueryProgress) -> None:
        if progress.committed is not None:
            self.announcer.commit(epoch, progress.committed.batch, progress.committed.references)

    def _watch(self) -> Steps:
        while True:
            yield POLL_SECONDS
            self._look()

    def wake_watcher(self) -> None:
        """The query has reported progress."""
        self.sim.after(self.sim.latency(), self, self._look)

    def _look(self) -> None:
        if self._watcher is not None:
            self._watcher.look()

    def _rounds(self) -> Steps:
        while True:
            for step in (self.each_round, self.announcer.round):
                try:
                    step()
                except RegistryError:
                    continue
            yield ROUND_SECONDS

    def kill(self) -> None:
        """Kill the driver and its query; its workers are cancelled and live on for a moment."""
        self.alive = False
        self.sim.log(self.name, "is killed")
        if self.query is not None:
            self.query.kill("its driver is gone")
        for worker in self.fleet.values():
            self.cancel(worker)

    def cancel(self, worker: Worker) -> None:
        """Spark cancels a task; its process is not notified and goes on until it is killed."""
        self.sim.log(worker.name, "is cancelled, its process goes on")
        seconds = self.sim.random.uniform(0.0, self.sim.random.choice(ZOMBIE_SECONDS))
        self.sim.after(seconds, self.world.fate, worker.kill)
        answer = worker.ended
        worker.ended = Promise()
        answer.resolve("killed")
