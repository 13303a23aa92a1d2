"""The cause of a failed Spark job: a short text of its error, and whether another submission can succeed."""

from __future__ import annotations

import re

from wallaroo_spark.errors import ConfigurationError

_ERROR_CHARACTERS = 500
"""The most characters of the short text. A choice: some lines of a terminal."""
_LOST_TASK = re.compile(r"^.*Job aborted due to stage failure: .*?: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) ")
"""Spark's words around the error of a task, up to the executor in parentheses."""
_PLACE = re.compile(r"^\((\S+ executor \S+)\): (?:org\.apache\.spark\.SparkException: )?(.*)$")
"""The executor of a lost task, and its error without the class that says nothing."""
_ADVICE = re.compile(r"\.? Consider setting '\S*faulthandler\S* .*$")
"""Spark's advice on how to get a Python traceback of a crash."""
_FOLLOWS = "from the Python worker:"
"""The end of a line of Spark's behind which the traceback and the error of a Python process stand."""
_CAUSED_BY = "Caused by: "
"""The start of a line of Java's that names the cause of the error above it."""
_CALLING = "Py4JJavaError: An error occurred while calling"
"""Py4J's words in front of an error of Java."""
_TRACEBACK = "Traceback (most recent call last):"
_CAUSE = re.compile(r"(Exception|Error): \S|^\w+(Exception|Error)$")
"""A line that names an error, also one without a text."""
_CLOSED = EOFError.__name__
"""The line by which Python reports that Java has closed a connection, for example because it could not write state."""
_LACKING = re.compile(r"(ModuleNotFound|Import)Error: ")
"""The start of the line by which Python reports a missing package."""
_REFUSED = re.compile(re.escape(f"{ConfigurationError.__module__}.{ConfigurationError.__qualname__}: "))
"""The start of the line by which Python reports a ConfigurationError; Spark passes a task's error on as text."""
_SLOW_PROCESS = "Python worker failed to connect back"
"""Spark's words for a process that did not start within its limit of ten seconds."""


def in_short(error: Exception) -> str:
    """Return the line of a Spark error that names the cause, without the lines of its stack traces.

    The order of preference is a missing package (with a hint how to install it), an error of this package, a Java
    exception, with the one that caused it first of all, and the first line. A line has at most 500 characters. Of a
    failed task, the text begins with its executor.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lacking = [line for line in lines if _LACKING.match(line)]
    ours = [line for line in lines if line.startswith("wallaroo_spark.")]
    causes = [line for line in lines if _CAUSE.search(line)]
    # The error of a Python process follows behind its traceback, and that of Java behind Py4J's words.
    causes = [line for line in causes if not line.endswith((_FOLLOWS, _TRACEBACK)) and _CALLING not in line] or causes
    text = (lacking[-1:] or ours[-1:] or causes[:1] or lines[:1] or [repr(error)])[0]
    text = _cut(_of_task(text.removeprefix(_CAUSED_BY).lstrip(": ")))
    first = [line.removeprefix(_CAUSED_BY) for line in causes if line.startswith(_CAUSED_BY)][-1:]
    if not lacking and not ours and first and first[0] not in text:
        text = f"{text}; its first cause: {_cut(first[0])}"
    if text == _CLOSED:
        text += ": the process of Spark at the other end has closed the connection; its error is in the executor's log"
    if lacking:
        text += (
            "; install pip install 'wallaroo-spark[worker]' where Spark's Python is on every node (PYSPARK_PYTHON), "
            "or ship it with --archives"
        )
    return text


def _of_task(text: str) -> str:
    """The text without Spark's words around the error of a task."""
    found = _PLACE.match(_LOST_TASK.sub("", text))
    return _ADVICE.sub("", f"{found[1]}: {found[2]}") if found else text


def _cut(text: str) -> str:
    """At most _ERROR_CHARACTERS of a text; the last word is whole."""
    if len(text) <= _ERROR_CHARACTERS:
        return text
    return f"{text[: _ERROR_CHARACTERS - 2].rpartition(' ')[0] or text[: _ERROR_CHARACTERS - 2]} …"


def is_permanent(error: Exception) -> bool:
    """Whether a job will fail again until somebody changes something: an option, a file, a package, a port."""
    return any(_LACKING.match(line.strip()) or _REFUSED.match(line.strip()) for line in str(error).splitlines())


def is_slow_start(error: Exception | str) -> bool:
    """Whether a job or a query failed because a process of Spark did not start in time, as on a loaded machine."""
    return _SLOW_PROCESS in str(error)
