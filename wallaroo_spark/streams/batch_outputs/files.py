"""The files of a batch and its manifest, as values. Source: ``docs/pipelines/engine.md#files``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.streams.rows import OutputKind

FORMAT = 1
"""The version of the manifest's format."""


@dataclass(frozen=True)
class OutputFile:
    """A file that a task of a batch has written; of the kinds TIMER and FORGET a fact on one key, without a file."""

    batch: int
    """The batch that it belongs to."""
    kind: OutputKind
    """The kind of its rows."""
    stream: str = ""
    """Stream of the records, the timer or the forgotten records; empty for the other kinds."""
    partition: int = 0
    """Partition of the records, the timer or the forgotten records."""
    target: str = ""
    """Name of the gateway, for an outbox."""
    name: str = ""
    """Name of the file in the folder of its batch; empty without a file."""
    rows: int = 0
    """Number of rows."""
    bytes: int = 0
    """Size of the file in bytes."""
    first: int | None = None
    """First offset of the records, or the first one that is not forgotten; of a timer its time in milliseconds, None
    when the key needs none."""
    last: int | None = None
    """Last offset of the records, inclusive."""
    gauges: str = ""
    """The gauges of a timer's key after the batch, as JSON; empty for the other kinds."""

    @property
    def key(self) -> PartitionKey:
        """The key of records, of a timer, or of forgotten records."""
        return PartitionKey(self.stream, self.partition)

    def to_json(self) -> str:
        """Encode as text: a task returns it to the driver."""
        return json.dumps(self._values())

    @classmethod
    def from_json(cls, text: str) -> OutputFile:
        """Decode the text of :meth:`to_json`."""
        return cls._read(json.loads(text))

    def _values(self) -> dict[str, Any]:
        # A manifest has no gauges at its files, and readers of earlier releases do not know the name.
        return {name: value for name, value in vars(self).items() if name != "gauges" or value}

    @classmethod
    def _read(cls, values: dict[str, Any]) -> OutputFile:
        return cls(**{**values, "kind": OutputKind(values["kind"])})


@dataclass(frozen=True)
class Manifest:
    """The outputs of a batch. It counts once Spark has committed the batch."""

    batch: int
    """Id of the batch."""
    files: tuple[OutputFile, ...] = ()
    """Its files, and an entry of the kind FORGET for each key whose records are forgotten."""
    timers: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """All armed timers after the batch: the text of a PartitionKey → time in milliseconds."""
    gauges: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """The gauges of the keys that had a turn in the batch: the text of a PartitionKey → their values."""

    def of(self, kind: OutputKind, target: str | None = None) -> tuple[OutputFile, ...]:
        """The files of one kind, and of one gateway if ``target`` is given."""
        return tuple(file for file in self.files if file.kind == kind and target in (None, file.target))

    def to_json(self) -> bytes:
        """Encode as the manifest file."""
        values = {
            "version": FORMAT,
            "batch": self.batch,
            "files": [file._values() for file in self.files],
            "timers": dict(self.timers),
            "gauges": dict(self.gauges),
        }
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Decode a manifest file. Raises ``ValueError``, ``KeyError`` or ``TypeError`` when it is malformed."""
        values = json.loads(data)
        if values["version"] != FORMAT:
            raise ValueError(f"version {values['version']!r} is not known")
        files = tuple(OutputFile._read(file) for file in values["files"])
        timers = {str(key): int(at) for key, at in values["timers"].items()}
        return cls(int(values["batch"]), files, timers, values.get("gauges", {}))


def manifest_of(batch: int, outputs: Iterable[OutputFile], before: Manifest | None) -> Manifest:
    """The manifest of a batch from all that its tasks have returned; ``before`` is the manifest of the batch before.

    A timer in ``outputs`` replaces the one that its key has in ``before``.
    """
    timers = dict(before.timers) if before is not None else {}
    files, gauges = [], {}
    for output in outputs:
        if output.gauges:
            gauges[str(output.key)] = json.loads(output.gauges)
        if output.kind is not OutputKind.TIMER:
            files.append(output)
        elif output.first is None:
            timers.pop(str(output.key), None)
        else:
            timers[str(output.key)] = output.first
    order = sorted(files, key=lambda file: (file.kind, file.stream, file.partition, file.target, file.first or 0))
    return Manifest(batch, tuple(order), timers, gauges)
