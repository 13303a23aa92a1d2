"""The declared objects of an application: namespaces, streams, pipelines, exchanges, endpoints, schedules and tokens.

Each kind is a frozen dataclass whose fields are rows of a table (:mod:`wallaroo_spark.settings`). A document has the
same fields under their public names (``input_stream`` is ``inputStream``). The reader of documents, the JSON Schema and
the page of fields come from these tables. A declaration that exists is valid by itself; :mod:`.schema.validation`
checks it against the other objects. Source: ``docs/pipelines/schema.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, get_args

from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, valid_event
from wallaroo_spark.pipelines.schema.fields import Checked, invalid
from wallaroo_spark.pipelines.schema.names import ROOT_EVENT, ObjectKey, object_key, stream_key
from wallaroo_spark.settings import Kind, row, setting

MOST_PARTITIONS = 1024
"""The most partitions of a stream. A choice: each is a key of the state, and a client opens a channel to each."""
MOST_PARALLEL = 1_000_000
"""The most active instances for each partition. A choice: all of them are in the memory of one controller."""
MOST_STAGES = 1000
"""The most stages of a pipeline. A choice that bounds the work of a check."""
MOST_PERMISSIONS = 1000
"""The most permissions of a token. A choice that bounds the work of a check."""
DELIVERY_SECONDS = 600.0
"""How long a member may have a delivery, by default. A choice: longer than most handlers, and every wait has an end."""
LONGEST_TIMEOUT = 30 * 86_400
"""The most seconds for which a member may have a delivery. A choice."""
LOCATIONS = ("beginning", "latest", "offset")
ACCESS = ("publish", "subscribe", "all")
OUTPUTS = ("required", "optional")
MESSAGES = ("single", "stream")


class _Declared(Checked):
    """A base of the kinds of documents."""

    kind: ClassVar[str]
    name: str

    @property
    def key(self) -> ObjectKey:
        """The key of this object."""
        return ObjectKey(self.kind, getattr(self, "namespace", ""), self.name)


@dataclass(frozen=True, kw_only=True)
class NamespaceDeclaration(_Declared):
    """A namespace: a group of objects whose names are distinct within it."""

    kind: ClassVar[str] = "Namespace"

    name: str = field(metadata=row(Kind.NAME))
    """The namespace's name."""
    description: str = setting("", Kind.TEXT)
    """A text for people."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy(Checked):
    """The treatment of a delivery after a nack, a lost connection or the end of its time."""

    max_attempts: int | None = setting(None, Kind.COUNT, minimum=1)
    """Deliveries after which the stage counts as failed, or the event of a group is set aside. Without it: it is
    delivered until it succeeds. A delivery that ends with its worker or gateway, or with its time, counts too."""
    delay: float = setting(1.0, Kind.SECONDS, minimum=0)
    """Time before the second delivery; it doubles with each."""
    max_delay: float = setting(60.0, Kind.SECONDS, minimum=0)
    """The longest time between two deliveries."""
    dead_letter_stream: str = setting("", Kind.STREAM)
    """Stream that gets the event of an instance whose stage failed, or the event that a group could not process.
    Without it: the instance ends as failed, and no record is written. A stream with maxAttempts needs it."""

    def _check_combination(self) -> None:
        if self.dead_letter_stream and self.max_attempts is None:
            raise invalid(
                "deadLetterStream",
                "deadLetterStream is given without maxAttempts, and nothing would be written to it; give maxAttempts",
            )


@dataclass(frozen=True, kw_only=True)
class StreamDeclaration(_Declared):
    """A durable stream: records in partitions, each with offsets from 1 without holes."""

    kind: ClassVar[str] = "Stream"

    name: str = field(metadata=row(Kind.NAME))
    """The stream's name."""
    namespace: str = field(metadata=row(Kind.NAME))
    """The namespace of the stream."""
    partitions: int = setting(1, Kind.COUNT, minimum=1, maximum=MOST_PARTITIONS)
    """Number of partitions; it can be raised later, and not lowered. Every durable group reads an added partition
    from its first record, and an event that is published again is known wherever it went."""
    ttl: float | None = setting(None, Kind.SECONDS, minimum=1)
    """How long a record is kept after it was written. Without it: for ever."""
    idempotency_window: float = setting(120.0, Kind.SECONDS, minimum=0, maximum=86_400)
    """How long the source and id of a record are remembered: a record with the same two is not written again within
    this time. A pause between two batches that write to the partition counts for 1 s at most, so an application
    that was down remembers all that it remembered before, and a quiet stream remembers its records for days. At
    most the last 1,000,000 records of a partition."""
    delivery_timeout: float = setting(DELIVERY_SECONDS, Kind.SECONDS, minimum=1, maximum=LONGEST_TIMEOUT)
    """How long a member of a group may have a delivery; then it is taken away and given to another member. A member
    that works for longer extends it."""
    retry: RetryPolicy = setting(RetryPolicy(), Kind.SECTION)
    """Treatment of a group's delivery that did not succeed. After maxAttempts a batch of events is delivered in
    halves, until the event that fails is alone; when it has failed as often again, it goes to deadLetterStream."""
    description: str = setting("", Kind.TEXT)
    """A text for people."""

    def _check_combination(self) -> None:
        if self.retry.max_attempts is not None and not self.retry.dead_letter_stream:
            raise invalid(
                "retry",
                f"retry.maxAttempts is {self.retry.max_attempts}, and deadLetterStream is missing, so groups would "
                "pass over events that nobody can find again; give deadLetterStream, or leave maxAttempts out",
            )


