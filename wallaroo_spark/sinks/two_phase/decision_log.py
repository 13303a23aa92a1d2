"""The decision log of one sink, durable beside the checkpoint: it says whether a batch is committed.

A batch may take several tries. Each has a file, ``<batch>.<try>.json``, that is created once, with the decision to
commit (and everything that is prepared) or to abort. The driver that creates it first decides: a driver that was taken
for dead and goes on finds that its successor has created the file of its try. ``<batch>.finished`` says that every sink
was told of a committed batch. A try without a file is aborted.
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
"""Finished batches whose decisions are kept, as many as Spark keeps batches of its own."""

FOLDER = "sinks"
OF_QUERY = "query"
"""The file with the id of the query that a log belongs to."""
_TRY = re.compile(r"(0|[1-9][0-9]*)\.(?:(0|[1-9][0-9]*)\.json|finished)")


@dataclass
class LoggedBatch:
    """The log's entry of one batch: the tries that are decided, and whether the batch is finished."""

    tries: set[int] = field(default_factory=set)
    finished: bool = False

    @property
    def next(self) -> int:
        """The first try that nobody has decided."""
        return max(self.tries, default=-1) + 1


def read_names(names: Iterable[str]) -> dict[int, LoggedBatch]:
    """The batches of a log by number, from the names of its files; other files are passed over."""
    found: dict[int, LoggedBatch] = {}
    for name in names:
        match = _TRY.fullmatch(name)
        if match is None:
            continue
        batch = found.setdefault(int(match[1]), LoggedBatch())
        if match[2] is None:
            batch.finished = True
        else:
            batch.tries.add(int(match[2]))
    return found


def superfluous(batches: dict[int, LoggedBatch], keep: int) -> list[int]:
    """The finished batches that need not be remembered: all but the newest ``keep``."""
    finished = sorted(number for number, batch in batches.items() if batch.finished)
    return finished[: max(0, len(finished) - keep)]


def sinks_of(location: str) -> list[dict[str, Any]]:
    """The sinks whose decisions are logged in a checkpoint, by name, as JSON-ready values.

    Each has ``sink``, ``batch`` (the newest that the log has, None when there is none) and ``state``: ``finished``,
    ``committed`` (decided, and the sink not told all of it), ``aborted`` or ``new``. Raises :class:`CheckpointError`.
    """
    found = []
    for name in SidecarFolder(location, FOLDER).names():
        log = DecisionLog(location, name)
        log.load()
        batch, state = log.newest() or (None, "new")
        found.append({"sink": name, "batch": batch, "state": state})
    return found


