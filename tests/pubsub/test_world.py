"""Histories of a topic keep every promise, and a rule that is broken is found out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.pubsub.audience import Violation
from tests.pubsub.mutants import MUTANTS
from tests.pubsub.world import World
from wallaroo_spark.pubsub.messages import Why

SEEDS = 120
BATCH = 30
MOST_SEEDS = 100
"""Histories in which a broken rule has to show."""

HARDER: dict[str, dict[str, Any]] = {"forgets_times_that_are_not_retained": {"product": True, "retain": 3}}
"""The settings of histories in which a rule matters."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_epoch_is_seen_whole_or_not_at_all(first: int) -> None:
    counts, ends = Counter[str](), Counter[str]()
    for seed in range(first, first + BATCH):
        world = World(seed)
        try:
            world.run()
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
        counts.update(world.counts)
        ends.update(one.ended for one in world.subscribers)

    assert min(counts[name] for name in ("commit", "cut", "kill", "replace", "restart", "doze", "arrive")) > 0
    assert min(ends[why] for why in ("", "left", Why.SLOW, Why.NOT_KEPT)) > 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str) -> None:
    def shows(seed: int) -> bool:
        try:
            World(seed, **HARDER.get(name, {})).run()
        except AssertionError:
            return True
        return False

    with MUTANTS[name]():
        found = any(shows(seed) for seed in range(MOST_SEEDS))

    assert found, f"{MUTANTS[name].__doc__} No history out of {MOST_SEEDS} shows it."


def test_a_seed_is_one_history() -> None:
    first, again = World(7), World(7)
    first.run()
    again.run()

    assert (first.counts, first.truth) == (again.counts, again.truth)
