"""The live state of a receiver as values, for the command line, the status page and the metrics.

:class:`ReceiverStatus` is one snapshot. It holds slots, connector instances and streams as flat tuples; where there are
very many, it holds those that wait longest and buffer most, and :class:`Totals` counts all. Times are seconds since
1970 UTC, ages and durations are seconds. Ages are measured where the fact is known, so clocks that differ do not change
them. :mod:`.faces.records` converts a snapshot to and from JSON. Source: ``docs/status.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wallaroo_spark.observe.figures import figure
from wallaroo_spark.protocol.reserved import reserved
from wallaroo_spark.references import Reference
from wallaroo_spark.runtime.long_jobs import Death

DOOR_REFUSED = "door-refused:"
"""Prefix of the names of a worker's counts of refusals by its doors; their codes follow, which begin with the door."""


@dataclass(frozen=True)
class Cause:
    """The reason why a receiver, slot, instance or stream waits, as one sentence. :mod:`.causes` finds it."""

    code: str = ""
    """A stable code, such as ``sink-slow``; empty before the cause was looked for. ``docs/status.md`` lists them."""
    sentence: str = ""
    """The sentence for a person, with the name of its subject in front."""
    healthy: bool = True
    """Whether everything works as it should; waiting for a connector's data, for example, is healthy."""
    cure: str = ""
    """The way out; empty when nothing has to be done."""


@dataclass(frozen=True)
class Refusal:
    """A connection or a request that a worker has refused, or messages of a door's client that a batch left out."""

    at: float
    """Time of the refusal."""
    kind: str
    """The kind, as in the worker's counts: ``wrong-cookie``, ``http-unauthorized``, …"""
    peer: str
    """``host:port`` of the peer; empty for messages that were left out."""
    instance: str
    """The name of the instance; empty when the peer has given none, such as with a wrong cookie."""
    reason: str
    """The reason that the peer was sent."""
    times: int = 1
    """How many there were in a row; of a door, of which only the last of each kind is told."""


@dataclass(frozen=True)
class ReadStatus:
    """The last request of a reading task for the rows of a batch."""

    ranges: int = 0
    """Number of planned ranges (one for each stream) that the task has asked for."""
    missing: int = 0
    """Number of these ranges that the worker does not hold completely yet; connectors have to send them again."""
    age: float = 0.0
    """Seconds since the task has asked."""
    done_age: float | None = None
    """Seconds since the worker has sent the last range; None while ranges are missing."""


@dataclass(frozen=True)
class QueryStatus:
    """The streaming query that reads a receiver."""

    state: str = "unknown"
    """``none`` (the receiver has fed no query), ``starting``, ``running``, ``stopped``, ``failed``, ``unknown``, or
    ``standby``: this driver waits to take over from the one that runs it."""
    id: str = ""
    """Spark's id of the query; it stays the same over restarts."""
    run_id: str = ""
    """Spark's id of this run of the query."""
    name: str = ""
    """The name that the user gave the query; often empty."""
    checkpoint: str = ""
    """The location of its checkpoint."""
    trigger: str = ""
    """Its trigger in words: ``as soon as possible``, ``every 1 s``, ``available now``, …; empty when not known."""
    committed_batch: int | None = None
    """The newest committed batch; None before the first commit."""
    committed_at: float | None = None
    """When the driver saw that commit; None before the first commit in this run."""
    batch: int | None = None
    """The batch under way: it is planned and not committed; None between batches."""
    phase: str = ""
    """The phase of the batch under way. ``reading``: a reading task waits for rows. ``writing``: all rows are read, and
    the query and its sink work on them. ``idle``: no batch is under way. Empty when it is not known."""
    since: float | None = None
    """When this phase began; None when it is not known."""
    message: str = ""
    """Spark's own text on the query's current activity."""
    error: str = ""
    """The last error with which a query of this receiver has ended; empty when there was none."""
    error_kind: str = ""
    """The part that failed: ``checkpoint`` when Spark or this package could not read or write it, else empty."""
    error_at: float | None = None
    """When the query ended with that error."""
    watcher_error: str = figure("", "1", "wallaroo_checkpoint_up", flipped=True)
    """1 while the driver can read the checkpoint of the query, 0 when it cannot, so that nothing is acknowledged."""
    reported_batch: int | None = None
    """The last batch that Spark has reported, of which the following fields tell; None before the first report."""
    input_rows: int = 0
    """Rows of the last batch that Spark has reported."""
    input_rate: float = 0.0
    """Rows a second that arrived between the last two reports of Spark."""
    processed_rate: float = 0.0
    """Rows a second at which the last reported batch was processed."""
    durations: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds of each step of the last reported batch, by Spark's names: ``latestOffset``, ``addBatch``, …"""


