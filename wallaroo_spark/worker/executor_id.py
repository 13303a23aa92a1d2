"""Spark's id of the executor in which a worker runs.

Spark tells it to no Python process. Some cluster managers set it in the environment; otherwise it is an argument of the
JVM that has started this process.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_VARIABLE = "SPARK_EXECUTOR_ID"
_ARGUMENT = "--executor-id"
_DRIVER = "org.apache.spark.deploy.SparkSubmit"
_ANCESTORS = 5
"""How many processes above this one are looked at. Spark's daemon and the JVM are the next two."""


@functools.cache
def executor_id(proc: Path = Path("/proc")) -> str:
    """The id of the executor; ``driver`` in local mode, empty where it is not known.

    ``proc`` is the folder of the processes, for tests.
    """
    if given := os.environ.get(_VARIABLE, ""):
        return given
    pid = os.getpid()
    for _ in range(_ANCESTORS):
        try:
            arguments = (proc / str(pid) / "cmdline").read_text(errors="replace").split("\0")
            status = (proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            return ""
        if _ARGUMENT in arguments[:-1]:
            return arguments[arguments.index(_ARGUMENT) + 1]
        if _DRIVER in arguments:
            return "driver"
        # The name in parentheses may contain spaces and parentheses.
        pid = int(status.rpartition(")")[2].split()[1])
    return ""
