"""The format of stored entries and of messages between keys: versioned, compact, and the same on every machine.

An entry is one byte with the number of the format, then MessagePack. A value of a class is an extension whose code is
the class's number in :data:`CLASSES` and whose content is the array of its fields. A class keeps its number for ever. A
field that is added later stands at the end and has a default: an older entry has fewer fields, and is read with the
default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgpack

from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller import states
from wallaroo_spark.pipelines.controller.messages import events, instructions, plans, values
from wallaroo_spark.pipelines.controller.stored import key_state
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.pipelines.schema.declarations import StartPoint

FORMAT = 1
_PREFIX = bytes([FORMAT])

CLASSES: dict[int, Any] = {
    1: values.PartitionKey,
    2: CloudEvent,
    3: Payload,
    4: values.ReplyTo,
    5: values.GroupDelivery,
    6: values.StageDelivery,
    7: values.OutputId,
    8: values.StatementId,
    9: values.StreamOutput,
    10: values.Durability,
    11: StartPoint,
    12: plans.StagePlan,
    13: plans.PipelinePlan,
    14: plans.PartitionPlan,
    15: states.DeliveryState,
    16: states.TxState,
    17: states.StatementState,
    18: key_state.OpenDelivery,
    19: key_state.Member,
    20: key_state.Group,
    21: key_state.Queue,
    22: key_state.PipelineProgress,
    23: key_state.Head,
    24: key_state.StageProgress,
    25: key_state.Instance,
    26: key_state.Statement,
    27: key_state.DeliveryTransaction,
    28: values.DelayedRecords,
    30: events.AppendOutput,
    31: events.ApplyStatement,
    32: events.CommitStatement,
    33: events.AbortStatement,
    34: events.OutputAppended,
    35: events.OutputRefused,
    36: events.StatementApplied,
    37: events.StatementRefused,
    38: events.StatementAppended,
    39: events.GroupsExist,
    40: events.IdsMoved,
    41: events.RecordsMoved,
    42: plans.RetryPlan,
    50: events.PartitionDeclared,
    51: events.RecordsPublished,
    52: events.GroupJoined,
    53: events.StageJoined,
    54: events.MemberLeft,
    55: events.GatewayStarted,
    56: events.DeliveryAcked,
    57: events.DeliveryNacked,
    58: events.TransactionBegun,
    59: events.StatementAdded,
    60: events.InstanceCancelled,
    61: events.RecordsExpired,
    62: events.RecordsRead,
    63: events.CarriedIn,
    64: events.RecordsDelayed,
    68: events.DeliveryExtended,
    69: events.DeliveriesTaken,
    70: events.GroupChanged,
    71: events.GroupAction,
    80: instructions.Outcome,
    82: instructions.DeliverRecords,
    83: instructions.DeliverInputs,
    84: instructions.RunFunction,
    85: instructions.WithdrawDelivery,
    86: instructions.EndSubscription,
    87: instructions.StoreOutput,
    88: instructions.StorePointer,
    89: instructions.InstanceBegan,
    90: instructions.InstanceEnded,
    91: instructions.CarryOut,
    92: instructions.Written,
    93: instructions.AnswerRequest,
    94: instructions.RefuseRequest,
    95: instructions.WarnClient,
    96: instructions.ReadRecords,
    97: instructions.ArmTimer,
    98: instructions.SkippedRecords,
    100: instructions.ForgetRecords,
    101: instructions.DeliveryFailed,
}
"""Number → class. Numbers are never changed or used again."""
_NUMBERS = {kind: number for number, kind in CLASSES.items()}


def _fields(kind: Any) -> Callable[[Any], list[Any]]:
    if issubclass(kind, Enum):
        return lambda value: [value.value]
    if issubclass(kind, tuple):
        return list
    names = tuple(field.name for field in dataclasses.fields(kind))
    return lambda value: [getattr(value, name) for name in names]


def _maker(kind: Any) -> Callable[[list[Any]], Any]:
    if issubclass(kind, Enum):
        members = {member.value: member for member in kind}
        return lambda fields: members.get(fields[0]) or kind(*fields)
    if issubclass(kind, tuple):
        return _tuple_maker(kind)
    # Arrays are read as tuples, because keys of mappings are tuples; a field that is a list is made one again.
    names = [one.name for one in dataclasses.fields(kind)]
    lists = [one.name for one in dataclasses.fields(kind) if str(one.type).startswith("list[")]

    def make(fields: list[Any]) -> Any:
        found = dict(zip(names, fields, strict=False))
        for name in lists:
            if name in found:
                found[name] = list(found[name])
        return kind(**found)

    return make


def _tuple_maker(kind: Any) -> Callable[[Any], Any]:
    """Makes the values of a NamedTuple; without a call of its Python code where no field is missing."""
    number, new = len(kind._fields), tuple.__new__
    return lambda fields: new(kind, fields) if len(fields) == number else kind(*fields)


_TAKEN = {kind: _fields(kind) for kind in CLASSES.values()}
_MADE = {number: _maker(kind) for number, kind in CLASSES.items()}


_PACKERS: list[msgpack.Packer] = []
"""The packers that are not in use."""


def _reduced(value: Any) -> Any:
    """What MessagePack does not know as itself."""
    kind = type(value)
    if kind is tuple:
        return list(value)
    number = _NUMBERS.get(kind)
    if number is None:
        raise PipelineError(f"a {kind.__name__} cannot be stored; give it a number in CLASSES", kind=kind.__name__)
    return msgpack.ExtType(number, _packed(_TAKEN[kind](value)))


def _restored(number: int, data: bytes) -> Any:
    make = _MADE.get(number)
    if make is None:
        raise PipelineError(
            f"a stored entry has a value of kind {number}, which this version does not know; "
            "a newer version has written it, use that version",
            kind=number,
        )
    return make(_unpacked(data))


def _packed(value: Any) -> bytes:
    # A packer costs more than most values, and can be used again, but not within its own call of ``_reduced``.
    packer = _PACKERS.pop() if _PACKERS else msgpack.Packer(default=_reduced, strict_types=True)
    packed: bytes = packer.pack(value)
    _PACKERS.append(packer)
    return packed


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_restored, use_list=False, strict_map_key=False)


def encode(value: Any) -> bytes:
    """The bytes of a value."""
    return _PREFIX + _packed(value)


def decode(data: bytes) -> Any:
    """The value of :func:`encode`'s bytes. Raises :class:`PipelineError` for an unknown format."""
    if not data or data[0] != FORMAT:
        raise PipelineError(
            f"a stored entry has the format {data[0] if data else 'of no byte'}, and this version reads {FORMAT}; "
            "use the version that has written it",
            format=data[0] if data else None,
        )
    return _unpacked(data[1:])
