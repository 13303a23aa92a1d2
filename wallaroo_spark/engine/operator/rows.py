"""The instructions of a turn as rows of OUTPUT. Pure.

A kind has one row, or several of about :data:`BODY_BYTES` each where a turn has much; their bodies stand in order.
Source: ``docs/pipelines/engine.md#the-operator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from wallaroo_spark.engine.operator.gauges import turn_gauges
from wallaroo_spark.engine.operator.turn import TurnResult
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.events import CarriedIn
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.sidecar.task_access import as_arrow_stream
from wallaroo_spark.streams.inbox import DRIVER
from wallaroo_spark.streams.rows import HISTORY, INPUT, OUTBOX, HistoryKind, OutputKind, Rank, as_rows, batch_of


def history_batches(partition: int, now: int, steps: Sequence[i.HistoryStep]) -> Iterable[pa.RecordBatch]:
    """The rows of the history, a batch for each kind; the rows of a kind are in order."""
    by_kind: dict[type, list[Any]] = {}
    for step in steps:
        by_kind.setdefault(type(step), []).append(step)
    for kind, of_kind in by_kind.items():
        name, columns = _STEPS[kind]
        values = {column: [value(step) for step in of_kind] for column, value in columns.items()}
        yield batch_of(HISTORY, len(of_kind), **{"partition": partition, "kind": name, "at": now * 1000, **values})


def _micros(name: str) -> Callable[[Any], int]:
    """Reads a time in milliseconds as microseconds, the unit of the columns."""
    millis = attrgetter(name)
    return lambda step: int(millis(step)) * 1000


_INSTANCE = {name: attrgetter(name) for name in ("pipeline", "instance", "birth")}
_DELIVERY = {name: attrgetter(f"delivery.{name}") for name in ("pipeline", "instance", "birth", "stage")}
_REASON: dict[str, Callable[[Any], Any]] = {"reason": lambda step: step.reason or None}
_STEPS: dict[type, tuple[HistoryKind, dict[str, Callable[[Any], Any]]]] = {
    i.InstanceBegan: (HistoryKind.BEGAN, {**_INSTANCE, "version": attrgetter("version"), "at": _micros("at")}),
    i.StoreOutput: (
        HistoryKind.OUTPUT,
        {
            **_DELIVERY,
            "at": _micros("ended_at"),
            "began_at": _micros("began_at"),
            "output": lambda step: None if step.output is None else step.output.data,
            "content_type": lambda step: None if step.output is None else step.output.content_type,
        },
    ),
    i.DeliveryFailed: (HistoryKind.NACKED, {**_DELIVERY, **_REASON, "attempts": attrgetter("attempts")}),
    i.StorePointer: (
        HistoryKind.POINTER,
        {
            **{name: attrgetter(f"output.delivery.{name}") for name in _DELIVERY},
            **{f"target_{name}": attrgetter(f"target.{name}") for name in ("stream", "partition")},
            **_REASON,
            "offsets": attrgetter("offsets"),
        },
    ),
    i.InstanceEnded: (
        HistoryKind.ENDED,
        {
            **_INSTANCE,
            **_REASON,
            "at": _micros("at"),
            "began_at": _micros("began_at"),
            "outcome": attrgetter("outcome.value"),
        },
    ),
    i.SkippedRecords: (
        HistoryKind.SKIPPED,
        {
            "pipeline": attrgetter("pipeline"),
            "instance": attrgetter("first"),
            "offsets": lambda step: (step.first, step.last),
        },
    ),
}
BODY_BYTES = 8 << 20
"""A body is closed when its values have about this many bytes. A row crosses two processes as a whole."""
ATTACHED_BYTES = 32 << 20
"""The most bytes of records that the deliveries of a turn carry; gateways read those of the others from the table.

