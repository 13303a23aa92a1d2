"""The judge finds each kind of fault when it is there: a run that passes means something."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proving.chaos.judge import Acks, Verdict, judge, read_sink

LINES = [b"one", b"two two", b"three", b"four"]
ENDS = [4, 12, 18, 23]
COMMITTED_AT = 1000.0
ACKS: Acks = [(COMMITTED_AT + 1, 12), (COMMITTED_AT + 2, 23)]


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    file = tmp_path / "file.txt"
    file.write_bytes(b"".join(line + b"\n" for line in LINES))
    return file


def write_batch(
    directory: Path, batch: int, stream: Path, rows: list[tuple[int, bytes]], *, log: bool = True, compact: str = ""
) -> None:
    """What the file sink leaves of a batch; without ``log`` it died before it said so."""
    folder = directory / "rows"
    (folder / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    name = f"part-{batch}-{log}.parquet"
    table = pa.table(
        {
            "stream": pa.array([str(stream)] * len(rows), pa.string()),
            "message_id": pa.array([number for number, _ in rows], pa.int64()),
            "value": pa.array([value for _, value in rows], pa.binary()),
        }
    )
    pq.write_table(table, folder / name)
    if log:
        entry = json.dumps({"path": f"file://{folder / name}", "action": "add"})
        text = "\n".join(["v1", *([compact] if compact else []), entry])
        (folder / "_spark_metadata" / f"{batch}{'.compact' if compact else ''}").write_text(text)
        commits = directory / "checkpoint" / "commits"
        commits.mkdir(parents=True, exist_ok=True)
        (commits / str(batch)).write_text("v1\n{}")


def verdict(directory: Path, sent: Path, acks: Acks = ACKS, commits: dict[int, float] | None = None) -> Verdict:
    written = read_sink(directory)
    written.commits.update(dict.fromkeys(written.commits, COMMITTED_AT) | (commits or {}))
    return judge([sent], written, {str(sent): acks})


GOOD = list(zip(ENDS, LINES, strict=True))


def test_all_once_in_order_and_acknowledged_is_clean(tmp_path: Path, sent: Path) -> None:
    write_batch(tmp_path, 0, sent, GOOD[:2])
    write_batch(tmp_path, 1, sent, GOOD[2:])
    found = verdict(tmp_path, sent)
    assert found == Verdict(sent=4, committed=4, acknowledged=4)
    assert found.clean


def test_files_that_the_sinks_log_does_not_name_are_not_committed(tmp_path: Path, sent: Path) -> None:
    write_batch(tmp_path, 0, sent, GOOD, log=False)
    write_batch(tmp_path, 0, sent, GOOD)
    assert verdict(tmp_path, sent).clean


def test_a_compacted_log_counts_no_file_twice(tmp_path: Path, sent: Path) -> None:
    write_batch(tmp_path, 9, sent, GOOD[:2])
    first = (tmp_path / "rows" / "_spark_metadata" / "9").read_text().splitlines()[1]
    write_batch(tmp_path, 10, sent, GOOD[2:], compact=first)
    assert verdict(tmp_path, sent).clean


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (GOOD[:1] + GOOD[2:], {"lost": 1}),
        ([*GOOD, GOOD[1]], {"repeated": 1, "disordered": 1}),
        ([GOOD[1], GOOD[0], *GOOD[2:]], {"disordered": 1}),
        ([(4, b"eno"), *GOOD[1:]], {"altered": 1}),
        ([*GOOD, (99, b"made up")], {"altered": 1}),
    ],
    ids=["lost", "repeated", "out of order", "other bytes", "unknown id"],
)
def test_every_wrong_row_is_counted(
    tmp_path: Path, sent: Path, rows: list[tuple[int, bytes]], wrong: dict[str, int]
) -> None:
    write_batch(tmp_path, 0, sent, rows)
    found = verdict(tmp_path, sent)
    counts = {"lost": found.lost, "repeated": found.repeated, "disordered": found.disordered, "altered": found.altered}
    assert {name: count for name, count in counts.items() if count} == wrong
    assert not found.clean


def test_rows_of_a_stream_that_nobody_sent_are_not_overlooked(tmp_path: Path, sent: Path) -> None:
    write_batch(tmp_path, 0, sent, GOOD)
    write_batch(tmp_path, 1, tmp_path / "another", GOOD[:1])
    assert verdict(tmp_path, sent).altered == 1


@pytest.mark.parametrize(
    ("acks", "early"),
    [
        ([(COMMITTED_AT - 1, 12), (COMMITTED_AT + 1, 23)], 1),
        ([(COMMITTED_AT + 1, 23), (COMMITTED_AT + 2, 24)], 1),
    ],
    ids=["before the commit", "of what never came"],
)
def test_an_acknowledgement_before_its_commit_is_found(tmp_path: Path, sent: Path, acks: Acks, early: int) -> None:
    write_batch(tmp_path, 0, sent, GOOD)
    assert verdict(tmp_path, sent, acks).early == early


def test_unacknowledged_messages_are_not_clean(tmp_path: Path, sent: Path) -> None:
    write_batch(tmp_path, 0, sent, GOOD)
    found = verdict(tmp_path, sent, ACKS[:1])
    assert found.acknowledged == 2
    assert not found.clean
