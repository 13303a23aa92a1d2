"""The instructions of a turn as rows of OUTPUT. Pure.

A kind has one row, or several of about :data:`BODY_BYTES` each where a turn has much; their bodies stand in order.
Source: ``docs/pipelines/engine.md#the-operator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from wallaroo_spark.engine.operator.bodies import HistoryStep, columns, history_batches, ipc_stream
from wallaroo_spark.engine.operator.gauges import turn_gauges
from wallaroo_spark.engine.operator.turn import TurnResult
from wallaroo_spark.pipelines.controller.messages.events import CarriedIn
from wallaroo_spark.pipelines.controller.messages.instructions import (
    AnswerRequest,
    AppendRecords,
    CarryOut,
    DeliverInputs,
    DeliverRecords,
    EndSubscription,
    ForgetRecords,
    Instruction,
    RefuseRequest,
    StoreOutput,
    WarnClient,
    WithdrawDelivery,
)
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.streams.rows import HISTORY, INPUT, OUTBOX, OutputKind, Rank
from wallaroo_spark.streams.tables.conversion import as_rows

BODY_BYTES = 8 << 20
"""A body is closed when its values have about this many bytes. A choice: a row crosses two processes as a whole."""
ROW_BYTES = 100
"""Bytes of a row beside its payload, about. A choice; it bounds the number of rows of a body."""
NO_READER = "driver"
"""The gateway of the driver's own requests; nobody reads its answers."""

T = TypeVar("T")
_ForGateway = (
    DeliverRecords | DeliverInputs | WithdrawDelivery | EndSubscription | AnswerRequest | RefuseRequest | WarnClient
)


class OutputRow(NamedTuple):
    """One row of OUTPUT without its key."""

    kind: OutputKind
    """The kind."""
    target: str
    """The gateway of a message; empty for all other kinds."""
    first: int | None
    """First offset of records; of FORGET the first offset that stays; the time of a timer."""
    last: int | None
    """Last offset of records."""
    rows: int
    """Number of rows in the body."""
    body: bytes | None
    """The body."""


def output_rows(key: PartitionKey, now: int, result: TurnResult) -> Iterator[OutputRow]:
    """The rows of a turn. There is always one of the kind TIMER: the key's timer and gauges after it."""
    steps: list[HistoryStep] = []
    carried: list[CarryOut] = []
    outbox: dict[str, list[_ForGateway]] = {}
    forgotten: int | None = None
    for one in result.said:
        if isinstance(one, HistoryStep):
            steps.append(one)
        elif isinstance(one, CarryOut):
            carried.append(one)
        elif isinstance(one, _ForGateway):
            outbox.setdefault(gateway_of(one), []).append(one)
        elif isinstance(one, ForgetRecords):
            forgotten = one.first
        else:
            # The records are taken from the result as a whole.
            assert isinstance(one, AppendRecords), one
    outbox.pop(NO_READER, None)
    if forgotten is not None:
        yield OutputRow(OutputKind.FORGET, "", forgotten, None, 0, None)
    yield from _records(result.fresh_from, now, result.fresh)
    for part in _parts(steps, _step_bytes):
        body = ipc_stream(history_batches(key.partition, now, part), HISTORY)
        yield OutputRow(OutputKind.HISTORY, "", None, None, len(part), body)
    encoded = [(one, encode(CarriedIn(key, one.sequence, one.message))) for one in carried]
    for some in _parts(encoded, lambda pair: len(pair[1])):
        yield OutputRow(OutputKind.CARRIED, "", None, None, len(some), _carried_body(key, some))
    for gateway, messages in sorted(outbox.items()):
        packed = [(encode(one), _attached(one, result)) for one in messages]
        for few in _parts(packed, lambda pair: len(pair[0]) + len(pair[1] or b"")):
            body = columns(OUTBOX, len(few), instruction=[one for one, _ in few], records=[one for _, one in few])
            yield OutputRow(OutputKind.OUTBOX, gateway, None, None, len(few), ipc_stream([body], OUTBOX))
    yield OutputRow(OutputKind.TIMER, "", result.armed, None, 0, turn_gauges(now, result))


def gateway_of(one: Instruction) -> str:
    """The gateway of a message: that of its request, or the first part of its member's name."""
    if isinstance(one, AnswerRequest | RefuseRequest | WarnClient):
        return one.reply_to.gateway
    assert isinstance(one, DeliverRecords | DeliverInputs | WithdrawDelivery | EndSubscription), one
    return one.member.partition(".")[0]


def _records(first: int, now: int, records: Sequence[CloudEvent]) -> Iterator[OutputRow]:
    for part in _parts(records, lambda record: len(record.data or b"")):
        batch = as_rows(first, part, now)
        last = first + len(part) - 1
        yield OutputRow(OutputKind.RECORDS, "", first, last, len(part), ipc_stream([batch], batch.schema))
        first = last + 1


def _attached(one: _ForGateway, result: TurnResult) -> bytes | None:
    """The records of a delivery, if this batch has all of them."""
    if not isinstance(one, DeliverRecords) or one.first < result.fresh_from:
        return None
    begin = one.first - result.fresh_from
    return encode(tuple(result.fresh[begin : begin + one.last - one.first + 1]))


def _carried_body(key: PartitionKey, encoded: Sequence[tuple[CarryOut, bytes]]) -> bytes:
    rows = len(encoded)
    batch = columns(
        INPUT,
        rows,
        stream=[one.target.stream for one, _ in encoded],
        partition=[one.target.partition for one, _ in encoded],
        rank=[Rank.CARRIED.value] * rows,
        origin=[str(key)] * rows,
        sequence=[one.sequence for one, _ in encoded],
        place=[0] * rows,
        event=[event for _, event in encoded],
    )
    return ipc_stream([batch], INPUT)


def _step_bytes(step: HistoryStep) -> int:
    return len(step.output.data) if isinstance(step, StoreOutput) and step.output is not None else 0


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
