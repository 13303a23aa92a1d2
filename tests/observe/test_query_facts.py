"""The facts on a query that only the driver knows: its batch, its last report, and why it has ended."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from wallaroo_spark.observe import query_facts
from wallaroo_spark.observe.query_facts import QueryFacts


class Query:
    """As much of a StreamingQuery of Spark Connect as is asked."""

    id, runId, name = "q", "r", None

    def __init__(self) -> None:
        self.isActive = True
        self.status = {"message": "Waiting for data to arrive"}
        self.error: Exception | None = None
        self.progress: dict[str, Any] | None = None

    @property
    def lastProgress(self) -> Any:
        if self.progress is None:
            return None
        return SimpleNamespace(json=json.dumps(self.progress))

    def exception(self) -> Exception | None:
        return self.error


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_facts, "LOOK_SECONDS", 0.0)


@pytest.fixture
def query() -> Query:
    return Query()


@pytest.fixture
def facts(query: Query) -> QueryFacts:
    found = QueryFacts()
    found.starting("file:/checkpoint", "as soon as possible")
    found.started(query)
    return found


def test_before_a_query_there_is_none() -> None:
    facts = QueryFacts()
    assert facts.look(None, None).state == "none"
    facts.starting("file:/checkpoint", "once")
    assert facts.look(None, None).state == "starting"
    facts.ended()
    assert facts.look(None, None).state == "none"


def test_a_batch_is_under_way_by_sparks_text_or_by_the_offset_log(facts: QueryFacts, query: Query) -> None:
    idle = facts.look(4)
    assert (idle.state, idle.committed_batch, idle.batch, idle.phase) == ("running", 4, None, "idle")

    by_log = facts.look(4, 5)
    assert (by_log.batch, by_log.phase) == (5, "writing")
    since = facts.look(4, 5).since
    assert since == by_log.since

    query.status = {"message": "Processing new data"}
    by_text = facts.look(5)
    assert (by_text.committed_batch, by_text.batch) == (5, 6)
    assert by_text.committed_at is not None


def test_a_commit_of_an_earlier_run_has_no_time(facts: QueryFacts) -> None:
    first = facts.look(40)

    assert (first.committed_batch, first.committed_at) == (40, None)


def test_the_last_report_gives_the_steps_and_the_greatest_lag(facts: QueryFacts, query: Query) -> None:
    query.progress = {
        "batchId": 7,
        "numInputRows": 12,
        "inputRowsPerSecond": 3.5,
        "durationMs": {"addBatch": 200, "triggerExecution": 250},
        "sources": [
            {"latestOffset": {"lag": {"rows": 5, "bytes": 500}}},
            {"latestOffset": json.dumps({"lag": {"rows": 9, "bytes": 90}})},
            {"latestOffset": "no JSON"},
            {"latestOffset": {"lag": {"rows": 1}}},
            {},
        ],
    }
    found = facts.look(None, None)

    assert (found.reported_batch, found.input_rows, found.input_rate) == (7, 12, 3.5)
    assert found.durations == {"addBatch": 200, "triggerExecution": 250}
    assert facts.lag == (9, 500)


def test_a_query_that_cannot_be_asked_keeps_its_last_facts(facts: QueryFacts, query: Query) -> None:
    query.status = None  # type: ignore[assignment]  # a lost connection to Spark

    assert facts.look(None, None).state == "running"


@pytest.mark.parametrize(
    ("error", "state", "kind"),
    [
        (None, "stopped", ""),
        (Exception("java.lang.IllegalStateException: the sink is away"), "failed", ""),
        (Exception("java.io.IOException: no space\n\tat o.a.s.sql.HDFSMetadataLog.write"), "failed", "checkpoint"),
        (Exception("wallaroo_spark.errors.CheckpointError: it is not ours"), "failed", "checkpoint"),
    ],
)
def test_a_query_that_has_ended_says_why(
    facts: QueryFacts, query: Query, error: Exception | None, state: str, kind: str
) -> None:
    query.status = {"message": "Processing new data"}
    facts.look(4)
    query.isActive, query.error = False, error

    found = facts.look(4, watcher_error="no rights")

    assert (found.state, found.error_kind, found.batch, found.phase) == (state, kind, None, "")
    assert bool(found.error) == (error is not None)
    assert found.watcher_error == "no rights"
    assert facts.look(4).state == state
