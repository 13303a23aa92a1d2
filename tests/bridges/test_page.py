"""The page on bridges: its tables, and its twenty lines, which are run."""

from __future__ import annotations

import importlib
import re
import sqlite3
from pathlib import Path

from tests.bridges.support import Bridging
from tests.conftest import ROOT
from tests.waiting import SECONDS
from wallaroo_spark.bridges import BRIDGES, Bridge
from wallaroo_spark.testing import FakeWorker

PAGE = (ROOT / "docs" / "bridges.md").read_text(encoding="utf-8")


def bridges() -> dict[str, type[Bridge]]:
    found = {kind: home.rpartition(".") for kind, home in BRIDGES.items()}
    return {kind: getattr(importlib.import_module(module), name) for kind, (module, _, name) in found.items()}


def test_every_source_and_its_promise_is_on_the_page() -> None:
    for kind, bridge in bridges().items():
        promise = bridge.promise

        assert f"| `{kind}` | {promise.reference} | {promise.told} | {promise.killed} |" in PAGE
        assert f"| `wallaroo-spark bridge {kind} " in PAGE


def test_the_twenty_lines_keep_the_promise(tmp_path: Path) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert sum(bool(line.strip()) for line in lines.splitlines()) <= 20
    (tmp_path / "readings.py").write_text(lines, encoding="utf-8")
    with sqlite3.connect(tmp_path / "readings.db") as table:
        table.execute("CREATE TABLE readings (value TEXT)")
        table.executemany("INSERT INTO readings VALUES (?)", [(f"{number}",) for number in range(1000)])
    source = ("python", str(tmp_path / "readings.py:Readings"), str(tmp_path / "readings.db"))
    with FakeWorker() as worker:
        bridging = Bridging(worker, tmp_path, *source)
        bridging.killed_before_the_commit(100)
        with bridging.again() as process:
            bridging.wait(1000)
            with sqlite3.connect(tmp_path / "readings.db") as table:
                table.execute("INSERT INTO readings VALUES ('1000')")
            bridging.wait(1001)
        assert process.wait(SECONDS) == 143

        assert bridging.values() == [b"%d" % number for number in range(1001)]
        assert "readings: " in bridging.output
