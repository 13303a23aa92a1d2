"""Properties of queries that Spark does not show: of one before it starts, and of those that run.

Before the start they are read from the DataStreamWriter: on classic Spark private fields of Java's object, on Spark
Connect fields of a protobuf message. Neither is a documented interface of Spark, so these functions return None (or
False) when the property cannot be read. The queries that run in a SparkContext, in whatever session, are found in
Java's objects; ``docs/decisions/any-query.md`` lists what is read of them. On Spark Connect a client cannot see them.
Source: ``docs/spark.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql.streaming.query import StreamingQuery

from wallaroo_spark.errors import one_line
from wallaroo_spark.runtime.spark_checks import classic_context
from wallaroo_spark.source import WallarooDataSource

log = one_line("wallaroo_spark.receiver")

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BATCHES = "MicroBatchExecution"
"""The class of a query that writes its offsets and commits itself, batch by batch."""
_ASYNCHRONOUS = "AsyncProgressTrackingMicroBatchExecution"


@dataclass(frozen=True)
class RunningQuery:
    """One run of a query, as it is while it runs."""

    query: Any
    """The query, as PySpark's ``StreamingQuery``."""
    run: str
    """Spark's id of the run."""
    checkpoint: str
    """The root of its checkpoint, as Spark resolves it."""
    temporary: bool
    """Whether Spark made the checkpoint for this run, and deletes it afterwards."""
    asynchronous: bool
    """Whether it tracks its progress asynchronously."""
    batches: bool
    """Whether it runs in micro-batches."""
    trigger: str
    """Its trigger, as Java shows it."""
    sources: tuple[Mapping[str, str], ...]
    """The options of each source that is a receiver's."""

    @property
    def receivers(self) -> set[str]:
        """The names of the receivers that it reads."""
        return {source["receiver"] for source in self.sources}

    def __str__(self) -> str:
        name = self.query.name
        return f"query {self.query.id}" + (f" ({name})" if name else "")


class RunningQueries:
    """Finds the running queries that read receivers. A query's plan is read once for each run."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._known: dict[str, RunningQuery | None] = {}

    @property
    def visible(self) -> bool:
        """Whether this process can see the queries."""
        return classic_context(self._spark) is not None

    def look(self) -> list[RunningQuery]:
        """The queries that run now, those that were seen first before the others."""
        if not self.visible:
            return []
        active = self._spark._jsparkSession.sharedState().activeStreamingQueries()
        executions = {}
        for query in _UUID.findall(str(active.keySet().toString())):
            execution = active.get(self._spark._jvm.java.util.UUID.fromString(query))
            if execution is not None:
                # A query that is started again has the same id, and another run.
                executions[str(execution.runId().toString())] = execution
        for run, execution in executions.items():
            if run not in self._known:
                self._known[run] = _readable(execution, run)
        self._known = {run: query for run, query in self._known.items() if run in executions}
        return [query for query in self._known.values() if query is not None and query.query.isActive]


def _readable(execution: Any, run: str) -> RunningQuery | None:
    """A query that reads receivers; None for any other query, and for one that cannot be read."""
    try:
        found = _run_of(execution, run)
    except Exception as error:
        log.warning("it is not known what the query of run %s reads, so no receiver adopts it: %s", run, error)
        return None
    return found if found.sources else None


def _run_of(execution: Any, run: str) -> RunningQuery:
    kind, base = str(execution.getClass().getSimpleName()), execution.getClass()
    while str(base.getSimpleName()) != "StreamExecution":
        base = base.getSuperclass()
    temporary = base.getDeclaredField("deleteCheckpointOnStop")
    temporary.setAccessible(True)
    return RunningQuery(
        StreamingQuery(execution),
        run,
        str(execution.resolvedCheckpointRoot()),
        bool(temporary.get(execution)),
        kind == _ASYNCHRONOUS,
        kind in (_BATCHES, _ASYNCHRONOUS),
        str(execution.trigger().toString()),
        tuple(sources_in(execution.analyzedPlan())),
    )


def sources_in(plan: Any) -> Iterator[Mapping[str, str]]:
    """The options of each source of a receiver in Java's logical plan."""
    leaves = plan.collectLeaves()
    for leaf in (leaves.apply(number) for number in range(leaves.size())):
        if leaf.getClass().getSimpleName() != "StreamingRelationV2":
            continue
        if WallarooDataSource.is_named(str(leaf.sourceName())) and leaf.extraOptions().get("receiver"):
            given = leaf.extraOptions()
            yield {str(name).lower(): str(given.get(name)) for name in given.keySet()}


