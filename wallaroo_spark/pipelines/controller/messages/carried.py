"""The messages that keys carry to each other, and their answers.

Source: ``docs/pipelines/design.md#a-transactions-way``.
"""

from __future__ import annotations

from typing import NamedTuple

from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, OutputId, StatementId


class AppendOutput(NamedTuple):
    """Append these records; the decision is made. The answer is OutputAppended or OutputRefused."""

    output: OutputId
    records: tuple[CloudEvent, ...]


class ApplyStatement(NamedTuple):
    """Check and stage these records. The answer is StatementApplied or StatementRefused."""

    statement: StatementId
    records: tuple[CloudEvent, ...]


class CommitStatement(NamedTuple):
    """Append the staged records of this statement. The answer is StatementAppended."""

    statement: StatementId


class AbortStatement(NamedTuple):
    """Forget the staged records of this statement. There is no answer."""

    statement: StatementId


class OutputAppended(NamedTuple):
    """The records of an output are at these offsets."""

    output: OutputId
    offsets: tuple[int, ...]


class OutputRefused(NamedTuple):
    """The target does not exist any more."""

    output: OutputId
    reason: str


class StatementApplied(NamedTuple):
    """The target has staged the statement."""

    statement: StatementId


class StatementRefused(NamedTuple):
    """The target does not accept the statement."""

    statement: StatementId
    reason: str


class StatementAppended(NamedTuple):
    """The records of a statement are at these offsets."""

    statement: StatementId
    offsets: tuple[int, ...]


Carried = (
    AppendOutput
    | ApplyStatement
    | CommitStatement
    | AbortStatement
    | OutputAppended
    | OutputRefused
    | StatementApplied
    | StatementRefused
    | StatementAppended
)
