"""Tells every worker the last commit: all references to a worker that is new, the changed ones to the others.

The only path by which a committed reference reaches a worker. Source: ``docs/architecture.md#rules``, rule 1 and
``docs/decisions/acks-from-the-commit-log.md``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from wallaroo_spark.errors import RegistryError, TransportError, one_line
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.inner.notices import COMMITTED, REWIND, Notice
from wallaroo_spark.reference_versions import changed, plain
from wallaroo_spark.references import Reference, References
from wallaroo_spark.registry import FleetDiscovery, Lease, Registry
from wallaroo_spark.steps import Step, passed

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

ROUND_SECONDS = 0.5
"""How often the announcer looks for workers, and how soon it repeats an announcement that was not answered."""
TELL_SECONDS = 12.0
"""The longest wait for the workers to be told: a little more than one call may take."""
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class LastCommit:
    """The last commit of the query that runs: its epoch, its batch, and the committed reference of each stream."""

    epoch: int
    """Grows with every start of a query."""
    batch: int
    """-1 before the first commit."""
    references: References
    """The committed reference of each stream."""
    _notices: dict[int | None, Notice] = field(default_factory=dict, compare=False, repr=False)
    """The notices of it, by the batch that a worker knows; most workers know the same batch."""
    _making: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def since(self, known: LastCommit | None) -> Notice:
        """What a worker is told that knows of a commit; everything, when it knows none of this query."""
        if known is not None and known.epoch != self.epoch:
            known = None
        with self._making:
            batch = known.batch if known is not None else None
            if batch not in self._notices:
                self._notices[batch] = (
                    Notice(REWIND, self.epoch, self.batch, plain(self.references))
                    if known is None
                    else Notice(COMMITTED, self.epoch, self.batch, changed(known.references, self.references))
                )
            notice = self._notices[batch]
            _ = notice.body
            return notice

    """The committed reference of each stream."""


class Announcer:
    """Threads that keep the workers informed, one a worker, so that one that does not answer delays no other.

    ``each_round`` runs along with looking for workers, to renew what the driver holds; ``leases_seen`` is told the
    leases of each look that the registry answered. ``connect`` makes the client of a worker from its inner address and
    the fleet's token.
    """

    def __init__(
        self,
        registry: Registry,
        token: str,
        each_round: Callable[[], None],
        connect: Callable[[str, str], WorkerClient] = WorkerClient,
        leases_seen: Callable[[Mapping[int, Lease]], None] = lambda leases: None,
    ) -> None:
        self._discovery = FleetDiscovery(registry.leases, "the receiver", self._found)
        self._token = token
        self._each_round = each_round
        self._connect = connect
        self._leases_seen = leases_seen
        self._last_commit: LastCommit | None = None
        self._tellers: dict[int, Teller] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wallaroo-announcer", daemon=True)
        self.error = ""
        self.registry_error = ""
        """Why the registry did not answer in the last round; empty when it did."""
        self.leases: Mapping[int, Lease] | None = None
        """The live leases of the last look; None while the registry does not answer."""

    def start(self) -> None:
        """Begin the rounds."""
        self._thread.start()

    def stop(self) -> None:
        """End them."""
        self._stopping.set()
        with self._changed:
            tellers = list(self._tellers.values())
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        for teller in tellers:
            teller.stop()

    @property
    def last_commit(self) -> LastCommit | None:
        """The last commit; None before the first query has started."""
        return self._last_commit

    def next_epoch(self, number: int) -> int:
        """The epoch of a query that starts now: the registry's ``number``, as long as that grows.

        A Redis that has taken another's place may be behind it, and workers pass over what is of an older epoch.
        """
        last_commit = self._last_commit
        return max(number, last_commit.epoch + 1) if last_commit is not None else number

    def begin(self, last_commit: LastCommit) -> None:
        """A query starts: tell all workers before it does. One that does not answer is told again later."""
        with self._changed:
            self._last_commit = last_commit
        self.find_workers()
        self.settle()

    def commit(
        self, epoch: int, batch: int, references: References, undecided: Collection[tuple[str, str]] = ()
    ) -> None:
        """Spark has committed ``batch`` of the query of that epoch: have the workers that are known now told.

        The streams in ``undecided``, by scope and stream id, stand where they stood before.
        Commit notices of a query that another one has followed are about another checkpoint, and are ignored.
        """
        with self._changed:
            last_commit = self._last_commit
            if last_commit is None or epoch != last_commit.epoch or batch <= last_commit.batch:
                return
            if undecided:
                references = _keeping(last_commit.references, references, undecided)
            self._last_commit = LastCommit(epoch, batch, references)
            self._changed.notify_all()

    def settle(self, seconds: float = TELL_SECONDS) -> bool:
        """Wait until every known worker has been told the last commit, or has not answered; False after ``seconds``."""
        with self._changed:
            last_commit = self._last_commit
            for teller in self._tellers.values():
                teller.refused = None
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: all(
                    last_commit is None or teller.told is last_commit or teller.refused is not None
                    for teller in self._tellers.values()
                ),
                seconds,
            )

    def workers(self) -> dict[int, tuple[Lease, WorkerClient]]:
        """The workers that are known, by slot."""
        with self._changed:
            return {slot: (teller.lease, teller.client) for slot, teller in self._tellers.items()}

    def _run(self) -> None:
        while not self._stopping.is_set():
            errors = [error for step in (self._each_round, self.find_workers) if (error := _attempt(step)) is not None]
            said = "; ".join(str(error) for error in errors)
            if said and said != self.error:
                log.warning("a round of commit notices failed, and the next one tries again: %s", said)
            self.error = said
            away = (error for error in errors if isinstance(error, RegistryError))
            self.registry_error = next((error.message for error in away), "")
            self._stopping.wait(ROUND_SECONDS)

    def find_workers(self) -> None:
        """Workers that are known stay known while the registry is away."""
        leases = self.leases = self._discovery.look()
        if leases is not None:
            self._leases_seen(leases)

    def _found(self, lease: Lease) -> None:
        with self._changed:
            if self._stopping.is_set():
                return
            if known := self._tellers.get(lease.slot):
                known.stop()
            client = self._connect(lease.flight, self._token)
            teller = self._tellers[lease.slot] = Teller(lease, client, self._changed, lambda: self._last_commit)
            self._begin_to_tell(teller)

    def _begin_to_tell(self, teller: Teller) -> None:
        """Have a worker told from now on."""
        threading.Thread(target=teller.run, name=f"wallaroo-tell-{teller.lease.slot}", daemon=True).start()


class Teller:
    """Tells one worker the last commit, whenever it does not know it yet; runs in a thread of its own.

    ``changed`` guards what is read and written here, and is never held over a call. ``told`` is what the worker knows,
    None when that is not known; ``refused`` is why it was not told when it was last tried.
    """

    def __init__(
        self,
        lease: Lease,
        client: WorkerClient,
        changed: threading.Condition,
        last_commit: Callable[[], LastCommit | None],
    ) -> None:
        self.lease = lease
        self.client = client
        self.told: LastCommit | None = None
        self.refused: Exception | None = None
        self._changed = changed
        self._last_commit = last_commit
        self._stopped = False

    def stop(self) -> None:
        """Tell it nothing more; a call that is under way has an end of its own."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self) -> None:
        """Tell it all news until :meth:`stop`."""
        while self._await_news():
            self.tell()
            with self._changed:
                if self.refused:
                    self._changed.wait_for(lambda: self._stopped, ROUND_SECONDS)
        self.client.close()

    def tell(self) -> None:
        """Tell it once, when there is news."""
        with self._changed:
            last_commit, known = self._last_commit(), self.told
        if last_commit is None or known is last_commit:
            return
        refused = None
        try:
            notice = last_commit.since(known)
            self.client.tell(notice)
            if notice.action == COMMITTED:
                passed(Step.REFERENCES_SENT)
        except Exception as error:
            refused = error
            # Nobody else would be told of an error of this program, and the worker would wait for news for ever.
            ours = None if isinstance(error, TransportError) else error
            level = logging.WARNING if ours else logging.INFO
            log.log(level, "slot %d will be told again: %s", self.lease.slot, error, exc_info=ours)
        with self._changed:
            self.refused, self.told = refused, None if refused else last_commit
            self._changed.notify_all()

    def _await_news(self) -> bool:
        """Whether there is something that the worker does not know yet; false once it is to be told nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._last_commit() is not self.told)
            return not self._stopped


def _keeping(
    before: References, references: References, streams: Collection[tuple[str, str]]
) -> dict[str, dict[str, Reference]]:
    """``references``, and for these streams what was there before."""
    kept = {scope: dict(known) for scope, known in references.items()}
    for scope, stream in streams:
        if stream in before.get(scope, {}):
            kept.setdefault(scope, {})[stream] = before[scope][stream]
    return kept


def _attempt(step: Callable[[], None]) -> Exception | None:
    """One step of a round; what goes wrong in it must not keep the others from being taken."""
    try:
        step()
    except Exception as error:
        return error
    return None
