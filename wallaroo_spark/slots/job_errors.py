"""Why a Spark job failed: what matters out of its error, and whether another submission can mend it."""

from __future__ import annotations

import re

from wallaroo_spark.errors import ConfigurationError

_ERROR_CHARACTERS = 500
_LACKING = re.compile(r"(ModuleNotFound|Import)Error: ")
"""What Python says of a package that it has not."""
_REFUSED = re.compile(re.escape(f"{ConfigurationError.__module__}.{ConfigurationError.__qualname__}: "))
"""How Python shows what this package raises of its options; Spark hands it on as text."""


def in_short(error: Exception) -> str:
    """What happened, out of a Spark error's many lines about where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lacking = [line for line in lines if _LACKING.match(line)]
    ours = [line for line in lines if line.startswith("wallaroo_spark.")]
    causes = [line.removeprefix("Caused by: ") for line in lines if re.search(r"(Exception|Error): \S", line)]
    text = (lacking[-1:] or ours[-1:] or causes[:1] or lines[:1] or [repr(error)])[0].lstrip(": ")[:_ERROR_CHARACTERS]
    if lacking:
        text += (
            "; install pip install 'wallaroo-spark[worker]' where Spark's Python is on every node (PYSPARK_PYTHON), "
            "or ship it with --archives"
        )
    return text


def is_permanent(error: Exception) -> bool:
    """Whether a job failed by what stays as it is until somebody mends it: an option, a file, a package, a port."""
    return any(_LACKING.match(line.strip()) or _REFUSED.match(line.strip()) for line in str(error).splitlines())
