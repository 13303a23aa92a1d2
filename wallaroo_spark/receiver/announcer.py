"""Tells every worker where the query stands: all of it to one that is new, what has changed to the others.

The only path by which a committed reference reaches a worker. Source: ``design.md``, rule 1 and ACKs come from the
commit log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.checkpoint import References, changed
from wallaroo_spark.errors import RegistryError, TransportError
from wallaroo_spark.registry import Lease, Registry
from wallaroo_spark.steps import Step, passed
from wallaroo_spark.worker.flight_client import WorkerClient

log = logging.getLogger("wallaroo_spark.receiver")

ROUND_SECONDS = 0.5
"""How often workers are looked for, whatever happens."""


@dataclass(frozen=True)
class Standing:
    """Where the query stands. ``epoch`` grows with every start of a query; ``batch`` is -1 before the first commit."""

    epoch: int
    batch: int
    references: References


@dataclass
class _Told:
    lease: Lease
    client: WorkerClient
    standing: Standing | None = None


class Announcer:
    """A thread that keeps the workers informed; ``each_round`` runs along with it, to renew what the driver holds.

    ``connect`` makes the client of a worker from its inner address and the fleet's token.
    """

    def __init__(
        self,
        registry: Registry,
        token: str,
        each_round: Callable[[], None],
        connect: Callable[[str, str], WorkerClient] = WorkerClient,
    ) -> None:
        self._registry = registry
        self._token = token
        self._each_round = each_round
        self._connect = connect
        self._standing: Standing | None = None
        self._told: dict[int, _Told] = {}
        self._lock = threading.Lock()
        self._standing_lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wallaroo-announcer", daemon=True)
        self.error = ""

    def start(self) -> None:
        """Begin the rounds."""
        self._thread.start()

    def stop(self) -> None:
        """End them."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(10.0)
        for told in self._told.values():
            told.client.close()

    @property
    def standing(self) -> Standing | None:
        """Where the query stands; None before the first one has started."""
        return self._standing

    def next_epoch(self, number: int) -> int:
        """The epoch of a query that starts now: the registry's ``number``, as long as that grows.

        A Redis that has taken another's place may be behind it, and workers pass over what is of an older epoch.
        """
        standing = self._standing
        return max(number, standing.epoch + 1) if standing is not None else number

    def begin(self, standing: Standing) -> None:
        """A query starts: tell all workers before it does."""
        with self._standing_lock:
            self._standing = standing
        self.round()

    def commit(self, epoch: int, batch: int, references: References) -> None:
        """Spark has committed ``batch`` of the query of that epoch: tell the workers that are known now.

        What is said late, of a query that another has followed, is about another checkpoint and is passed over.
        """
        with self._standing_lock:
            standing = self._standing
            if standing is None or epoch != standing.epoch or batch <= standing.batch:
                return
            self._standing = Standing(epoch, batch, references)
        # Looking for new workers may take as long as the registry is away; acknowledgements do not wait for that.
        self._tell_all()

    def round(self) -> None:
        """Look for workers, and tell each what it does not know yet."""
        self.find_workers()
        self._tell_all()

    def _tell_all(self) -> None:
        with self._lock:
            for told in self._told.values():
                self._tell(told)

    def workers(self) -> dict[int, tuple[Lease, WorkerClient]]:
        """The workers that are known, by slot."""
        with self._lock:
            return {slot: (told.lease, told.client) for slot, told in self._told.items()}

    def status(self, slot: int) -> dict[str, Any] | None:
        """What a worker says of itself; None when it does not answer."""
        found = self.workers().get(slot)
        if found is None:
            return None
        try:
            return found[1].status()
        except TransportError:
            return None

    def _run(self) -> None:
        while not self._stopping.is_set():
            errors = [error for step in (self._each_round, self.round) if (error := _attempt(step)) is not None]
            said = "; ".join(str(error) for error in errors)
            if said and said != self.error:
                log.warning("the receiver's rounds go on, and this is tried again: %s", said)
            self.error = said
            self._wake.wait(ROUND_SECONDS)
            self._wake.clear()

    def find_workers(self) -> None:
        """Workers that are known stay known while the registry is away."""
        try:
            leases = self._registry.leases()
        except RegistryError as error:
            log.debug("new workers cannot be found: %s", error)
            return
        with self._lock:
            for slot, lease in leases.items():
                known = self._told.get(slot)
                # Another lease than the last one is a newer one, though a Redis with another clock may number it lower.
                if not lease.flight or (known and known.lease == lease):
                    continue
                if known:
                    known.client.close()
                self._told[slot] = _Told(lease, self._connect(lease.flight, self._token))

    def _tell(self, told: _Told) -> None:
        standing, known = self._standing, told.standing
        if standing is None or known == standing:
            return
        try:
            if known is None or known.epoch != standing.epoch:
                told.client.rewind(standing.epoch, standing.batch, standing.references)
            else:
                news = changed(known.references, standing.references)
                told.client.committed(standing.epoch, standing.batch, news)
                passed(Step.REFERENCES_SENT)
        except TransportError as error:
            told.standing = None
            log.info("slot %d will be told again: %s", told.lease.slot, error)
        else:
            told.standing = standing


def _attempt(step: Callable[[], None]) -> Exception | None:
    """One step of a round; what goes wrong in it must not keep the others from being taken."""
    try:
        step()
    except Exception as error:
        return error
    return None