@dataclass(frozen=True)
class StreamStatus:
    """One stream of a connector, on the worker that holds its rows."""

    slot: int
    """The slot of the worker."""
    instance: str
    """The connector instance that sends it; in v3 the last one that did."""
    scope: str
    """The scope of its id: the instance, or empty in v3, where an id belongs to the whole source."""
    stream_id: int
    """Its id, a u64."""
    name: str = ""
    """The name from its NOTIFY."""
    state: str = "open"
    """``open``, ``ended`` (rows are still held), ``left`` (no session sends it now) or ``resending`` (its sender has to
    send rows again)."""
    received: Reference | None = None
    """The reference of the last received row; None when there is none."""
    planned: Reference | None = None
    """The end of the last range that a reading task has asked for; None when there was none since the worker began."""
    committed: Reference | None = None
    """The committed reference; None before the first commit."""
    rows: int = 0
    """Rows that are held: received, and not committed."""
    bytes: int = 0
    """Memory of these rows in bytes."""
    lag_rows: int = 0
    """Held rows that no batch has asked for yet."""
    ack_age: float | None = None
    """Seconds since the oldest held row was received: it is not acknowledged yet. None when no row is held."""
    rows_in: int = 0
    """Position behind the last received row. It grows by the number of received rows."""
    rows_out: int = 0
    """Position behind the last committed row. It grows by the number of committed rows."""
    ephemeral: bool = False
    """Whether its rows cannot be sent again."""
    cause: Cause = field(default_factory=Cause)
    """The reason why it waits."""

    @property
    def title(self) -> str:
        """The stream as its owner knows it: ``orders-2026.jsonl``, or its id when it has no name."""
        return self.name or f"stream {self.stream_id}"


@dataclass(frozen=True)
class InstanceStatus:
    """One connector instance that is connected to a worker, or of which a worker holds rows."""

    slot: int
    """The slot of the worker."""
    name: str
    state: str
    """``streaming``, ``waiting`` (it has no OK yet) or ``gone`` (it is not connected, and rows of it are held)."""
    since: float | None = None
    """When the session began; None when it is gone."""
    revision: str = ""
    """The revision of the protocol that it speaks."""
    program: str = ""
    """The program that it named in HELLO."""
    peer: str = ""
    """Its address, ``host:port``."""
    credits: int = figure(0, "{message}", heading="credits")
    """Messages that it may still send."""
    granted: int = 0
    """Credits that this session has received in all."""
    frames: int = 0
    """Messages and NOTIFYs that this session has sent."""
    paused: bool = False
    """Whether its socket is not read now, because the worker's memory is full."""
    last_frame_age: float | None = None
    """Seconds since its last bytes; None when it is gone."""
    streams: int = 0
    """Number of its streams, including ended streams with held rows."""
    open_streams: int = 0
    """Number of its streams that have not ended."""
    rows: int = figure(
        0, "{message}", "wallaroo_instance_buffered_messages", otel="wallaroo.instance.buffer.messages", terminal="held"
    )
    """Messages of a connector instance that the worker holds; limited as wallaroo_instance_ack_age_seconds is."""
    bytes: int = 0
    """Memory of these rows in bytes."""
    rows_in: int = 0
    """Sum of ``rows_in`` of its streams."""
    rows_out: int = 0
    """Sum of ``rows_out`` of its streams."""
    ack_age: float | None = figure(
        None,
        "s",
        "wallaroo_instance_ack_age_seconds",
        otel="wallaroo.instance.ack.age",
        terminal="ack age",
        page="ACK age",
    )
    """Seconds since the oldest message of a connector instance that is not acknowledged arrived; only for as many
    instances as the option metricsInstances allows, those that wait longest."""
    requests: int = 0
    """Requests that wait for their commit, of a door's client."""
    cause: Cause = field(default_factory=Cause)
    """The reason why it waits."""

    @property
    def of_door(self) -> bool:
        """Whether it is a door's client, which has no use for credits."""
        return bool(reserved(self.name))


