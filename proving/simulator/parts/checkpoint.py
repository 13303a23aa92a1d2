"""A checkpoint directory in memory, read by the product's own code, and the sink beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wallaroo_spark.checkpoint.files import CheckpointFiles, NamedPlans, _Entry
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import StreamKey
from wallaroo_spark.source.offsets import offset, references_of

T = TypeVar("T")
RECEIVER = "sim"

Row = tuple[StreamKey, int | None, bytes | None]
"""A stream, a message id and a payload."""


@dataclass
class Checkpoint:
    """What Spark has written, by file name, and what the sink has of each batch."""

    files: dict[str, str] = field(default_factory=dict)
    sink: dict[int, list[Row]] = field(default_factory=dict)

    def batches(self, log: str) -> list[int]:
        """The batches in a log, oldest first."""
        return sorted(int(name.split("/")[1]) for name in self.files if name.startswith(f"{log}/"))

    @property
    def last_committed(self) -> int:
        """The newest batch with a commit; -1 before the first."""
        return max(self.batches("commits"), default=-1)

    def references(self, batch: int) -> dict[str, dict[str, Any]]:
        """What a batch reads up to; nothing for the one before the first."""
        text = self.files.get(f"offsets/{batch}")
        return {} if text is None else references_of(json.loads(text.splitlines()[2]))

    def plan(self, batch: int, references: Mapping[str, Mapping[str, Any]]) -> None:
        """Write ``offsets/<batch>``."""
        self.files[f"offsets/{batch}"] = f"v1\n{{}}\n{json.dumps(offset(RECEIVER, references))}"

    def commit(self, batch: int) -> None:
        """Write ``commits/<batch>``."""
        self.files[f"commits/{batch}"] = "v1\n{}"

    def go_back_to(self, batch: int) -> None:
        """Put an older copy in its place; what the sink has beyond that is taken out as well."""
        for log in ("offsets", "commits"):
            for later in self.batches(log):
                if later > batch:
                    del self.files[f"{log}/{later}"]
        self.sink = {number: rows for number, rows in self.sink.items() if number <= batch}


class SimulatedFiles(CheckpointFiles):
    """The product's reader over the files in memory; ``lag`` hides that many of the newest from its listings."""

    def __init__(self, checkpoint: Checkpoint, lag: Callable[[], int]) -> None:
        self.identity = "memory"
        self._checkpoint = checkpoint
        self._lag = lag
        self._plans = {}
        self._commits = None
        self._named = NamedPlans()

    def query_id(self) -> str | None:
        """One query for good."""
        return "a query"

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
    """What stands for a file's time of modification: a number that changes with its content."""
    text = files._checkpoint.files[f"{log}/{batch}"]
    return sum(position * ord(letter) for position, letter in enumerate(text, 1))
