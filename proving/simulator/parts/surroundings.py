"""The surroundings that all parts of a history share: time, networks, registry, checkpoint and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from proving.simulator.engine.core import Part, Simulation
from proving.simulator.engine.flight import InnerNetwork
from proving.simulator.engine.history import History
from proving.simulator.engine.network import Network
from proving.simulator.parts.checkpoint import Checkpoint, Row
from proving.simulator.parts.registry import SimulatedRegistry
from proving.simulator.parts.sources import Source
from proving.simulator.profile import Profile, draw_profile
from wallaroo_spark.options import Options
from wallaroo_spark.references import StreamKey

DOORS: dict[str, Any] = {"message_ids": "increasing", "goes_back": False}
"""The properties of histories with doors: their ids increase, and what was answered cannot be had again."""
HTTP_PORT, KAFKA_PORT, PARTITIONS = 8000, 9000, 8
FORGETTING_SECONDS = 15.0
"""Further seconds of faults in histories in which streams are forgotten."""


class Observer(Protocol):
    """Every part notifies it of its actions; ``proving.simulator.invariants.Judge`` is one."""

    def touched(self, worker: Any) -> None:
        """A worker's state has changed."""

    def heard(self, connector: Any) -> None:
        """A connector's state has changed."""

    def acknowledged(self, connector: Any, stream_id: int, ref: int, how: str) -> None:
        """A connector has received an acknowledgement."""

    def said(self, worker: Any, session: int, data: bytes) -> None:
        """A worker sends bytes to a session."""

    def took_in(self, worker: Any) -> None:
        """A worker has accepted messages."""

    def planned(self, batch: int, start: Mapping[str, Any], ends: Mapping[str, Any]) -> None:
        """The offset of a batch is about to be written."""

    def named(self, query: Any, endings: Any) -> None:
        """The plan of a batch is made, with these ends of streams."""

    def written(self, start: Mapping[str, Any], ends: Mapping[str, Any]) -> None:
        """The offset of a batch is written."""

    def gave_up(self, instance: str) -> None:
        """A worker has given up a range of a door's client."""

    def waits(self, query: Any) -> None:
        """A query waits, because a plan has found nothing."""

    def plans(self, query: Any) -> None:
        """A query asks the workers for a plan."""

    def was_read(self, batch: int, start: Mapping[str, Any], end: Mapping[str, Any], rows: list[Row]) -> None:
        """All rows of a batch were read."""

    def committed(self, batch: int) -> None:
        """A batch is committed."""


class Surroundings:
    """One history without its acting parts; ``changes`` are to its profile."""

    judge: Observer
    """Checks all actions of the parts."""

    def __init__(self, seed: int, *, verbose: bool = False, **changes: Any) -> None:
        self.seed = seed
        self.sim = Simulation(seed, History(verbose=verbose))
        profile = draw_profile(self.sim.random)
        if profile.retention:
            # Streams are forgotten some time after their end. (Neither property that is not drawn changes with this.)
            profile = replace(profile, fault_seconds=profile.fault_seconds + FORGETTING_SECONDS)
        if changes.get("doors"):
            changes = DOORS | changes
        self.profile: Profile = replace(profile, **changes)
        self.cookie = "a secret"
        self._number = 0
        self.fate = Part("fate")
        self.network = Network(self.sim)
        self.inner = InnerNetwork(self.sim)
        self.registry = SimulatedRegistry(self.sim, self.profile.lease_seconds)
        self.checkpoint = Checkpoint()
        self.sources: dict[StreamKey, Source] = {}

    def next_number(self) -> int:
        """A number that no other part has."""
        self._number += 1
        return self._number

    def options(self, workers: int) -> Options:
        """The options of a fleet's workers."""
        profile = self.profile
        return Options(
            cookie=self.cookie,
            workers=workers,
            memory_budget=profile.memory_budget,
            message_ids=profile.message_ids,
            lease_seconds=profile.lease_seconds,
            stream_retention=profile.retention,
            replay_timeout=profile.replay_timeout,
            door_replay_timeout=profile.replay_timeout / 4,
            http_port=HTTP_PORT if profile.doors else None,
            kafka_port=KAFKA_PORT if profile.doors else None,
            kafka_nodes=2,
            kafka_partitions=PARTITIONS,
            kafka_producer_retention=profile.producer_retention,
        )
