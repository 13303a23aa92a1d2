"""The state of the workers as the driver's reader process knows it. Threads of this module keep it up to date.

Spark calls ``latestOffset`` again 10 ms after each answer, so the answer comes from here. The registry is needed only
to find a worker for the first time; a worker that is known is also asked while the registry is away.
Source: ``docs/spark.md``; ``docs/architecture.md#rules``, rule 4.

What a process of the source keeps between batches: its clients of workers.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from wallaroo_spark.errors import TransportError, one_line
from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion, Starts
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.references import Reference, References, StreamKey, references_of
from wallaroo_spark.registry import FleetDiscovery, Lease, Registry
from wallaroo_spark.source.planner import Inquiry, Limits, NextCall, Plan, SlotNews, Uncommitted

log = one_line(logging.getLogger("wallaroo_spark.source"))

T = TypeVar("T")
POLL_SECONDS = 1.0
"""NextCall between two looks at the registry, and longest wait of one call ``available``. A choice."""
RETRY_SECONDS = 0.2
"""NextCall after a worker did not answer, and between looks at the registry while no worker is known. A choice."""
STANDSTILL_SECONDS = 0.02
"""Shortest time between two calls ``available`` to a busy worker. A choice."""
HURRIED_SECONDS = 0.1
"""NextCall between two looks at the registry while a query's first call waits for the fleet's record. A choice."""
ANSWERED_SECONDS = 5.0
"""For how long the registry counts as reachable after an answer. A choice: several looks."""
LOOKS_BEFORE = 3
"""How many different looks of a receiver may have begun before a source has read the first record of one."""
CALLS_AT_ONCE = 64
"""Workers that are asked at the same time, each from a thread of its own. A choice."""


@dataclass
class SlotView:
    """The last known state of one worker."""

    lease: Lease
    """The lease by which the worker holds its slot; it contains the address of the inner port."""
    client: WorkerClient
    """The client of the worker's inner port."""
    news: SlotNews = field(default_factory=SlotNews)
    """The last announcement of the worker; its answer has its time as ``at``."""
    planned: threading.Event = field(default_factory=threading.Event)
    """Set when the worker has been asked for a plan; the next change of its buffer is reported after that."""
    closed: bool = False
    """Whether a newer lease has replaced this one, or the view of the fleet has ended. The thread of this slot then
    ends."""

    def close(self) -> None:
        """Stop asking this worker, because a newer lease has replaced this one or the view of the fleet ends."""
        self.closed = True
        self.planned.set()

    def plan(self, question: PlanQuestion) -> PlanAnswer:
        """As :meth:`WorkerClient.plan`. A worker that does not answer is left out of later plans until it answers
        again; otherwise each batch would wait for it.
        """
        try:
            return self.client.plan(question)
        except TransportError:
            self.news.lost()
            raise


@dataclass(frozen=True)
class FedRecord:
    """The fleet's record, as far as it tells which query the receiver feeds."""

    known: bool = False
    """Whether the registry has told the record."""
    query: str = ""
    """The id of the query, NO_QUERY or QUERY_STARTS; empty if the record does not have it."""
    looked: float | None = None
    """When the receiver began its last look at the running queries, in seconds since 1970; None: it does not look."""
    refused: str = ""
    """Why the receiver does not adopt the queries that read it; empty when there are none."""
    looks: int = 0
    """How many different looks were seen."""

    def after(self, record: Mapping[str, str]) -> FedRecord:
        """The state after a newer record; unchanged when Redis has lost the record."""
        if not record:
            return self
        looked = float(record["looked"]) if record.get("looked") else None
        looks = self.looks + (looked != self.looked)
        return FedRecord(True, record.get("query", self.query), looked, record.get("refused", ""), looks)

    def fresh(self, born: float) -> bool:
        """Whether the receiver has looked since ``born``, a time on this machine's clock.

        The clock of the receiver's machine may be another one. So enough different looks count too: the last of them
        has begun after the first record was read.
        """
        return self.looked is None or self.looked > born or self.looks > LOOKS_BEFORE


