"""The answer of ``/healthz`` about a receiver or an application, for load balancers and Kubernetes. Pure.

It follows the causes of a snapshot, as the colour of the page and the exit status of ``status`` do. Anybody who reaches
the port may ask for it, so it contains codes and counts, and no names, addresses or error texts.
Source: ``docs/monitoring.md#health``.
"""

from __future__ import annotations

from typing import Any

from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.receiver import ReceiverStatus

CHECKS = {
    "driver": ("not-running", "driver-lost", "driver-slow", "driver-error"),
    "registry": ("registry-away",),
    "slots": (
        "worker-frozen",
        "worker-lost",
        "worker-unreachable",
        "worker-starting",
        "worker-stopping",
        "slot-vacant",
    ),
    "query": (
        "query-failed",
        "checkpoint-unwritable",
        "query-not-started",
        "query-stopped",
        "sink-slow",
        "resend-awaited",
    ),
    "checkpoint": ("checkpoint-unreadable",),
    "connectors": ("memory-full", "wrong-cookie", "refused"),
}
"""The parts of a receiver, each with the causes that are its trouble."""


def health(status: ReceiverStatus | None) -> dict[str, Any]:
    """The verdict on a snapshot with its causes, as JSON-ready values; None: the driver has no new one."""
    troubles = _troubles(status)
    checks = {part: next((code for code in troubles if code in codes), "ok") for part, codes in CHECKS.items()}
    slots = () if status is None else status.slots
    return {
        "healthy": not troubles,
        "reasons": [f"{part}: {code}" for part, code in checks.items() if code != "ok"],
        "checks": checks,
        "slots": {"serving": sum(slot.answers for slot in slots), "all": len(slots)},
    }


def application_health(status: ApplicationStatus | None) -> dict[str, Any]:
    """The same of an application."""
    troubles = _troubles(status)
    return {"healthy": not troubles, "reasons": troubles}


def _troubles(status: ReceiverStatus | ApplicationStatus | None) -> list[str]:
    return ["driver-slow"] if status is None else [cause.code for cause in status.causes if not cause.healthy]
