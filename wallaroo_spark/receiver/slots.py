"""The status of a receiver's slots, for an operator. Source: ``docs/architecture.md#the-fleet``."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wallaroo_spark.receiver.announcer import Announcer
from wallaroo_spark.registry import state_served
from wallaroo_spark.slots.long_jobs import JobRecord

STATUS_THREADS = 16
"""Workers that are asked for their status at the same time.

A choice: it bounds the driver's threads, and workers that do not answer delay the status of the others less.
"""


def slots(records: list[JobRecord], announcer: Announcer | None, query: str) -> list[dict[str, Any]]:
    """Ask the workers of all slots for their status; return one JSON-ready dictionary for each slot.

    ``query`` is the field ``query`` of the fleet's record. A slot whose worker does not answer is ``starting`` while
    its job runs and ``down`` otherwise.
    """
    with ThreadPoolExecutor(min(STATUS_THREADS, len(records)), "wallaroo-status") as pool:
        return list(pool.map(_slot, records, itertools.repeat(announcer), itertools.repeat(query)))


def _slot(record: JobRecord, announcer: Announcer | None, query: str) -> dict[str, Any]:
    answer = announcer.status(record.number) if announcer else None
    state = (
        state_served(bool(answer.get("ready", True)), query) if answer else ("starting" if record.running else "down")
    )
    return {
        "slot": record.number,
        "state": state,
        "submissions": record.submissions,
        "last_error": record.last_error,
        **({"worker": answer} if answer else {}),
    }
