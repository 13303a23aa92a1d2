"""The fixtures, as a project that uses this package has them; and that pytest is not needed for the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import SECONDS

CONFTEST = """
pytest_plugins = ["wallaroo_spark.testing.plugin"]
"""
TEST = """
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.testing import FakeWorker

def test_mine(fake_worker: FakeWorker) -> None:
    with fake_worker.committing(), BlockingConnector("p", instance="i", workers=fake_worker.address) as connector:
        connector.open("s").send(b"a", id=1)
    assert fake_worker.committed["value"].to_pylist() == [b"a"]
"""
WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
from wallaroo_spark import testing
for name in testing.__all__:
    getattr(testing, name)
"""
WITHOUT_SPARK = """
import sys
sys.modules["pytest"] = sys.modules["pyspark"] = None
from wallaroo_spark.testing import FakeWorker, Proxy
with FakeWorker() as worker:
    assert worker.status()["ready"]
"""
APPLICATION_WITHOUT_SPARK = """
import sys
sys.modules["pytest"] = sys.modules["pyspark"] = None
from wallaroo_spark.client import Client, Event
from wallaroo_spark.testing import FakeApplication, run_function
with FakeApplication("kind: Namespace\\nname: n\\n---\\nkind: Stream\\nname: s\\nnamespace: n\\n") as application:
    with Client(application.address) as client:
        client.publish("n/s", Event("t"))
    assert [event.type for event in application.records("n/s")] == ["t"]
"""


def run(*arguments: str, folder: Path) -> None:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_project_of_its_own_has_the_fixtures_by_one_line(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_mine.py").write_text(TEST, encoding="utf-8")

    run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), folder=tmp_path)


def test_every_public_name_is_there_without_pytest(tmp_path: Path) -> None:
    run("-c", WITHOUT_PYTEST, folder=tmp_path)


def test_the_fake_application_needs_neither_spark_nor_pytest(tmp_path: Path) -> None:
    run("-c", APPLICATION_WITHOUT_SPARK, folder=tmp_path)


def test_the_fake_worker_needs_neither_spark_nor_pytest(tmp_path: Path) -> None:
    run("-c", WITHOUT_SPARK, folder=tmp_path)
