"""Plans as Arrow files beside a checkpoint, one folder for each receiver."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.reference_versions import VersionedReferences, endings_of
from wallaroo_spark.references import Changes, EndingChanges, Leaving, Reference, References
from wallaroo_spark.sidecar.arrow_ipc import write_arrow
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.plan_names import PlanName
from wallaroo_spark.storage.locations import Location

FOLDER = "plans"
_FORMAT = "1"
_SCHEMA = pa.schema(
    [
        ("scope", pa.dictionary(pa.int32(), pa.string())),
        ("stream_id", pa.uint64()),
        # A reference is a number or a text; without both the stream is forgotten.
        ("number", pa.uint64()),
        ("text", pa.string()),
    ]
)
_ENDED = pa.field("ended", pa.uint64())
"""When a stream ended, in milliseconds since 1970 UTC. Only plans of receivers with ``streamRetention`` have it."""
_ROWS_A_BATCH = 16_384
_FILE = re.compile(r"([0-9]+)-[0-9a-f]{8}\.(changes|snapshot)")


class PlanStore(Protocol):
    """The place in which the plans of one receiver are kept. Its methods raise :class:`CheckpointError`."""

    def write_changes(
        self, name: PlanName, parent: PlanName, changes: Changes, endings: EndingChanges | None = None
    ) -> None:
        """Keep a plan as the changes against its parent; durable when this returns.

        Each stream whose end has changed is among ``changes``.
        """

    def write_snapshot(self, name: PlanName, references: References) -> None:
        """Keep all references of a plan, and its ended streams; durable when this returns."""

    def read_changes(self, name: PlanName) -> tuple[PlanName, Changes, EndingChanges | None]:
        """A plan's parent, and the changes against it."""

    def read_snapshot(self, name: PlanName) -> References:
        """All references of a plan, with its ended streams."""

    def files(self) -> list[tuple[int, str]]:
        """The number and the name of every file of a plan."""

    def delete(self, file: str) -> None:
        """Delete a file; nothing happens if there is none."""


class PlanFiles:
    """The plans of one receiver beside one checkpoint; see :class:`PlanStore`."""

    def __init__(self, location: Location, receiver: str, spark: Any = None) -> None:
        # A receiver's name may begin with a dot; a name in this folder may not.
        self._folder = SidecarFolder(location, FOLDER, f"of-{receiver}", spark=spark)

    def __repr__(self) -> str:
        return f"PlanFiles({self._folder.identity!r})"

    def write_changes(
        self, name: PlanName, parent: PlanName, changes: Changes, endings: EndingChanges | None = None
    ) -> None:
        """Keep a plan as the changes against its parent; durable when this returns."""
        self._folder.write(f"{name}.changes", encoded(changes, {"parent": str(parent)}, endings))

    def write_snapshot(self, name: PlanName, references: References) -> None:
        """Keep all references of a plan, and its ended streams; durable when this returns."""
        known = endings_of(references)
        endings = None if known is None else known.all_changes()
        self._folder.write(f"{name}.snapshot", encoded(references, {}, endings))

    def read_changes(self, name: PlanName) -> tuple[PlanName, Changes, EndingChanges | None]:
        """A plan's parent, and the changes against it."""
        rows, metadata, endings = self._read(f"{name}.changes")
        try:
            parent = PlanName.parse(metadata.get("parent", ""))
        except ValueError as error:
            raise self._damaged(f"{name}.changes", error) from None
        if parent.number >= name.number:
            raise self._damaged(f"{name}.changes", f"its parent {parent} is not older than itself")
        return parent, rows, endings

    def read_snapshot(self, name: PlanName) -> References:
        """All references of a plan, with its ended streams."""
        return snapshot_of(self._read(f"{name}.snapshot"))

    def files(self) -> list[tuple[int, str]]:
        """The number and the name of every file of a plan."""
        found = ((_FILE.fullmatch(name), name) for name in self._folder.names())
        return [(int(match[1]), name) for match, name in found if match is not None]

    def delete(self, file: str) -> None:
        """Delete a file; nothing happens if there is none."""
        self._folder.delete(file)

    def _read(self, file: str) -> PlanContent:
        data = self._folder.read(file)
        if data is None:
            raise CheckpointError(
                f"{self._folder.identity}/{file} is missing, and an offset of the checkpoint names it; restore the "
                "folder _wallaroo along with the rest of the checkpoint, or start with a new checkpoint",
                code="plan-missing",
                file=file,
            )
        try:
            return decoded(data)
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            raise self._damaged(file, error) from error

    def _damaged(self, file: str, problem: object) -> CheckpointError:
        return CheckpointError(
            f"{self._folder.identity}/{file} is damaged: {problem}; restore the checkpoint or start with a new one",
            code="checkpoint-damaged",
            file=file,
        )


