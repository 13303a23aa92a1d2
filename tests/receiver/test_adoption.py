"""The adopter's looks: which query is adopted, what is published, and that a look counts only when it is complete."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from wallaroo_spark.errors import ConfigurationError, RegistryError
from wallaroo_spark.receiver.adoption import Adopter
from wallaroo_spark.receiver.spark_queries import RunningQuery
from wallaroo_spark.registry import NO_QUERY


class Query:
    """A query as PySpark shows it."""

    def __init__(self, number: int) -> None:
        self.id, self.name = f"id-{number}", ""


def running(number: int) -> RunningQuery:
    sources = ({"receiver": "orders"},)
    return RunningQuery(Query(number), f"run-{number}", "/checkpoint", False, False, True, "", sources)


class Stage:
    """A receiver that feeds ``state``, beside the queries ``runs``, and adopts what ``outcomes`` says."""

    def __init__(self) -> None:
        self.state = NO_QUERY
        self.runs: list[RunningQuery] = []
        self.outcomes: dict[str, Any] = {}
        self.asked: list[str] = []
        self.published: list[tuple[str, str]] = []
        self.adopter = Adopter("orders", None, lambda: self.state, self.reads, self.adopt, self.publish)
        queries: Any = self
        self.adopter._queries = queries

    visible = True

    def look(self) -> list[RunningQuery]:
        return self.runs

    def reads(self, query: RunningQuery) -> bool:
        return query.run != "run-0"

    def adopt(self, query: RunningQuery) -> bool:
        self.asked.append(query.run)
        outcome = self.outcomes.get(query.run, True)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            self.state = query.query.id
        return bool(outcome)

    def publish(self) -> None:
        self.published.append((self.state, self.adopter.refused))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_first_query_that_reads_the_receiver_is_adopted_and_published(stage: Stage) -> None:
    stage.runs = [running(0), running(1), running(2)]
    stage.adopter.look()
    stage.adopter.look()

    assert stage.asked == ["run-1"]
    assert stage.published == [("id-1", ""), ("id-1", "")]
    assert stage.adopter.looked > 0


def test_a_refused_run_is_not_asked_again_and_the_next_one_is(stage: Stage) -> None:
    stage.runs = [running(1)]
    stage.outcomes["run-1"] = ConfigurationError("it is odd", code="query-not-started")
    stage.adopter.look()
    stage.adopter.look()
    assert stage.asked == ["run-1"]
    assert stage.adopter.refused == "query id-1 was not adopted: it is odd"

    stage.runs = [running(1), running(2)]
    stage.adopter.look()
    assert (stage.state, stage.adopter.refused) == ("id-2", "")
    # What is over is forgotten.
    stage.state, stage.runs = NO_QUERY, []
    stage.adopter.look()
    assert stage.published[-1] == (NO_QUERY, "")


@pytest.mark.parametrize(
    "outcome",
    [
        False,
        RegistryError("it is away", code="registry-away"),
        ConfigurationError("it is starting", code="receiver-busy"),
    ],
    ids=["starting or stopping", "no registry", "another receiver is busy"],
)
def test_a_look_that_was_hindered_does_not_count(stage: Stage, outcome: Any) -> None:
    stage.runs, stage.outcomes["run-1"] = [running(1)], outcome
    with contextlib.suppress(RegistryError, ConfigurationError):
        stage.adopter.look()
    assert (stage.adopter.looked, stage.adopter.refused, stage.published) == (0.0, "", [])
    stage.outcomes.clear()
    stage.adopter.look()
    assert stage.state == "id-1"


def test_where_the_queries_cannot_be_seen_a_receiver_says_so(stage: Stage) -> None:
    stage.visible = False
    stage.adopter.look()

    assert stage.asked == []
    assert "Spark Connect does not tell a client where the checkpoint" in stage.adopter.refused
