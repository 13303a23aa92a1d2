"""The functions of stages that a schema declares: whether a process can import them, at the start and later.

Source: ``docs/pipelines/engine.md#functions-of-stages``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.pipelines.schema.declarations import Declaration, PipelineDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore

log = one_line(logging.getLogger("wallaroo_spark.engine"))

AGAIN_SECONDS = 10.0
"""Seconds between two attempts to import functions that could not be imported. A choice: an import may read files."""
MOST_SHOWN = 10
"""The most functions that one message names. A choice: some lines of a terminal."""


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


class FunctionWatch:
    """Looks whether the driver can import the functions of versions of the schema that are applied meanwhile.

    ``application`` names the application in the log. One thread at a time calls :meth:`look`.
    """

    def __init__(
        self, schemas: SchemaStore, version: int, application: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.problems: Sequence[str] = ()
        """A sentence for each stage of the newest version whose function cannot be imported."""
        self._schemas = schemas
        self._version = version
        self._application = application
        self._clock = clock
        self._declared: tuple[DeclaredFunction, ...] = ()
        self._looked = clock()

    def look(self) -> None:
        """Import the functions of a newer version, and from time to time again those that could not be imported.

        An error is logged when it is new. Raises as :class:`SchemaStore` does.
        """
        newest = self._schemas.seen_version()
        if newest != self._version:
            self._declared = declared_functions(self._schemas.version(newest).objects)
            self._version = newest
        elif not self.problems or self._clock() < self._looked + AGAIN_SECONDS:
            return
        self._looked = self._clock()
        errors = import_errors(one.function for one in self._declared)
        found = tuple(problems(self._declared, "the driver", errors))
        for problem in found:
            if problem not in self.problems:
                log.error(
                    "application %s, version %d of its schema: %s; other stages go on; install the function's package, "
                    "or correct `run` of the stage and apply the schema again",
                    self._application,
                    self._version,
                    problem,
                )
        if self.problems and not found:
            log.info("application %s: all functions of stages can be imported now", self._application)
        self.problems = found
