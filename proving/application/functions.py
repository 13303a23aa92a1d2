"""The functions of the random application that run in Spark."""

from __future__ import annotations

import random
from typing import Any


def check(rows: Any) -> Any:
    """Look at orders; one that is poisoned fails each time, and others now and then."""
    rows = rows.copy()
    if any(event["data"]["poison"] == "check" for event in rows["root_event"]):
        raise ValueError("a poisoned order")
    if random.random() < 0.05:
        raise RuntimeError("a function that fails now and then")
    rows["output"] = [{"checked": event["data"]["order"]} for event in rows["root_event"]]
    return rows[["output"]]


def count(rows: Any) -> Any:
    """Count a receipt."""
    rows = rows.copy()
    rows["output"] = [{"counted": event["data"]["order"]} for event in rows["root_event"]]
    return rows[["output"]]
