"""A checkpoint directory in memory, read by the product's own code, and the sink beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from proving.simulator.engine.core import Violation
from wallaroo_spark.checkpoint.files import CheckpointFiles, NamedPlans, _Entry
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import References, StreamKey, endings_of, plain
from wallaroo_spark.sidecar.given_up import GivenUpRanges
from wallaroo_spark.sidecar.plan_files import (
    NamedPlan,
    PlanFiles,
    PlanReader,
)
from wallaroo_spark.source.offsets import offset, references_of

T = TypeVar("T")
RECEIVER = "sim"

Row = tuple[StreamKey, int | None, bytes | None]
"""A stream, a message id and a payload."""


KEPT_BATCHES = 10
"""Batches that Spark keeps in its logs."""


class SimulatedFolder:
    """A folder beside a checkpoint, in memory; with ``once`` each file is written before it is read, and once."""

    def __init__(self, identity: str, *, once: bool) -> None:
        self.identity = identity
        self._once = once
        self._files: dict[str, bytes] = {}

    def write(self, name: str, data: bytes) -> None:
        """Store a file."""
        if self._once and name in self._files:
            raise Violation(f"{self.identity}/{name} is written a second time")
        self._files[name] = data

    def read(self, name: str) -> bytes | None:
        """The content of a file."""
        if self._once and name not in self._files:
            raise Violation(f"{self.identity}/{name} is missing, and an offset names it")
        return self._files.get(name)

    def names(self) -> list[str]:
        """The names of the files."""
        return list(self._files)

    def delete(self, name: str) -> None:
        """Delete a file."""
        self._files.pop(name, None)


class SimulatedPlans(PlanFiles):
    """The plans beside a checkpoint, in memory."""

    def __init__(self) -> None:
        self._folder = SimulatedFolder("plans", once=True)  # type: ignore[assignment]  # it has the methods that are called


@dataclass
class Checkpoint:
    """The checkpoint's files, and the rows of each batch in the sink."""

    plans: SimulatedPlans = field(default_factory=SimulatedPlans)
    """The plans beside the checkpoint."""
    given_up: SimulatedFolder = field(default_factory=lambda: SimulatedFolder("given-up", once=False))
    """The ranges of doors' streams that were given up."""
    files: dict[str, str] = field(default_factory=dict)
    """The content of each file of ``offsets/`` and ``commits/``, by name."""
    sink: dict[int, list[Row]] = field(default_factory=dict)
    """The rows of each batch that the sink has written."""

    def batches(self, log: str) -> list[int]:
        """The batches in a log, oldest first."""
        return sorted(int(name.split("/")[1]) for name in self.files if name.startswith(f"{log}/"))

    @property
    def last_committed(self) -> int:
        """The newest batch with a commit; -1 before the first."""
        return max(self.batches("commits"), default=-1)

    def offset(self, batch: int) -> dict[str, Any]:
        """The offset at which a batch ends; an offset without streams for the batch before the first."""
        text = self.files.get(f"offsets/{batch}")
        found: dict[str, Any] = offset(RECEIVER, {}) if text is None else json.loads(text.splitlines()[2])
        return found

    def references(self, batch: int) -> dict[str, dict[str, Any]]:
        """The references up to which a batch reads; none for the batch before the first."""
        return {scope: dict(streams) for scope, streams in plain(self._plan_of(batch)).items()}

    def leaving(self, batch: int) -> tuple[str, int]:
        """The token of the streams that are leaving in the plan of a batch, and the time of the plan before it."""
        before, endings = endings_of(self._plan_of(batch - 1)), endings_of(self._plan_of(batch))
        token = "" if endings is None or endings.leaving is None else endings.leaving.token
        return token, 0 if before is None else before.at

    def _plan_of(self, batch: int) -> References:
        value = self.offset(batch)
        named = NamedPlan.of(value)
        return references_of(value) if named is None else PlanReader().read(named, self.plans)[0]

    def plan(self, batch: int, value: Mapping[str, Any]) -> None:
        """Write ``offsets/<batch>``."""
        self.files[f"offsets/{batch}"] = f"v1\n{{}}\n{json.dumps(value)}"

    def commit(self, batch: int) -> None:
        """Write ``commits/<batch>``, and purge both logs as Spark does."""
        self.files[f"commits/{batch}"] = "v1\n{}"
        for log in ("offsets", "commits"):
            self.files.pop(f"{log}/{batch - KEPT_BATCHES}", None)

    def go_back_to(self, batch: int) -> None:
        """Put an older copy in place, and remove later batches from the sink."""
        for log in ("offsets", "commits"):
            for later in self.batches(log):
                if later > batch:
                    del self.files[f"{log}/{later}"]
        self.sink = {number: rows for number, rows in self.sink.items() if number <= batch}


class SimulatedFiles(CheckpointFiles):
    """The product's reader of the files in memory; listings leave out the newest ``lag()`` files."""

    def __init__(self, checkpoint: Checkpoint, lag: Callable[[], int]) -> None:
        self.identity = "memory"
        self._checkpoint = checkpoint
        self._lag = lag
        self._plans = {}
        self._commits = None
        self._named = NamedPlans()
        self._known_logs = None
        # Each look lists the logs: kept listings would age by the real clock, and the files change with simulated time.
        self._remote = True
        self._fsync = False

    def query_id(self) -> str | None:
        """The same query always."""
        return "a query"

    def _plan_store(self, receiver: str) -> PlanFiles:
        return self._checkpoint.plans

    def given_up(self, receiver: str) -> GivenUpRanges:
        """The ranges that were given up, which a new driver reads from the file."""
        return GivenUpRanges(lambda: cast(Any, self._checkpoint.given_up))

    def _list(self, log: str) -> dict[int, _Entry]:
        names = self._checkpoint.batches(log)
        shown = names[: len(names) - self._lag()]
        return {
            batch: _Entry(len(self._checkpoint.files[f"{log}/{batch}"]), hash_of(self, log, batch)) for batch in shown
        }

    def _read(self, name: str) -> str:
        return self._checkpoint.files[name]

    def _retrying(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except KeyError as error:
            raise CheckpointError(f"{error} is gone") from error


def hash_of(files: SimulatedFiles, log: str, batch: int) -> int:
    """A number in place of a file's time of modification: it changes with the content."""
    text = files._checkpoint.files[f"{log}/{batch}"]
    return sum(position * ord(letter) for position, letter in enumerate(text, 1))
