"""A record that a program passes for sending."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from wallaroo_spark.connector.arguments import shown
from wallaroo_spark.errors import ArgumentTypeError


@dataclass(frozen=True, slots=True)
class Record:
    """One message to send."""

    id: int | None
    """Its point of reference. None: the stream numbers it, which is allowed only for sources that are not replayable.
    """
    payload: bytes
    """Payload of the message."""
    event_time: int | datetime | None = None
    """An integer in the receiver's unit (``eventTimeUnit``), or an aware datetime; None for none."""
    key: bytes | None = None
    """Key; None for none."""


RecordOrPair = Record | tuple[int, bytes]
"""A record, or its id and payload."""


def as_record(given: RecordOrPair) -> Record:
    """The record of a pair, or the record itself. Raises :class:`ArgumentTypeError` for anything else."""
    if isinstance(given, Record):
        return given
    if isinstance(given, tuple | list) and len(given) == 2:
        return Record(*given)
    raise ArgumentTypeError(
        f"a source returns Record(id, payload) or (id, payload), and this is {type(given).__name__}: {shown(given)}; "
        "a key and an event time need a Record",
        code="argument-type",
    )
