"""The live state of a receiver: one model that the command line, the status page and the metrics read.

- :mod:`.model` -- the snapshot as values
- :mod:`.schema` -- its JSON
- :mod:`.collect` -- asks the registry and all workers
- :mod:`.cause` -- the reason why each part waits, as one sentence
- :mod:`.rates` -- rates from two snapshots, and a history

Source: ``docs/status.md``.
"""

from wallaroo_spark.status.cause import CODES, with_causes
from wallaroo_spark.status.model import (
    Cause,
    Death,
    InstanceStatus,
    PartitionStatus,
    QueryStatus,
    ReadStatus,
    ReceiverStatus,
    Refusal,
    SinkStatus,
    SlotStatus,
    StreamStatus,
    TopicStatus,
    Totals,
)
from wallaroo_spark.status.rates import History, Rate, Rates, rates
from wallaroo_spark.status.schema import SCHEMA, from_json, to_json

__all__ = [
    "CODES",
    "SCHEMA",
    "Cause",
    "Death",
    "History",
    "InstanceStatus",
    "PartitionStatus",
    "QueryStatus",
    "Rate",
    "Rates",
    "ReadStatus",
    "ReceiverStatus",
    "Refusal",
    "SinkStatus",
    "SlotStatus",
    "StreamStatus",
    "TopicStatus",
    "Totals",
    "from_json",
    "rates",
    "to_json",
    "with_causes",
]
