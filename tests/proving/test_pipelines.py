"""Simulated histories of durable streams keep every promise, and a rule that is broken is found."""

from __future__ import annotations

from collections import Counter

import pytest

from proving.pipelines.mutants import MUTANTS
from proving.pipelines.world import World
from proving.simulator.engine.core import Violation

SEEDS = 20
LONG_SEEDS = 500
MOST_SEEDS = 120
"""Histories in which a broken rule has to show."""
FIRST_SEEDS = {
    "asks_for_expired_records": 117,
    "delivers_expired_records": 11,
    "keeps_the_room_of_cancelled_instances": 13,
    "remembers_ids_of_deleted_streams": 7,
    "writes_delayed_records_early": 11,
    "waits_for_the_time_before_the_clock_was_set_back": 13,
    "keeps_ids_from_added_partitions": 24,
    "keeps_the_limit_of_an_older_declaration": 8,
    "begins_schedules_anew_with_each_version": 11,
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
        counts.update(world.judge.hands.counts)
    return counts


def test_every_promise_is_kept() -> None:
    counts = run(range(SEEDS))

    wanted: tuple[str, ...] = (
        "lost batches",
        "kill_gateway",
        "instances done",
        "group batches",
        "StorePointer",
        "WarnClient",
    )
    wanted += (
        "turns that ended at their limit",
        "declare_stream",
        "set_clock_back",
        "cursors that retention moved",
        "instances failed",
    )
    wanted += (
        "deliveries taken at their time limit",
        "deliveries taken by an operator",
        "extensions",
        "records set aside by groups",
        "group pause",
        "group resume",
        "group move",
        "group delete",
        "events of the schedule",
    )
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
