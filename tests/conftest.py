"""Fixtures for every room: one local Spark for the whole run, and one standalone cluster for the tests that need it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.class_archive import SHORT_LIVED, java_options
from tests.pems import Pems, make_pems
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from proving.browser import Browser
    from tests.receiver.support import Feeders

# A slow machine is no failure: no test asserts a time, Hypothesis's own deadline included.
settings.register_profile(
    "project", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# What --long asks for.
settings.register_profile("thorough", settings.get_profile("project"), max_examples=1000)
settings.load_profile("project")

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = ROOT / "scripts" / "cluster.py"
TOGETHER = ("tests/cluster/", "tests/sinks/")
"""Folders whose tests share servers that are slow to start."""
JUDGED = ("protocol", "worker", "checkpoint", "sidecar")

# Another Spark's settings would mix its jars with the installed ones.
for _name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYTHONPATH", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON"):
    os.environ.pop(_name, None)
OTHER_PYSPARK = os.environ.get("WALLAROO_PYSPARK", "")
"""A folder with another PySpark than the installed one, for this process and every process that a test starts."""
if OTHER_PYSPARK:
    OTHER_PYSPARK = str(ROOT / OTHER_PYSPARK)
    sys.path.insert(0, OTHER_PYSPARK)
# Programs that tests start import the tests, whatever folder they run in.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), OTHER_PYSPARK)))
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["SPARK_SUBMIT_OPTS"] = java_options()
os.environ["SPARK_DAEMON_JAVA_OPTS"] = SHORT_LIVED

LOCAL_SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Four slots share small data: more shuffle partitions would only be more empty tasks.
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A conversion that Arrow cannot do should fail in a test, not become slow in silence.
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # On a machine with more work than processors Java may answer its Python processes late; Spark gives up after 15 s.
    "spark.python.authenticate.socketTimeout": "120s",
    # For tests that start a server of Spark Connect in the session.
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The flag of ``./scripts/test --long``."""
    parser.addoption("--long", action="store_true", help="run those marked long too, and 1,000 examples of a property")


def pytest_configure(config: pytest.Config) -> None:
    """More examples, where all is to be tried."""
    if config.getoption("--long"):
        settings.load_profile("thorough")


@pytest.fixture(autouse=True)
def _log_of_the_package() -> Iterator[None]:
    """A verb that a test runs in this process sets the package's log up; the next test has it as it was."""
    logger = logging.getLogger("wallaroo_spark")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def _frequent_renewals() -> Iterator[None]:
    """Services in this process renew long leases often: none expires on a slow machine, and no test waits for one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wallaroo_spark.runtime.service.RENEWALS", 60)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start Spark, by their fixtures and their folder, so that nobody has to remember to mark them.

    Coverage is counted by the tests of the rooms whose coverage is judged, for counting makes pure code four times as
    slow; those that run for long to begin with are marked ``no_cover``.
    """
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        judged = any(item.path.is_relative_to(ROOT / "tests" / room) for room in JUDGED)
        if judged and item.get_closest_marker("no_cover") is None:
            item.add_marker(pytest.mark.counted)
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in fixtures:
            item.add_marker(pytest.mark.spark)
        if "standalone_cluster" in fixtures or item.path.is_relative_to(ROOT / "tests" / "cluster"):
            item.add_marker(pytest.mark.cluster)
    if hasattr(config, "workerinput"):
        # Tests that take minutes begin first. Otherwise one process would still run them when the others have finished.
        slow = {item.path for item in items if item.get_closest_marker("spark") or item.get_closest_marker("cluster")}
        items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Side by side, a file's tests stay together, and so do those that share a cluster or servers."""
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return next((folder for folder in TOGETHER if scope.startswith(folder)), scope)

    return Together(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The run's one Spark session, in local mode with four task slots. Tests stop their queries, never the session."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[4]").appName("wallaroo-spark tests")
    for name, value in LOCAL_SPARK.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One Redis for all tests of this process that neither stop it nor share names in it."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="module")
def file_redis() -> Iterator[EmbeddedRedis]:
    """A Redis for the tests of one file."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Redis that the test may empty, stop or kill."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def feeders() -> Iterator[Feeders]:
    """Connectors, each in a thread; closed when the test ends."""
    from tests.receiver.support import Feeders

    with Feeders() as opened:
        yield opened


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The run's one headless Chromium. A missing one is an error with the way to install it, and no skip."""
    from proving.browser import Browser

    started = Browser(tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Pems:
    """Certificates of a throw-away authority."""
    return make_pems(tmp_path_factory.mktemp("pems"))


@dataclass(frozen=True)
class StandaloneCluster:
    """A running standalone cluster: its master's URL, and the directory with its logs and work files."""

    url: str
    state: Path


def run_cluster(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/cluster.py on a state directory and return its output."""
    command = [sys.executable, str(CLUSTER), "--state", str(state), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


@pytest.fixture(scope="session")
def standalone_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """One master and two workers with two cores each, as processes of their own; submit to it with spark-submit."""
    state = tmp_path_factory.mktemp("cluster")
    started = run_cluster(state, "start", "--workers", "2", "--cores", "2", "--memory", "1g")
    assert started.returncode == 0, started.stderr
    try:
        yield StandaloneCluster(started.stdout.strip(), state)
    finally:
        stopped = run_cluster(state, "stop")
        assert stopped.returncode == 0, stopped.stderr
