"""The Python processes that Spark starts on executors: what they keep between tasks, and their log.

Such a process runs many tasks of Spark, one after another, and spends no time between two of them. Its log is lines
with time, level and slot on standard error. Nothing configures logging there, so without this the log would have
warnings only, without their time. Spark stores the standard error as the executor's ``stderr``.
Source: ``docs/decisions/price-of-a-batch.md``, ``docs/monitoring.md#logs``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame, Row


QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux has this option, other systems do not."""
_FULL_COLLECTION = 2
_INTERRUPTION = re.compile(r"java\.\S*(InterruptedException|InterruptedIOException|ClosedByInterruptException)")
_OF_PY4J = "py4j.protocol.Py4JJavaError: An error occurred while calling"
"""How Spark tells an interrupted call from Python, and stops, from any other error, which is the query's."""
_RARELY = (100_000, 20, 20)
"""New objects after which a service looks for cyclic garbage among the newest, and how many of these looks are one at
older objects. Python's own are 700, 10 and 10. A choice: it bounds garbage to some 20 MB."""


class TaskProcess:
    """What this process keeps from one task to the next."""

    def __init__(self) -> None:
        self._modules = 0
        self._to_spark: socket.socket | None = None

    def prepare(self) -> TaskContext | None:
        """Call this in a task, in the thread that Spark runs it in; it returns Spark's context of the task.

        Outside of tasks it does nothing, and returns None.

        All objects that exist now are excluded from garbage collection: after each task, PySpark's daemon runs a full
        collection in the task's process before the process takes the next task. It visits each object of each module
        that Spark, Arrow and this package have loaded, and frees hardly any of them.

        The first piece of the next task is acknowledged at once. Over TCP Spark sends a task in two pieces and holds
        the second back until the first is acknowledged (Nagle's algorithm); the kernel delays the acknowledgement by
        40 ms in a connection on which this process has answered lately.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return None
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()
        if self._to_spark is None and QUICKACK is not None:
            self._to_spark = _socket_to_spark(sys._getframe())
            if self._to_spark is not None:
                with contextlib.suppress(OSError):
                    self._to_spark.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                gc.callbacks.append(self._collected)
        return context

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """The full collection is the last that PySpark's daemon does before it waits for the next task."""
        if phase == "stop" and info["generation"] == _FULL_COLLECTION and self._to_spark is not None:
            assert QUICKACK is not None
            with contextlib.suppress(OSError):
                self._to_spark.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)


TASK_PROCESS = TaskProcess()
"""This process."""


