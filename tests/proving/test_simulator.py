"""Simulated histories keep every promise; a history can be had again; and a rule that is broken is found out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from proving.simulator.mutants import MUTANTS, mutated
from proving.simulator.run import simulate
from tests.conftest import ROOT

SEEDS = 200
BATCH = 25
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

HARDER: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_promise_is_kept(first: int) -> None:
    reports = [simulate(seed) for seed in range(first, first + BATCH)]

    broken = [report for report in reports if report.violation]
    assert not broken, "\n\n".join(
        f"./scripts/simulate --seed {report.seed} --verbose: {report.violation}\n{report.history}" for report in broken
    )
    assert sum(report.messages for report in reports) > 0
    assert all(sum(report.counts.values()) for report in reports)


def test_a_seed_is_one_history() -> None:
    first, again, other = simulate(11), simulate(11), simulate(12)

    assert first == again
    assert first.digest != other.digest


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str) -> None:
    with mutated(name):
        found = any(simulate(seed, **HARDER.get(name, {})).violation for seed in range(MOST_SEEDS))

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
