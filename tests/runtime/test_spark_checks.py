"""An environment that cannot run the package is refused before anything starts, in one sentence with the remedy."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.runtime import spark_checks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1+8"])
def test_a_java_that_is_new_enough_is_fine(version: str) -> None:
    spark_checks.java(version)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "16"])
def test_an_old_java_is_refused_with_the_package_to_install(version: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        spark_checks.java(version)

    assert refused.value.message == (
        f"Spark runs on Java {version}, and needs 17 or newer; install openjdk-17-jre-headless or set JAVA_HOME to a "
        "newer one"
    )


@pytest.mark.parametrize(
    ("properties", "advised"),
    [
        ({"java.version": "17.0.15", "os.name": "Linux"}, True),
        ({"java.version": "25.0.1", "os.name": "Linux", "jdk.lang.Process.launchMechanism": "FORK"}, True),
        ({"java.version": "17.0.15", "os.name": "Linux", "jdk.lang.Process.launchMechanism": "VFORK"}, False),
        ({"java.version": "26", "os.name": "Linux"}, False),
        ({"java.version": "17.0.15", "os.name": "Mac OS X"}, False),
    ],
)
def test_a_driver_whose_java_starts_processes_slowly_is_advised(properties: dict[str, str], advised: bool) -> None:
    system = SimpleNamespace(getProperty=properties.get)
    context = SimpleNamespace(_jvm=SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system))))

    assert (f"extraJavaOptions={spark_checks.VFORK}" in spark_checks.slow_processes(context)) is advised


@pytest.mark.parametrize(
    ("cores", "cpus", "workers", "advised"),
    [
        ([2, 2], "1", 2, True),
        ([1, 1, 1], "1", 2, False),
        ([4, 4], "2", 2, True),
        ([2, 2], "2", 2, False),
        ([2, 2], "1", 3, False),
        ([8], "1", 2, False),
        ([2, 2], "1", 1, False),
    ],
)
def test_a_cluster_whose_workers_may_share_an_executor_is_advised(
    cores: list[int], cpus: str, workers: int, advised: bool
) -> None:
    processes = [SimpleNamespace(id=lambda: "driver", totalCores=lambda: 0)]
    processes += [
        SimpleNamespace(id=lambda name=str(name): name, totalCores=lambda count=count: count)
        for name, count in enumerate(cores)
    ]
    listed = SimpleNamespace(size=lambda: len(processes), apply=processes.__getitem__)
    spark = SimpleNamespace(statusStore=lambda: SimpleNamespace(executorList=lambda active: listed))
    context = SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: spark), getConf=lambda: {"spark.task.cpus": cpus}, master="yarn"
    )

    assert spark_checks.count_task_slots(context) == sum(cores) // int(cpus)
    assert bool(spark_checks.together(context, workers)) is advised


def versions(**found: str) -> Any:
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    return version


def test_the_packages_of_this_environment_are_fine() -> None:
    spark_checks.packages()


def test_the_oldest_packages_that_are_supported_are_fine() -> None:
    spark_checks.packages(versions(pyspark="4.2.0", pandas="2.2", pyarrow="15", cryptography="42"))


def test_a_pyspark_that_no_installer_knows_of_is_fine() -> None:
    spark_checks.packages(versions(pandas="2.3.1", pyarrow="15.0", cryptography="42.0"))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            {"pyspark": "4.1.4", "pandas": "2.2", "pyarrow": "15"},
            "pyspark is 4.1.4, and must be 4.2 or newer; run: pip install 'pyspark>=4.2'",
        ),
        (
            {"pyspark": "4.3.0", "pandas": "3.0.0rc1", "pyarrow": "15"},
            "pandas is 3.0.0rc1, and must be below 3, which PySpark needs; run: pip install 'pandas<3'",
        ),
        (
            {"pyspark": "5.0.0.dev1", "pandas": "2.2", "pyarrow": "14.0.2"},
            "pyarrow is 14.0.2, and must be 15 or newer; run: pip install 'pyarrow>=15'",
        ),
        ({"pyspark": "4.3.0", "pyarrow": "15"}, "pandas is not installed; run: pip install 'pandas<3'"),
    ],
    ids=["old pyspark", "new pandas", "old pyarrow", "no pandas"],
)
def test_a_package_that_does_not_fit_is_named_with_the_command_that_helps(found: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        spark_checks.packages(versions(**found))

    assert refused.value.message == said


@pytest.mark.both
def test_this_environment_is_fit_to_run(spark: SparkSession) -> None:
    spark_checks.environment(spark)


def test_the_python_of_the_workers_must_have_this_package(tmp_path: Path) -> None:
    spark_checks.workers_python(sys.executable)
    bare = tmp_path / "python3"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)

    for executable in (str(bare), "no-such-python"):
        with pytest.raises(ConfigurationError) as refused:
            spark_checks.workers_python(executable)
        assert refused.value.message == (
            f"Spark would run its workers with {executable!r}, which lacks this package; "
            f"set PYSPARK_PYTHON={sys.executable} before the session is made"
        )


def test_a_cluster_without_an_executor_is_named_with_what_may_keep_it_from_starting_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_checks, "EXECUTORS_SECONDS", 0.0)
    monkeypatch.setattr(spark_checks, "count_task_slots", lambda context: 0)
    session = SimpleNamespace(
        sparkContext=SimpleNamespace(master="spark://host:7077"), conf=SimpleNamespace(get=lambda *_: "false")
    )

    with pytest.raises(ConfigurationError, match=r"has 0: .* the cluster has started no executor: stop other appl"):
        spark_checks.task_slots(session, 2)
