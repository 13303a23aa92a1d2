"""The refusals before an application starts."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark import Application
from wallaroo_spark.engine.application import checks
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pipelines.declarations import NamespaceDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.streams.batch_outputs.files import Manifest
from wallaroo_spark.streams.batch_outputs.store import BatchOutputs


def test_an_old_spark_is_refused() -> None:
    checks.version("4.2.0")
    checks.version("4.10.1-SNAPSHOT")
    checks.version("5.0.0")
    with pytest.raises(ConfigurationError, match=r"Spark is 4\.1\.2, .* needs 4\.2"):
        checks.version("4.1.2")


def test_spark_connect_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match=r"classic Spark session.*spark-submit") as refused:
        checks.environment(types.SimpleNamespace())

    assert refused.value.code == "connect-not-supported"


def test_a_python_without_a_package_is_refused_by_the_packages_name(monkeypatch: pytest.MonkeyPatch) -> None:
    checks.packages_of_driver()
    monkeypatch.setitem(checks.PACKAGES, "no_such_package_anywhere.inner", "imaginary")

    with pytest.raises(
        ConfigurationError, match=r"driver's Python on .* lacks imaginary; .*wallaroo-spark\[pipelines\]"
    ):
        checks.packages_of_driver()


def test_executors_that_lack_a_package_are_refused_by_host(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.packages_of_executors(spark)
    monkeypatch.setattr(checks, "_answers", _lacking)

    with pytest.raises(ConfigurationError, match="executors' Python on far-away lacks protobuf, grpcio; "):
        checks.packages_of_executors(spark)


def _lacking(rows: Any) -> Any:
    import pandas

    for _ in rows:
        pass
    yield pandas.DataFrame({"host": ["far-away"], "lacking": ["protobuf grpcio"]})


def test_a_folder_without_a_stream_is_refused_with_the_command_that_helps() -> None:
    namespace = NamespaceDeclaration(name="shop")
    stream = StreamDeclaration(name="orders", namespace="shop")
    checks.schema(StoredSchema(1, {stream.key: stream}), "/data/shop")

    with pytest.raises(ConfigurationError, match=r"it has no schema; .*wallaroo-spark apply FILE --app /data/shop"):
        checks.schema(StoredSchema(), "/data/shop")
    with pytest.raises(ConfigurationError, match="version 3 of its schema declares no stream"):
        checks.schema(StoredSchema(3, {namespace.key: namespace}), "/data/shop")


@pytest.mark.parametrize(("committed", "outputs"), [(None, -1), (0, -1), (3, 3), (4, 3)])
def test_a_checkpoint_as_new_as_its_outputs_is_accepted(committed: int | None, outputs: int) -> None:
    checks.checkpoint(committed, outputs, "/data/shop")


@pytest.mark.parametrize(("committed", "found"), [(None, "is missing"), (2, "ends at batch 2")])
def test_a_checkpoint_older_than_its_outputs_is_refused(committed: int | None, found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"outputs are of batch 3, and its checkpoint {found}; restore"):
        checks.checkpoint(committed, 3, "/data/shop")


def test_an_application_whose_checkpoint_was_deleted_does_not_start(spark: Any, tmp_path: Path) -> None:
    stream = StreamDeclaration(name="orders", namespace="shop")
    SchemaStore(str(tmp_path)).write(StoredSchema(1, {stream.key: stream}))
    outputs = BatchOutputs(str(tmp_path))
    for batch in range(2):
        outputs.seal(Manifest(batch, (), {}))

    with pytest.raises(ConfigurationError, match="its outputs are of batch 0, and its checkpoint is missing"):
        Application(spark, str(tmp_path), name="deleted").start()
