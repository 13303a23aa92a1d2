"""The figures of an application that are stored: its newest snapshot, in its folder and in the registry, and the sum of
the gauges of its keys.

A manifest has the gauges of the keys that had a turn in its batch. Each batch is added once, in the order of the
batches. The sum is stored beside the batches, because their manifests are deleted. Reading needs no Spark and nothing
of the application. Source: ``docs/pipelines/see.md#the-status``,
``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from wallaroo_spark.errors import CheckpointError, RegistryError
from wallaroo_spark.observe.application import (
    ApplicationStatus,
    GatewayStatus,
    KeyGauges,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.causes import with_cause
from wallaroo_spark.observe.faces.records import SCHEMA, record_from_json, record_to_json
from wallaroo_spark.observe.figures import figures
from wallaroo_spark.registry import application_registry
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.places import STATUS

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


FILE = "snapshot.json"
"""The file in the folder ``_wallaroo/status``."""
FILE_SECONDS = 5.0
"""Seconds between two writes of the file. A choice: a write waits for the disk."""
OLD_SECONDS = 4 * FILE_SECONDS
"""Age from which a snapshot in a folder is that of a driver which has ended. A choice: some writes may be late."""
LOCK = "driver"
"""The name of the lock in the registry that the driver of an application holds."""


def to_text(status: ApplicationStatus) -> str:
    """A snapshot as JSON."""
    return json.dumps(to_json(status), separators=(",", ":"))


def to_json(status: ApplicationStatus) -> dict[str, Any]:
    """A snapshot as JSON-ready values, with the version of the schema as ``format``."""
    return {"format": SCHEMA, **record_to_json(status)}


def from_text(text: str | bytes) -> ApplicationStatus:
    """A snapshot from its JSON. Raises ``ValueError`` for anything else, and for another version."""
    value = json.loads(text)
    if not isinstance(value, dict) or value.get("format") != SCHEMA:
        raise ValueError("it is not a snapshot that this release reads")
    return record_from_json(ApplicationStatus, value)


class SnapshotFile:
    """The snapshot in an application's folder, as the session ``spark`` opens it. Methods raise
    :class:`CheckpointError`."""

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self._folder = SidecarFolder(folder, STATUS, spark=spark)

    def write(self, text: str) -> None:
        """Replace the file."""
        self._folder.write(FILE, text.encode())

    def read(self) -> ApplicationStatus | None:
        """The snapshot; None without one."""
        data = self._folder.read(FILE)
        try:
            return None if data is None else from_text(data)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._folder.identity}/{FILE} cannot be read: {error}; delete it: the driver writes it again",
                code="checkpoint-damaged",
                file=FILE,
            ) from error


def in_folder(folder: str) -> ApplicationStatus:
    """The newest snapshot in a folder; an old one is shown as that of an application that does not run.

    Raises :class:`CheckpointError` when the folder cannot be read.
    """
    found = SnapshotFile(folder).read()
    if found is None:
        found = ApplicationStatus(folder.rstrip("/").rpartition("/")[2], time.time(), folder)
    age = time.time() - found.time
    return _alive(found, age <= OLD_SECONDS, age - FILE_SECONDS)


def in_registry(url: str, application: str, attempts: int) -> ApplicationStatus:
    """The newest snapshot in the registry at ``url``. Raises :class:`RegistryError` when it does not answer."""
    with application_registry(url, application, attempts=attempts) as registry:
        text, owner = registry.report(), registry.locked_by(LOCK)
    try:
        found = ApplicationStatus(application, time.time()) if text is None else from_text(text)
    except (ValueError, KeyError, TypeError) as error:
        raise RegistryError(
            f"the report of application {application!r} cannot be read: {error}; use the release of its driver",
            code="registry-answer",
        ) from error
    return _alive(found, owner is not None, time.time() - found.time)


def _alive(found: ApplicationStatus, alive: bool, age: float) -> ApplicationStatus:
    """A snapshot that is so old, in seconds, and whose driver lives or not."""
    if alive or not found.running:
        return with_cause(replace(found, round_age=max(found.round_age or 0.0, age)))
    gateways = tuple(replace(one, state="unknown", address="") for one in found.gateways)
    return with_cause(replace(found, running=False, driver="", standby="", gateways=gateways))


GAUGES = "gauges.json"


class GaugeFile:
    """Follows the manifests of committed batches. The methods for writing are for one thread at a time.

    ``folder`` is the application's folder as the session ``spark`` opens it. Methods raise
    :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read or written; they can be repeated.
    """

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self._outputs = BatchOutputs(folder, spark)
        self._folder = SidecarFolder(folder, STATUS, spark=spark)
        self._lock = threading.Lock()
        self._sum: GaugeSum | None = None
        self.stored = -1
        """The newest batch that the file contains; -1 before the first."""

    def follow(self, committed: int) -> None:
        """Add the manifests of the batches up to ``committed``."""
        found = self._read()
        # Earlier manifests are deleted: a restored or an older folder has no gauges of them.
        first = max(found.batch + 1, self._outputs.kept_from())
        for batch in range(first, committed + 1):
            manifest = self._outputs.manifest(batch)
            with self._lock:
                found.add(batch, {} if manifest is None else manifest.gauges)

    def store(self) -> None:
        """Write the file, unless nothing has changed."""
        found = self._read()
        if found.batch > self.stored:
            with self._lock:
                text = json.dumps(found.to_json(), separators=(",", ":"))
            self._folder.write(GAUGES, text.encode())
            self.stored = found.batch

    def sum(self, keys: set[str] | None = None) -> GaugeSum:
        """A copy of the sum; of the keys in ``keys`` alone, and the others are forgotten."""
        found = self._read()
        with self._lock:
            if keys is not None:
                found.forget(keys)
            return replace(found, keys=dict(found.keys))

    def _read(self) -> GaugeSum:
        with self._lock:
            if self._sum is None:
                data, self._sum = self._folder.read(GAUGES), GaugeSum()
                # A damaged file costs the counts since the beginning, and nothing that anybody relies on.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._sum = GaugeSum.from_json(json.loads(data or b"{}"))
                self.stored = self._sum.batch
            return self._sum
