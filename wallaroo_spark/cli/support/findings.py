"""The findings of ``check``: the checked part, its state, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wallaroo_spark.cli.common import reason_of
from wallaroo_spark.errors import WallarooError

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One result of a check."""

    subject: str
    """The checked part, such as ``Redis`` or ``task slots``."""
    state: State
    """``ok``, ``problem`` (the receiver would not start or would not work), or ``note`` (information for a person)."""
    text: str
    """The result as one sentence, with the way out of a problem."""


def ok(subject: str, text: str) -> Finding:
    """A finding without a problem."""
    return Finding(subject, "ok", text)


def note(subject: str, text: str) -> Finding:
    """A finding for the information of a person."""
    return Finding(subject, "note", text)


def problem(subject: str, text: str) -> Finding:
    """A finding because of which a receiver would not start or would not work."""
    return Finding(subject, "problem", text)


def explained(subject: str, check: Iterator[Finding]) -> Iterator[Finding]:
    """The findings of a check; its error is a finding too, so the checks after it still run."""
    try:
        yield from check
    except Exception as error:
        # A check calls Spark, Redis clients and file systems, and each of them has errors of its own.
        yield of_error(subject, error)


def of_error(subject: str, error: Exception) -> Finding:
    """The finding of a check that has failed."""
    failed = "" if isinstance(error, WallarooError) else "the check failed: "
    return problem(subject, f"{failed}{reason_of(error)}")
