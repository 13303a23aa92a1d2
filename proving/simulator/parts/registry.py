"""The registry by the rules of the product's scripts, with a simulated clock and a network that fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from proving.simulator.engine.core import Part, Promise, Simulation
from wallaroo_spark.errors import LeaseLostError, RegistryError
from wallaroo_spark.registry import Lease
from wallaroo_spark.registry.model import Assignment

EPOCH_MS = 1_700_000_000_000


@dataclass
class _Record:
    lease: Lease
    expires: int
    whole: bool = False

    @property
    def order(self) -> tuple[int, int]:
        return self.lease.submission, self.lease.generation


class RegistryModel:
    """The contents of Redis, and the scripts as methods; ``now`` is its clock in milliseconds.

    ``lost`` has the time at which each holder lost its lease to another, in seconds of ``steady``; the judge reads it.
    """

    def __init__(self, lease_seconds: float, now: Callable[[], int], steady: Callable[[], float]) -> None:
        self._milliseconds = round(lease_seconds * 1000)
        self._now = now
        self._steady = steady
        self.lost: dict[str, float] = {}
        self._holders: dict[int, str] = {}
        self.empty()

    def empty(self) -> None:
        """Remove everything."""
        self.records: dict[int, _Record] = {}
        self.assignments: dict[str, tuple[int, int]] = {}
        self.claims: dict[int, tuple[int, int]] = {}
        self.submission = 0
        self._fleet: dict[str, str] = {}

    def next_submission(self) -> int:
        """See ``NEXT_SUBMISSION``."""
        known = [record.lease.submission + 1 for record in self.records.values()]
        self.submission = max([self.submission + 1, self._now(), *known])
        return self.submission

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Lease | None:
        """See ``ACQUIRE``."""
        at, record = self._now(), self.records.get(slot)
        want = Lease(slot, submission, at, holder, connect, flight)
        same = False
        if record is not None:
            if record.lease.submission > submission:
                raise _lost(want, record.lease)
            same = record.lease.submission == submission and record.lease.holder == holder
            if record.lease.submission == submission and not same and record.expires > at:
                return None
            generation = record.lease.generation if same else max(record.lease.generation + 1, at)
            want = replace(want, generation=generation)
        if not same:
            self._sweep(slot)
        self._note_holder(slot, holder)
        self.records[slot] = _Record(want, at + self._milliseconds)
        return want

    def renew(
        self, lease: Lease, *, instances: Collection[str] = (), claims: Collection[int] = (), everything: bool = False
    ) -> bool:
        """See ``RENEW``."""
        self._keep(lease)
        for instance in instances:
            owner = self.assignments.get(instance)
            if owner is None or owner[0] == lease.slot:
                self.assignments[instance] = (lease.slot, lease.generation)
        self._take(lease, claims)
        record = self.records[lease.slot]
        record.whole = record.whole or everything
        return record.whole

    def release(self, lease: Lease) -> None:
        """See ``RELEASE``."""
        record = self.records.get(lease.slot)
        if record and record.order == (lease.submission, lease.generation) and record.lease.holder == lease.holder:
            self._vacate(record)
            self._sweep(lease.slot)

    def leases(self) -> dict[int, Lease]:
        """The live leases by slot."""
        at = self._now()
        return {slot: self.records[slot].lease for slot in sorted(self.records) if self.records[slot].expires > at}

    def forget_slots_from(self, workers: int) -> None:
        """See ``FORGET``."""
        for slot, record in self.records.items():
            if slot >= workers and record.lease.holder:
                self._vacate(record)
                record.lease = replace(record.lease, submission=record.lease.submission + 1)
        self.assignments = {name: owner for name, owner in self.assignments.items() if owner[0] < workers}
        self.claims = {stream: owner for stream, owner in self.claims.items() if owner[0] < workers}

    def assign(self, instance: str, knocked: int, workers: int) -> Assignment:
        """See ``ASSIGN``."""
        slot, generation = self.assignments.get(instance, (workers, 0))
        knocked = knocked if knocked < workers else 0
        if slot != knocked and slot < workers:
            other = self.records.get(slot)
            if other is None or (other.lease.generation == generation and other.lease.holder):
                return self._assignment(slot)
        record = self.records.get(knocked)
        self.assignments[instance] = (knocked, record.lease.generation if record else 0)
        return self._assignment(knocked)

    def _assignment(self, slot: int) -> Assignment:
        record = self.records.get(slot)
        live = record is not None and record.expires > self._now()
        return Assignment(slot, (record.lease.connect or None) if record and live else None)

    def unassign(self, lease: Lease, instances: Collection[str]) -> None:
        """See ``UNCLAIM``."""
        for instance in instances:
            if self.assignments.get(instance) == (lease.slot, lease.generation):
                del self.assignments[instance]

    def claim(self, lease: Lease, streams: Collection[int]) -> set[int]:
        """See ``CLAIM``."""
        self._keep(lease)
        return self._take(lease, streams)

    def unclaim(self, lease: Lease, streams: Collection[int]) -> None:
        """See ``UNCLAIM``."""
        for stream in streams:
            if self.claims.get(stream) == (lease.slot, lease.generation):
                del self.claims[stream]

    def publish_fleet(self, fleet: Mapping[str, str]) -> None:
        """Publish the facts about the whole fleet."""
        self._fleet = dict(fleet)

    def fleet(self) -> dict[str, str]:
        """The facts that were published last."""
        return dict(self._fleet)

    def _keep(self, lease: Lease) -> None:
        record, whole = self.records.get(lease.slot), False
        if record is not None:
            mine = (lease.submission, lease.generation)
            if record.order > mine or (record.order == mine and record.lease.holder != lease.holder):
                raise _lost(lease, record.lease)
            if record.order == mine and record.lease.connect:
                lease, whole = record.lease, record.whole
        self._note_holder(lease.slot, lease.holder)
        self.records[lease.slot] = _Record(lease, self._now() + self._milliseconds, whole)

    def _take(self, lease: Lease, streams: Collection[int]) -> set[int]:
        own, at, taken = (lease.slot, lease.generation), self._now(), set()
        for stream in streams:
            owner = self.claims.get(stream)
            if owner is not None and owner != own:
                record = self.records.get(owner[0])
                if record is None or record.expires <= at or record.lease.generation != owner[1]:
                    owner = None
            if owner is None:
                owner = self.claims[stream] = own
            if owner == own:
                taken.add(stream)
        return taken

    def _note_holder(self, slot: int, holder: str) -> None:
        before = self._holders.get(slot, holder)
        if before != holder:
            self.lost[before] = self._steady()
        self.lost.pop(holder, None)
        self._holders[slot] = holder

    def _sweep(self, slot: int) -> None:
        self.claims = {stream: owner for stream, owner in self.claims.items() if owner[0] != slot}

    def _vacate(self, record: _Record) -> None:
        record.lease = replace(record.lease, holder="", connect="", flight="")
        record.expires = 0


def _lost(lease: Lease, newer: Lease) -> LeaseLostError:
    return LeaseLostError(
        f"slot {lease.slot}: submission {lease.submission} has given way to {newer.submission}", slot=lease.slot
    )


class SimulatedRegistry(Part):
    """The connection to the registry. It may be ``away``, and a request or its answer may be lost.

    ``seen_since`` is the time of its last return; it has answered since then.
    """

    def __init__(self, sim: Simulation, lease_seconds: float) -> None:
        super().__init__("registry")
        self.sim = sim
        self.away = False
        self.back_since = 0.0
        self.skew_ms = 0
        self.model = RegistryModel(
            lease_seconds, lambda: EPOCH_MS + self.skew_ms + round(sim.now * 1000), lambda: sim.now
        )

    def at_once(self, work: Callable[[RegistryModel], Any]) -> Any:
        """Ask and wait; raises :class:`RegistryError` when there is no answer."""
        if self.away or self.sim.chance(0.01):
            raise RegistryError("the registry does not answer")
        result = work(self.model)
        if self.sim.chance(0.01):
            raise RegistryError("the registry's answer was lost")
        return result

    def ask(self, work: Callable[[RegistryModel], Any]) -> Promise:
        """Ask; the answer comes later. The request arrives even when the caller dies meanwhile."""
        answer = Promise()
        self.sim.after(self.sim.latency(), self, lambda: self._answer(work, answer))
        return answer

    def _answer(self, work: Callable[[RegistryModel], Any], answer: Promise) -> None:
        try:
            result = self.at_once(work)
        except RegistryError as error:
            failed = error
            self.sim.after(self.sim.latency(), self, lambda: answer.fail(failed))
        else:
            self.sim.after(self.sim.latency(), self, lambda: answer.resolve(result))

    def leave(self, seconds: float) -> None:
        """Be unreachable for some seconds."""
        if not self.away:
            self.away = True
            self.sim.log(self.name, f"is away for {seconds:.1f} s")
            self.sim.after(seconds, self, self._return)

    def _return(self) -> None:
        self.away = False
        self.back_since = self.sim.now
        self.sim.log(self.name, "is back")

    def lose_everything(self) -> None:
        """Replace Redis by a new one with its own clock."""
        self.skew_ms = self.sim.random.choice((0, 0, self.sim.random.randrange(-20_000, 20_000)))
        self.model.empty()
        self.sim.log(self.name, f"is emptied; its clock is off by {self.skew_ms} ms")
