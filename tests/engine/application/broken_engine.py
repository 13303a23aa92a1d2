"""A function of a stage whose module breaks the engine in its process: one event cannot be written any more.

It stands for a defect of the package, which no event should find. A turn runs its functions before it writes, so the
defect is there in each process that has the event.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pyarrow as pa

from wallaroo_spark.engine.operator import rows
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.streams.rows import as_rows

POISON = "an-event-that-the-engine-cannot-write"


def _as_rows(first: int, events: Sequence[CloudEvent], written_at: int) -> pa.RecordBatch:
    if any(event.id == POISON for event in events):
        raise RuntimeError("a defect of the engine")
    return as_rows(first, events, written_at)


vars(rows)["as_rows"] = _as_rows


def count(deliveries: pd.DataFrame) -> pd.DataFrame:
    """Count nothing."""
    return deliveries[[]].assign(output=1)
