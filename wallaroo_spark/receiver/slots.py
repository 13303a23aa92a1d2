"""What an operator wants to know of a receiver's slots."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wallaroo_spark.longjobs import JobRecord
from wallaroo_spark.receiver.announcer import Announcer

STATUS_THREADS = 16


def slots(records: list[JobRecord], announcer: Announcer | None) -> list[dict[str, Any]]:
    """All slots' status, asked for at the same time."""
    with ThreadPoolExecutor(min(STATUS_THREADS, len(records)), "wallaroo-status") as pool:
        return list(pool.map(_slot, records, itertools.repeat(announcer)))


def _slot(record: JobRecord, announcer: Announcer | None) -> dict[str, Any]:
    answer = announcer.status(record.number) if announcer else None
    state = "serving" if answer else ("starting" if record.running else "down")
    return {
        "slot": record.number,
        "state": state,
        "submissions": record.submissions,
        "last_error": record.last_error,
        **({"worker": answer} if answer else {}),
    }