def in_arrow(
    df: DataFrame, work: Callable[[TaskContext, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], columns: str
) -> DataFrame:
    """The rows, with these columns, that ``work`` makes of each partition of ``df``.

    It is ``DataFrame.mapInArrow`` for columns of all names: that one does not find a name with a dot. Raises
    :class:`ConfigurationError` for two columns of a name, and for a type that Arrow does not have in Python.
    """
    names = df.columns
    for column in df.schema:
        problem = ""
        if names.count(column.name) > 1:
            problem = f"the batch has {names.count(column.name)} columns {column.name}: rename all but one"
        elif _has_months(column.dataType):
            kind = column.dataType.simpleString()
            problem = (
                f"column {column.name} is {kind}, and Python has no interval of months: cast it to int, the number of "
                "months, or to string"
            )
        if problem:
            raise ConfigurationError(problem, code="batch-columns", column=column.name)

    def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TASK_PROCESS.prepare()
        assert context is not None
        yield from work(context, (piece.rename_columns(names) for piece in rows))

    return df.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(task, columns)


def collected(df: DataFrame) -> list[Row]:
    """The rows of ``df``, in a function of ``foreachBatch``.

    Raises ``InterruptedError`` when the query is stopped meanwhile. Spark looks for the reason in the text of that
    error, by a pattern that recurses for each character: the ten thousand of its own error are too many for the stack
    of a query, which then ends in a StackOverflowError of a thousand lines. Source: ``docs/spark.md``.
    """
    from py4j.protocol import Py4JJavaError

    try:
        return df.collect()
    except Py4JJavaError as error:
        if not _INTERRUPTION.search(str(error)):
            raise
    raise InterruptedError(f"the query is stopped: {_OF_PY4J} collect: java.lang.InterruptedException")


def _has_months(kind: Any) -> bool:
    """Whether a type of Spark is, or has within it, an interval of months."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return any(_has_months(field.dataType) for field in kind)
    parts = (getattr(kind, name, None) for name in ("elementType", "keyType", "valueType"))
    return isinstance(kind, types.YearMonthIntervalType) or any(map(_has_months, filter(None, parts)))


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cyclic garbage rarely in a process that serves for long.

    A service has many live objects and few cycles, and each collection looks at all objects of its generation: with
    10,000 active streams they took half of a worker's processor time.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Do without the collector of cyclic garbage: a turn has many live objects and no cycles, and each collection would
    look at all of them. It took a third of the CPU of a turn with 20,000 records."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _socket_to_spark(frame: FrameType | None) -> socket.socket | None:
    """The TCP connection on which PySpark's daemon gets its tasks; None outside of a task, and on a Unix socket."""
    while frame is not None:
        found = frame.f_locals.get("sock") if frame.f_code.co_name == "worker" else None
        if isinstance(found, socket.socket) and found.family in (socket.AF_INET, socket.AF_INET6):
            return found
        frame = frame.f_back
    return None


LEVELS = ("auto", "debug", "info", "warning", "error")
"""The values of the option ``logLevel``."""
_LOCAL = re.compile(r"local(\[.*\])?$")
"""Spark's masters without executors of their own. ``local-cluster`` has them, with files for their standard error."""
FORMATS = ("text", "json")
"""The values of the option ``logFormat``."""
HIDDEN = "***"
"""Stands in a line in place of a secret."""
SHORTEST_SECRET = 4
"""Minimum length in characters of a secret that is hidden. A choice: a shorter text occurs in ordinary words."""


@dataclass(frozen=True)
class LogSettings:
    """The format and the least level of log lines, and the secrets to hide in them. It is pickled."""

    receiver: str
    """Name of the receiver, or of the application of durable streams."""
    level: str = "info"
    """The least level: ``debug``, ``info``, ``warning`` or ``error``."""
    format: str = "text"
    """``text``, or ``json`` for a JSON object in each line."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts that must not be in any line: the receiver's secrets."""
    names: tuple[str, str] = ("receiver", "slot")
    """The names of the fields of JSON that have the receiver and the slot; of a gateway ``application`` and
    ``gateway``."""


def secrets_of(registry: str, *others: str) -> tuple[str, ...]:
    """The texts to hide: the password in the registry's URL, and other secrets; short ones are left out."""
    try:
        password = urlsplit(registry).password or ""
    except ValueError:
        password = registry
    found = dict.fromkeys((password, *others))
    return tuple(sorted((one for one in found if len(one) >= SHORTEST_SECRET), key=len, reverse=True))


def least_level(level: str, master: str) -> str:
    """The level for a value of the option ``logLevel`` and Spark's master; an empty master is not known.

    In local mode the workers' standard error is that of the user's program, so ``auto`` has warnings only there.
    """
    if level != "auto":
        return level
    return "warning" if _LOCAL.match(master) else "info"


class LineFormatter(logging.Formatter):
    """Formats a record as one line of text or of JSON.

    ``slot`` is the slot, or the name of the gateway; None for a process that serves no slot.
    """

    def __init__(self, settings: LogSettings, slot: int | str | None) -> None:
        super().__init__()
        self._settings = settings
        self._slot = slot

    def format(self, record: logging.LogRecord) -> str:
        """The line. A traceback follows a line of text, and is a field of a line of JSON."""
        line = self._json(record) if self._settings.format == "json" else self._text(record)
        return hide(line, self._settings.secrets)

    def _text(self, record: logging.LogRecord) -> str:
        place = self._settings.receiver if self._slot is None else f"{self._settings.receiver}/{self._slot}"
        line = f"{_time(record)} {record.levelname} {place} {record.name}: {record.getMessage()}"
        return "\n".join(filter(None, (line, self._trace(record))))

    def _json(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            self._settings.names[0]: self._settings.receiver,
            self._settings.names[1]: self._slot,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := self._trace(record):
            fields["error"] = trace
        return json.dumps(fields, ensure_ascii=False)

    def _trace(self, record: logging.LogRecord) -> str:
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return record.exc_text or ""


def hide(line: str, secrets: Collection[str]) -> str:
    """The line with ``***`` in place of each secret."""
    for secret in secrets:
        line = line.replace(secret, HIDDEN)
    return line


def _time(record: logging.LogRecord) -> str:
    """When the record was made, in UTC, as ISO 8601 with milliseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


class _OurHandler(logging.StreamHandler[Any]):
    """The handler that :func:`log_to_stderr` has added, so that another call replaces it."""


def log_to_stderr(settings: LogSettings, slot: int | str | None = None) -> None:
    """Write this package's log to standard error, each line once, also when an earlier task of the process has called
    this."""
    logger = logging.getLogger("wallaroo_spark")
    handler = _OurHandler(sys.stderr)
    handler.setFormatter(LineFormatter(settings, slot))
    logger.handlers = [*(known for known in logger.handlers if not isinstance(known, _OurHandler)), handler]
    logger.setLevel(settings.level.upper())
