"""Simulated histories keep every promise; a history can be had again; and a rule that is broken is found out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from proving.simulator.door_mutants import DOOR_MUTANTS
from proving.simulator.mutants import MUTANTS, mutated
from proving.simulator.run import simulate
from tests.conftest import ROOT

SEEDS = 200
BATCH = 25
FEW_SEEDS = 100
"""Histories without ``--long``."""
MOST_SEEDS = 400
"""Histories in which a broken rule has to show."""

FORGETS: dict[str, Any] = {
    "message_ids": "increasing",
    "retention_seconds": 1.0,
    "lease_seconds": 2.0,
    "fault_seconds": 45.0,
    "fault_pause": 1.5,
    "goes_back": False,
    "max_rows": None,
}
"""A history in which streams are forgotten while there are faults: about one in three histories forgets some."""

GIVES_UP: dict[str, Any] = {
    "doors": True,
    "absences": 30,
    "replay_timeout": 8.0,
    "fault_pause": 1.5,
    "fault_seconds": 30.0,
    "retention_seconds": 0.0,
    "max_rows": None,
}
"""A history in which doors give up what producers have sent, about five times."""

BUSY: dict[str, Any] = {
    "doors": True,
    "busy": True,
    "slots": 2,
    "faults": ("kill_a_worker",),
    "fault_pause": 12.0,
    "fault_seconds": 60.0,
    "replay_timeout": 40.0,
    "retention_seconds": 0.0,
    "goes_back": False,
    "max_rows": None,
}
"""A history in which workers die, and nobody else does."""

REMEMBERS: dict[str, Any] = {
    "doors": True,
    "producer_retention": 4.0,
    "lease_seconds": 2.0,
    "fault_seconds": 60.0,
    "fault_pause": 3.0,
}
"""A history in which producers of the Kafka door are forgotten while there are faults, about two streams of them."""

HARDER: dict[str, dict[str, Any]] = {
    **{mutant.__name__: {"doors": True} for mutant in DOOR_MUTANTS},
    "never_gives_up": GIVES_UP,
    "records_nothing": GIVES_UP,
    "tells_nothing_that_was_given_up": GIVES_UP,
    "gives_up_before_it_is_recorded": GIVES_UP,
    "has_no_fence": GIVES_UP,
    "answers_behind_what_another_slot_waits_for": BUSY,
    "never_makes_room": {"large": True, "slots": 1},
    "ignores_rewinds": {"goes_back": True},
    "accepts_old_answers": {"goes_back": False, "fault_pause": 0.7, "fault_seconds": 40.0},
    "forgets_too_early": FORGETS,
    "forgets_open_streams": FORGETS,
    "forgets_without_confirmation": {**FORGETS, "cut_offs": 40},
    "forgets_before_lost_workers_end": FORGETS,
    "begins_leaving_streams": FORGETS,
    "settles_and_reads": FORGETS,
    "counts_retention_from_planning": FORGETS,
}
"""What a history must be like for a rule to matter."""

FIRST_SEEDS = {
    "tells_what_it_merely_holds": 20,
    "applies_stale_rewinds": 43,
    "accepts_old_answers": 111,
    "ignores_rewinds": 51,
    "serves_without_its_lease": 9,
    "grants_credits_twice": 6,
    "never_makes_room": 38,
    "accepts_every_answer": 9,
    "reads_a_broken_range_from_its_start": 40,
    "forgets_open_streams": 10,
    "forgets_without_confirmation": 117,
    "begins_leaving_streams": 72,
    "settles_and_reads": 18,
    "counts_retention_from_planning": 11,
    "never_gives_up": 6,
    "takes_repeated_tokens_for_new": 1,
    "records_nothing": 4,
    "answers_what_is_lost": 8,
    "tells_nothing_that_was_given_up": 3,
    "has_no_fence": 6,
}
"""The history that is tried first, because it showed the broken rule before; this saves time and changes no result."""

RARE = {"gives_up_before_it_is_recorded", "keeps_connections_without_a_session"}
"""Rules that many histories must be run for."""


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.long if first >= FEW_SEEDS else ()) for first in range(0, SEEDS, BATCH)],
)
def test_every_promise_is_kept(first: int) -> None:
    reports = [simulate(seed) for seed in range(first, first + BATCH)]

    broken = [report for report in reports if report.violation]
    assert not broken, "\n\n".join(
        f"./scripts/simulate --seed {report.seed} --verbose: {report.violation}\n{report.history}" for report in broken
    )
    assert sum(report.messages for report in reports) > 0
    assert all(sum(report.counts.values()) for report in reports)


def test_every_promise_to_producers_behind_doors_is_kept() -> None:
    reports = [simulate(seed, doors=True) for seed in range(10)]
    reports += [simulate(seed, **GIVES_UP) for seed in range(5)]
    reports += [simulate(seed, **REMEMBERS) for seed in range(5)]
    reports += [simulate(seed, **BUSY) for seed in range(2)]

    broken = [f"seed {report.seed}: {report.violation}\n{report.history}" for report in reports if report.violation]
    assert not broken, "\n\n".join(broken)
    assert all(
        sum(report.counts[name] for report in reports) for name in ("given_up", "told_given_up", "producers_forgotten")
    )


@pytest.mark.parametrize("changes", [{}, {"doors": True}], ids=["", "doors"])
def test_a_seed_is_one_history(changes: dict[str, Any]) -> None:
    first, again, other = simulate(11, **changes), simulate(11, **changes), simulate(12, **changes)

    assert first == again
    assert first.digest != other.digest


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in RARE else ()) for name in MUTANTS]
)
def test_a_broken_rule_is_found(name: str) -> None:
    with mutated(name):
        seeds = (FIRST_SEEDS.get(name, 0), *range(MOST_SEEDS))
        found = any(simulate(seed, **HARDER.get(name, {})).violation for seed in seeds)

    assert found, f"{MUTANTS[name].__doc__} No history out of {MOST_SEEDS} shows it."


def test_a_failure_is_printed_with_its_seed_and_its_history() -> None:
    lines = [
        "import sys",
        "from proving.simulator.mutants import mutated",
        "from proving.simulator.__main__ import main",
        "sys.argv = ['simulate', '--seeds', '50']",
        "with mutated('commits_before_the_sink'): sys.exit(main())",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert "the end of its history:" in done.stdout
    assert "no commit covers it" in done.stdout
    assert "replay it with: ./scripts/simulate --seed 0 --verbose" in done.stdout
