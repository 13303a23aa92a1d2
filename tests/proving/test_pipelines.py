"""Simulated histories of durable streams keep every promise, and a rule that is broken is found."""

from __future__ import annotations

from collections import Counter

import pytest

from proving.pipelines.mutants import MUTANTS
from proving.pipelines.world import World
from proving.simulator.engine.core import Violation

SEEDS = 10
BATCH = 5
LONG_SEEDS = 500
MOST_SEEDS = 60
"""Histories in which a broken rule has to show."""
FIRST_SEEDS = {
    "takes_acks_of_earlier_deliveries": 8,
    "accepts_incomplete_acks": 4,
    "draws_members_by_chance": 2,
    "forgets_the_rest_of_a_turn": 10,
    "asks_for_expired_records": 8,
    "delivers_expired_records": 9,
    "keeps_the_room_of_cancelled_instances": 8,
    "tries_for_ever": 12,
    "drops_dead_letters": 4,
}
"""The history that is tried first, because it showed the broken rule before; this saves time and changes no result."""


def run(seeds: range) -> Counter[str]:
    counts = Counter[str]()
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except Violation as violation:
            raise AssertionError(f"python -m proving.pipelines --start {seed} --seeds 1: {violation}") from violation
        counts.update(world.counts)
        counts.update(world.judge.counts)
    return counts


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_promise_is_kept(first: int) -> None:
    counts = run(range(first, first + BATCH))

    wanted: tuple[str, ...] = (
        "lost batches",
        "kill_gateway",
        "instances done",
        "group batches",
        "StorePointer",
        "WarnClient",
    )
    wanted += ("turns that ended at their limit", "add_partitions", "set_clock_back", "cursors that retention moved")
    assert {name: counts[name] for name in wanted if not counts[name]} == {}


@pytest.mark.long
def test_every_promise_is_kept_in_many_histories() -> None:
    counts = run(range(LONG_SEEDS))

    assert {name: counts[name] for name in ("instances failed", "instances cancelled") if not counts[name]} == {}


def test_a_seed_is_one_history() -> None:
    first, again = World(3), World(3)
    first.run()
    again.run()

    assert first.batches.stored == again.batches.stored
    assert first.judge.counts == again.judge.counts


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str) -> None:
    def shows(seed: int) -> bool:
        try:
            World(seed).run()
        except (AssertionError, LookupError, ValueError):
            return True
        return False

    with MUTANTS[name]():
        found = any(shows(seed) for seed in (FIRST_SEEDS.get(name, 0), *range(MOST_SEEDS)))

    assert found, f"{MUTANTS[name].__doc__} No history out of {MOST_SEEDS} shows it."