@dataclass(frozen=True)
class DoorStatus:
    """A door of a worker, for clients of another protocol."""

    slot: int
    """The slot of the worker."""
    door: str
    """``http``, ``kafka``, …"""
    address: str = ""
    """Where clients reach it: a URL, or ``host:port`` for the setting bootstrap.servers of Kafka's clients."""
    ports: tuple[int, ...] = ()
    """The ports on which it listens; clients of Kafka need all of them."""
    connections: int | None = figure(
        None, "{connection}", "wallaroo_door_connections", heading="connections", absent=True
    )
    """Connections to a door of a worker."""
    clients: int = figure(0, "{client}", "wallaroo_door_clients", heading="clients")
    """Clients of a door that a worker serves: instances that have sent lately, or wait."""
    waiting: int = figure(
        0, "{request}", "wallaroo_door_requests_waiting", heading="waiting", otel="wallaroo.door.waiting"
    )
    """Requests of a door's clients that wait for their commit."""
    oldest: float | None = figure(
        None, "s", "wallaroo_door_request_age_seconds", heading="oldest", otel="wallaroo.door.request.age"
    )
    """Seconds since the oldest message of a door's clients that is not committed arrived; 0 when there is none."""
    refused: int = figure(0, "{request}", heading="refused")
    """Requests that the door has refused since its worker began."""
    waiting_by: Mapping[str, int] = field(default_factory=dict)
    """The waiting requests by the instance of their client, of those with most of them."""


