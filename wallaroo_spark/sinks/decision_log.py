"""The decision log of one sink: durable files beside the checkpoint that record which batches are committed.

A batch may need several tries. Each try has a file ``<batch>.<try>.json``, which contains the decision to commit (with
all prepared transactions) or to abort, and is created exactly once. The driver that creates the file decides the try. A
driver that was thought dead and continues finds that its successor has created the file. A file ``<batch>.finished``
records that the sink has committed the batch. A try without a file is aborted.
Source: ``docs/decisions/sink-decisions.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import CheckpointError, SinkError
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sinks.interface import Memory, Prepared

KEEP = 100
"""Finished batches whose decisions are kept: as many as batches that Spark keeps in its logs by default."""

FOLDER = "sinks"
ROWS = "stages"
"""The folder of staged rows, and of the identity by which a store knows the batches of a checkpoint."""
OF_QUERY = "query"
"""The name of the file that contains the id of the log's query."""
_TRY = re.compile(r"(0|[1-9][0-9]*)\.(?:(0|[1-9][0-9]*)\.json|finished)")


@dataclass
class LoggedBatch:
    """The files of one batch in the log."""

    tries: set[int] = field(default_factory=set)
    """The numbers of the decided tries."""
    finished: bool = False
    """Whether the sink has committed the batch."""


def read_names(names: Iterable[str]) -> dict[int, LoggedBatch]:
    """Return the batches of a log, by number, from the names of its files; files with other names are ignored."""
    batches: dict[int, LoggedBatch] = {}
    for name in names:
        match = _TRY.fullmatch(name)
        if match is None:
            continue
        batch = batches.setdefault(int(match[1]), LoggedBatch())
        if match[2] is None:
            batch.finished = True
        else:
            batch.tries.add(int(match[2]))
    return batches


def finished_batches(batches: dict[int, LoggedBatch]) -> list[int]:
    """Return the numbers of the finished batches, sorted."""
    return sorted(number for number, batch in batches.items() if batch.finished)


def sinks_of(location: str) -> list[dict[str, Any]]:
    """Return the state of each sink that has a decision log in a checkpoint, as JSON-ready values.

    Each has ``sink`` (its name), ``batch`` (the newest in the log, None when the log is empty) and ``state``:
    ``finished``, ``committed`` (decided, but the sink has perhaps not committed all of it), ``aborted`` or ``new``.
    Raises :class:`CheckpointError`.
    """
    found = []
    for name in SidecarFolder(location, FOLDER).names():
        log = DecisionLog(location, name)
        log.load()
        batch, state = log.newest() or (None, "new")
        found.append({"sink": name, "batch": batch, "state": state})
    return found


