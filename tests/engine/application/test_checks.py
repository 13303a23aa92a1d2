"""The refusals before an application starts."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark import Application
from wallaroo_spark.cli.durable.run import importable_here
from wallaroo_spark.engine.application import checks
from wallaroo_spark.engine.application.checks import declared_functions
from wallaroo_spark.engine.application.housekeeping import AGAIN_SECONDS, SchemaWatch
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pipelines.schema.declarations import (
    Declaration,
    NamespaceDeclaration,
    PipelineDeclaration,
    StageDeclaration,
    StreamDeclaration,
)
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.streams.batch_outputs import BatchOutputs, Manifest


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


def test_executors_that_lack_a_package_are_refused_by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = types.SimpleNamespace(host="far-away", lacking="protobuf grpcio", errors="{}")
    monkeypatch.setattr(checks, "_answers", lambda *_: [answer])

    with pytest.raises(ConfigurationError, match="executors' Python on far-away lacks protobuf, grpcio; "):
        checks.ask_executors(None, 1, ())


GOOD = "tests.engine.application.stage_functions:reserve"
REFUSED = (
    ("no_such_package_anywhere.stock:reserve", "ModuleNotFoundError: No module named 'no_such_package_anywhere'"),
    ("tests.engine.application.stage_functions:misspelt", "has no function misspelt"),
    ("tests.engine.application.stage_functions:__doc__", "has no function __doc__"),
    ("tests.engine.application.ending_module:reserve", "SystemExit: 3"),
)


@pytest.mark.parametrize(("function", "reason"), REFUSED)
def test_an_application_with_a_function_that_cannot_be_imported_does_not_start(
    spark: Any, tmp_path: Path, function: str, reason: str
) -> None:
    SchemaStore(str(tmp_path)).write(StoredSchema(1, with_functions(GOOD, function)))

    with pytest.raises(ConfigurationError) as refused:
        Application(spark, str(tmp_path), name="functions").start()

    assert refused.value.code == "function-not-importable"
    assert f"stage s1 of pipeline shop/fulfil cannot run: the driver cannot import {function}: " in str(refused.value)
    assert reason in str(refused.value)
    assert "--py-files" in str(refused.value)
    assert "stage s0" not in str(refused.value)


def test_a_function_that_only_the_driver_can_import_is_refused(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_program.py").write_text("def reserve(deliveries):\n    return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    functions = declared_functions(with_functions(GOOD, "beside_the_program:reserve"))
    checks.functions_of_driver(functions)

    with pytest.raises(ConfigurationError) as refused:
        checks.executors(spark, functions)

    assert refused.value.code == "function-not-importable"
    assert "stage s1 of pipeline shop/fulfil cannot run: the executors' Python on " in str(refused.value)
    assert "No module named 'beside_the_program'" in str(refused.value)
    checks.executors(spark, functions[:1])


def test_the_command_run_imports_functions_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in_this_folder.py").write_text("def reserve(deliveries):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    functions = declared_functions(with_functions("in_this_folder:reserve"))
    with pytest.raises(ConfigurationError, match="No module named 'in_this_folder'"):
        checks.functions_of_driver(functions)

    importable_here()
    checks.functions_of_driver(functions)


def with_functions(*functions: str) -> dict[ObjectKey, Declaration]:
    """A schema with a pipeline of one stage for each function."""
    stream = StreamDeclaration(name="orders", namespace="shop")
    stages = tuple(StageDeclaration(name=f"s{place}", run=function) for place, function in enumerate(functions))
    pipeline = PipelineDeclaration(name="fulfil", namespace="shop", input_stream="orders", stages=stages)
    return {stream.key: stream, pipeline.key: pipeline}


def test_a_version_with_a_function_that_cannot_be_imported_is_reported_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    store, clock = SchemaStore(str(tmp_path / "shop")), [0.0]
    store.write(StoredSchema(1, with_functions(GOOD)))
    watch = SchemaWatch(SchemaStore(str(tmp_path / "shop")), "shop", lambda: clock[0])
    watch.look()
    assert not watch.problems

    store.write(StoredSchema(2, with_functions(GOOD, "installed_later:reserve")))
    watch.look()
    watch.look()
    (problem,) = watch.problems
    assert problem.startswith("stage s1 of pipeline shop/fulfil cannot run: the driver cannot import installed_later:")
    assert [record.levelname for record in caplog.records] == ["ERROR"]

    (tmp_path / "installed_later.py").write_text("def reserve(deliveries):\n    return None\n")
    watch.look()
    assert watch.problems == (problem,)
    clock[0] += AGAIN_SECONDS
    watch.look()
    assert not watch.problems


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