@dataclass(frozen=True, kw_only=True)
class StartPoint(Checked):
    """The place in each partition of a stream at which a group or a pipeline begins."""

    location: str = setting("latest", Kind.TEXT, choices=LOCATIONS)
    """beginning: with the oldest record; latest: with the first record written after this; offset: with the record
    of that offset."""
    offset: int | None = setting(None, Kind.COUNT, minimum=0)
    """The first offset that is read, with location offset."""

    def _check_combination(self) -> None:
        if self.location == "offset" and self.offset is None:
            raise invalid(
                "offset", "location is offset, and offset is missing; give offset: N, or location: beginning or latest"
            )
        if self.location != "offset" and self.offset is not None:
            raise invalid(
                "offset",
                f"offset is {self.offset}, and location is {self.location}; write location: offset, or leave offset",
            )

    def cursor(self, newest: int) -> int:
        """The offset of the last record that counts as read, in a partition whose newest offset is ``newest``."""
        if self.location == "beginning":
            return 0
        if self.location == "latest" or self.offset is None:
            return newest
        return min(max(0, self.offset - 1), newest)


@dataclass(frozen=True, kw_only=True)
class StageDeclaration(Checked):
    """A stage of a pipeline: a step that is recorded once for each instance."""

    name: str = field(metadata=row(Kind.NAME))
    """The stage's name, distinct within the pipeline; not root_event."""
    after: tuple[str, ...] = setting((), Kind.NAMES)
    """Stages that have to be completed before; this stage is not given their outputs."""
    dependencies: tuple[str, ...] = setting((), Kind.NAMES)
    """Stages that have to be completed before and whose outputs this stage is given; root_event stands for the
    event that started the instance."""
    output: str | None = setting(None, Kind.TEXT, choices=OUTPUTS)
    """required: an ack without an output is treated as a nack; optional: an ack may have none. Without it: required
    exactly if the stage is a dependency of another."""
    stream_outputs: tuple[str, ...] = setting((), Kind.STREAMS)
    """Streams to which an ack of this stage adds records; an ack has to name each of them."""
    run: str = setting("", Kind.FUNCTION)
    """Function that runs this stage inside Spark. Without it: programs outside Spark run it."""
    delivery_timeout: float = setting(DELIVERY_SECONDS, Kind.SECONDS, minimum=1, maximum=LONGEST_TIMEOUT)
    """How long a worker may have a delivery; then it is taken away and given to another worker. A worker that needs
    longer extends it. Without effect on a stage with run."""
    retry: RetryPolicy = setting(RetryPolicy(), Kind.SECTION)
    """Treatment of a delivery that did not succeed. A change holds for the instances that have begun, too."""

    @property
    def predecessors(self) -> frozenset[str]:
        """The stages that have to be completed before this one; without ``root_event``."""
        return frozenset(self.after) | (frozenset(self.dependencies) - {ROOT_EVENT})

    @property
    def is_entry(self) -> bool:
        """Whether the stage runs as soon as an instance exists."""
        return not self.predecessors


