"""The answer of ``/healthz`` about a receiver or an application, for load balancers and Kubernetes. Pure.

It follows the causes of a snapshot, as the colour of the page and the exit status of ``status`` do. Anybody who reaches
the port may ask for it, so it contains codes and counts, and no names, addresses or error texts.
Source: ``docs/monitoring.md#health``.
"""

from __future__ import annotations

from typing import Any

from wallaroo_spark.codes import ENTRIES
from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.receiver import ReceiverStatus

PARTS = ("driver", "registry", "slots", "query", "checkpoint", "connectors")
"""The parts of a receiver; the code of a cause says whose trouble it is."""


def health(status: ReceiverStatus | None) -> dict[str, Any]:
    """The verdict on a snapshot with its causes, as JSON-ready values; None: the driver has no new one."""
    troubles = _troubles(status)
    checks = {part: next((code for code in troubles if ENTRIES[code].check == part), "ok") for part in PARTS}
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
