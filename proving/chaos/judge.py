"""Compares the committed rows with the sent lines, by the files, the sink's log and the commit log, not by counters."""

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
    """Counts of messages."""

    sent: int = 0
    """Lines in the files."""
    committed: int = 0
    """Lines with at least one committed row."""
    acknowledged: int = 0
    """Lines up to the last acknowledged reference."""
    lost: int = 0
    """Lines without a committed row."""
    repeated: int = 0
    """Further committed rows of a line."""
    disordered: int = 0
    """Rows that follow a row with a higher message id."""
    altered: int = 0
    """Rows whose id or content is in no file."""
    early: int = 0
    """Acknowledgements that were seen before the commit of their batch, or that no commit covers."""

    @property
    def title(self) -> str:
        """The verdict in a line."""
        return (
            f"{self.sent:,} messages: {self.lost} lost, {self.repeated} repeated, {self.disordered} out of order, "
            f"{self.altered} altered, {self.early} acknowledged too early"
        )

    @property
    def lines(self) -> list[str]:
        """The verdict for a person."""
        return [f"{name:<13}{count:>12,}" for name, count in self.to_json().items()]

    def to_json(self) -> dict[str, int]:
        """The counts by their names."""
        return asdict(self)

    @property
    def clean(self) -> bool:
        """Whether everything arrived exactly once, whole, in order, and was acknowledged no sooner than committed."""
        arrived = self.sent == self.committed == self.acknowledged
        return arrived and not (self.lost or self.repeated or self.disordered or self.altered or self.early)

    def __add__(self, other: Verdict) -> Verdict:
        mine, theirs = self.to_json(), other.to_json()
        return Verdict(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class Written:
    """The sink's committed ``rows`` in the order of batches, with each row's batch; and the time of each batch's commit
    in seconds of the wall clock.
    """

    rows: pa.Table
    commits: dict[int, float]


def sink_log(rows: Path) -> list[tuple[int, Path]]:
    """The data files that the sink's own log names, with their batch, in order. Other files were never committed, and
    readers of the sink do not see them.
    """
    found: dict[Path, int] = {}
    logs = [file for file in (rows / "_spark_metadata").glob("*") if not file.name.startswith(".")]
    for log in sorted(logs, key=lambda file: int(file.name.removesuffix(".compact"))):
        batch = int(log.name.removesuffix(".compact"))
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            entry = json.loads(line)
            if entry["action"] == "add":
                # A compacted log begins with the entries of the logs before it.
                found.setdefault(rows / Path(entry["path"]).name, batch)
    return [(batch, file) for file, batch in found.items()]


def read_sink(directory: Path) -> Written:
    """The committed rows and batches under ``rows`` and ``checkpoint`` of the directory."""
    tables = []
    for batch, file in sink_log(directory / "rows"):
        table = pq.read_table(file, partitioning=None)
        tables.append(table.append_column("batch", pa.array(np.full(table.num_rows, batch, dtype=np.int64))))
    schema = {"stream": pa.string(), "message_id": pa.int64(), "value": pa.binary(), "batch": pa.int64()}
    rows = pa.concat_tables(tables) if tables else pa.schema(schema).empty_table()
    commits = {}
    for commit in (directory / "checkpoint" / "commits").glob("*"):
        if commit.name.isdigit():
            commits[int(commit.name)] = commit.stat().st_mtime
    return Written(rows, commits)


def judge(files: Sequence[Path], written: Written, acks: Mapping[str, Acks]) -> Verdict:
    """The counts of all files together, and of rows that belong to no file."""
    total = Verdict()
    for file in files:
        rows = written.rows.filter(pc.equal(written.rows["stream"], str(file)))
        total += judge_file(file, rows, written.commits, acks.get(str(file), ()))
    known = pc.is_in(written.rows["stream"], value_set=pa.array([str(file) for file in files], pa.string()))
    strangers = written.rows.num_rows - (pc.sum(known).as_py() or 0)
    return total + Verdict(altered=strangers)


def judge_file(file: Path, rows: pa.Table, commits: Mapping[int, float], acks: Acks) -> Verdict:
    """Compare one file with its stream's rows in the order of writing. An id is the offset just behind a line."""
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
    """How many acknowledgements were seen before the commit of their message, or name a message without a commit."""
    order = np.argsort(found, kind="stable")
    ids, count = found[order], 0
    for seen, reference in acks:
        index = int(np.searchsorted(ids, reference))
        committed = commits.get(int(batches[order[index]])) if index < len(ids) and ids[index] == reference else None
        count += committed is None or seen < committed
    return count
