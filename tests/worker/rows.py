"""Rows of one stream as the worker's state gets them: messages that went over the wire and were decoded."""

from __future__ import annotations

from collections.abc import Iterable

from proving.simulator.worker_validation import validate_stream
from tests.protocol.strategies import run_of
from wallaroo_spark.columnar import StreamRows, by_stream, decode_run
from wallaroo_spark.protocol import DRAFT_LE, Flags, Message
from wallaroo_spark.references import Reference, StreamKey
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.held_stream import Extent, HeldStream
from wallaroo_spark.worker.buffer.segments import Lots, LotSlice

KEY = StreamKey("shop-1", 1)
ORIGIN = Origin(slot=3, generation=7)


def rows(ids: Iterable[int], unstable: Iterable[int] = (), size: int = 10, ephemeral: bool = False) -> StreamRows:
    """Messages with these ids; those also in ``unstable`` have the flag."""
    marked = set(unstable)
    frames = []
    for message_id in ids:
        flags = Flags.UNSTABLE_REFERENCE if message_id in marked else Flags.NONE
        flags |= Flags.EPHEMERAL if ephemeral else Flags.NONE
        frames.append(DRAFT_LE.encode(Message(1, message_id, b"x" * size, flags)))
    (run,) = by_stream(decode_run(run_of(DRAFT_LE, frames), event_time_unit="ns"))
    (part,) = run.parts
    return part


def ledger(
    message_ids: str = "increasing", committed: Reference | None = None, key: StreamKey = KEY, position: int = 0
) -> HeldStream:
    """A stream that has been notified."""
    made = HeldStream(key, Lots(), ORIGIN, message_ids, committed, position)
    made.open("orders", committed if isinstance(committed, int) else 0)
    return made


def put(
    into: HeldStream, ids: Iterable[int], unstable: Iterable[int] = (), size: int = 10, ephemeral: bool = False
) -> int:
    """Append messages; how many of them were new."""
    part = rows(ids, unstable, size, ephemeral)
    segment = into.append(part, into.lots.hold(part.lot), 0, "shop-1")
    validate_stream(into)
    return 0 if segment is None else len(segment.ids)


def held(of: HeldStream) -> list[int]:
    """The ids of all rows that a ledger holds, in order."""
    return [value for segment in of.segments for value in segment.ids.tolist()]


def extent(of: HeldStream, start: Reference | None, rows: int | None = None, size: int | None = None) -> Extent | None:
    """The extent of a batch that starts there."""
    return of.extent(start, rows, size)


def end_of(
    of: HeldStream, start: Reference | None, rows: int | None = None, size: int | None = None
) -> Reference | None:
    """Where a batch that starts there may end."""
    found = extent(of, start, rows, size)
    return found.end if found else None


def ids_of(of: HeldStream, start: Reference | None, end: Reference) -> list[int] | None:
    """The ids that a planned range has, None while it is not complete."""
    positions = of.range(start, end)
    if positions is None:
        return None
    return [value for part, _ in of.delivery(*positions) for value in slice_ids(part)]


def slice_ids(part: LotSlice) -> list[int]:
    """The ids of a slice's rows, in order."""
    return [int(value) for value in part.lot.message_ids[part.low : part.high]]