T = TypeVar("T")


def option(writer: Any, name: str) -> str | None:
    """Return an option of a DataStreamWriter, the case of its name ignored; None if it is not set or not readable."""

    def of_message(message: Any) -> str | None:
        options = {given.lower(): str(value) for given, value in message.options.items()}
        return options.get(name.lower())

    def of_java(java_writer: Any) -> str | None:
        value = _field(java_writer, "extraOptions").get(name.lower())
        return str(value.get()) if value.isDefined() else None

    return _read("options", writer, of_message, of_java)


def runs_once(writer: Any) -> bool:
    """Whether the query has the trigger ``Once``; False when the trigger cannot be read."""

    def of_java(java_writer: Any) -> bool:
        return str(_field(java_writer, "trigger").toString()) == ONCE

    return bool(_read("trigger", writer, lambda message: bool(message.once), of_java))


def trigger(writer: Any) -> str:
    """The trigger of the query in words: ``every 1 s``, ``available now``, …; empty when it cannot be read."""

    def of_message(message: Any) -> str:
        kind = message.WhichOneof("trigger")
        return str(message.processing_time_interval) if kind == "processing_time_interval" else str(kind or "")

    def of_java(java_writer: Any) -> str:
        return str(_field(java_writer, "trigger").toString())

    return in_words(_read("trigger", writer, of_message, of_java) or "")


ONCE = "OneTimeTrigger"
"""The trigger ``Once``, as Java shows it."""
_TRIGGERS = {
    "ProcessingTimeTrigger(0)": "as soon as possible",
    ONCE: "once",
    "once": "once",
    "AvailableNowTrigger": "available now",
    "available_now": "available now",
}


def in_words(text: str) -> str:
    """A trigger in words, from the text that Java or Spark Connect has of it."""
    interval = re.fullmatch(r"ProcessingTimeTrigger\((\d+)\)", text)
    if interval and int(interval[1]):
        return f"every {int(interval[1]) / 1000:g} s"
    return _TRIGGERS.get(text, text)


_UNIT_SECONDS = {"s": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def interval_seconds(words: str) -> float:
    """The interval of a trigger in words; 0 for a trigger without one."""
    parts = re.findall(r"([\d.]+) (s|second|minute|hour|day)s?\b", words)
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def receivers_of(writer: Any) -> set[str] | None:
    """Return the names of the receivers that the query reads; None when its sources cannot be read."""

    def of_message(message: Any) -> set[str]:
        return {
            value
            for source in _data_sources(message.input)
            if WallarooDataSource.is_named(source.format)
            for name, value in source.options.items()
            if name.lower() == "receiver"
        }

    def of_java(java_writer: Any) -> set[str]:
        plan = _field(java_writer, "ds").queryExecution().analyzed()
        return {source["receiver"] for source in sources_in(plan)}

    return _read("sources", writer, of_message, of_java)


def _read(name: str, writer: Any, of_message: Callable[[Any], T], of_java: Callable[[Any], T]) -> T | None:
    """Read a property with the function for Connect's message or for Java's writer; None when that fails.

    The log tells ``name``, the name of the property.
    """
    try:
        if hasattr(writer, "_write_proto"):
            return of_message(writer._write_proto)
        return of_java(writer._jwrite)
    except Exception as error:
        log.debug("the %s of the DataStreamWriter cannot be read: %s", name, error)
        return None


def _field(java_object: Any, name: str) -> Any:
    field = java_object.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java_object)


def _data_sources(message: Any) -> Iterator[Any]:
    """Iterate over the streaming data sources in a relation of Spark Connect, at any depth of its tree."""
    if message.DESCRIPTOR.name == "Read" and message.is_streaming:
        yield message.data_source
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if isinstance(value, list) or hasattr(value, "__len__") else [value]:
            yield from _data_sources(part)
