"""The demo as a user runs it, and its reconciliation against damage that it must notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from wallaroo_spark.cli.tools import demo_job as job
from wallaroo_spark.cli.tools.demo import demo, plan_senders
from wallaroo_spark.cli.tools.demo_job import SHOPS, Reconciliation, line_ends, reconcile, write_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEAN = {"lost": 0, "repeated": 0}


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from wallaroo_spark.cli.tools.demo import demo; demo()", *arguments, "--json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


def counts(finished: subprocess.CompletedProcess[str]) -> dict[str, int]:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    found: dict[str, int] = json.loads(finished.stdout.splitlines()[-1])
    return found


@pytest.mark.spark
def test_orders_are_totalled_and_all_accounted_for_though_a_worker_is_killed(tmp_path: Path) -> None:
    finished = run_demo(tmp_path, "--messages", "20001", "--kill-worker")
    assert counts(finished) == {"sent": 20001, "committed": 20001, "acknowledged": 20001, **CLEAN}
    assert "killed worker" in finished.stdout
    folder = tmp_path / "demo-output"
    totals = pq.read_table(folder / "totals")
    assert sum(totals["orders"].to_pylist()) == 20001
    assert sorted(path.name for path in (folder / "orders").iterdir()) == [f"shop-{n}.jsonl" for n in range(1, 5)]


def test_the_lines_of_any_files_come_out_byte_for_byte(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The session that is there will do: the other run of the demo starts, and ends, one of its own.
    monkeypatch.setattr(job, "make_session", lambda folder: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.chdir(tmp_path)
    contents = {
        "plain.txt": b"one\ntwo\nthree\n",
        "no newline at the end": b"first\nlast",
        "windows.csv": b"a,b\r\nc,d\r\n",
        "blank-lines": b"\n\nx\n\n",
        "empty": b"",
        "bytes.bin": bytes(range(256)) * 40 + b"\n" + b"\xff\xfe\x00\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    finished = CliRunner().invoke(demo, [*contents, "--json"])
    assert finished.exit_code == 0, finished.output
    lines = sum(len(line_ends(tmp_path / name)) for name in contents)
    expected = {"sent": lines, "committed": lines, "acknowledged": lines, **CLEAN}
    assert json.loads(finished.stdout.splitlines()[-1]) == expected
    table = pq.read_table(tmp_path / "demo-output" / "rows").sort_by("message_id")
    for name, content in contents.items():
        values = [row["value"] for row in table.to_pylist() if row["stream"] == os.fspath((tmp_path / name).resolve())]
        joined = b"".join(value + b"\n" for value in values)
        assert joined == content + (b"" if not content or content.endswith(b"\n") else b"\n"), name


def rows(folder: Path, file: Path, lines: list[tuple[int, int, bytes]]) -> Path:
    """Parquet as the demo writes it, from (batch, message id, value)."""
    for batch in {batch for batch, _, _ in lines}:
        part = folder / f"batch={batch}"
        part.mkdir(parents=True)
        mine = [(message_id, value) for b, message_id, value in lines if b == batch]
        table = pa.table(
            {
                "stream": pa.array([str(file)] * len(mine)),
                "message_id": pa.array([message_id for message_id, _ in mine], pa.int64()),
                "value": pa.array([value for _, value in mine], pa.binary()),
            }
        )
        pq.write_table(table, part / "part.parquet")
    return folder


GOOD = [(0, 2, b"a"), (0, 5, b"bb"), (1, 9, b"ccc")]


@pytest.mark.parametrize(
    ("written", "reference", "expected"),
    [
        (GOOD, 9, Reconciliation(3, 3, 3, 0, 0)),
        (GOOD, 5, Reconciliation(3, 3, 2, 0, 0)),
        (GOOD, -1, Reconciliation(3, 3, 0, 0, 0)),
        (GOOD[:2], 9, Reconciliation(3, 2, 3, 1, 0)),
        ([*GOOD, (2, 5, b"bb")], 9, Reconciliation(3, 3, 3, 0, 1, disordered=1)),
        ([(0, 2, b"a"), (0, 5, b"bX"), (1, 9, b"ccc")], 9, Reconciliation(3, 3, 3, 0, 0, altered=1)),
        ([(1, 2, b"a"), (0, 5, b"bb"), (0, 9, b"ccc")], 9, Reconciliation(3, 3, 3, 0, 0, disordered=1)),
        ([], 9, Reconciliation(3, 0, 3, 3, 0)),
    ],
)
def test_reconciliation_finds_wrong_rows(
    tmp_path: Path, written: list[tuple[int, int, bytes]], reference: int, expected: Reconciliation
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a\nbb\nccc\n")
    (tmp_path / "rows").mkdir()
    found = reconcile(rows(tmp_path / "rows", file, written), {str(file): reference})
    assert found == expected
    assert found.clean == (expected == Reconciliation(3, 3, 3, 0, 0))


def test_a_row_whose_id_is_of_no_line_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a\nbb\n")
    (tmp_path / "rows").mkdir()
    found = reconcile(rows(tmp_path / "rows", file, [(0, 2, b"a"), (0, 4, b"bb")]), {str(file): 5})
    assert found.lost == 1
    assert found.altered > 0
    assert not found.clean


def test_orders_are_the_same_at_every_run_and_add_up(tmp_path: Path) -> None:
    written: list[int] = []
    first = write_orders(tmp_path / "a", 1003, written.append)
    second = write_orders(tmp_path / "b", 1003, written.append)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sum(len(line_ends(path)) for path in first) == 1003
    assert sum(written) == 2 * 1003
    assert len(first) == SHOPS


def test_every_file_has_one_sender_and_no_sender_is_idle() -> None:
    files = [Path(f"file-{number}") for number in range(6)]
    senders = plan_senders(files)
    assert sorted(file for sender in senders for file in sender.files) == [str(path) for path in files]
    assert [sender.instance for sender in plan_senders(files[:2])] == ["connector-1", "connector-2"]
