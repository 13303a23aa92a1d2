"""Calls of the driver and the reading tasks to a worker: they may fail, arrive late or twice, and streams may break."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proving.simulator.engine.core import Part, Promise, Simulation
from wallaroo_spark.errors import TransportError
from wallaroo_spark.inner.calls import REWIND, FollowedScopes, Notice, decode
from wallaroo_spark.references import PlannedRange
from wallaroo_spark.worker.machine import events as e

TIMEOUT_SECONDS = 2.0


class InnerPort(Part):
    """A worker's inner port; the driver and the reading tasks show the fleet's ``token``."""

    def __init__(self, name: str, token: str) -> None:
        super().__init__(name)
        self.token = token
        self.beyond = Part(f"{name}'s callers")
        """The callers' side: it receives the answer, or none, even after the worker has died."""
        self.serving = False
        self.cut_off_until = 0.0
        """Until this time neither the driver nor a reading task can reach it; connectors can."""

    def handle(self, event: e.Event) -> None:
        """Give an event to the worker's state."""
        raise NotImplementedError

    def available(self, version: int, seconds: float) -> Promise:
        """Answer with the state of the buffer once its version differs from ``version``, or the time is over."""
        raise NotImplementedError

    def scopes(self, cursor: int, everything: bool) -> bytes:
        """Answer with the scopes that it follows."""
        raise NotImplementedError

    def followed(self, cursor: int, seconds: float, everything: bool) -> Promise:
        """:meth:`scopes` once there are some with a number above ``cursor``, or the time is over."""
        raise NotImplementedError

    def plan(self, question: bytes) -> bytes:
        """Answer how far a batch may read from this worker."""
        raise NotImplementedError

    def read(
        self,
        ranges: dict[int, PlannedRange],
        wait: float,
        deliver: Callable[[Any, Any], None],
        done: Promise,
        leaving: tuple[str, int],
    ) -> None:
        """Stream ranges to a task."""
        raise NotImplementedError


class InnerNetwork:
    """The workers' inner ports by address."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.ports: dict[str, InnerPort] = {}

    def find(self, address: str, token: str) -> InnerPort:
        """The worker that serves at an address. Raises :class:`TransportError`."""
        worker = self.ports.get(address)
        cut_off = worker is not None and self.sim.now < worker.cut_off_until
        if worker is None or cut_off or not worker.alive or worker.token != token:
            raise TransportError(f"worker at {address} did not answer", address=address)
        return worker

    def call(self, address: str, token: str, work: Callable[[InnerPort], Any]) -> Promise:
        """Make a call; its answer comes later or never."""
        sim, answer = self.sim, Promise()
        failed = TransportError(f"worker at {address} did not answer", address=address)
        try:
            worker = self.find(address, token)
        except TransportError as error:
            answer.fail(error)
            return answer

        def arrive() -> None:
            if self.ports.get(address) is not worker:
                # The worker has failed or left since: like the product's, it answers no call any more.
                answer.fail(failed)
                return
            result = work(worker)
            if isinstance(result, Promise):
                result.then(lambda: sim.after(sim.latency(), clock, lambda: answer.settle_as(result)))
            else:
                sim.after(sim.latency(), clock, lambda: answer.resolve(result))

        clock = worker.beyond
        if not sim.chance(0.02):
            sim.after(sim.latency(), worker, arrive)
        sim.after(TIMEOUT_SECONDS, clock, lambda: answer.fail(failed))
        return answer


class Client:
    """The announcer's client of one worker; each call waits for the answer."""

    def __init__(self, inner: InnerNetwork, address: str, token: str) -> None:
        self.address = address
        self._inner = inner
        self._token = token

    def close(self) -> None:
        """Close the connection."""

    def tell(self, notice: Notice) -> None:
        """Tell the worker the committed references, or that the query continues from other references."""
        told = decode(notice.body)
        if notice.action == REWIND:
            fields = told._asdict()
            del fields["ended"]
            self._tell(e.Rewound(**fields))
        else:
            self._tell(e.Committed(**told._asdict(), now=self._inner.sim.now))

    def followed(self, cursor: int, wait: float, everything: bool) -> FollowedScopes:
        """The scopes that the worker follows; it answers at once or not at all."""
        worker = self._inner.find(self.address, self._token)
        if worker.asleep or self._inner.sim.chance(0.04):
            raise TransportError(f"worker at {self.address} did not answer", address=self.address)
        return FollowedScopes.decode(worker.scopes(cursor, everything))

    def status(self) -> Mapping[str, Any]:
        """Unused in a simulation."""
        raise NotImplementedError

    def _tell(self, event: e.Rewound | e.Committed) -> None:
        sim = self._inner.sim
        worker = self._inner.find(self.address, self._token)
        failed = TransportError(f"worker at {self.address} did not answer", address=self.address)
        if worker.asleep:
            sim.after(0.0, worker, lambda: self._late(worker, event))
            raise failed
        if sim.chance(0.04):
            raise failed
        if sim.chance(0.06):
            sim.after(sim.random.uniform(0.0, 10.0), worker, lambda: self._late(worker, event))
            raise failed
        worker.handle(event)
        if sim.chance(0.06):
            sim.after(sim.random.uniform(0.0, 10.0), worker, lambda: self._late(worker, event))
        if sim.chance(0.03):
            raise failed

    def _late(self, worker: InnerPort, event: e.Rewound | e.Committed) -> None:
        if worker.serving:
            self._inner.sim.log(worker.name, f"receives late: epoch {event.epoch}, batch {event.batch}")
            worker.handle(event)
