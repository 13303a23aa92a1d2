"""Judges from one snapshot whether a receiver works, for load balancers and Kubernetes. Pure.

Anybody who reaches the port may ask for it, so it contains codes and counts, and no names, addresses or error texts.
Source: ``docs/monitoring.md#health``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.status import ReceiverStatus


@dataclass(frozen=True)
class Health:
    """The verdict."""

    checks: Mapping[str, str]
    """``ok`` or a code for each of ``driver``, ``registry``, ``slots``, ``query`` and ``checkpoint``."""
    serving: int
    """Slots whose worker answers."""
    slots: int
    """Slots of the fleet."""

    @property
    def healthy(self) -> bool:
        """Whether every check is ``ok``."""
        return all(code == "ok" for code in self.checks.values())

    @property
    def reasons(self) -> list[str]:
        """The checks that are not ``ok``, as ``check: code``."""
        return [f"{name}: {code}" for name, code in self.checks.items() if code != "ok"]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "healthy": self.healthy,
            "reasons": self.reasons,
            "checks": dict(self.checks),
            "slots": {"serving": self.serving, "all": self.slots},
        }


def health(status: ReceiverStatus) -> Health:
    """Judge a snapshot that the driver has taken."""
    serving = sum(slot.answers for slot in status.slots)
    return Health(
        {
            "driver": _driver(status),
            "registry": _registry(status),
            "slots": _slots(status, serving),
            "query": _query(status),
            "checkpoint": "unreadable" if status.query.watcher_error else "ok",
        },
        serving,
        len(status.slots),
    )


def _driver(status: ReceiverStatus) -> str:
    if not status.running:
        return "not-running"
    # A round that fails because the registry does not answer counts as the registry's failure.
    return "round-failed" if status.driver_error and not _away(status) else "ok"


def _away(status: ReceiverStatus) -> bool:
    return bool(status.registry_error) or any(slot.registry_away for slot in status.slots)


def _registry(status: ReceiverStatus) -> str:
    if status.registry_error:
        return "away-from-driver"
    return "away-from-workers" if _away(status) else "ok"


def _slots(status: ReceiverStatus, serving: int) -> str:
    if not status.slots:
        return "none"
    return "ok" if serving == len(status.slots) else "not-served"


def _query(status: ReceiverStatus) -> str:
    return {"running": "ok", "none": "not-started"}.get(status.query.state, status.query.state)
