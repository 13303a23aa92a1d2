"""Tokens of a client whose worker has died: what the next worker answers, where rows were given up."""

from __future__ import annotations

import pytest

from tests.doors.ground_bench import GroundBench, key, messages
from wallaroo_spark.doors.http import tokens
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.references import PlannedRange
from wallaroo_spark.worker.machine import events as e

INSTANCE = "http/shop-1"


@pytest.fixture
def given_up() -> GroundBench:
    """Token 40 is committed, 41 has come again, and the batch went on without 42."""
    bench = GroundBench()
    bench.bench.rewind({key(): 40}, batch=3)
    bench.want(PlannedRange(key(), 40, 42))
    bench.tick(0.0)
    tokens.send(bench.ground, INSTANCE, bench.stream(), messages("41"), 41)
    bench.settle()
    bench.tick(10.0)
    bench.tick(11.0)
    bench.bench.commit({key(): 42})
    bench.settle()
    return bench


def test_a_token_that_was_given_up_is_refused_and_others_are_not(given_up: GroundBench) -> None:
    stream = given_up.stream()

    assert tokens.send(given_up.ground, INSTANCE, stream, messages("41"), 41).kept
    with pytest.raises(Problem) as refused:
        tokens.send(given_up.ground, INSTANCE, stream, messages("42"), 42)
    assert refused.value.code == "http-token-given-up"
    assert tokens.send(given_up.ground, INSTANCE, stream, messages("43"), 43).kept is None


def test_the_next_worker_is_told_with_the_references_of_the_instance(given_up: GroundBench) -> None:
    recorded = given_up.bench.state.connections.following.given_up
    bench = GroundBench()
    bench.bench.rewind({key(): 42}, batch=4)
    stream = bench.stream()
    bench.bench.state.handle(e.Committed(bench.bench.epoch, 4, {}, given_up=tuple(recorded.values())))

    with pytest.raises(Problem) as refused:
        tokens.send(bench.ground, INSTANCE, stream, messages("42"), 42)
    assert refused.value.code == "http-token-given-up"


def test_a_program_that_starts_again_is_not_told_that_a_token_was_committed_that_was_given_up(
    given_up: GroundBench,
) -> None:
    assert tokens.committed(given_up.ground, given_up.client(INSTANCE), "orders") == 41

    tokens.send(given_up.ground, INSTANCE, given_up.stream(), messages("43"), 43)
    given_up.settle()
    given_up.bench.run_batch()

    assert tokens.committed(given_up.ground, given_up.client(INSTANCE), "orders") == 43


def test_a_stream_of_which_all_was_given_up_has_no_committed_token() -> None:
    bench = GroundBench()
    bench.want(PlannedRange(key(), None, 2))
    bench.tick(0.0)
    bench.tick(10.0)
    bench.tick(11.0)
    bench.bench.commit({key(): 2})
    bench.settle()

    assert tokens.committed(bench.ground, bench.client(INSTANCE), "orders") is None
    assert tokens.committed(bench.ground, bench.client(INSTANCE), "others") is None
