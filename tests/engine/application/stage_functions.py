"""Functions of stages that tests run inside Spark."""

from __future__ import annotations

import pandas as pd


def reserve(deliveries: pd.DataFrame) -> pd.DataFrame:
    """Reserve the goods of each order."""
    return deliveries[[]].assign(output=[{"reserved": int(instance)} for instance in deliveries["instance"]])


def fails(deliveries: pd.DataFrame) -> pd.DataFrame:
    """A function that never succeeds."""
    raise ValueError("the ledger is closed")
