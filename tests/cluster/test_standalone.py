"""The cluster that scripts/cluster starts is a real one: tasks run on both workers, in the project's own Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.cluster.conftest import Submit
from tests.conftest import ROOT

PROGRAM = """
import json
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

def where(frames):
    import os, sys, wallaroo_spark
    for frame in frames:
        yield frame.assign(python=sys.executable, directory=os.getcwd())

rows = spark.sparkContext.parallelize(range(4), 4).map(lambda n: (n,)).toDF(["id"])
found = rows.mapInPandas(where, "id long, python string, directory string").collect()
print("FOUND", json.dumps([row.asDict() for row in found]))
spark.stop()
"""


def test_tasks_run_in_the_projects_python_outside_the_driver(submit: Submit, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")

    finished = submit(program, properties=ROOT / "conf" / "standalone.conf")

    assert finished.returncode == 0, finished.stderr
    found = [line.removeprefix("FOUND ") for line in finished.stdout.splitlines() if line.startswith("FOUND ")]
    rows = json.loads(found[0])
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3]
    assert {row["python"] for row in rows} == {sys.executable}
    assert all(Path(row["directory"]).parent.parent.name == "work" for row in rows)