Each group has a copy, and there may be many."""
ROW_BYTES = 100
"""Bytes of a row beside its payload, about. It bounds the number of rows of a body."""

T = TypeVar("T")


class OutputRow(NamedTuple):
    """One row of OUTPUT without its key."""

    kind: OutputKind
    target: str
    """The gateway of a message; empty for all other kinds."""
    first: int | None
    """First offset of records; of FORGET the first offset that stays; the time of a timer."""
    last: int | None
    """Last offset of records."""
    rows: int
    """Number of rows in the body."""
    body: bytes | None


def output_rows(key: PartitionKey, now: int, result: TurnResult) -> Iterator[OutputRow]:
    """The rows of a turn. There is always one of the kind TIMER: the key's timer and gauges after it."""
    steps: list[i.HistoryStep] = []
    carried: list[i.CarryOut] = []
    outbox: dict[str, list[i.ForGateway]] = {}
    forgotten: int | None = None
    for one in result.instructions:
        if isinstance(one, i.HistoryStep):
            steps.append(one)
        elif isinstance(one, i.CarryOut):
            carried.append(one)
        elif isinstance(one, i.ForgetRecords):
            forgotten = one.first
        else:
            assert isinstance(one, i.ForGateway), one
            outbox.setdefault(gateway_of(one), []).append(one)
    # Nobody reads the answers to the driver's own requests.
    outbox.pop(DRIVER, None)
    if forgotten is not None:
        yield OutputRow(OutputKind.FORGET, "", forgotten, None, 0, None)
    yield from _records(result.fresh_from, now, result.fresh)
    for part in _parts(steps, _step_bytes):
        body = as_arrow_stream(*history_batches(key.partition, now, part))
        yield OutputRow(OutputKind.HISTORY, "", None, None, len(part), body)
    encoded = [(one, encode(CarriedIn(key, one.sequence, one.message))) for one in carried]
    for some in _parts(encoded, lambda pair: len(pair[1])):
        yield OutputRow(OutputKind.CARRIED, "", None, None, len(some), _carried_body(key, some))
    room = ATTACHED_BYTES
    for gateway, messages in sorted(outbox.items()):
        packed = []
        for one in messages:
            records = _attached(one, result, room)
            room -= len(records or b"")
            packed.append((encode(one), records))
        for few in _parts(packed, lambda pair: len(pair[0]) + len(pair[1] or b"")):
            body = batch_of(OUTBOX, len(few), instruction=[one for one, _ in few], records=[one for _, one in few])
            yield OutputRow(OutputKind.OUTBOX, gateway, None, None, len(few), as_arrow_stream(body))
    yield OutputRow(OutputKind.TIMER, "", result.armed, None, 0, turn_gauges(key, now, result))


def gateway_of(one: i.ForGateway) -> str:
    """The gateway of a message: that of its request, or the first part of its member's name."""
    return one.reply_to.gateway if isinstance(one, i.Reply) else one.member.partition(".")[0]


def _records(first: int, now: int, records: Sequence[CloudEvent]) -> Iterator[OutputRow]:
    for part in _parts(records, lambda record: record.size):
        batch = as_rows(first, part, now)
        last = first + len(part) - 1
        yield OutputRow(OutputKind.RECORDS, "", first, last, len(part), as_arrow_stream(batch))
        first = last + 1


def _attached(one: i.ForGateway, result: TurnResult, room: int) -> bytes | None:
    """The records of a delivery, if this batch has all of them and they are not more than ``room`` bytes."""
    if not isinstance(one, i.DeliverRecords) or one.first < result.fresh_from:
        return None
    begin = one.first - result.fresh_from
    records = tuple(result.fresh[begin : begin + one.last - one.first + 1])
    return encode(records) if sum(record.size for record in records) <= room else None


def _carried_body(key: PartitionKey, encoded: Sequence[tuple[i.CarryOut, bytes]]) -> bytes:
    batch = batch_of(
        INPUT,
        len(encoded),
        stream=[one.target.stream for one, _ in encoded],
        partition=[one.target.partition for one, _ in encoded],
        rank=int(Rank.CARRIED),
        origin=str(key),
        sequence=[one.sequence for one, _ in encoded],
        place=0,
        event=[event for _, event in encoded],
    )
    return as_arrow_stream(batch)


def _step_bytes(step: i.HistoryStep) -> int:
    return len(step.output.data) if isinstance(step, i.StoreOutput) and step.output is not None else 0


def _parts(values: Sequence[T], size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Divide values into parts of about BODY_BYTES, none of them empty."""
    begin, total = 0, 0
    for place, value in enumerate(values):
        total += ROW_BYTES + size(value)
        if total >= BODY_BYTES:
            yield values[begin : place + 1]
            begin, total = place + 1, 0
    if begin < len(values):
        yield values[begin:]
