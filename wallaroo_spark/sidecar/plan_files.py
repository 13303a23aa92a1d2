"""The named plans of a query: a plan that an offset names is a file beside the checkpoint.

Source: ``docs/decisions/plans-beside-the-checkpoint.md``.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import pyarrow as pa

from wallaroo_spark.errors import CheckpointError, WallarooError, one_line
from wallaroo_spark.references import (
    Changes,
    EndingChanges,
    Leaving,
    Reference,
    References,
    VersionedReferences,
    endings_of,
    without_forgotten,
)
from wallaroo_spark.sidecar.folder import SidecarFolder, three_times
from wallaroo_spark.sidecar.task_access import write_arrow
from wallaroo_spark.storage.locations import Location, PortableLocation, for_tasks, is_mounted, open_location

NAMED_VERSION = 2
"""The version of an offset that names its plan. Releases that do not know plans refuse it by this number."""
INLINE_BYTES = 16_384
"""The longest JSON text of references that stands in an offset: a choice, some 500 streams."""
LINKS = 64
"""Changes in a chain before a snapshot is due: a choice, the files that a restart reads at most in the normal case."""
LINKS_AT_MOST = 4 * LINKS
"""Changes in a chain before planning waits for a snapshot, because snapshots in the background have failed."""
_NAME = re.compile(r"([0-9]{1,18})-([0-9a-f]{8})")


class PlanName(NamedTuple):
    """A plan's name: ``number`` grows from plan to plan, ``token`` is random."""

    number: int
    token: str

    def __str__(self) -> str:
        return f"{self.number}-{self.token}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that :meth:`__str__` returns. Raises ValueError for any other text."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not the name of a plan")
        return cls(int(found[1]), found[2])

    @classmethod
    def after(cls, number: int) -> Self:
        """Return a new name with the next number."""
        return cls(number + 1, secrets.token_hex(4))


class NamedPlan(NamedTuple):
    """The plan of an offset: its name, and the name of the snapshot at which its chain ends."""

    plan: PlanName
    base: PlanName

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Self | None:
        """The plan that an offset names; None if the offset contains the plan. Raises ValueError for a bad name."""
        if offset.get("wallaroo") != NAMED_VERSION:
            return None
        return cls(PlanName.parse(str(offset.get("plan"))), PlanName.parse(str(offset.get("base"))))

    def offset(self, receiver: str, message_ids: str = "increasing") -> dict[str, Any]:
        """The offset that names this plan."""
        kind = {"ids": message_ids} if message_ids == "opaque" else {}
        return {
            "wallaroo": NAMED_VERSION,
            "receiver": receiver,
            **kind,
            "plan": str(self.plan),
            "base": str(self.base),
        }


@dataclass(frozen=True, slots=True)
class Chain:
    """The chain of one plan: its two ends and its length."""

    named: NamedPlan
    """The names of the plan and of its base."""
    links: int = 0
    """Files of changes between the base and the plan."""
    changes: int = 0
    """Changed references in these files."""

    def then(self, name: PlanName, changes: int) -> Chain:
        """The chain with one more file of changes."""
        return Chain(NamedPlan(name, self.named.base), self.links + 1, self.changes + changes)

    def from_snapshot(self, at: Chain) -> Chain:
        """The chain of the same plan with a newer base: the snapshot of an earlier plan, whose chain is ``at``."""
        return Chain(
            NamedPlan(self.named.plan, at.named.plan), self.links - at.links, max(0, self.changes - at.changes)
        )

    @property
    def full(self) -> bool:
        """Whether the next plan must be a snapshot."""
        return self.links >= LINKS_AT_MOST

    def snapshot_is_due(self, streams: int) -> bool:
        """Whether the plan should get a snapshot: without it a restart would read many files, or many changes."""
        return self.links >= LINKS or 2 * self.changes > streams


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


