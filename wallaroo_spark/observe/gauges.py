"""The gauges of an application's keys, added up over its committed batches, and a snapshot made from them. Pure.

A manifest has the gauges of the keys that had a turn in its batch. Each batch is added once, in the order of the
batches. The sum is stored beside the batches, because their manifests are deleted. Source:
``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wallaroo_spark.observe.application import (
    ApplicationStatus,
    GatewayStatus,
    KeyGauges,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.causes import with_cause
from wallaroo_spark.observe.faces.as_json import record_from_json, record_to_json
from wallaroo_spark.observe.figures import figures

FORMAT = 2
"""The version of the stored sum."""
WORST_SECONDS = 70.0
"""How long a delivery that has failed longest is kept against those that fail after it. A choice: a delivery waits at
most 60 s for its next attempt unless its policy says otherwise."""

R = TypeVar("R", PartitionState, PipelineStatus, StageStatus)


@dataclass
class GaugeSum:
    """The newest gauges of each key, with the counts of all batches."""

    batch: int = -1
    """The newest batch that was added; -1 before the first."""
    first: int | None = None
    """The first batch that was added."""
    keys: dict[str, KeyGauges] = field(default_factory=dict)
    """The text of a key → its gauges."""

    def add(self, batch: int, gauges: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the gauges of a committed batch, unless it was added before."""
        if batch <= self.batch:
            return
        self.batch = batch
        self.first = batch if self.first is None else self.first
        for key, values in gauges.items():
            now = record_from_json(KeyGauges, values)
            before = self.keys.get(key) or KeyGauges(
                now.at, PartitionState(now.partition.stream, now.partition.partition)
            )
            self.keys[key] = _after(before, now)

    def forget(self, known: set[str]) -> None:
        """Forget all keys but these: the others are declared no more."""
        self.keys = {key: one for key, one in self.keys.items() if key in known}

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values."""
        keys = {key: record_to_json(one, sparse=True) for key, one in self.keys.items()}
        return {"format": FORMAT, "batch": self.batch, "first": self.first, "keys": keys}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GaugeSum:
        """The sum from its JSON. Another format, or a text that is none, is an empty sum: the figures begin anew."""
        if values.get("format") != FORMAT:
            return cls()
        keys = {key: record_from_json(KeyGauges, one) for key, one in values["keys"].items()}
        return cls(values["batch"], values["first"], keys)


def _after(before: KeyGauges, now: KeyGauges) -> KeyGauges:
    pipelines = _each(before.pipelines, now.pipelines, lambda old, new: _pipeline_after(old, new, now.at))
    return dataclasses.replace(now, partition=_added(before.partition, now.partition), pipelines=pipelines)


def _added(before: R, now: R) -> R:
    """The state of now, with the counts of both."""
    counts = (one.name for one in figures(type(now)) if one.adds)
    return dataclasses.replace(now, **{name: getattr(before, name) + getattr(now, name) for name in counts})


def _each(before: Sequence[Any], now: Sequence[Any], after: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    """The parts of a record by their names (their first fields). A part that is only in one of both is empty there."""
    olds, news = ({_name(one): one for one in ones} for ones in (before, now))
    names = [*olds, *(name for name in news if name not in olds)]
    return tuple(
        after(olds.get(name) or type(news[name])(name), news.get(name) or type(olds[name])(name)) for name in names
    )


def _name(record: Any) -> str:
    return str(getattr(record, dataclasses.fields(record)[0].name))


def _pipeline_after(before: PipelineStatus, now: PipelineStatus, at: float) -> PipelineStatus:
    failed = now if now.failed_at is not None else before
    return dataclasses.replace(
        _added(before, now),
        done_at=now.done_at or before.done_at,
        failed_at=failed.failed_at,
        reason=failed.reason,
        stages=_each(before.stages, now.stages, lambda old, new: _stage_after(old, new, at)),
    )


def _stage_after(before: StageStatus, now: StageStatus, at: float) -> StageStatus:
    unserved = (before.unserved_since or at) if now.waiting and not now.members else None
    return _failing_as(_worst(before, now, at), dataclasses.replace(_added(before, now), unserved_since=unserved))


def _worst(before: StageStatus, now: StageStatus, at: float) -> StageStatus:
    """Which of both has the delivery that fails."""
    if before.failing_since is None:
        return now
    if now.failing_since is None:
        # Its next attempt is awaited or runs, unless a delivery has succeeded and none waits for another attempt.
        tried = now.retrying or (not now.done and (now.waiting or now.running))
        return before if tried else now
    kept = now.retrying and before.failing_since < now.failing_since and at - (before.failed_at or 0.0) < WORST_SECONDS
    return before if kept else now


def _failing_as(worst: StageStatus, stage: StageStatus) -> StageStatus:
    """A stage with the failing delivery of another record of it."""
    names = ("failing_since", "failed_at", "attempts", "reason")
    return dataclasses.replace(stage, **{name: getattr(worst, name) for name in names})


@dataclass(frozen=True)
class Shapes:
    """The declared objects of a version of the schema."""

    version: int = 0
    streams: Mapping[str, int] = field(default_factory=dict)
    """Path of a stream → number of its partitions."""
    pipelines: tuple[PipelineStatus, ...] = ()
    """The pipelines and their stages, without figures."""

    @property
    def keys(self) -> list[tuple[str, int]]:
        """All partitions of all streams."""
        return [(stream, number) for stream, partitions in self.streams.items() for number in range(partitions)]


def snapshot(
    base: ApplicationStatus, gauges: GaugeSum, shapes: Shapes, open_stages: Iterable[Mapping[str, float]] = ()
) -> ApplicationStatus:
    """The whole snapshot.

    ``base`` has the facts that the driver knows itself. ``open_stages`` has for each gateway the seconds for which its
    oldest open delivery of a stage is with its member, by ``pipeline stage``.
    """
    oldest: dict[str, float] = {}
    for found in open_stages:
        for stage, seconds in found.items():
            oldest[stage] = max(seconds, oldest.get(stage, 0.0))
    return with_cause(
        dataclasses.replace(
            base,
            schema=shapes.version or None,
            counted_from=gauges.first,
            partitions=tuple(_partition(base.time, gauges, *key) for key in shapes.keys),
            pipelines=tuple(_pipeline(base.time, gauges, shapes, one, oldest) for one in shapes.pipelines),
        )
    )


def report_of_gateway(gateway: GatewayStatus, report: Mapping[str, Any], age: float) -> GatewayStatus:
    """A gateway with the figures of its report, which is ``age`` seconds old. Unknown figures are left out."""
    known = {one.name for one in dataclasses.fields(GatewayStatus)} - {"gateway", "state", "address"}
    return dataclasses.replace(gateway, age=age, **{name: value for name, value in report.items() if name in known})


def _partition(time: float, gauges: GaugeSum, stream: str, partition: int) -> PartitionState:
    found = gauges.keys.get(f"{stream}/{partition}")
    if found is None:
        return PartitionState(stream, partition)
    groups = sorted(found.partition.groups, key=lambda one: one.group)
    shown = (dataclasses.replace(one, oldest=_age(time, one.since)) for one in groups)
    return dataclasses.replace(found.partition, groups=tuple(shown))


def _age(time: float, since: float | None) -> float | None:
    return None if since is None else max(0.0, time - since)


def _pipeline(
    time: float, gauges: GaugeSum, shapes: Shapes, shape: PipelineStatus, oldest: Mapping[str, float]
) -> PipelineStatus:
    keys = (f"{shape.input}/{number}" for number in range(shapes.streams.get(shape.input, 0)))
    known = (one for key in keys if key in gauges.keys for one in gauges.keys[key].pipelines)
    found = [one for one in known if one.pipeline == shape.pipeline]
    stages: dict[str, list[StageStatus]] = {}
    for one in (one for pipeline in found for one in pipeline.stages):
        stages.setdefault(one.stage, []).append(one)
    failed = max((one for one in found if one.failed_at), key=lambda one: one.failed_at or 0.0, default=shape)
    return dataclasses.replace(
        shape,
        **_sums(PipelineStatus, found),
        done_at=max((one.done_at for one in found if one.done_at), default=None),
        failed_at=failed.failed_at,
        reason=failed.reason,
        stages=tuple(
            _stage(time, one, stages.get(one.stage, ()), oldest.get(f"{shape.pipeline} {one.stage}"))
            for one in shape.stages
        ),
    )


def _stage(time: float, shape: StageStatus, found: Sequence[StageStatus], oldest: float | None) -> StageStatus:
    since = min((one.unserved_since for one in found if one.unserved_since is not None), default=None)
    failing = [one for one in found if one.failing_since is not None]
    worst = min(failing, key=lambda one: one.failing_since or 0.0, default=shape)
    stage = dataclasses.replace(
        shape,
        **_sums(StageStatus, found),
        failing=_age(time, worst.failing_since),
        oldest=oldest,
        unserved=_age(time, since),
        unserved_since=since,
        places=max((one.places for one in found), default=0),
    )
    return _failing_as(worst, stage)


def _sums(record: type[Any], found: Iterable[Any]) -> dict[str, Any]:
    """The sums of the figures that count something, over the partitions."""
    ones = list(found)
    names = (one.name for one in figures(record) if one.unit != "s")
    return {name: sum(getattr(one, name) for one in ones) for name in names}
