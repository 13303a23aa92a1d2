"""The dictionaries that ``Receiver.status()`` returned before it returned a ``ReceiverStatus``.

The model imports this module, so the arguments have no types of the model here.
"""

from __future__ import annotations

from typing import Any


def as_before(status: Any) -> dict[str, Any]:
    """``receiver``, ``warnings``, ``workers`` (one dictionary a slot) and ``query``, as JSON-ready values."""
    query = status.query
    names: dict[int, list[str]] = {}
    for one in status.instances:
        names.setdefault(one.slot, []).append(one.name)
    return {
        "receiver": status.name,
        "page": status.page,
        "warnings": list(status.warnings),
        "workers": [_slot(slot, sorted(names.get(slot.slot, ()))) for slot in status.slots],
        "query": {
            "active": query.state == "running",
            "checkpoint": query.checkpoint or None,
            "committed_batch": query.committed_batch,
            "watcher_error": query.watcher_error or None,
        },
    }


def _slot(slot: Any, instances: list[str]) -> dict[str, Any]:
    state = slot.state if slot.answers else ("starting" if slot.state == "starting" else "down")
    known = {
        "slot": slot.slot,
        "state": state,
        "submissions": slot.submissions or 0,
        "last_error": slot.last_error,
    }
    return {**known, "worker": _worker(slot, instances)} if slot.answers else known


def _worker(slot: Any, instances: list[str]) -> dict[str, Any]:
    return {
        "slot": slot.slot,
        "ready": slot.ready,
        "epoch": slot.epoch,
        "batch": slot.batch,
        "sessions": slot.sessions,
        "instances": instances,
        "streams": slot.streams,
        "buffered_bytes": slot.memory_used,
        "unfinished_bytes": slot.unfinished_bytes,
        "budget_bytes": slot.memory_budget,
        "pressure": slot.pressure,
        "counts": dict(slot.counts),
        "pid": slot.pid,
        "generation": slot.generation,
        "connect": slot.address,
        "registry_away": slot.registry_away,
        "stopping": slot.stopping,
        "warnings": list(slot.warnings),
    }
