"""The cause of a failed Spark job: a short text of its error, and whether another submission can succeed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from wallaroo_spark.errors import ConfigurationError, split_code
from wallaroo_spark.extras import command

_ERROR_CHARACTERS = 500
"""The most characters of the short text. A choice: some lines of a terminal."""
_OWN_CHARACTERS = 1500
"""The same for an error of this package, whose end names the remedy. A choice: paths of 400 characters are whole."""
_LOST_TASK = re.compile(r"^.*Job aborted due to stage failure: .*?: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) ")
"""Spark's words around the error of a task, up to the executor in parentheses."""
_PLACE = re.compile(r"^\((\S+ executor \S+)\): (?:org\.apache\.spark\.SparkException: )?(.*)$")
"""The executor of a lost task, and its error without the class that says nothing."""
_ADVICE = re.compile(r"\.? Consider setting '\S*faulthandler\S* .*$")
"""Spark's advice on how to get a Python traceback of a crash."""
_EMPTY_CLASSES = re.compile(
    r"\b(?:wallaroo_spark\.errors\.\w+|(?:\w+\.)+(?:SparkException|PythonException|StreamingQueryException)): (?=\S)"
)
"""Classes in front of an error that say nothing."""
_PACKAGE = re.compile(r"\b(?:[a-z]\w*\.)+(?=[A-Z]\w*(?:Exception|Error)\b)")
"""The package of the class of an error."""
_CRASHED = re.compile(r"Python worker exited unexpectedly \(crashed\)")
_EXITED = re.compile(r"ExecutorLostFailure \(executor \S+ exited .*?\) Reason: .*?exit(?:ed with|) code:? (\d+).*$")
"""Spark's words for a process that has died."""
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
_NO_PROCESS = "Error from python worker:"
"""Spark's words in front of what a Python process printed that did not start; two further lines end it."""
_PATH_OF_PROCESS = "PYTHONPATH was:"
_SLOW_PROCESS = "Python worker failed to connect back"
"""Spark's words for a process that did not start within its limit of ten seconds."""


def in_short(error: Exception) -> str:
    """Return the line of a Spark error that names the cause, without the lines of its stack traces.

    Classes of Spark and of this package are left out, and packages of others. The order of preference is a missing
    package (with a hint how to install it), an error of this package, a Java exception, with the one that caused it
    first of all, and the first line. A line has at most 500 characters, that of an error of this package 1500, with its
    code. Of a failed task, the text begins with its executor.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lacking = [line for line in lines if _LACKING.match(line)]
    ours = [line for line in lines if line.startswith("wallaroo_spark.")]
    causes = [line for line in lines if _CAUSE.search(line)]
    # The error of a Python process follows behind its traceback, and that of Java behind Py4J's words.
    causes = [line for line in causes if not line.endswith((_FOLLOWS, _TRACEBACK)) and _CALLING not in line] or causes
    text = (lacking[-1:] or ours[-1:] or causes[:1] or lines[:1] or [repr(error)])[0]
    if not lacking and not ours:
        text += _of_process(lines)
    text = _shortened(_of_task(text.removeprefix(_CAUSED_BY).lstrip(": ")))
    first = [_shortened(line.removeprefix(_CAUSED_BY)) for line in causes if line.startswith(_CAUSED_BY)][-1:]
    if not lacking and not ours and first and first[0] not in text:
        text = f"{text}; its first cause: {first[0]}"
    if text == _CLOSED:
        text += ": the process of Spark at the other end has closed the connection; its error is in the executor's log"
    if lacking:
        text += (
            f"; run {command(['worker'])} where Spark's Python is on every node (PYSPARK_PYTHON), "
            "or ship it with --archives"
        )
    return text


def _of_process(lines: Sequence[str]) -> str:
    """Why a Python process of Spark's did not start, behind a class without a text; empty when it did."""
    if _NO_PROCESS not in lines:
        return ""
    printed = list(takewhile(lambda line: line != _PATH_OF_PROCESS, lines[lines.index(_NO_PROCESS) + 1 :]))
    return f" Spark's Python did not start: {printed[-1]}" if printed else ""


def _of_task(text: str) -> str:
    """The text without Spark's words around the error of a task."""
    found = _PLACE.match(_LOST_TASK.sub("", text))
    return f"{found[1]}: {found[2]}" if found else text


def _shortened(text: str) -> str:
    """The text without classes and advice of Spark, and not too long; a process that has died has its signal."""
    most = _OWN_CHARACTERS if text.startswith("wallaroo_spark.") else _ERROR_CHARACTERS
    text = _CRASHED.sub("the Python process was killed or has crashed (out of memory?)", _ADVICE.sub("", text))
    return _cut(_PACKAGE.sub("", _EMPTY_CLASSES.sub("", _EXITED.sub(_death, text))), most)


def _death(found: re.Match[str]) -> str:
    signal = int(found[1]) - 128
    if signal <= 0:
        return f"its process ended with exit status {found[1]}"
    return f"its process was killed by signal {signal}" + (" (out of memory?)" if signal == 9 else "")


def _cut(text: str, most: int) -> str:
    """At most so many characters of a text; the last word is whole, and the code of an error of this package stays."""
    if len(text) <= most:
        return text
    code = split_code(text)[1]
    end = f" … [{code}]" if code else " …"
    short = text[: most - len(end)]
    return (short.rpartition(" ")[0] or short) + end


def is_permanent(error: Exception) -> bool:
    """Whether a job will fail again until somebody changes something: an option, a file, a package, a port."""
    return any(_LACKING.match(line.strip()) or _REFUSED.match(line.strip()) for line in str(error).splitlines())


def is_slow_start(error: BaseException | str) -> bool:
    """Whether a job or a query failed because a process of Spark did not start in time, as on a loaded machine."""
    return _SLOW_PROCESS in str(error)
