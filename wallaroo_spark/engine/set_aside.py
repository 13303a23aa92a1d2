"""What a query goes on without: rows of its batches, and instances, that an operator has set aside. Pure.

Source: ``docs/pipelines/running.md#events-that-are-set-aside``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages.values import Durability, PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.streams.rows import Rank


@dataclass(frozen=True)
class FailedRow:
    """One row of a batch, or one instance, that cannot be processed."""

    stream: str
    """The stream whose controller has failed."""
    partition: int
    rank: int = -1
    """The row's rank; -1 for an instance."""
    origin: str = ""
    """Where the row comes from: for a gateway's event its name and generation."""
    sequence: int = 0
    """Its number there: for a gateway's event that of the file."""
    place: int = 0
    """Its place within that number."""
    records: tuple[int, ...] = ()
    """Places of the records of the row that cannot be processed; none: all of them."""
    kind: str = ""
    """The kind of the row's event."""
    ids: tuple[str, ...] = ()
    """Ids of some of the events that are set aside."""
    pipeline: str = ""
    """The pipeline of an instance that cannot be processed; empty for a row."""
    offset: int = 0
    """The offset of the record that began the instance."""
    error: str = ""
    at: int = 0
    """The time of the batch in milliseconds."""
    to: str = ""
    """The stream that gets the events once they are set aside; empty: they stay in a file."""
    partitions: int = 1
    """Number of partitions of that stream."""
    published: bool = False
    """Whether the driver has written them there."""

    @property
    def key(self) -> PartitionKey:
        """The partition."""
        return PartitionKey(self.stream, self.partition)

    @property
    def row(self) -> tuple[int, str, int, int]:
        """The place of the row among those of its key."""
        return self.rank, self.origin, self.sequence, self.place

    @property
    def name(self) -> str:
        """A name for files, the same for the same row or instance."""
        identity = [self.stream, self.partition, *self.row, *self.records, self.pipeline, self.offset]
        return hashlib.blake2b(json.dumps(identity).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        if self.pipeline:
            return f"instance {self.partition}/{self.offset} of pipeline {self.pipeline}, of {self.stream}"
        events = f", events {', '.join(self.ids)}" if self.ids else ""
        where = f"row {self.place} of number {self.sequence} of {self.origin}"
        gateway, _, generation = self.origin.partition("/")
        if self.rank == Rank.RECEIVED and generation.isdigit():
            where = f"row {self.place} of file {self.sequence} of gateway {gateway}, generation {int(generation)}"
        return f"{self.kind or 'a row'} in {self.stream}/{self.partition} ({where}{events})"

    def to_json(self) -> str:
        """The note as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> FailedRow:
        """The note of :meth:`to_json`. Raises ValueError, TypeError and KeyError."""
        values = json.loads(text)
        return cls(**{**values, "records": tuple(values["records"]), "ids": tuple(values["ids"])})


@dataclass(frozen=True)
class SetAside:
    """What a query goes on without. It pickles, and is fixed while the query runs, so a repeated batch is the same."""

    rows: Mapping[tuple[PartitionKey, tuple[int, str, int, int]], FailedRow] = dataclasses.field(default_factory=dict)
    """The rows, by their key and their place."""
    instances: Mapping[PartitionKey, Mapping[tuple[str, int], str]] = dataclasses.field(default_factory=dict)
    """The instances of a key, by pipeline and number, with their reasons."""
    notes: tuple[FailedRow, ...] = ()
    """The notes that they are made of."""

    @classmethod
    def of(cls, *notes: FailedRow) -> SetAside:
        """What these notes set aside."""
        rows: dict[tuple[PartitionKey, tuple[int, str, int, int]], FailedRow] = {}
        instances: dict[PartitionKey, dict[tuple[str, int], str]] = {}
        for one in notes:
            place = one.key, one.row
            known = rows.get(place)
            if one.pipeline:
                instances.setdefault(one.key, {})[one.pipeline, one.offset] = one.error
            elif known is None or not one.records:
                rows[place] = one
            elif known.records:
                rows[place] = dataclasses.replace(one, records=(*known.records, *one.records))
        return cls(rows, instances, notes)

    def event(self, key: PartitionKey, row: tuple[int, str, int, int], encoded: bytes) -> e.Event | None:
        """The event of a row of INPUT without what is set aside; None for nothing."""
        aside = self.rows.get((key, row)) if self.rows else None
        if aside is not None:
            return without(aside, encoded)
        event: e.Event = decode(encoded)
        return event


NOTHING = SetAside()


def without(aside: FailedRow, encoded: bytes) -> e.Event | None:
    """The event of a row without what is set aside; None for nothing.

    What others wait for is answered: a message that a key carried is counted, and a delivery is nacked.
    """
    event = decoded(encoded)
    return _LEFT[type(event)](event, aside) if type(event) in _LEFT else None


def records_of(aside: FailedRow, encoded: bytes) -> list[CloudEvent]:
    """The events that are set aside with a row."""
    event = decoded(encoded)
    if isinstance(event, e.CarriedIn):
        records: tuple[CloudEvent, ...] = getattr(event.message, "records", ())
    elif isinstance(event, e.DeliveryAcked):
        records = tuple(record for output in event.stream_outputs for record in output.records)
    else:
        records = getattr(event, "records", ())
    return [record for place, record in enumerate(records) if not aside.records or place in aside.records]


def decoded(encoded: bytes) -> Any:
    """The event of a row; None for one that cannot be decoded, which is the failure itself."""
    try:
        return decode(encoded)
    except Exception:
        return None


def _rest(aside: FailedRow, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one for place, one in enumerate(values) if aside.records and place not in aside.records)


def _published(event: Any, aside: FailedRow) -> e.Event | None:
    records = _rest(aside, event.records)
    # The gateway that waits for the answer has ended with the application.
    left: e.Event = event._replace(records=records, durability=Durability.RECEIVED)
    return left if records else None


def _nacked(event: Any, aside: FailedRow) -> e.Event:
    return e.DeliveryNacked(event.reply_to, event.member, event.delivery, 0, f"it was set aside: {aside.error}")


def _carried(event: Any, aside: FailedRow) -> e.Event:
    message = event.message
    if isinstance(message, e.AppendOutput | e.ApplyStatement):
        # An output without records is appended, and a statement without records is refused.
        message = message._replace(records=_rest(aside, message.records))
    else:
        message = None
    left: e.Event = event._replace(message=message)
    return left


_LEFT: Mapping[type, Callable[[Any, FailedRow], e.Event | None]] = {
    e.RecordsPublished: _published,
    e.RecordsDelayed: _published,
    e.DeliveryAcked: _nacked,
    e.StatementAdded: _nacked,
    e.CarriedIn: _carried,
}
"""What stays of an event; nothing of the other kinds."""
