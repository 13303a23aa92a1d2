"""What the executors of a submitted program import."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.conftest import Submit
from tests.conftest import ROOT

PROGRAM = """\
import json

from pyspark.sql import SparkSession


def places(partition):
    import tests.preloaded
    import wallaroo_spark

    yield from (tests.preloaded.__file__, wallaroo_spark.__file__)


print(json.dumps(SparkSession.builder.getOrCreate().sparkContext.parallelize([0], 1).mapPartitions(places).collect()))
"""


def test_executors_import_the_tests_and_the_package_of_this_folder(submit: Submit, tmp_path: Path) -> None:
    program = tmp_path / "places.py"
    program.write_text(PROGRAM, encoding="utf-8")
    ended = submit(program)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found == [str(ROOT / "tests" / "preloaded.py"), str(ROOT / "wallaroo_spark" / "__init__.py")]
