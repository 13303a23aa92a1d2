"""Checks before an application starts. Each one refuses a mistake with a sentence that also names the remedy.

Source: ``docs/pipelines/running.md`` and ``docs/pipelines/in-spark.md#functions-of-stages``.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenacity import Retrying, retry_if_exception, stop_after_attempt

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.extras import command, installed
from wallaroo_spark.pipelines.schema.declarations import Declaration, PipelineDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.runtime import spark_checks
from wallaroo_spark.runtime.job_errors import in_short, is_slow_start

if TYPE_CHECKING:
    import pandas as pd

SPARK_NEEDED = (4, 2)
PACKAGES = {"google.protobuf": "protobuf", "grpc": "grpcio", "msgpack": "msgpack", "pyarrow": "pyarrow"}
"""Modules that a gateway and the operator import in an executor, with the names of their packages."""
_ROUNDS = 2
"""Tasks of the check of executors for each task slot. Spark may give one executor several of them."""
_STARTS = 3
"""The most runs of the check of executors of which a process did not start in time."""
MOST_SHOWN = 10
"""The most functions that one message names. They are some lines of a terminal."""


@dataclass(frozen=True)
class DeclaredFunction:
    """A stage that runs inside Spark."""

    pipeline: str
    """The pipeline, as ``namespace/name``."""
    stage: str
    function: str
    """The function, as ``package.module:function``."""


def declared_functions(objects: Mapping[ObjectKey, Declaration]) -> tuple[DeclaredFunction, ...]:
    """The functions of all stages of a schema."""
    return tuple(
        DeclaredFunction(one.key.path, stage.name, stage.run)
        for one in objects.values()
        if isinstance(one, PipelineDeclaration)
        for stage in one.stages
        if stage.run
    )


def import_errors(functions: Iterable[str]) -> dict[str, str]:
    """The error of each function that this process cannot import, by the function."""
    # Imported here, because an executor that lacks packages imports this module to report them.
    from wallaroo_spark.engine.operator.functions import import_error

    found = {name: import_error(name) for name in dict.fromkeys(functions)}
    return {name: error for name, error in found.items() if error}


def problems(declared: Sequence[DeclaredFunction], where: str, errors: Mapping[str, str]) -> list[str]:
    """A sentence for each stage whose function the process ``where`` cannot import."""
    return [
        f"stage {one.stage} of pipeline {one.pipeline} cannot run: {where} cannot import {one.function}: "
        f"{errors[one.function]}"
        for one in declared
        if one.function in errors
    ]


def refuse_functions(declared: Sequence[DeclaredFunction], where: str, errors: Mapping[str, str]) -> None:
    """Raise an error if there are :func:`problems`."""
    if not (found := problems(declared, where, errors)):
        return
    more = f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    raise ConfigurationError(
        f"{'; '.join(found[:MOST_SHOWN])}{more}; install the function's package on the driver and the executors (or "
        "give its file with --py-files), or correct `run` of the stage and apply the schema again",
        code="function-not-importable",
    )


def environment(spark: Any) -> None:
    """Refuse Spark Connect, a Spark that is too old, and a Python of the driver that lacks packages."""
    context = spark_checks.classic_context(spark)
    if context is None:
        raise ConfigurationError(
            "an application of durable streams needs a classic Spark session: on Spark Connect this process sees "
            "neither the commits of a batch nor its files; run it with spark-submit, or with --master",
            code="connect-not-supported",
        )
    version(str(spark.version))
    spark_checks.environment(spark)
    packages_of_driver()


def version(spark_version: str) -> None:
    """Refuse a Spark that is too old for the operator; ``spark_version`` is ``spark.version``."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", spark_version)[:2])
    if numbers < SPARK_NEEDED:
        raise ConfigurationError(
            f"Spark is {spark_version}, and an application of durable streams needs "
            f"{SPARK_NEEDED[0]}.{SPARK_NEEDED[1]} or newer; run: pip install 'pyspark>=4.2', and "
            "use a cluster of that version",
            code="spark-too-old",
        )


def packages_of_driver() -> None:
    """Refuse a Python of the driver, and in local mode of the tasks, that lacks packages."""
    if lacking := missing_packages():
        raise _lacking(f"the driver's Python on {socket.gethostname()}", lacking)