class DecisionLog:
    """The decision log of the sink ``name`` in the checkpoint at ``location``, resolved by the session ``spark``.

    :meth:`load` has to be called first. ``keep`` is the number of finished batches that are kept. Methods raise
    :class:`CheckpointError` when the log cannot be read or written.
    """

    def __init__(self, location: str, name: str, keep: int = KEEP, *, spark: Any = None) -> None:
        self._folder = SidecarFolder(location, FOLDER, name, spark=spark)
        self._rows = SidecarFolder(location, ROWS, name, spark=spark)
        self._keep = max(1, keep)
        self._batches: dict[int, LoggedBatch] = {}
        self._committed: dict[int, tuple[Prepared, ...]] = {}

    def __repr__(self) -> str:
        return f"DecisionLog({self._folder.identity!r})"

    @property
    def identity(self) -> str:
        """The location of the log, for messages."""
        return self._folder.identity

    def claim(self, query: str | None) -> None:
        """Check that the log belongs to the query with this id (the checkpoint's id); a new log is given the id.

        Raises :class:`SinkError` when the log belongs to another query, because its batches are other batches.
        """
        if query is None:
            return
        if not self._folder.create(OF_QUERY, query.encode()):
            owner = (self._folder.read(OF_QUERY) or b"").decode(errors="replace")
            if owner != query:
                raise SinkError(
                    f"{self.identity} is the log of query {owner}, and the checkpoint is of query {query}: the "
                    "checkpoint was created again and the log was not deleted; delete that folder, and that of the "
                    f"sink's rows, {self._rows.identity}, and all batches are delivered from the first",
                    code="checkpoint-of-other-query",
                    query=query,
                    found=owner,
                )

    def load(self) -> None:
        """Read the names of all files, and the decisions of the unfinished batches."""
        self._batches = read_names(self._folder.names())
        unfinished = {number: self._decided(number) for number, one in self._batches.items() if not one.finished}
        self._committed = {number: found[0] for number, found in unfinished.items() if found is not None}

    def unfinished(self) -> dict[int, tuple[Prepared, ...]]:
        """Return the transactions of the batches that are committed and not finished, oldest batch first."""
        return dict(sorted(self._committed.items()))

    def finished(self, batch: int) -> bool:
        """Whether the sink has committed the batch."""
        known = self._batches.get(batch)
        return known is not None and known.finished

    def forgotten(self, batch: int) -> bool:
        """Whether the batch is older than all kept batches, so that the log no longer has its decision."""
        finished = finished_batches(self._batches)
        return len(finished) >= self._keep and batch < finished[0]

    def newest(self) -> tuple[int, str] | None:
        """Return the newest batch in the log and its state: ``"finished"``, ``"committed"`` or ``"aborted"``."""
        if not self._batches:
            return None
        batch = max(self._batches)
        if self._batches[batch].finished:
            return batch, "finished"
        return batch, "committed" if batch in self._committed else "aborted"

    def memory(self) -> Memory | None:
        """Return the sink's value in the newest decision to commit; None when there is none."""
        decisions = (self._decided(number) for number in sorted(self._batches, reverse=True))
        newest = next((found for found in decisions if found is not None), None)
        return None if newest is None else newest[1]

    def next_try(self, batch: int) -> int:
        """Return the number of the first try of a batch that is not decided."""
        return max(self._batches.get(batch, LoggedBatch()).tries, default=-1) + 1

    def commit(self, batch: int, try_number: int, prepared: Sequence[Prepared], memory: Memory | None = None) -> bool:
        """Decide to commit a try; after that the batch is committed. False when the try was decided before.

        ``memory`` is stored with the decision for the sink.
        """
        content: dict[str, Any] = {"decision": "commit", "prepared": [one.to_json() for one in prepared]}
        if memory is not None:
            content["memory"] = dict(memory)
        if not self._decide(batch, try_number, content):
            return False
        self._committed[batch] = tuple(prepared)
        return True

    def abort(self, batch: int, try_number: int) -> bool:
        """Decide to abort a try. False when the try was decided before; :meth:`load` reads that decision."""
        return self._decide(batch, try_number, {"decision": "abort"})

    def finish(self, batch: int) -> None:
        """Record that the sink has committed the batch, and delete the files of old batches."""
        self._folder.create(f"{batch}.finished", b"")
        self._batches.setdefault(batch, LoggedBatch()).finished = True
        self._committed.pop(batch, None)
        for old in finished_batches(self._batches)[: -self._keep]:
            for try_number in self._batches[old].tries:
                self._folder.delete(f"{old}.{try_number}.json")
            # Last, because without this file the batch would count as unfinished.
            self._folder.delete(f"{old}.finished")
            del self._batches[old]

    def committed(self, batch: int) -> tuple[Prepared, ...]:
        """Return the transactions of a committed batch; empty for a batch that is not committed."""
        if batch in self._committed or not self.finished(batch):
            return self._committed.get(batch, ())
        decided = self._decided(batch)
        return () if decided is None else decided[0]

    def _decide(self, batch: int, try_number: int, content: dict[str, Any]) -> bool:
        created = self._folder.create(f"{batch}.{try_number}.json", json.dumps(content, separators=(",", ":")).encode())
        self._batches.setdefault(batch, LoggedBatch()).tries.add(try_number)
        return created

    def _decided(self, batch: int) -> tuple[tuple[Prepared, ...], Memory | None] | None:
        """Read the decision to commit a batch: its transactions, and the sink's value; None when there is none.

        Raises :class:`CheckpointError` for a damaged file.
        """
        for try_number in sorted(self._batches[batch].tries):
            name = f"{batch}.{try_number}.json"
            try:
                content = json.loads(self._folder.read(name) or b"")
                if content["decision"] == "commit":
                    memory = content.get("memory")
                    prepared = tuple(Prepared.from_json(one) for one in content["prepared"])
                    return prepared, memory if isinstance(memory, dict) else None
                if content["decision"] != "abort":
                    raise ValueError(f"its decision is {content['decision']!r}")
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"{self.identity}/{name} is not a decision as this version writes it ({error!r}); restore it, or "
                    f"check in the sink whether batch {batch} is there and delete the file",
                    code="checkpoint-damaged",
                    location=f"{self.identity}/{name}",
                ) from error
        return None
