"""The functions of stages that a schema declares: whether a process can import them.

Source: ``docs/pipelines/engine.md#functions-of-stages``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pipelines.schema.declarations import Declaration, PipelineDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey

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

    def problem(self, where: str, error: str) -> str:
        """The sentence for a function that a process cannot import; ``where`` names the process."""
        return (
            f"stage {self.stage} of pipeline {self.pipeline} cannot run: {where} cannot import {self.function}: {error}"
        )


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
    return [one.problem(where, errors[one.function]) for one in declared if one.function in errors]


def refusal(found: Sequence[str]) -> ConfigurationError:
    """The error for an application that cannot start because of :func:`problems`."""
    more = f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return ConfigurationError(
        f"{'; '.join(found[:MOST_SHOWN])}{more}; install the function's package on the driver and the executors (or "
        "give its file with --py-files), or correct `run` of the stage and apply the schema again",
        code="function-not-importable",
    )