@dataclass(frozen=True, kw_only=True)
class PipelineDeclaration(_Declared):
    """A pipeline: stages that run in an order for each matching record of a stream."""

    kind: ClassVar[str] = "Pipeline"

    name: str = field(metadata=row(Kind.NAME))
    """The pipeline's name."""
    namespace: str = field(metadata=row(Kind.NAME))
    """The namespace of the pipeline."""
    input_stream: str = field(metadata=row(Kind.STREAM))
    """Stream whose records start instances: its name, or namespace/name; it cannot be changed later."""
    triggers: tuple[str, ...] = setting((), Kind.PATTERNS)
    """Patterns over the type of a record; a record that matches one starts an instance. Without them: every record."""
    max_parallel: int = setting(50, Kind.COUNT, minimum=1, maximum=MOST_PARALLEL)
    """The most active instances for each partition of the input stream, because each has a controller of its own."""
    start_point: StartPoint = setting(StartPoint(), Kind.SECTION)
    """Where a new pipeline begins in its input stream; without effect on a known one."""
    stages: tuple[StageDeclaration, ...] = field(metadata=row(Kind.SECTIONS, minimum=1, maximum=MOST_STAGES))
    """The stages; at least one."""
    description: str = setting("", Kind.TEXT)
    """A text for people."""

    @property
    def input_key(self) -> ObjectKey:
        """The key of the input stream."""
        return stream_key(self.input_stream, self.namespace)

    def stage(self, name: str) -> StageDeclaration:
        """Return a stage by its name. Raises KeyError."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def output_required(self, stage: StageDeclaration) -> bool:
        """Whether an ack of a stage without an output is treated as a nack."""
        if stage.output:
            return stage.output == "required"
        return any(stage.name in other.dependencies for other in self.stages)

    def stream_output_keys(self, stage: StageDeclaration) -> tuple[ObjectKey, ...]:
        """The keys of the streams to which an ack of a stage adds records."""
        return tuple(stream_key(name, self.namespace) for name in stage.stream_outputs)


@dataclass(frozen=True, kw_only=True)
class ExchangeDeclaration(_Declared):
    """An exchange: ephemeral messages, a copy of each to one member of every group."""

    kind: ClassVar[str] = "Exchange"

    name: str = field(metadata=row(Kind.NAME))
    """The exchange's name."""
    namespace: str = field(metadata=row(Kind.NAME))
    """The namespace of the exchange."""
    description: str = setting("", Kind.TEXT)
    """A text for people."""


@dataclass(frozen=True, kw_only=True)
class EndpointDeclaration(_Declared):
    """An endpoint: calls, each answered by one consumer."""

    kind: ClassVar[str] = "Endpoint"

    name: str = field(metadata=row(Kind.NAME))
    """The endpoint's name."""
    namespace: str = field(metadata=row(Kind.NAME))
    """The namespace of the endpoint."""
    input: str = setting("single", Kind.TEXT, choices=MESSAGES)
    """Messages of a request."""
    output: str = setting("single", Kind.TEXT, choices=MESSAGES)
    """Messages of an answer."""
    description: str = setting("", Kind.TEXT)
    """A text for people."""