class DecisionLog:
    """The log of the sink ``name`` in the checkpoint at ``location``, as ``spark`` takes it. :meth:`load` comes first.

    Methods raise :class:`CheckpointError` when the log cannot be read or written.
    """

    def __init__(self, location: str, name: str, keep: int = KEEP, *, spark: Any = None) -> None:
        self._folder = SidecarFolder(location, FOLDER, name, spark=spark)
        self._keep = max(1, keep)
        self._batches: dict[int, LoggedBatch] = {}
        self._committed: dict[int, tuple[Prepared, ...]] = {}

    def __repr__(self) -> str:
        return f"DecisionLog({self._folder.identity!r})"

    @property
    def identity(self) -> str:
        """Where the log is, for people."""
        return self._folder.identity

    def claim(self, query: str | None) -> None:
        """See that the log is of the query with this id, as the checkpoint has it; a new log becomes its own.

        Raises :class:`SinkError` for the log of another: its batch 7 is not ours.
        """
        if query is None:
            return
        if not self._folder.create(OF_QUERY, query.encode()):
            found = (self._folder.read(OF_QUERY) or b"").decode(errors="replace")
            if found != query:
                raise SinkError(
                    f"{self.identity} is the log of query {found}, and the checkpoint is of query {query}: it was made "
                    "anew, and the log was left; remove that folder, and every batch is delivered from the first",
                    query=query,
                    found=found,
                )

    def load(self) -> None:
        """Read the log; of each unfinished batch, whether it is committed."""
        self._batches = read_names(self._folder.names())
        self._committed = {}
        for number, batch in self._batches.items():
            if batch.finished:
                continue
            for try_number in sorted(batch.tries):
                prepared = self._read(number, try_number)
                if prepared is not None:
                    self._committed[number] = prepared

    def unfinished(self) -> dict[int, tuple[Prepared, ...]]:
        """Batches that are committed and not finished, oldest first."""
        return dict(sorted(self._committed.items()))

    def finished(self, batch: int) -> bool:
        """Whether the batch is committed and every sink was told."""
        known = self._batches.get(batch)
        return known is not None and known.finished

    def forgotten(self, batch: int) -> bool:
        """Whether the batch is older than all that is kept, so that the log cannot tell."""
        finished = [number for number, known in self._batches.items() if known.finished]
        return len(finished) >= self._keep and batch < min(finished)

    def newest(self) -> tuple[int, str] | None:
        """The newest batch that the log has, and ``"finished"``, ``"committed"`` or ``"aborted"``."""
        if not self._batches:
            return None
        batch = max(self._batches)
        if self._batches[batch].finished:
            return batch, "finished"
        return batch, "committed" if batch in self._committed else "aborted"

    def memory(self) -> Memory | None:
        """The value that the newest decision to commit keeps for the sink.

        None without one, or in a log of an older version.
        """
        for number in sorted(self._batches, reverse=True):
            for try_number in sorted(self._batches[number].tries):
                content = self._content(number, try_number)
                if content["decision"] == "commit":
                    found = content.get("memory")
                    return found if isinstance(found, dict) else None
        return None

    def history(self) -> tuple[list[Prepared], bool]:
        """All that is committed in the batches that are kept, oldest first, and whether there never were others."""
        found = [one for number in sorted(self._batches) for one in self.committed(number)]
        return found, sum(known.finished for known in self._batches.values()) < self._keep

    def next_try(self, batch: int) -> int:
        """The first try of a batch that is not decided."""
        return self._batches.get(batch, LoggedBatch()).next

    def commit(self, batch: int, try_number: int, prepared: Sequence[Prepared], memory: Memory | None = None) -> bool:
        """Decide a try: to commit. This is the point of no return. False when it was decided otherwise before.

        ``memory`` is kept with it for the sink.
        """
        content: dict[str, Any] = {"decision": "commit", "prepared": [one.to_json() for one in prepared]}
        if memory is not None:
            content["memory"] = dict(memory)
        if not self._decide(batch, try_number, content):
            return False
        self._committed[batch] = tuple(prepared)
        return True

    def abort(self, batch: int, try_number: int) -> bool:
        """Decide a try: to abort. False when it was decided before, and then :meth:`load` says how."""
        return self._decide(batch, try_number, {"decision": "abort"})

    def finish(self, batch: int) -> None:
        """Every sink has committed the batch; what is old is cleaned up."""
        self._folder.create(f"{batch}.finished", b"")
        self._batches.setdefault(batch, LoggedBatch()).finished = True
        self._committed.pop(batch, None)
        for old in superfluous(self._batches, self._keep):
            for try_number in self._batches[old].tries:
                self._folder.delete(f"{old}.{try_number}.json")
            # Last, because without it the batch would not be known to be finished.
            self._folder.delete(f"{old}.finished")
            del self._batches[old]

    def committed(self, batch: int) -> tuple[Prepared, ...]:
        """All that is prepared of a batch whose commit the log has; empty for one to be aborted."""
        if batch in self._committed:
            return self._committed[batch]
        known = self._batches.get(batch, LoggedBatch())
        if not known.finished:
            return ()
        found = [
            prepared for try_number in sorted(known.tries) if (prepared := self._read(batch, try_number)) is not None
        ]
        return found[0] if found else ()

    def _decide(self, batch: int, try_number: int, content: dict[str, Any]) -> bool:
        created = self._folder.create(f"{batch}.{try_number}.json", json.dumps(content, separators=(",", ":")).encode())
        self._batches.setdefault(batch, LoggedBatch()).tries.add(try_number)
        return created

    def _read(self, batch: int, try_number: int) -> tuple[Prepared, ...] | None:
        """The transactions that a try's decision commits; None if it aborts."""
        content = self._content(batch, try_number)
        if content["decision"] == "abort":
            return None
        try:
            return tuple(Prepared.from_json(one) for one in content["prepared"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._unknown(batch, try_number, error) from error

    def _content(self, batch: int, try_number: int) -> dict[str, Any]:
        """A try's decision as it was written."""
        try:
            content = json.loads(self._folder.read(f"{batch}.{try_number}.json") or b"")
            if content["decision"] not in ("abort", "commit"):
                raise ValueError(f"it decides {content['decision']!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise self._unknown(batch, try_number, error) from error
        found: dict[str, Any] = content
        return found

    def _unknown(self, batch: int, try_number: int, error: Exception) -> CheckpointError:
        name = f"{batch}.{try_number}.json"
        return CheckpointError(
            f"{self.identity}/{name} is not a decision as this version writes it ({error!r}); restore it, or "
            f"find out in the sink whether batch {batch} is there and remove the file",
            location=f"{self.identity}/{name}",
        )