@dataclass(frozen=True)
class WorkerCounts:
    """The counters of a slot that are metrics; in ``SlotStatus.counts`` their names have dashes."""

    messages: int = figure(0, "{message}", "wallaroo_messages_total")
    """Messages that workers have accepted; a message that is sent again counts once."""
    bytes: int = figure(0, "By", "wallaroo_received_bytes_total", otel="wallaroo.received")
    """Bytes that connectors have sent, including the headers of frames."""
    replayed: int = figure(0, "{message}", "wallaroo_replayed_messages_total", otel="wallaroo.messages.replayed")
    """Messages that connectors have sent again and that workers had already accepted."""
    committed: int = figure(0, "{message}", "wallaroo_committed_messages_total", otel="wallaroo.messages.committed")
    """Messages in committed batches."""
    acks: int = figure(0, "{frame}", "wallaroo_acks_total")
    """ACK frames that workers have sent."""
    deaths: int = figure(0, "{death}", "wallaroo_worker_deaths_total")
    """Ends of the slot's Spark job without a request."""
    submissions: int = figure(0, "{submission}", "wallaroo_worker_submissions_total")
    """Submissions of the slot's Spark job, including the first."""
    internal_errors: int = figure(
        0, "{error}", "wallaroo_internal_errors_total", otel="wallaroo.worker.internal_errors"
    )
    """Errors of this program that have ended sessions of a worker."""
    connections: int = figure(0, "{connection}", "wallaroo_connections_total")
    """Connections that workers have accepted, including those that never sent a HELLO."""
    sessions: int = figure(0, "{session}", "wallaroo_sessions_started_total")
    """Handshakes that were answered by OK."""
    peer_errors: int = figure(0, "{error}", "wallaroo_connector_errors_total")
    """ERROR frames that connectors have sent."""
    credits: int = figure(0, "{message}", "wallaroo_credits_granted_total")
    """Credits that workers have granted."""
    resends: int = figure(0, "{request}", "wallaroo_resends_total")
    """How many times workers have asked a connector to send a stream again."""
    shed_streams: int = figure(0, "{stream}", "wallaroo_dropped_streams_total", otel="wallaroo.streams.dropped")
    """How many times a full worker has dropped the messages of a stream, which its connector sends again."""
    stale_commits: int = figure(0, "{notice}", "wallaroo_stale_notices_total", otel="wallaroo.notices.stale")
    """Notices of the driver that workers have ignored because they already had newer ones."""
    door_requests: int = figure(0, "{request}", "wallaroo_door_requests_total", otel="wallaroo.door.requests")
    """Requests of doors' clients with messages that workers have taken."""
    door_messages: int = figure(0, "{message}", "wallaroo_door_messages_total", otel="wallaroo.door.messages")
    """Messages of these requests, also those that were recognised as sent before."""
    door_bytes: int = figure(0, "By", "wallaroo_door_received_bytes_total", otel="wallaroo.door.received")
    """Payload bytes of these messages."""
    dropped_unanswered: int = figure(
        0, "{range}", "wallaroo_dropped_unanswered_total", otel="wallaroo.door.dropped_unanswered"
    )
    """Planned ranges of streams of doors' clients that batches went on without, because a worker had died and the
    client, which was not answered, did not send them again."""
    unreadable_batches: int = figure(0, "{batch}", "wallaroo_unreadable_batches_total", otel="wallaroo.door.unreadable")
    """Record batches of Kafka's producers that reading tasks could not read. Their records are not in the table, unless
    includeCorrupt is set; a batch that is read again counts again."""
    lost_messages: int = figure(0, "{message}", "wallaroo_lost_messages_total", otel="wallaroo.messages.lost")
    """EPHEMERAL messages that were lost on their way over QUIC, because connectors have sent them in datagrams."""
    registry_failures: int = figure(0, "{error}", "wallaroo_registry_errors_total")
    """Calls of a worker to the registry (Redis) that failed."""


