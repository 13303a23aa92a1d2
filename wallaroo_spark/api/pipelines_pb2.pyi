from wallaroo_spark.api import cloudevents_pb2 as _cloudevents_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMITTED: _ClassVar[Durability]
    RECEIVED: _ClassVar[Durability]
COMMITTED: Durability
RECEIVED: Durability

class PublishRequest(_message.Message):
    __slots__ = ("request", "stream", "events", "partition", "durability", "not_before")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    request: int
    stream: str
    events: _containers.RepeatedCompositeFieldContainer[_cloudevents_pb2.CloudEvent]
    partition: int
    durability: Durability
    not_before: int
    def __init__(self, request: _Optional[int] = ..., stream: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_cloudevents_pb2.CloudEvent, _Mapping]]] = ..., partition: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ..., not_before: _Optional[int] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("request", "places", "problem")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    request: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    problem: Problem
    def __init__(self, request: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("code", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class StartPoint(_message.Message):
    __slots__ = ("location", "offset")
    class Location(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LATEST: _ClassVar[StartPoint.Location]
        BEGINNING: _ClassVar[StartPoint.Location]
        OFFSET: _ClassVar[StartPoint.Location]
    LATEST: StartPoint.Location
    BEGINNING: StartPoint.Location
    OFFSET: StartPoint.Location
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    location: StartPoint.Location
    offset: int
    def __init__(self, location: _Optional[_Union[StartPoint.Location, str]] = ..., offset: _Optional[int] = ...) -> None: ...

class SubscriberMessage(_message.Message):
    __slots__ = ("join", "ack", "nack", "begin", "statement", "extend")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    join: JoinGroup
    ack: Ack
    nack: Nack
    begin: Begin
    statement: Statement
    extend: Extend
    def __init__(self, join: _Optional[_Union[JoinGroup, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., statement: _Optional[_Union[Statement, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ...) -> None: ...

class JoinGroup(_message.Message):
    __slots__ = ("stream", "group", "durable", "start", "max_events", "concurrency", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    group: str
    durable: bool
    start: StartPoint
    max_events: int
    concurrency: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., group: _Optional[str] = ..., durable: bool = ..., start: _Optional[_Union[StartPoint, _Mapping]] = ..., max_events: _Optional[int] = ..., concurrency: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("delivery", "output", "stream_outputs")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    STREAM_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    output: Payload
    stream_outputs: _containers.RepeatedCompositeFieldContainer[StreamEvents]
    def __init__(self, delivery: _Optional[int] = ..., output: _Optional[_Union[Payload, _Mapping]] = ..., stream_outputs: _Optional[_Iterable[_Union[StreamEvents, _Mapping]]] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("data", "content_type")
    DATA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    content_type: str
    def __init__(self, data: _Optional[bytes] = ..., content_type: _Optional[str] = ...) -> None: ...

class StreamEvents(_message.Message):
    __slots__ = ("stream", "events", "partition")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    events: _containers.RepeatedCompositeFieldContainer[_cloudevents_pb2.CloudEvent]
    partition: int
    def __init__(self, stream: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_cloudevents_pb2.CloudEvent, _Mapping]]] = ..., partition: _Optional[int] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("delivery", "delay", "reason")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    delay: int
    reason: str
    def __init__(self, delivery: _Optional[int] = ..., delay: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("delivery",)
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    def __init__(self, delivery: _Optional[int] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("delivery",)
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    def __init__(self, delivery: _Optional[int] = ...) -> None: ...

class Statement(_message.Message):
    __slots__ = ("delivery", "events")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    events: StreamEvents
    def __init__(self, delivery: _Optional[int] = ..., events: _Optional[_Union[StreamEvents, _Mapping]] = ...) -> None: ...

class SubscriberEvent(_message.Message):
    __slots__ = ("joined", "delivery", "settled", "warning", "withdrawn", "statement")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    delivery: GroupDelivery
    settled: Settled
    warning: Warning
    withdrawn: Withdrawn
    statement: StatementResult
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., delivery: _Optional[_Union[GroupDelivery, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., warning: _Optional[_Union[Warning, _Mapping]] = ..., withdrawn: _Optional[_Union[Withdrawn, _Mapping]] = ..., statement: _Optional[_Union[StatementResult, _Mapping]] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class GroupDelivery(_message.Message):
    __slots__ = ("delivery", "partition", "first", "events", "missed", "more", "timeout")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    partition: int
    first: int
    events: _containers.RepeatedCompositeFieldContainer[_cloudevents_pb2.CloudEvent]
    missed: int
    more: bool
    timeout: int
    def __init__(self, delivery: _Optional[int] = ..., partition: _Optional[int] = ..., first: _Optional[int] = ..., events: _Optional[_Iterable[_Union[_cloudevents_pb2.CloudEvent, _Mapping]]] = ..., missed: _Optional[int] = ..., more: bool = ..., timeout: _Optional[int] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("delivery", "written", "problem")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    written: _containers.RepeatedCompositeFieldContainer[Written]
    problem: Problem
    def __init__(self, delivery: _Optional[int] = ..., written: _Optional[_Iterable[_Union[Written, _Mapping]]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class Written(_message.Message):
    __slots__ = ("stream", "places", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: str
    places: _containers.RepeatedCompositeFieldContainer[Place]
    reason: str
    def __init__(self, stream: _Optional[str] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("delivery", "text")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    text: str
    def __init__(self, delivery: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Withdrawn(_message.Message):
    __slots__ = ("delivery", "reason", "taken_away")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AWAY_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    reason: str
    taken_away: bool
    def __init__(self, delivery: _Optional[int] = ..., reason: _Optional[str] = ..., taken_away: bool = ...) -> None: ...

class StatementResult(_message.Message):
    __slots__ = ("delivery", "place", "state", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PENDING: _ClassVar[StatementResult.State]
        APPLIED: _ClassVar[StatementResult.State]
        COMMITTED: _ClassVar[StatementResult.State]
        REJECTED: _ClassVar[StatementResult.State]
    PENDING: StatementResult.State
    APPLIED: StatementResult.State
    COMMITTED: StatementResult.State
    REJECTED: StatementResult.State
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    place: int
    state: StatementResult.State
    reason: str
    def __init__(self, delivery: _Optional[int] = ..., place: _Optional[int] = ..., state: _Optional[_Union[StatementResult.State, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("join", "ack", "nack", "begin", "statement", "extend")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    join: JoinStage
    ack: Ack
    nack: Nack
    begin: Begin
    statement: Statement
    extend: Extend
    def __init__(self, join: _Optional[_Union[JoinStage, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., statement: _Optional[_Union[Statement, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ...) -> None: ...

class JoinStage(_message.Message):
    __slots__ = ("pipeline", "stage", "concurrency")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    stage: str
    concurrency: int
    def __init__(self, pipeline: _Optional[str] = ..., stage: _Optional[str] = ..., concurrency: _Optional[int] = ...) -> None: ...

class WorkerEvent(_message.Message):
    __slots__ = ("joined", "delivery", "settled", "warning", "withdrawn", "statement")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    delivery: StageDelivery
    settled: Settled
    warning: Warning
    withdrawn: Withdrawn
    statement: StatementResult
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., delivery: _Optional[_Union[StageDelivery, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., warning: _Optional[_Union[Warning, _Mapping]] = ..., withdrawn: _Optional[_Union[Withdrawn, _Mapping]] = ..., statement: _Optional[_Union[StatementResult, _Mapping]] = ...) -> None: ...

class StageDelivery(_message.Message):
    __slots__ = ("delivery", "instance", "partition", "root_event", "outputs", "birth", "timeout")
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Payload
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROOT_EVENT_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    BIRTH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    instance: int
    partition: int
    root_event: _cloudevents_pb2.CloudEvent
    outputs: _containers.MessageMap[str, Payload]
    birth: int
    timeout: int
    def __init__(self, delivery: _Optional[int] = ..., instance: _Optional[int] = ..., partition: _Optional[int] = ..., root_event: _Optional[_Union[_cloudevents_pb2.CloudEvent, _Mapping]] = ..., outputs: _Optional[_Mapping[str, Payload]] = ..., birth: _Optional[int] = ..., timeout: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("pipeline", "partition", "instance")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    partition: int
    instance: int
    def __init__(self, pipeline: _Optional[str] = ..., partition: _Optional[int] = ..., instance: _Optional[int] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeAwayRequest(_message.Message):
    __slots__ = ("pipeline", "partition", "instance", "stage")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    partition: int
    instance: int
    stage: str
    def __init__(self, pipeline: _Optional[str] = ..., partition: _Optional[int] = ..., instance: _Optional[int] = ..., stage: _Optional[str] = ...) -> None: ...

class TakeAwayReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChangeGroupRequest(_message.Message):
    __slots__ = ("stream", "group", "action", "start", "partitions")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DELETE: _ClassVar[ChangeGroupRequest.Action]
        MOVE: _ClassVar[ChangeGroupRequest.Action]
        PAUSE: _ClassVar[ChangeGroupRequest.Action]
        RESUME: _ClassVar[ChangeGroupRequest.Action]
        TAKE_AWAY: _ClassVar[ChangeGroupRequest.Action]
    DELETE: ChangeGroupRequest.Action
    MOVE: ChangeGroupRequest.Action
    PAUSE: ChangeGroupRequest.Action
    RESUME: ChangeGroupRequest.Action
    TAKE_AWAY: ChangeGroupRequest.Action
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    group: str
    action: ChangeGroupRequest.Action
    start: StartPoint
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., group: _Optional[str] = ..., action: _Optional[_Union[ChangeGroupRequest.Action, str]] = ..., start: _Optional[_Union[StartPoint, _Mapping]] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class ChangeGroupReply(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    def __init__(self, partitions: _Optional[int] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("exchange", "event")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    exchange: str
    event: _cloudevents_pb2.CloudEvent
    def __init__(self, exchange: _Optional[str] = ..., event: _Optional[_Union[_cloudevents_pb2.CloudEvent, _Mapping]] = ...) -> None: ...

class SendReply(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: int
    def __init__(self, groups: _Optional[int] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("exchange", "group")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    exchange: str
    group: str
    def __init__(self, exchange: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class CallMessage(_message.Message):
    __slots__ = ("endpoint", "event")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    event: _cloudevents_pb2.CloudEvent
    def __init__(self, endpoint: _Optional[str] = ..., event: _Optional[_Union[_cloudevents_pb2.CloudEvent, _Mapping]] = ...) -> None: ...

class ServeMessage(_message.Message):
    __slots__ = ("endpoint", "concurrency", "call", "event", "end", "error")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    concurrency: int
    call: int
    event: _cloudevents_pb2.CloudEvent
    end: bool
    error: str
    def __init__(self, endpoint: _Optional[str] = ..., concurrency: _Optional[int] = ..., call: _Optional[int] = ..., event: _Optional[_Union[_cloudevents_pb2.CloudEvent, _Mapping]] = ..., end: bool = ..., error: _Optional[str] = ...) -> None: ...

class ServeEvent(_message.Message):
    __slots__ = ("call", "event", "end", "gone")
    CALL_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    call: int
    event: _cloudevents_pb2.CloudEvent
    end: bool
    gone: bool
    def __init__(self, call: _Optional[int] = ..., event: _Optional[_Union[_cloudevents_pb2.CloudEvent, _Mapping]] = ..., end: bool = ..., gone: bool = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("version", "schema", "gateways")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    schema: str
    gateways: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., schema: _Optional[str] = ..., gateways: _Optional[_Iterable[str]] = ...) -> None: ...
