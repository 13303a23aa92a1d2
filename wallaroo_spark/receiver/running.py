"""The queries that run in a SparkContext, in whatever session, and what each of them reads.

Java's objects of running queries are no documented interface of Spark; ``docs/decisions/any-query.md`` lists what is
read of them. On Spark Connect a client cannot see them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
        found = _read(execution, run)
    except Exception as error:
        log.warning("it is not known what the query of run %s reads, so no receiver adopts it: %s", run, error)
        return None
    return found if found.sources else None


def _read(execution: Any, run: str) -> RunningQuery:
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
