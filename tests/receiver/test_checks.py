"""A configuration that cannot work is refused before anything starts, in one sentence with the way out."""

from __future__ import annotations

import dataclasses
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wallaroo_spark.checkpoint import PlannedBatch
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.options import Options
from wallaroo_spark.receiver import checks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1+8"])
def test_a_java_that_is_new_enough_is_fine(version: str) -> None:
    checks.java(version)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "16"])
def test_an_old_java_is_refused_with_the_package_to_install(version: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        checks.java(version)

    assert refused.value.message == (
        f"Spark runs on Java {version}, and needs 17 or newer; install openjdk-17-jre-headless or set JAVA_HOME to a "
        "newer one"
    )


def versions(**found: str) -> Any:
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    return version


def test_the_packages_of_this_environment_are_fine() -> None:
    checks.packages()


def test_the_oldest_packages_that_are_supported_are_fine() -> None:
    checks.packages(versions(pyspark="4.2.0", pandas="2.2", pyarrow="15", cryptography="42"))


def test_a_pyspark_that_no_installer_knows_of_is_fine() -> None:
    checks.packages(versions(pandas="2.3.1", pyarrow="15.0", cryptography="42.0"))


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
        checks.packages(versions(**found))

    assert refused.value.message == said


@pytest.mark.both
def test_this_environment_is_fit_to_run(spark: SparkSession) -> None:
    checks.environment(spark)


def test_the_python_of_the_workers_must_have_this_package(tmp_path: Path) -> None:
    checks.workers_python(sys.executable)
    bare = tmp_path / "python3"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)

    for executable in (str(bare), "no-such-python"):
        with pytest.raises(ConfigurationError) as refused:
            checks.workers_python(executable)
        assert refused.value.message == (
            f"Spark would run its workers with {executable!r}, which lacks this package; "
            f"set PYSPARK_PYTHON={sys.executable} before the session is made"
        )


def test_asynchronous_progress_tracking_is_refused(spark: SparkSession) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    checks.synchronous(writer, (), "file:///checkpoint")
    checks.synchronous(writer.option("asyncProgressTrackingEnabled", "false"), (), "file:///checkpoint")

    with pytest.raises(ConfigurationError, match="with asyncProgressTrackingEnabled a planned range may change"):
        checks.synchronous(writer.option("asyncProgressTrackingEnabled", True), (), "file:///checkpoint")


def test_a_checkpoint_with_holes_is_refused(spark: SparkSession) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")

    with pytest.raises(CheckpointError) as refused:
        checks.synchronous(writer, (3, 4, 7, 8, 9, 11), "file:///checkpoint")

    assert refused.value.message == (
        "checkpoint file:///checkpoint lacks batches 3, 4, 7, 8, 9 within its logs, as asynchronous progress tracking "
        "leaves them; use another checkpoint"
    )


def test_a_writer_that_cannot_be_looked_into_is_let_through() -> None:
    checks.synchronous(object(), (), "file:///checkpoint")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tls_certificate": "a.pem"}, "tls.certificate needs tls.key"),
        ({"tls_key": "a.key"}, "tls.key needs tls.certificate"),
        ({"tls_ca": "ca.pem"}, "tls.ca needs tls.certificate"),
        ({"tls_workers_ca": "ca.pem"}, "tls.workersCa needs tls.certificate"),
        ({"tls_bind_instances": True}, "tls.bindInstances needs tls.ca"),
    ],
)
def test_half_of_a_pair_of_options_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        checks.combinations(Options(**given))


def test_whole_pairs_of_options_are_fine() -> None:
    checks.combinations(Options())
    whole = Options(tls_certificate="a.pem", tls_key="a.key", tls_ca="ca.pem", tls_bind_instances=True)
    checks.combinations(whole)
    with pytest.raises(ConfigurationError):
        checks.combinations(dataclasses.replace(whole, tls_key=""))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"advertise": "worker-{pod}"}, r"option advertise: 'worker-\{pod\}' has \{pod\}, and only \{slot\} and"),
        ({"inner_advertise": "worker-{slot}:x"}, "option innerAdvertise: address 'worker-0:x' has port 'x'"),
        ({"advertise": "worker:6553{slot}", "workers": 7}, "option advertise: .* has port '65536'"),
        ({"port": 65_530, "workers": 7}, "option port: 65530 and 7 slots go beyond port 65535; begin lower"),
        ({"inner_port": 65_535}, "option innerPort: 65535 and 2 slots go beyond"),
        ({"port": 7100, "inner_port": 7101}, "options port and innerPort: from 7100 and 7101 on, 2 slots share ports"),
    ],
)
def test_addresses_that_cannot_be_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        checks.addresses(Options(**given))


def test_addresses_by_slot_are_fine() -> None:
    fine: dict[str, Any] = {"advertise": "worker-{slot}.example.com:{port}", "inner_advertise": "10.0.0.{slot}"}
    checks.addresses(Options(port=7100, inner_port=7102, **fine))


def test_a_checkpoint_whose_sources_stand_apart_without_an_order_is_refused() -> None:
    checks.decided("file:///checkpoint", None)
    checks.decided("file:///checkpoint", PlannedBatch(4, {}))

    with pytest.raises(CheckpointError, match=r"several references in batch 4 for stream 7 of 'shop-1', .*opaque ids"):
        checks.decided("file:///checkpoint", PlannedBatch(4, {}, (("shop-1", "7"),)))