@dataclass(frozen=True)
class SlotStatus:
    """One slot of the fleet, with its worker."""

    slot: int
    """Its number, from 0."""
    state: str
    """``serving``, ``waiting`` (for a query), ``starting``, ``stopping``, ``lost`` (its worker has died or was never
    seen again), ``frozen`` (its process accepts calls and does not answer), ``unreachable`` (it cannot be called from
    here) or ``vacant`` (nobody has ever served it, or its worker has left)."""
    holder: str = ""
    """The unique name of the worker's process."""
    address: str = ""
    """``host:port`` for connectors."""
    inner_address: str = ""
    """``host:port`` of the inner port."""
    host: str = ""
    """Name of the machine."""
    executor: str = ""
    """Spark's id of the executor; empty when the worker does not know it."""
    pid: int | None = None
    """Process id of the worker."""
    generation: int = 0
    """Generation of its lease."""
    submission: int = 0
    """The registry's number of the submission that holds the lease."""
    submissions: int | None = None
    """How many times this driver has submitted the slot's job; None when the driver's report is not known."""
    died: int = 0
    """Number of times that the job ended without a request."""
    deaths: tuple[Death, ...] = ()
    """The last of these ends, the oldest first."""
    last_error: str = ""
    """The last error of the job; empty when there was none."""
    error: str = ""
    """Why its worker has not answered; empty when it has."""
    lease_expired: bool = False
    """Whether its worker has not renewed the lease in time."""
    ready: bool = False
    """Whether it has received the query's references, so that it accepts connectors."""
    registry_away: bool = figure(False, "1", "wallaroo_registry_up", flipped=True)
    """1 while the registry (Redis) answers the slot's worker, 0 otherwise."""
    stopping: str = ""
    """Why it stops; empty when it does not."""
    epoch: int = 0
    """The number of the query's start that it was told."""
    batch: int = -1
    """The batch of the last commit notice that it received."""
    memory_budget: int = figure(0, "By", "wallaroo_buffer_limit_bytes", otel="wallaroo.buffer.limit")
    """Memory that a worker's buffer may use: the option memoryBudget."""
    memory_used: int = figure(0, "By", "wallaroo_buffer_used_bytes", otel="wallaroo.buffer.used")
    """Memory of the messages and unfinished frames that workers hold."""
    unfinished_bytes: int = 0
    """Bytes of incomplete frames, a part of ``memory_used``."""
    pressure: str = ""
    """``none``, ``soft`` or ``hard``: how much a full buffer holds senders back."""
    connections: int = 0
    """Connections to its port, including those that have sent no HELLO yet."""
    sessions: int = figure(0, "{session}", "wallaroo_sessions", otel="wallaroo.sessions.active", terminal="sessions")
    """Sessions that were answered by OK and have not ended."""
    waiting: int = figure(0, "{session}", "wallaroo_sessions_waiting", otel="wallaroo.sessions.waiting")
    """Accepted connectors that wait for OK."""
    quic: str = ""
    """``host:port`` at which it serves connectors over QUIC, in UDP; empty when it does not."""
    quic_connections: int = figure(0, "{connection}", "wallaroo_quic_connections", otel="wallaroo.connections.quic")
    """Connections to a worker over QUIC, a part of its connections."""
    door_received: tuple[str, ...] = ()
    """The streams and topics whose requests its doors answer when they are received, as patterns: the option
    ``door.received``."""
    credits: int = figure(0, "{message}", "wallaroo_credits", otel="wallaroo.credits.available", terminal="credits")
    """Messages that connectors may still send."""
    instances: int = figure(0, "{instance}", "wallaroo_instances")
    """Connector instances that are connected, or of which the worker holds messages."""
    streams: int = figure(0, "{stream}", "wallaroo_streams", terminal="streams")
    """Streams that are open, or of which the worker holds messages."""
    rows: int = figure(0, "{message}", "wallaroo_buffered_messages", otel="wallaroo.buffer.messages", terminal="held")
    """Messages that workers hold, because they are not committed."""
    rows_in: int = 0
    """Rows that the worker has received in all."""
    rows_out: int = 0
    """Rows that were committed in all."""
    ack_age: float | None = figure(
        None, "s", "wallaroo_ack_age_seconds", otel="wallaroo.ack.age", terminal="ack age", page="ACK age"
    )
    """Seconds since the oldest message that is not acknowledged arrived; 0 when there is none."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The worker's counters: ``messages``, ``connections``, ``fault:…``, …"""
    refusals: tuple[Refusal, ...] = ()
    """The last refused connections, the oldest first."""
    read: ReadStatus | None = None
    """The last request of a reading task; None when there was none since the worker began."""
    warnings: tuple[str, ...] = ()
    """The worker's warnings about its settings."""
    story: tuple[str, ...] = ()
    """Its last events; empty unless they were requested."""
    cause: Cause = field(default_factory=Cause)
    """The reason why it waits."""

    @property
    def answers(self) -> bool:
        """Whether the worker has answered."""
        return self.state in ("serving", "waiting", "stopping")


@dataclass(frozen=True)
class PartitionStatus:
    """One partition of a topic."""

    partition: int
    """Its number, from 0."""
    state: str
    """``serving`` or ``vacant``."""
    address: str | None = None
    """``host:port`` of its publisher; None when there is none."""
    newest: int | None = None
    """The newest epoch that it may send; None before the first."""
    subscribers: int = 0
    """Number of its subscribers."""


@dataclass(frozen=True)
class TopicStatus:
    """A running topic of the registry."""

    topic: str
    driver: str
    """The driver that runs it."""
    identity: str
    """The identity of its history."""
    partitions: tuple[PartitionStatus, ...] = ()