def functions_of_driver(declared: Sequence[DeclaredFunction]) -> None:
    """Refuse functions of stages that the driver cannot import."""
    refuse_functions(declared, "the driver", import_errors(one.function for one in declared))


def executors(spark: Any, declared: Sequence[DeclaredFunction]) -> None:
    """Refuse executors whose Python lacks packages or cannot import functions of stages, by one Spark job.

    On a cluster it asks as many executors as Spark uses for a short job. On one machine the tasks have the packages of
    the driver, but not its ``sys.path``: one task is asked, and only if there are functions.
    """
    tasks = max(1, spark_checks.count_task_slots(spark.sparkContext)) * _ROUNDS
    if spark_checks.on_one_machine(spark.sparkContext.master):
        tasks = 1 if declared else 0
    if tasks:
        ask_executors(spark, tasks, declared)


def ask_executors(spark: Any, tasks: int, declared: Sequence[DeclaredFunction]) -> None:
    """As :func:`executors`, with that many tasks."""
    names = tuple(one.function for one in declared)
    for answer in _answers(spark, tasks, names):
        if answer.lacking:
            raise _lacking(f"the executors' Python on {answer.host}", answer.lacking.split(" "))
        refuse_functions(declared, f"the executors' Python on {answer.host}", json.loads(answer.errors))


def _answers(spark: Any, tasks: int, functions: tuple[str, ...]) -> list[Any]:
    """The answers of the tasks. A job is repeated of which a process did not start in time."""
    rows = spark.range(0, tasks, 1, tasks)
    starts = Retrying(stop=stop_after_attempt(_STARTS), retry=retry_if_exception(is_slow_start), reraise=True)
    try:
        asked = rows.mapInPandas(_asking(functions), "host string, lacking string, errors string")
        return list(starts(asked.collect))
    except Exception as error:
        raise ConfigurationError(
            f"a task that looks for the packages of the executors' Python failed: {in_short(error)}; install "
            f"the packages of the extra with {command(['pipelines'])} there, or set PYSPARK_PYTHON",
            code="executor-python",
        ) from error


def missing_packages() -> list[str]:
    """The packages that this Python lacks."""
    return [package for module, package in PACKAGES.items() if not installed(module)]


def schema(stored: StoredSchema, folder: str) -> None:
    """Refuse a folder whose schema has no stream."""
    if not any(isinstance(one, StreamDeclaration) for one in stored.objects.values()):
        there = f"version {stored.version} of its schema declares no stream" if stored.version else "it has no schema"
        raise ConfigurationError(
            f"the application in {folder} cannot run: {there}; declare streams in a YAML file and run: "
            f"wallaroo-spark apply FILE --app {folder}",
            code="schema-empty",
            folder=folder,
        )


def checkpoint(committed: int | None, outputs: int, folder: str) -> None:
    """Refuse a checkpoint that is missing or older than the outputs of its batches.

    ``committed`` is the newest batch that the checkpoint has committed, ``outputs`` the newest one that the outputs in
    the folder prove to have been committed; -1 for none. The state of the keys is in the checkpoint: with an older one
    offsets would be given twice, and records that are promised to clients would never be in the tables.
    """
    found = -1 if committed is None else committed
    if found < outputs:
        there = "is missing" if committed is None else f"ends at batch {committed}"
        raise ConfigurationError(
            f"the application in {folder} cannot run: its outputs are of batch {outputs}, and its checkpoint {there}; "
            "restore the whole folder as it was at one time, or begin with an empty folder",
            code="checkpoint-behind-outputs",
            folder=folder,
            committed=committed,
            outputs=outputs,
        )


def _asking(functions: tuple[str, ...]) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """The function of the tasks: it returns a row with the missing packages, and functions with their errors."""

    def answer(rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pandas

        for _ in rows:
            pass
        lacking = missing_packages()
        errors = {} if lacking else import_errors(functions)
        yield pandas.DataFrame(
            {"host": [socket.gethostname()], "lacking": [" ".join(lacking)], "errors": [json.dumps(errors)]}
        )

    return answer


def _lacking(where: str, packages: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{where} lacks {', '.join(packages)}; run there: {command(['pipelines'])}",
        code="package-missing",
        packages=packages,
    )
