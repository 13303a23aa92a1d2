"""Makes the profile of a failing history smaller, as long as the history fails."""

from __future__ import annotations

from typing import Any

from proving.aqueduct.world import Report, World, simulate

SIMPLER: dict[str, tuple[Any, ...]] = {
    "actions": (1, 2, 4, 8, 12, 20, 40, 80),
    "cut": (None,),
    "closes": (None,),
    "loss": (0.0,),
    "doubling": (0.0,),
    "late": (0.0,),
    "early": (False,),
    "asks": (False,),
    "unreliable": (0.0,),
    "attaches": (0.0, 0.2),
}
"""What is tried for each property, the simplest first."""


def shrink(failed: Report) -> tuple[Report, dict[str, Any]]:
    """The history of the same seed with the simplest profile with which it still fails, and what was changed."""
    changes: dict[str, Any] = {}
    profile = World(failed.seed).profile
    again = True
    while again:
        again = False
        for name, values in SIMPLER.items():
            now = changes.get(name, getattr(profile, name))
            for value in values[: values.index(now) if now in values else None]:
                report = simulate(failed.seed, **{**changes, name: value})
                if report.violation and report.steps <= failed.steps:
                    failed, changes[name], again = report, value, True
                    break
    return failed, changes