@dataclass(frozen=True)
class SinkStatus:
    """A transactional sink of the query."""

    sink: str
    state: str
    """``new``, ``finished``, ``committed`` (decided, and not finished) or ``aborted``."""
    batch: int | None = None
    """The newest batch that was decided; None for a new sink."""


@dataclass(frozen=True)
class Totals:
    """Sums over all slots that answered, also over instances and streams that the snapshot leaves out."""

    slots: int = 0
    """Slots of the fleet."""
    serving: int = 0
    """Slots whose worker serves."""
    sessions: int = 0
    """Sessions that were told OK."""
    waiting: int = 0
    """Accepted connectors that wait for OK."""
    instances: int = 0
    """Connector instances that are connected, or of which rows are held."""
    streams: int = 0
    """Streams that are open, or of which rows are held."""
    rows: int = 0
    """Held rows."""
    bytes: int = 0
    """Bytes in use in the buffers."""
    budget: int = 0
    """Bytes that the buffers may use."""
    credits: int = 0
    """Credits that sessions may still use."""
    rows_in: int = 0
    """Rows that the running workers have received in all."""
    lag_rows: int | None = None
    """Held rows that no batch has asked for yet; by Spark's last report where the snapshot leaves streams out. None
    when it is not known."""
    lag_bytes: int | None = None
    """Memory of these rows in bytes; None when it is not known."""
    ack_age: float | None = None
    """Seconds since the oldest held row was received; None when no row is held."""
    died: int = 0
    """Deaths of workers that the driver has counted."""
    faults: int = 0
    """Violations of the protocol that the workers have counted."""


@dataclass(frozen=True)
class ReceiverStatus:
    """A snapshot of one receiver."""

    name: str
    time: float
    """When it was taken."""
    running: bool = False
    """Whether a driver or a worker of it runs."""
    driver: str | None = None
    """The driver, as ``host/pid/id``; None when there is none, or the registry does not answer."""
    report_age: float | None = None
    """Age of the driver's last report in the registry; None when there is none. Facts on the query, on submissions and
    on deaths come from this report."""
    registry_error: str = figure("", "1", "wallaroo_driver_registry_up", flipped=True)
    """1 while the registry (Redis) answers the driver, 0 otherwise."""
    driver_error: str = ""
    """Why the last round of the driver has failed; empty when it has not."""
    page: str = ""
    """The address of the driver's status page; empty when there is none, or it is not known."""
    query: QueryStatus = field(default_factory=QueryStatus)
    slots: tuple[SlotStatus, ...] = ()
    """Its slots, in order."""
    instances: tuple[InstanceStatus, ...] = ()
    """Connector instances, those that wait longest first; at most as many as were asked for from each worker."""
    streams: tuple[StreamStatus, ...] = ()
    """Streams, those that wait longest first; at most as many as were asked for from each worker."""
    doors: tuple[DoorStatus, ...] = ()
    """The doors of the workers that answered, in the order of slots."""
    totals: Totals = field(default_factory=Totals)
    """Sums over everything."""
    topics: tuple[TopicStatus, ...] = ()
    """Topics of the registry; empty unless they were requested."""
    sinks: tuple[SinkStatus, ...] = ()
    """Transactional sinks of the query; empty unless they were requested."""
    unread: tuple[str, ...] = ()
    """Why topics or sinks that were requested are not known; a sentence each."""
    warnings: tuple[str, ...] = ()
    """Warnings about settings."""
    standby: str = ""
    """The driver that waits to take over when ``driver`` is gone; empty when none does."""
    cause: Cause = field(default_factory=Cause)
    """The reason why it waits: the first of ``causes``."""
    causes: tuple[Cause, ...] = ()
    """All causes that hold, those that do most harm first."""

    @property
    def healthy(self) -> bool:
        """Whether everything works as it should."""
        return self.cause.healthy