@dataclass(frozen=True, kw_only=True)
class ScheduleDeclaration(_Declared):
    """A schedule: an event that is published to a stream, or sent to an exchange, at certain times."""

    kind: ClassVar[str] = "Schedule"
    EXACTLY_ONE: ClassVar[tuple[str, str]] = ("stream", "exchange")
    """The fields of which a document has exactly one."""

    name: str = field(metadata=row(Kind.NAME))
    """The schedule's name."""
    namespace: str = field(metadata=row(Kind.NAME))
    """The namespace of the schedule."""
    stream: str = setting("", Kind.STREAM)
    """Stream to which the event is published: its name, or namespace/name. Give either this or exchange."""
    exchange: str = setting("", Kind.EXCHANGE)
    """Exchange to which the event is sent as an ephemeral message: its name, or namespace/name. Give either this or
    stream."""
    cron: str = field(metadata=row(Kind.CRON))
    """The times, as five fields: `0 6 * * mon-fri` is 06:00 from Monday to Friday."""
    time_zone: str = setting("UTC", Kind.ZONE)
    """The time zone of the times."""
    type: str = field(metadata=row(Kind.TEXT))
    """The type of the event."""
    data: str = setting("", Kind.TEXT)
    """The data of the event."""
    content_type: str = setting("text/plain", Kind.TEXT)
    """The content type of the data."""
    description: str = setting("", Kind.TEXT)
    """A text for people."""

    def _check_combination(self) -> None:
        if not self.type:
            raise invalid("type", "type is empty; give the type of the event, such as shop.day.began")
        try:
            attributes = (("datacontenttype", self.content_type),)
            valid_event(CloudEvent("id", "/schedules", self.type, self.data.encode(), attributes))
        except ValueError as wrong:
            raise invalid("type", f"the event {wrong}") from None

        if bool(self.stream) == bool(self.exchange):
            problem = "stream and exchange are both given" if self.stream else "neither stream nor exchange is given"
            raise invalid(
                "exchange" if self.exchange else "",
                f"{problem}; give one of them: a stream keeps the event, and an exchange passes it on to the receivers "
                "of that moment",
            )

    @property
    def target_key(self) -> ObjectKey:
        """The key of the stream or the exchange."""
        kind, name = ("Stream", self.stream) if self.stream else ("Exchange", self.exchange)
        return object_key(kind, name, self.namespace)

    def occurrence(self, at: int) -> CloudEvent:
        """The event at a time in milliseconds since 1970 UTC; the same time has the same ``source`` and ``id``."""
        time = datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        attributes = (("datacontenttype", self.content_type),) if self.data else ()
        data = self.data.encode() if self.data else None
        return CloudEvent(time, f"/schedules/{self.key.path}", self.type, data, (*attributes, ("time", time)))


GUARDED = ("Stream", "Pipeline", "Exchange", "Endpoint")
"""The kinds of objects that permissions are for."""


@dataclass(frozen=True, kw_only=True)
class Permission(Checked):
    """What the bearer of a token may do, and with which objects."""

    access: str = field(metadata=row(Kind.TEXT, choices=ACCESS))
    """publish: add records to a stream, send to an exchange, call an endpoint; subscribe: consume a stream or an
    exchange, run stages of a pipeline, serve an endpoint; all: both."""
    kind: str | None = setting(None, Kind.TEXT, choices=GUARDED)
    """Kind of the objects. Without it: every kind."""
    namespace: str = setting("", Kind.NAME)
    """Namespace of the objects. Without it: every namespace."""
    name: str = setting("", Kind.NAME)
    """Name of the object. Without it: every object of the namespace."""

    def _check_combination(self) -> None:
        if self.name and not self.namespace:
            raise invalid(
                "namespace", f"name is {self.name!r}, and namespace is missing; give the namespace of the object"
            )

    def permits(self, access: str, key: ObjectKey) -> bool:
        """Whether this permits an access (``publish`` or ``subscribe``) to an object."""
        return (
            self.access in (access, "all")
            and self.kind in (None, key.kind)
            and self.namespace in ("", key.namespace)
            and self.name in ("", key.name)
        )


@dataclass(frozen=True, kw_only=True)
class TokenDeclaration(_Declared):
    """The permissions of the tokens of one name; the secret of a token is made by ``token create``."""

    kind: ClassVar[str] = "Token"

    name: str = field(metadata=row(Kind.NAME))
    """The name of the tokens."""
    ttl: float | None = setting(None, Kind.SECONDS, minimum=1)
    """How long a new token is valid. Without it: until it is revoked."""
    permissions: tuple[Permission, ...] = field(metadata=row(Kind.SECTIONS, minimum=1, maximum=MOST_PERMISSIONS))
    """What the bearer may do; at least one. A change is valid for known tokens too."""
    description: str = setting("", Kind.TEXT)
    """A text for people."""


Declaration = (
    NamespaceDeclaration
    | StreamDeclaration
    | PipelineDeclaration
    | ExchangeDeclaration
    | EndpointDeclaration
    | ScheduleDeclaration
    | TokenDeclaration
)
KINDS: dict[str, type[Declaration]] = {declared.kind: declared for declared in get_args(Declaration)}
"""The kinds of declared objects, in the order in which they depend on each other."""
