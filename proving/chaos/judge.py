"""What came out, held against what went in: by the files, the sink's log and the commit log, not by counters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

Acks = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class Verdict:
    """Counts of messages. ``early`` counts acknowledgements that were seen before the batch was committed."""

    sent: int = 0
    committed: int = 0
    acknowledged: int = 0
    lost: int = 0
    repeated: int = 0
    disordered: int = 0
    altered: int = 0
    early: int = 0

    @property
    def clean(self) -> bool:
        """Whether everything arrived exactly once, whole, in order, and was acknowledged no sooner than committed."""
        arrived = self.sent == self.committed == self.acknowledged
        return arrived and not (self.lost or self.repeated or self.disordered or self.altered or self.early)

    def __add__(self, other: Verdict) -> Verdict:
        mine, theirs = asdict(self), asdict(other)
        return Verdict(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class Written:
    """What the sink has committed: the rows in the order of batches, with each row's batch; and when each batch was
    committed (seconds of the wall clock), for those that are.
    """

    rows: pa.Table
    commits: dict[int, float]


def sink_log(rows: Path) -> list[tuple[int, Path]]:
    """The data files that the sink's own log names, with their batch, in order. What it does not name was never
    committed, and readers of the sink do not see it.
    """
    found: dict[Path, int] = {}
    logs = [file for file in (rows / "_spark_metadata").glob("*") if not file.name.startswith(".")]
    for log in sorted(logs, key=lambda file: int(file.name.removesuffix(".compact"))):
        batch = int(log.name.removesuffix(".compact"))
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            entry = json.loads(line)
            if entry["action"] == "add":
                # A compacted log begins with what the ones before it said.
                found.setdefault(rows / Path(entry["path"]).name, batch)
    return [(batch, file) for file, batch in found.items()]


def read_sink(directory: Path) -> Written:
    """All that is committed under ``rows`` and ``checkpoint`` of the directory."""
    tables = []
    for batch, file in sink_log(directory / "rows"):
        table = pq.read_table(file, columns=["stream", "message_id", "value"], partitioning=None)
        tables.append(table.append_column("batch", pa.array(np.full(table.num_rows, batch, dtype=np.int64))))
    schema = {"stream": pa.string(), "message_id": pa.int64(), "value": pa.binary(), "batch": pa.int64()}
    rows = pa.concat_tables(tables) if tables else pa.schema(schema).empty_table()
    commits = {}
    for commit in (directory / "checkpoint" / "commits").glob("*"):
        if commit.name.isdigit():
            commits[int(commit.name)] = commit.stat().st_mtime
    return Written(rows, commits)


def judge(files: Sequence[Path], written: Written, acks: Mapping[str, Acks]) -> Verdict:
    """All the files together, and the rows of streams that are none of them."""
    total = Verdict()
    for file in files:
        rows = written.rows.filter(pc.equal(written.rows["stream"], str(file)))
        total += judge_file(file, rows, written.commits, acks.get(str(file), ()))
    known = pc.is_in(written.rows["stream"], value_set=pa.array([str(file) for file in files], pa.string()))
    strangers = written.rows.num_rows - (pc.sum(known).as_py() or 0)
    return total + Verdict(altered=strangers)


def judge_file(file: Path, rows: pa.Table, commits: Mapping[int, float], acks: Acks) -> Verdict:
    """One file against its stream's rows, in the order they were written. An id is the offset just behind a line."""
    lines = file.read_bytes().split(b"\n")[:-1]
    expected = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64)
    found = rows["message_id"].to_numpy()
    at = np.searchsorted(expected, found)
    known = (at < len(expected)) & (expected[np.minimum(at, max(0, len(expected) - 1))] == found)
    distinct = np.unique(found[known])
    wanted = pa.array(lines, pa.binary()).take(pa.array(at[known]))
    same = pc.equal(wanted, rows["value"].combine_chunks().filter(pa.array(known)))
    altered = int(np.count_nonzero(~known)) + int(np.count_nonzero(known)) - (pc.sum(same).as_py() or 0)
    last = max((reference for _, reference in acks), default=-1)
    return Verdict(
        sent=len(lines),
        committed=len(distinct),
        acknowledged=int(np.count_nonzero(expected <= last)),
        lost=len(lines) - len(distinct),
        repeated=int(np.count_nonzero(known)) - len(distinct),
        disordered=int(np.count_nonzero(np.diff(found) < 0)),
        altered=altered,
        early=early(found, rows["batch"].to_numpy(), commits, acks),
    )


def early(found: NDArray[np.int64], batches: NDArray[np.int64], commits: Mapping[int, float], acks: Acks) -> int:
    """How many acknowledgements were seen before what they acknowledge was committed, or name what never was."""
    order = np.argsort(found, kind="stable")
    ids, count = found[order], 0
    for seen, reference in acks:
        index = int(np.searchsorted(ids, reference))
        committed = commits.get(int(batches[order[index]])) if index < len(ids) and ids[index] == reference else None
        count += committed is None or seen < committed
    return count
