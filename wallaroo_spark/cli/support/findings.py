"""The findings of ``check``: the checked part, its state, and the way out; and its questions to Spark's executors.

Those are about their packages, their clock, and whether they reach the registry. An executor may lack packages, so this
module imports none that it can do without.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from wallaroo_spark.cli.common import reason_of
from wallaroo_spark.errors import WallarooError

if TYPE_CHECKING:
    import pandas as pd


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


PACKAGES = ("wallaroo-spark", "pyarrow", "pandas", "numpy", "cryptography", "redis", "tenacity")
"""The distributions that a worker imports."""
PRESENT = "present"
"""Shown as the version of a package without metadata, such as one that --py-files has shipped."""
SPREAD_SECONDS = 0.3
"""Seconds for which each task runs, so that Spark starts the tasks on all executors. A choice."""


def ask(
    spark: Any, tasks: int, registry: str, receiver: str, packages: Sequence[str] = PACKAGES
) -> list[dict[str, Any]]:
    """Run ``tasks`` tasks and return the answer of each, one for each Python process that has answered.

    ``packages`` are the distributions that they look for. ``registry`` is the resolved URL of the registry, where the
    tasks look up ``receiver``; empty: they do not try.
    """

    def answer(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pandas as pd

        for _ in parts:
            pass
        time.sleep(SPREAD_SECONDS)
        yield pd.DataFrame({"answer": [json.dumps(look(registry, receiver, packages))]})

    rows = spark.range(0, tasks, 1, tasks).mapInPandas(answer, "answer string").collect()
    answers = [json.loads(row.answer) for row in rows]
    return list({(one["host"], one["pid"]): one for one in answers}.values())


def look(registry: str, receiver: str, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """The answer of one process."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "time": time.time(),
        "packages": {name: _version(name) for name in packages},
        "registry": _reach(registry, receiver) if registry else "",
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return PRESENT if find_spec(name.replace("-", "_")) else ""


def _reach(url: str, receiver: str) -> str:
    """Why this process does not reach the registry; empty when it does."""
    from wallaroo_spark.errors import WallarooError
    from wallaroo_spark.registry import Registry

    try:
        with Registry(url, receiver, attempts=1) as found:
            found.ping()
    except WallarooError as error:
        return error.message
    return ""
