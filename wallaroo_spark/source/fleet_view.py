"""The state of the workers as the driver's reader process knows it, kept up to date by threads of its own.

``latestOffset`` is asked some 80 times a second, so it is answered from here. The registry is only needed to find a
worker for the first time; one that is known goes on being asked while the registry is away.
Source: ``docs/spark.md``; ``docs/architecture.md#rules``, rule 4.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import TransportError, one_line
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.references import References
from wallaroo_spark.registry import FleetDiscovery, Lease, Registry

log = one_line(logging.getLogger("wallaroo_spark.source"))

POLL_SECONDS = 1.0
RETRY_SECONDS = 0.2
STANDSTILL_SECONDS = 0.02
"""Shortest time between two looks at a busy worker."""


@dataclass
class SlotView:
    """One worker as last seen. ``answer`` is what ``available`` said, empty while it does not answer."""

    lease: Lease
    client: WorkerClient
    answer: dict[str, Any] = field(default_factory=dict)
    closed: bool = False

    def plan(self, start: References, rows: int | None = None, bytes: int | None = None) -> dict[str, Any]:
        """As :meth:`WorkerClient.plan`. A worker that does not answer is left out until it does, or each batch would
        wait for it again.
        """
        try:
            return self.client.plan(start, rows, bytes)
        except TransportError:
            self.answer = {}
            raise


class FleetView:
    """The workers of one receiver. ``stamp`` grows whenever anything may have changed.

    ``token`` is the fleet's, and ``trust`` how the workers are verified, None when they speak plain text.
    """

    def __init__(self, registry: Registry, token: str, trust: Trust | None = None) -> None:
        self._registry = registry
        self._token = token
        self._trust = trust
        self._slots: dict[int, SlotView] = {}
        self._changed = threading.Condition()
        self._stamp = 0
        self._stopping = threading.Event()
        self._started = False
        self._discovery = FleetDiscovery(self._leases, "the source", self._found)
        self.workers = 0
        self.query = ""
        self.checkpoint = ""
        self._looked = threading.Event()
        self.seen: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Begin to look; does nothing when it has begun."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._follow_registry, name="wallaroo-fleet", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    @property
    def stamp(self) -> int:
        """Grows whenever anything may have changed."""
        return self._stamp

    def wait(self, stamp: int, seconds: float) -> int:
        """Wait until the stamp is another than ``stamp``; what it is then."""
        with self._changed:
            self._changed.wait_for(lambda: self._stamp != stamp, seconds)
            return self._stamp

    def wait_for_first_look(self, seconds: float) -> None:
        """Wait until the registry has answered once."""
        self._looked.wait(seconds)

    def slots(self) -> dict[int, SlotView]:
        """The workers that answer now, by slot."""
        with self._changed:
            return {slot: view for slot, view in self._slots.items() if view.answer}

    def addresses(self) -> dict[int, str]:
        """The inner address of every worker that is known, by slot."""
        with self._changed:
            return {slot: view.lease.flight for slot, view in self._slots.items()}

    def connectors(self) -> list[dict[str, Any]]:
        """The connectors that are connected now, with the seconds since their last message as ``idle``."""
        found = []
        for view in self.slots().values():
            for connector in view.answer["connectors"]:
                idle = (view.answer["now"] - connector["last_at"]) / 1e6 + (time.monotonic() - view.answer["at"])
                found.append({**connector, "idle": idle})
        return found

    def _bump(self) -> None:
        with self._changed:
            self._stamp += 1
            self._changed.notify_all()

    def _follow_registry(self) -> None:
        while not self._stopping.is_set():
            self._discovery.look()
            self._stopping.wait(POLL_SECONDS if self._slots else RETRY_SECONDS)

    def _leases(self) -> dict[int, Lease]:
        """Ask the registry for the leases, and for the fleet's record along with them."""
        fleet, leases = self._registry.fleet(), self._registry.leases()
        self.workers = int(fleet.get("workers", self.workers))
        self.query = fleet.get("query", self.query)
        self.checkpoint = fleet.get("checkpoint") or self.checkpoint
        self._looked.set()
        return leases

    def _found(self, lease: Lease) -> None:
        view = SlotView(lease, WorkerClient(lease.flight, self._token, trust=self._trust))
        with self._changed:
            if known := self._slots.get(lease.slot):
                known.closed = True
            self._slots[lease.slot] = view
        self._bump()
        threading.Thread(target=self._follow, args=(view,), name=f"wallaroo-slot-{lease.slot}", daemon=True).start()

    def _follow(self, view: SlotView) -> None:
        version, said = -1, False
        while not self._stopping.is_set() and not view.closed:
            try:
                answer = view.client.available(version, POLL_SECONDS)
            except TransportError as error:
                if not said:
                    log.warning("slot %d: %s", view.lease.slot, error)
                view.answer, said = {}, True
                self._stopping.wait(RETRY_SECONDS)
                continue
            answer["at"] = time.monotonic()
            for connector in answer["connectors"]:
                self.seen[connector["instance"]] = {**connector, "at": answer["at"]}
            changed = answer["version"] != version or not view.answer
            view.answer, version, said = answer, answer["version"], False
            if changed:
                self._bump()
                self._stopping.wait(STANDSTILL_SECONDS)
        with contextlib.suppress(Exception):
            view.client.close()
