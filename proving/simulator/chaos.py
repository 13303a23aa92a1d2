"""The faults of a history, one after the other, drawn from the seed."""

from __future__ import annotations

import math
from collections.abc import Callable

from proving.simulator.engine.core import Part, Steps
from proving.simulator.engine.failing import Failing
from proving.simulator.parts.driver import Driver
from proving.simulator.parts.producers import Producer
from proving.simulator.parts.worker import Worker
from proving.simulator.world import World
from wallaroo_spark.protocol import V3

MOST_CALLS = 5_000
"""Within so many calls that a worker's state makes, one fails."""

MOST_CUT_OFF_SECONDS = 15.0
"""The longest time for which a worker is out of the driver's reach."""


class Chaos:
    """Draws a fault, waits, and draws another until the time of faults is over."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sim = world.sim
        self.part = Part("chaos")
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self.cut_a_connection),
            (3, self.kill_a_connector),
            (4, self.kill_a_worker),
            (2, self.lose_a_machine),
            (3, self.stop_a_worker),
            (6, self.let_a_call_fail),
            (2, self.cancel_a_worker),
            (2, self.ask_a_worker_to_leave),
            (1, self.copy_a_worker),
            (2, self.kill_the_driver),
            (1, self.kill_the_driver_that_is_asked),
            (3, self.kill_the_query),
            (3, self.kill_a_task),
            (2, self.lose_the_registry),
            (1, self.empty_the_registry),
            (2, self.move_a_stream),
            (2 if world.profile.goes_back else 0, self.go_back),
            (world.profile.cut_offs if world.profile.retention else 0, self.cut_off_a_worker),
            (1 if world.profile.retention else 0, self.leave_a_task),
            (3 if world.profile.doors else 0, self.kill_a_producer),
            (3 if world.profile.doors else 0, self.stop_a_producer),
            (1 if world.profile.doors else 0, self.lose_a_producer),
            (world.profile.absences if world.profile.doors else 0, self.lose_planned_rows),
        ]
        self.sim.spawn(self.part, self._run())

    def _run(self) -> Steps:
        only = self.world.profile.faults
        chosen = [(weight, kind) for weight, kind in self._kinds if not only or kind.__name__ in only]
        weights, kinds = [weight for weight, _ in chosen], [kind for _, kind in chosen]
        yield self.sim.random.uniform(0.0, 3.0)
        while self.sim.now < self.world.profile.fault_seconds:
            kind = self.sim.random.choices(kinds, weights)[0]
            self.sim.history.counts[kind.__name__] += 1
            kind()
            yield self.sim.random.expovariate(1 / self.world.profile.fault_pause)

    def _later(self, action: Callable[[], None], most: float) -> None:
        self.sim.after(self.sim.random.uniform(0.0, most), self.world.fate, action)

    def _a_worker(self) -> Worker | None:
        workers = [worker for worker in self.world.driver.fleet.values() if worker.alive]
        return self.sim.random.choice(workers) if workers else None

    def cut_a_connection(self) -> None:
        """The network between a connector and its worker breaks; sometimes only one side notices at once."""
        ends = list(self.world.network.open.values())
        if ends:
            end = self.sim.random.choice(ends)
            told = self.sim.random.random() < 0.7
            self.sim.log(
                end.part.name, f"its connection to {end.peer.part.name} is cut" + ("" if told else ", silently")
            )
            (end if self.sim.random.random() < 0.5 else end.peer).cut(told=told)

    def kill_a_connector(self) -> None:
        """A connector's process is killed and started again."""
        program = self.sim.random.choice(self.world.programs)
        program.kill()
        self._later(program.start, 5.0)

    def kill_a_worker(self) -> None:
        """A worker's process is killed; its machine goes on and refuses connections to it."""
        worker = self._a_worker()
        if worker is not None:
            worker.kill()

    def lose_a_machine(self) -> None:
        """A worker's machine is lost; its peers are not notified."""
        worker = self._a_worker()
        if worker is not None:
            worker.kill(silent=True)

    def stop_a_worker(self) -> None:
        """A worker is stopped for longer than its lease, or for nearly as long."""
        worker = self._a_worker()
        if worker is not None:
            self.sim.put_to_sleep(worker, self.world.profile.lease_seconds * self.sim.random.uniform(0.2, 3.0))

    def let_a_call_fail(self) -> None:
        """One of the next calls that a worker's state makes fails, as any allocation may."""
        worker = self._a_worker()
        if worker is not None and worker.serving:
            worker.failing = Failing(round(math.exp(self.sim.random.uniform(0.0, math.log(MOST_CALLS)))))

    def cancel_a_worker(self) -> None:
        """Spark cancels a task whose process goes on for some seconds."""
        worker = self._a_worker()
        if worker is not None:
            self.world.driver.cancel(worker)

    def ask_a_worker_to_leave(self) -> None:
        """A worker is asked to leave and stops in good order."""
        worker = self._a_worker()
        if worker is not None and not worker.asleep:
            worker.stop("asked to leave")

    def copy_a_worker(self) -> None:
        """Spark runs a second copy of a task."""
        worker = self._a_worker()
        if worker is not None:
            copy = Worker(self.world, worker.slot, worker.submission, worker.token, worker.options.workers)
            self.sim.log(copy.name, f"is a copy of {worker.name}")
            self._later(copy.kill, 10.0)

    def kill_the_driver(self) -> None:
        """The whole application dies; another follows, with the same number of slots or a different one."""
        self._kill(self.world.driver)

    def kill_the_driver_that_is_asked(self) -> None:
        """The application dies when a worker asks it for references the next time, before it answers."""
        driver = self.world.driver
        driver.announcer.when_asked = lambda: self._kill(driver)

    def _kill(self, driver: Driver) -> None:
        if driver.alive:
            driver.kill()
            # A partition belongs to a slot by the number of slots, so with another number producers begin anew.
            others = () if self.world.profile.doors else (1, 2, 3)
            slots = self.sim.random.choice((driver.workers, driver.workers, *others))
            self._later(lambda: self.world.start_driver(slots), 6.0)

    def kill_the_query(self) -> None:
        """The query fails and starts again."""
        query = self.world.driver.query
        if query is not None:
            query.kill("an error")

    def kill_a_task(self) -> None:
        """A reading task dies before its end."""
        query = self.world.driver.query
        tasks = [task for task in query.tasks if task.alive] if query is not None and query.alive else []
        if tasks:
            self.sim.random.choice(tasks).kill()

    def leave_a_task(self) -> None:
        """A reading task is run again while its first process goes on, because its executor is lost to the driver."""
        query = self.world.driver.query
        tasks = [task for task in query.tasks if task.alive] if query is not None and query.alive else []
        if tasks:
            self.sim.random.choice(tasks).leave()

    def kill_a_producer(self) -> None:
        """The process of a door's producer is killed and started again."""
        producer = self.sim.random.choice(self.world.judge.doors.producers)
        producer.kill()
        self._later(producer.start, 5.0)

    def stop_a_producer(self) -> None:
        """The process of a door's producer is stopped, for so long that what it has sent may be given up."""
        producer = self.sim.random.choice(self.world.judge.doors.producers)
        if producer.process.alive:
            self.sim.put_to_sleep(producer.process, self.sim.random.uniform(0.5, 20.0))

    def lose_planned_rows(self) -> None:
        """All workers die as soon as a batch with rows of producers is planned; one of these is away meanwhile."""
        self.world.judge.doors.when_planned = self._lose_rows

    def _lose_rows(self, producer: Producer) -> None:
        for worker in self.world.driver.fleet.values():
            worker.kill()
        if producer.process.alive:
            self.sim.put_to_sleep(producer.process, self.sim.random.uniform(1.0, 25.0))

    def lose_a_producer(self) -> None:
        """A door's producer never comes back."""
        producer = self.sim.random.choice(self.world.judge.doors.producers)
        producer.kill()
        producer.gone = True

    def cut_off_a_worker(self) -> None:
        """The driver and the reading tasks cannot reach a worker for a while, and its connectors can."""
        worker = self._a_worker()
        if worker is not None:
            worker.cut_off_until = self.sim.now + self.sim.random.uniform(0.5, MOST_CUT_OFF_SECONDS)
            self.sim.log(worker.name, f"is out of the driver's reach until {worker.cut_off_until:.1f}")

    def lose_the_registry(self) -> None:
        """Redis does not answer for a while."""
        self.world.registry.leave(self.sim.random.uniform(0.5, 8.0))

    def empty_the_registry(self) -> None:
        """Redis loses all keys."""
        self.world.registry.lose_everything()

    def move_a_stream(self) -> None:
        """A v3 stream moves to another instance, which sends it from then on."""
        programs = [program for program in self.world.programs if program.revision is V3]
        givers = [program for program in programs if program.sources]
        if len(programs) > 1 and givers:
            giver = self.sim.random.choice(givers)
            taker = self.sim.random.choice([program for program in programs if program is not giver])
            source = self.sim.random.choice(giver.sources)
            self.sim.log(giver.instance, f"leaves {source.name} to {taker.instance}")
            giver.sources.remove(source)
            taker.sources.append(source)
            if giver.process is not None and giver.process.alive:
                giver.process.drop(source.stream_id)
            if taker.process is not None and taker.process.alive:
                taker.process.adopt(source)

    def go_back(self) -> None:
        """The query is stopped, its checkpoint is replaced by an older copy, and it is started again."""
        checkpoint, query = self.world.checkpoint, self.world.driver.query
        if query is None or not query.alive or checkpoint.last_committed < 0:
            return
        query.kill("an operator stops it")
        batch = self.sim.random.randint(max(-1, checkpoint.last_committed - 4), checkpoint.last_committed)
        self.sim.log("operator", f"goes back to batch {batch}")
        checkpoint.go_back_to(batch)
        self.world.judge.went_back()
