"""Simulated histories of two machines keep every promise, and a rule that is broken on purpose is found."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from proving.aqueduct.histories import shrink
from proving.aqueduct.mutants import MUTANTS
from proving.aqueduct.world import simulate
from tests.conftest import ROOT

SEEDS = 50
LONG_SEEDS = 10_000
BATCH = 1_000
MOST_SEEDS = 200
"""Histories in which a broken rule has to show."""
HARDER: dict[str, dict[str, Any]] = {
    "evicts_nothing": {"unreliable": 1.0, "attaches": 0.1, "actions": 160, "loss": 0.0, "pause": 0.05},
}
"""What a history must be like for a rule to matter."""


def run(seeds: range) -> Counter[str]:
    counts = Counter[str]()
    for seed in seeds:
        report = simulate(seed)
        assert not report.violation, (
            f"./scripts/simulate --aqueduct --seed {seed} --verbose: {report.violation}\n{report.history}"
        )
        counts.update(report.counts)
    return counts


def test_every_promise_is_kept() -> None:
    counts = run(range(SEEDS))

    wanted = {
        *("taken", "messages lost", "messages closed", "messages cancelled", "waits for room", "connections lost"),
        *(f"{half}s {how}" for half in ("sender", "receiver") for how in ("finished", "cancelled", "lost")),
        *("datagrams lost", "datagrams doubled", "late", "attachments"),
    }
    assert {name: counts[name] for name in wanted if not counts[name]} == {}


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, LONG_SEEDS, BATCH))
def test_every_promise_is_kept_in_many_histories(first: int) -> None:
    run(range(first, first + BATCH))


def test_a_seed_is_one_history() -> None:
    first, again, other = simulate(11), simulate(11), simulate(12)

    assert first == again
    assert first.digest != other.digest


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str) -> None:
    with MUTANTS[name]():
        found = any(simulate(seed, **HARDER.get(name, {})).violation for seed in range(MOST_SEEDS))

    assert found, f"{MUTANTS[name].__doc__} No history out of {MOST_SEEDS} shows it."


def test_a_failing_history_is_made_smaller() -> None:
    with MUTANTS["cancels_silently"]():
        failed = next(report for report in map(simulate, range(MOST_SEEDS)) if report.violation)
        smaller, changes = shrink(failed)
        again = simulate(failed.seed, **changes)

    assert changes["actions"] < 20
    assert smaller.violation
    assert smaller.steps < failed.steps
    assert again == smaller


def test_a_failure_is_printed_with_its_seed_and_its_history() -> None:
    lines = [
        "import sys",
        "from proving.aqueduct.mutants import MUTANTS",
        "from proving.simulator.__main__ import main",
        "sys.argv = ['simulate', '--aqueduct', '--seeds', '50']",
        "with MUTANTS['cancels_silently'](): sys.exit(main())",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert "the end of its history:" in done.stdout
    assert "replay it with: ./scripts/simulate --aqueduct --seed " in done.stdout
    assert "a smaller history of " in done.stdout
