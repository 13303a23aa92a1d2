"""Finds the workers, and has the last commit sent to each of them; see
:mod:`wallaroo_spark.inner.notices`.

A committed reference reaches a worker in no other way. Source: ``docs/architecture.md#rules``, rule 1 and
``docs/decisions/acks-from-the-commit-log.md``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.inner.notices import Followers, GivenUp, LastCommit, NoticeSender
from wallaroo_spark.references import Reference, References
from wallaroo_spark.registry import FleetDiscovery, Lease, Registry

SETTLE_SECONDS = 12.0
"""The longest wait until all workers have the last commit: a little more than the time limit of one call."""


class Announcer:
    """Threads that send commit notices, two for each worker, so that a worker that does not answer delays no other.

    ``leases_seen`` is called with the leases after each look that the registry answered. ``connect`` makes the client
    of a worker from its inner address and the fleet's token. ``counts`` gets the number of ``commits``.
    """

    def __init__(
        self,
        registry: Registry,
        token: str,
        connect: Callable[[str, str], WorkerClient] = WorkerClient,
        leases_seen: Callable[[Mapping[int, Lease]], None] = lambda leases: None,
        counts: Counter[str] | None = None,
    ) -> None:
        self._discovery = FleetDiscovery(registry.leases, "the receiver", self._found)
        self._token = token
        self._connect = connect
        self._leases_seen = leases_seen
        self._last_commit: LastCommit | None = None
        self._given_up: GivenUp | None = None
        self._senders: dict[int, NoticeSender] = {}
        self._known: dict[int, Lease] = {}
        self._followers = Followers()
        self._changed = threading.Condition()
        self._stopped = False
        self._counts = Counter[str]() if counts is None else counts
        self.leases: Mapping[int, Lease] | None = None
        """The live leases of the last look; None while the registry does not answer."""

    def stop(self) -> None:
        """End all threads."""
        with self._changed:
            self._stopped = True
            senders = list(self._senders.values())
            self._changed.notify_all()
        for sender in senders:
            sender.stop()

    @property
    def last_commit(self) -> LastCommit | None:
        """The last commit; None before the first query has started."""
        return self._last_commit

    def next_epoch(self, number: int) -> int:
        """The epoch of a query that starts now: ``number`` of the registry, or one above the last epoch if greater.

        A new Redis may have lower numbers than the one before it, and workers ignore notices of an older epoch.
        """
        last_commit = self._last_commit
        return max(number, last_commit.epoch + 1) if last_commit is not None else number

    def begin(self, last_commit: LastCommit, given_up: GivenUp | None = None) -> None:
        """Send the position of a query that is about to start to all workers, and wait until they have it.

        A worker that does not answer gets it later. ``given_up`` is the record beside the query's checkpoint.
        """
        with self._changed:
            self._given_up = given_up
            self._last_commit = last_commit
        self.find_workers()
        self.settle()

    def commit(
        self, epoch: int, batch: int, references: References, undecided: Collection[tuple[str, str]] = ()
    ) -> None:
        """Send the commit of ``batch`` in the query of this epoch to all known workers, without waiting.

        The streams in ``undecided`` (pairs of scope and stream id) keep their earlier references. A commit of an
        earlier query is ignored, because it is of another checkpoint.
        """
        with self._changed:
            last_commit = self._last_commit
            if last_commit is None or epoch != last_commit.epoch or batch <= last_commit.batch:
                return
            if undecided:
                references = _keeping(last_commit.references, references, undecided)
            self._counts["commits"] += batch - last_commit.batch
            self._last_commit = LastCommit(epoch, batch, references)
            self._changed.notify_all()

    def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until every known worker has the last commit or has not answered; return False after ``seconds``."""
        with self._changed:
            last_commit = self._last_commit
            for sender in self._senders.values():
                sender.failure = None
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: all(
                    last_commit is None or sender.sent is last_commit or sender.failure is not None
                    for sender in self._senders.values()
                ),
                seconds,
            )

    def workers(self) -> dict[int, tuple[Lease, WorkerClient]]:
        """The known workers, by slot."""
        with self._changed:
            return {slot: (self._known[slot], sender.client) for slot, sender in self._senders.items()}

    def find_workers(self) -> None:
        """Look for workers in the registry. Known workers stay known while the registry does not answer.

        The owner calls this in every round.
        """
        leases = self.leases = self._discovery.look()
        if leases is not None:
            self._leases_seen(leases)

    def _found(self, lease: Lease) -> None:
        with self._changed:
            if self._stopped:
                return
            if known := self._senders.get(lease.slot):
                known.stop()
            client = self._connect(lease.flight, self._token)
            sender = self._senders[lease.slot] = NoticeSender(
                lease.slot, client, self._changed, lambda: self._last_commit, self._followers, lambda: self._given_up
            )
            self._known[lease.slot] = lease
            self._start_sender(sender)

    def _start_sender(self, sender: NoticeSender) -> None:
        """Start the threads that send notices to a worker."""
        threading.Thread(target=sender.run, name=f"wallaroo-tell-{sender.slot}", daemon=True).start()


def _keeping(
    before: References, references: References, streams: Collection[tuple[str, str]]
) -> dict[str, dict[str, Reference]]:
    """``references``, with the earlier references of these streams."""
    kept = {scope: dict(known) for scope, known in references.items()}
    for scope, stream in streams:
        if stream in before.get(scope, {}):
            kept.setdefault(scope, {})[stream] = before[scope][stream]
    return kept