PlanContent = tuple[dict[str, dict[str, Reference | None]], dict[str, str], EndingChanges | None]
"""The rows, the metadata and the ended streams of a file."""


def snapshot_of(content: PlanContent) -> References:
    """All references in the content of a snapshot, with the ended streams."""
    rows, _, endings = content
    references: dict[str, dict[str, Reference]] = {
        scope: {stream: reference for stream, reference in streams.items() if reference is not None}
        for scope, streams in rows.items()
    }
    return references if endings is None else VersionedReferences.of(references).with_endings(endings)


def encoded(changes: Changes, metadata: dict[str, str], endings: EndingChanges | None) -> bytes:
    """The bytes of a file."""
    schema = _SCHEMA
    if endings is not None:
        schema = schema.append(_ENDED)
        metadata = {**metadata, "at": str(endings.at)}
        if endings.leaving is not None:
            metadata["leaving"] = " ".join(map(str, endings.leaving))
    schema = schema.with_metadata({"wallaroo": _FORMAT, **metadata})
    sink = io.BytesIO()
    write_arrow(sink, _batches(changes, schema, endings), schema=schema, compression="lz4")
    return sink.getvalue()


def _batches(changes: Changes, schema: pa.Schema, endings: EndingChanges | None) -> Iterator[pa.RecordBatch]:
    """The rows in pieces, so that another thread may run in between."""
    times = {} if endings is None else endings.times
    scopes: list[str] = []
    index: list[int] = []
    ids: list[int] = []
    values: list[Reference | None] = []
    ended: list[int | None] = []

    def batch() -> pa.RecordBatch:
        numbers = [value if isinstance(value, int) else None for value in values]
        texts = [value if isinstance(value, str) else None for value in values]
        columns = [
            pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), pa.array(scopes, pa.string())),
            pa.array(ids, pa.uint64()),
            pa.array(numbers, pa.uint64()),
            pa.array(texts, pa.string()),
            *([] if endings is None else [pa.array(ended, pa.uint64())]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    for scope, streams in changes.items():
        items = list(streams.items())
        for begin in range(0, len(items), _ROWS_A_BATCH):
            part = items[begin : begin + _ROWS_A_BATCH]
            scopes.append(scope)
            index += [len(scopes) - 1] * len(part)
            ids += [int(stream) for stream, _ in part]
            values += [reference for _, reference in part]
            mine = times.get(scope, {})
            ended += [mine.get(stream) for stream, _ in part]
            if len(ids) >= _ROWS_A_BATCH:
                yield batch()
                scopes, index, ids, values, ended = [], [], [], [], []
    if ids:
        yield batch()


def decoded(data: bytes) -> PlanContent:
    """The content of a file. Raises ValueError and Arrow's errors for other bytes."""
    found: dict[str, dict[str, Reference | None]] = {}
    times: dict[str, dict[str, int | None]] = {}
    with pa.ipc.open_stream(data) as reader:
        metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
        if metadata.get("wallaroo") != _FORMAT:
            raise ValueError(f"its format is {metadata.get('wallaroo')!r}, and this release reads {_FORMAT!r}")
        for batch in reader:
            scopes = batch["scope"].dictionary.to_pylist()
            places = batch["scope"].indices.to_pylist()
            numbers, texts = batch["number"].to_pylist(), batch["text"].to_pylist()
            by_place = [found.setdefault(scope, {}) for scope in scopes]
            for place, stream, number, text in zip(places, batch["stream_id"].to_pylist(), numbers, texts, strict=True):
                by_place[place][str(stream)] = text if number is None else number
            if "at" in metadata:
                times_by_place = [times.setdefault(scope, {}) for scope in scopes]
                ended = batch["ended"].to_pylist()
                for place, stream, time in zip(places, batch["stream_id"].to_pylist(), ended, strict=True):
                    times_by_place[place][str(stream)] = time
    return found, metadata, _endings(metadata, times)


def _endings(metadata: dict[str, str], times: dict[str, dict[str, int | None]]) -> EndingChanges | None:
    """The ended streams of a plan; None where its receiver remembered streams for good, as all did once."""
    if "at" not in metadata:
        return None
    leaving = None
    if "leaving" in metadata:
        before, since, token = metadata["leaving"].split()
        leaving = Leaving(int(before), int(since), token)
    return EndingChanges(int(metadata["at"]), times, leaving)