class FleetView:
    """The workers of one receiver. ``stamp`` increases whenever anything may have changed.

    ``token`` is the fleet's token. ``trust`` says how the workers are verified; it is None when they use no TLS.
    """

    def __init__(self, registry: Registry, token: str, trust: Trust | None = None) -> None:
        self._registry = registry
        self._token = token
        self._trust = trust
        self._slots: dict[int, SlotView] = {}
        self._changed = threading.Condition()
        self.stamp = 0
        self._stopping = threading.Event()
        self._started = False
        self._discovery = FleetDiscovery(self._leases, "the source", self._found)
        self.workers = 0
        self.fed = FedRecord()
        self.checkpoint = ""
        self.hurried = True
        """Whether the registry is asked often, because somebody waits for the fleet's record."""
        self._looked = threading.Event()
        self._answered_at = -math.inf
        self._uncommitted = Uncommitted()
        self._watching = False
        self._pool = ThreadPoolExecutor(CALLS_AT_ONCE, "wallaroo-ask")
        self.seen: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Start the threads; does nothing when they have been started."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._follow_registry, name="wallaroo-fleet", daemon=True).start()

    def stop(self) -> None:
        """End the threads, without waiting for them."""
        self._stopping.set()
        with self._changed:
            views = list(self._slots.values())
        for view in views:
            view.close()
        self._pool.shutdown(wait=False)

    def watch_connectors(self) -> None:
        """Keep :meth:`connectors` and ``seen`` up to date from now on. Call it before the workers are found."""
        self._watching = True

    def wait(self, stamp: int, seconds: float) -> int:
        """Wait up to ``seconds`` until the stamp differs from ``stamp``; return the new stamp."""
        with self._changed:
            self._changed.wait_for(lambda: self.stamp != stamp, seconds)
            return self.stamp

    def wait_for_first_look(self, seconds: float) -> None:
        """Wait up to ``seconds`` until the registry has answered once."""
        self._looked.wait(seconds)

    def slots(self) -> dict[int, SlotView]:
        """The workers that answer now, by slot."""
        with self._changed:
            return {slot: view for slot, view in self._slots.items() if view.news.answer}

    def addresses(self) -> dict[int, str]:
        """The inner address of every worker that is known, by slot."""
        with self._changed:
            return {slot: view.lease.flight for slot, view in self._slots.items()}

    def connectors(self) -> list[dict[str, Any]]:
        """The connectors that are connected now, with the seconds since their last message as ``idle``.

        Needs :meth:`watch_connectors`.
        """
        found = []
        for view in self.slots().values():
            answer = view.news.answer
            for connector in answer.get("connectors", ()):
                idle = (answer["now"] - connector["last_at"]) / 1e6 + (time.monotonic() - answer["at"])
                found.append({**connector, "idle": idle})
        return found

    def plan(self, start: References, limits: Limits, *, everybody: bool = False) -> Plan:
        """The rows after ``start`` that the workers hold, within the limits; ``everybody`` asks idle workers, too.

        Raises :class:`TransportError` when a worker does not answer; it is left out until it does.
        """
        slots = self.slots()
        # A worker that held no rows at its last answer is not asked: rows that it has received since raise the stamp.
        asked = [slot for slot, view in slots.items() if everybody or view.news.may_tell]
        inquiry = Inquiry(asked, start, limits, self._uncommitted)
        while questions := inquiry.questions:
            answers = self._at_once({slot: partial(slots[slot].plan, question) for slot, question in questions.items()})
            for slot, answer in answers.items():
                inquiry.answer(slot, answer)
        for view in slots.values():
            view.planned.set()
        return inquiry.plan()

    def owes(self, start: References) -> bool:
        """Whether a connector waits for an ACK of messages up to ``start``, all of which Spark has committed.

        Raises :class:`TransportError` when a worker does not answer.
        """
        slots = self.slots()
        held = self._at_once({slot: view.client.held for slot, view in slots.items()})
        # A worker that knows of the commit has acknowledged its messages, or does so now.
        differing = {slot: _differing(start, streams) for slot, streams in held.items()}
        return any(slots[slot].client.owes(streams) for slot, streams in differing.items() if streams)

    def slots_of(self, instances: Collection[str]) -> dict[str, int]:
        """The slots to which these instances are connected now; none when a worker does not answer."""
        if not instances:
            return {}
        views = self.slots()
        try:
            answers = self._at_once({slot: partial(view.client.available, -1, 0.0) for slot, view in views.items()})
        except TransportError as error:
            log.info("it is not known to which workers connectors are connected: %s", error)
            return {}
        return {
            connector["instance"]: slot
            for slot, answer in answers.items()
            for connector in answer["connectors"]
            if connector["instance"] in instances
        }

    def _at_once(self, calls: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """Make calls to several workers at the same time and return their results. Raises the first error."""
        if len(calls) == 1:
            return {slot: call() for slot, call in calls.items()}
        futures = {slot: self._pool.submit(call) for slot, call in calls.items()}
        wait(futures.values())
        return {slot: future.result() for slot, future in futures.items()}

    def _bump(self) -> None:
        with self._changed:
            self.stamp += 1
            self._changed.notify_all()

    def _follow_registry(self) -> None:
        while not self._stopping.is_set():
            self._discovery.look()
            self._stopping.wait(HURRIED_SECONDS if self.hurried else POLL_SECONDS if self._slots else RETRY_SECONDS)

    def _leases(self) -> dict[int, Lease]:
        """Ask the registry for the leases, and for the fleet's record at the same time."""
        fleet, leases = self._registry.fleet(), self._registry.leases()
        self.workers = int(fleet.get("workers", self.workers))
        self.fed = self.fed.after(fleet)
        self.checkpoint = fleet.get("checkpoint") or self.checkpoint
        self._answered_at = time.monotonic()
        self._looked.set()
        return leases

    @property
    def answered(self) -> bool:
        """Whether the registry has answered within the last seconds."""
        return time.monotonic() - self._answered_at < ANSWERED_SECONDS

    def _found(self, lease: Lease) -> None:
        view = SlotView(lease, WorkerClient(lease.flight, self._token, trust=self._trust))
        with self._changed:
            if known := self._slots.get(lease.slot):
                known.close()
            self._slots[lease.slot] = view
        self._bump()
        threading.Thread(target=self._follow, args=(view,), name=f"wallaroo-slot-{lease.slot}", daemon=True).start()

    def _follow(self, view: SlotView) -> None:
        logged = False
        while not self._stopping.is_set() and not view.closed:
            try:
                answer = view.client.available(view.news.version, POLL_SECONDS, connectors=self._watching)
            except TransportError as error:
                if not logged:
                    log.warning("slot %d: %s", view.lease.slot, error)
                logged = True
                view.news.lost()
                self._stopping.wait(RETRY_SECONDS)
                continue
            answer["at"] = time.monotonic()
            for connector in answer.get("connectors", ()):
                self.seen[connector["instance"]] = {**connector, "at": answer["at"]}
            logged = False
            pause = view.news.announced(answer, watching=self._watching)
            if pause is not NextCall.NONE:
                view.planned.clear()
                self._bump()
                if pause is NextCall.STANDSTILL:
                    self._stopping.wait(STANDSTILL_SECONDS)
                else:
                    view.planned.wait(POLL_SECONDS)
        with contextlib.suppress(Exception):
            view.client.close()


def _differing(start: References, held: Starts) -> dict[StreamKey, Reference | None]:
    """The held streams whose committed reference at the worker is not their reference in ``start``.

    Ephemeral references are among them even if they are equal, because they may be of another worker's buffer.
    """
    starts = references_of(start, held)
    return {key: here for key, here in starts.items() if here != held[key] or isinstance(here, str)}


KEPT_SECONDS = 5.0
"""How long a connection may have been idle when a task takes it over.

A choice: a busy query begins its next batch sooner. A firewall may have dropped a connection that was idle for minutes,
and a read on such a connection would wait in vain.
"""

_Key = tuple[str, str, Trust | None]


class KeptClients:
    """Clients that no task uses, by worker address, token and trust. Several threads may use it at the same time.

    When a process closes its last client, gRPC ends its threads (about ten), and the next client starts them again.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: dict[_Key, tuple[WorkerClient, float]] = {}

    def take(self, address: str, token: str, trust: Trust | None) -> WorkerClient:
        """A client for one task alone: an idle one if there is one, otherwise a new one."""
        with self._guard:
            stale = self._stale()
            found = self._idle.pop((address, token, trust), None)
        taken = WorkerClient(address, token, trust=trust) if found is None else found[0]
        for client in stale:
            client.close()
        return taken

    def keep(self, client: WorkerClient, token: str, trust: Trust | None) -> None:
        """Take back a client whose calls have all ended."""
        with self._guard:
            replaced = self._idle.pop((client.address, token, trust), None)
            self._idle[client.address, token, trust] = (client, time.monotonic())
        if replaced is not None:
            replaced[0].close()

    def _stale(self) -> list[WorkerClient]:
        """Remove and return the clients that have been idle for too long."""
        oldest = time.monotonic() - KEPT_SECONDS
        old = [key for key, (_, since) in self._idle.items() if since < oldest]
        return [self._idle.pop(key)[0] for key in old]


KEPT = KeptClients()
"""The kept clients of this process."""