class PlanFiles:
    """The plans of one receiver beside one checkpoint. The methods raise :class:`CheckpointError`."""

    def __init__(self, location: Location, receiver: str, spark: Any = None) -> None:
        # A receiver's name may begin with a dot; a name in this folder may not.
        self._folder = SidecarFolder(location, FOLDER, f"of-{receiver}", spark=spark)

    def __repr__(self) -> str:
        return f"PlanFiles({self._folder.identity!r})"

    def write_changes(
        self, name: PlanName, parent: PlanName, changes: Changes, endings: EndingChanges | None = None
    ) -> None:
        """Keep a plan as the changes against its parent; durable when this returns.

        Each stream whose end has changed is among ``changes``.
        """
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
        rows, _, endings = self._read(f"{name}.snapshot")
        references = without_forgotten(rows)
        return references if endings is None else VersionedReferences.of(references).with_endings(endings)

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
    by_scope = [(scope, streams, times.get(scope, {})) for scope, streams in changes.items()]
    scopes = [scope for scope, streams, _ in by_scope for _ in streams]
    ids = [int(stream) for _, streams, _ in by_scope for stream in streams]
    references = [reference for _, streams, _ in by_scope for reference in streams.values()]
    ended = [] if endings is None else [mine.get(stream) for _, streams, mine in by_scope for stream in streams]
    for begin in range(0, len(ids), _ROWS_A_BATCH):
        piece = slice(begin, begin + _ROWS_A_BATCH)
        columns = [
            pa.array(scopes[piece], pa.string()).dictionary_encode(),
            pa.array(ids[piece], pa.uint64()),
            pa.array([one if isinstance(one, int) else None for one in references[piece]], pa.uint64()),
            pa.array([one if isinstance(one, str) else None for one in references[piece]], pa.string()),
            *([] if endings is None else [pa.array(ended[piece], pa.uint64())]),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


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


log = one_line(logging.getLogger(__name__))

_SECRET = ("key", "token", "secret", "password")


def place_record(location: Location, spark: Any = None) -> str:
    """The record of a checkpoint's location; empty if a source cannot use the location. Raises no error."""
    try:
        place = for_tasks(location, spark)
        mark = SidecarFolder(location, spark=spark).mark()
    except WallarooError as error:
        log.warning("plans stand in the offsets, because sources cannot get the location of the checkpoint: %s", error)
        return ""
    uri = place.uri if isinstance(place, PortableLocation) else place
    settings = place.settings if isinstance(place, PortableLocation) else {}
    if "@" in uri.partition("://")[2].partition("/")[0] and not uri.startswith(("abfs:", "abfss:")):
        log.warning("plans stand in the offsets, because the checkpoint's URI holds credentials")
        return ""
    if ":" not in uri:
        uri = os.path.abspath(uri)
    known = {name: value for name, value in settings.items() if not any(word in name.lower() for word in _SECRET)}
    return json.dumps({"uri": uri, "settings": known, "mark": mark})


def plans_at(record: str, receiver: str) -> PlanFiles | None:
    """The plans of a receiver at the location in a record; None, with a warning, if this process cannot use it."""
    if not record:
        return None
    try:
        value = json.loads(record)
        place = PortableLocation(str(value["uri"]), dict(value["settings"]))
        found = SidecarFolder(place).read("identity")
        if found is not None and found.decode() == value["mark"]:
            return PlanFiles(place, receiver)
        problem: object = "the record belongs to another machine's file system"
    except (WallarooError, KeyError, TypeError, ValueError) as error:
        problem = error
    log.warning("plans stand in the offsets, because this source does not reach the checkpoint: %s", problem)
    return None


def local_checkpoint(record: str) -> str | None:
    """The path of the checkpoint in a record on a disk of this machine; None on other file systems."""
    value = json.loads(record)
    opened = open_location(PortableLocation(str(value["uri"]), dict(value["settings"])))
    return opened.root if opened.local and not is_mounted(opened.root) else None


_KEPT = 6
"""Plans in memory: the start and the end of a batch for each of the sources that a query has of one receiver."""


class PlanReader:
    """Keeps the last plans in memory. If a plan's parent is in memory, only its changes are read. For one thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[PlanName, tuple[VersionedReferences, Chain]] = OrderedDict()

    def known(self, name: PlanName) -> tuple[VersionedReferences, Chain] | None:
        """The references of a plan in memory, with its chain; None if it is not in memory."""
        found = self._known.get(name)
        if found is not None:
            self._known.move_to_end(name)
        return found

    def remember(self, references: VersionedReferences, chain: Chain) -> None:
        """Keep a plan in memory, and forget the plan that was used least recently."""
        self._known[chain.named.plan] = references, chain
        self._known.move_to_end(chain.named.plan)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def read(self, named: NamedPlan, store: PlanFiles) -> tuple[VersionedReferences, Chain]:
        """The references of a plan, with its chain. Raises :class:`CheckpointError` when its files do not exist."""
        behind: list[tuple[PlanName, Changes, EndingChanges | None]] = []
        at = named.plan
        while (found := self.known(at)) is None and at != named.base:
            parent, changes, endings = three_times(store.read_changes, at)
            behind.append((at, changes, endings))
            at = parent
        if found is None:
            snapshot = three_times(store.read_snapshot, named.base)
            found = VersionedReferences.of(snapshot), Chain(NamedPlan(named.base, named.base))
            self.remember(*found)
        references, chain = found
        for name, changes, endings in reversed(behind):
            references = references.with_changes(changes).with_endings(endings)
            chain = chain.then(name, sum(map(len, changes.values())))
            self.remember(references, chain)
        return references, replace(chain, named=named)
