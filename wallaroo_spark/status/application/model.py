"""The live state of an application as values. Times are seconds since 1970 UTC, ages and durations are seconds.

Source: ``docs/pipelines/see.md#the-status``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wallaroo_spark.status.model import Cause, QueryStatus


@dataclass(frozen=True)
class GatewayStatus:
    """One gateway."""

    gateway: str
    """Its name, such as ``g0``."""
    state: str = "down"
    """``serving``, ``starting``, ``down``, or ``unknown`` (the registry does not answer)."""
    address: str = ""
    """``host:port`` for clients; empty while it does not serve."""
    host: str = ""
    """The machine that it runs on."""
    generation: int = 0
    """The generation of its inbox; 0 before its first report."""
    submissions: int = 0
    """Number of submissions of its Spark job, from 1."""
    age: float | None = None
    """Seconds since its last report; None without one."""
    members: int = 0
    """Channels of groups, stages, exchanges and endpoints."""
    requests: int = 0
    """Calls that wait for their commit."""
    oldest_request: float | None = None
    """Seconds since the oldest of these calls began; None without one."""
    deliveries: int = 0
    """Deliveries that its members have and have not settled."""
    queued: int = 0
    """Events that wait in memory for the inbox."""
    unread_files: int = 0
    """Files of its inbox that no committed batch has read."""
    unread_events: int = 0
    """Events in these files."""
    last_error: str = ""
    """The error with which its job last ended; empty when it never did."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Its counters since its start, by name; ``docs/metrics.md`` has their meaning."""


@dataclass(frozen=True)
class GroupStatus:
    """A group of subscribers on one partition."""

    group: str
    """Its name."""
    cursor: int
    """The last offset that is done."""
    lag: int
    """Records behind the cursor."""
    members: int = 0
    """Members that have joined."""
    durable: bool = False
    """Whether it outlives its members."""
    attempts: int = 0
    """How often the open delivery was delivered; 0 without an open delivery."""
    oldest: float | None = None
    """Seconds since the open delivery could be delivered first; None without an open delivery."""


@dataclass(frozen=True)
class PartitionState:
    """One partition of a stream, after the newest committed batch."""

    stream: str
    """The stream, as ``namespace/name``."""
    partition: int
    """Its number."""
    first: int = 1
    """The oldest kept offset."""
    last: int = 0
    """The newest offset."""
    records: int = 0
    """Records that were appended since the figures began."""
    delayed: int = 0
    """Deliveries and records that wait for their time."""
    groups: tuple[GroupStatus, ...] = ()
    """Its groups."""


@dataclass(frozen=True)
class StageStatus:
    """A stage of a pipeline, over all partitions."""

    stage: str
    """Its name."""
    after: tuple[str, ...] = ()
    """Stages that it waits for; empty: the event alone."""
    in_spark: bool = False
    """Whether it is a function that runs in Spark, and so takes no members."""
    members: int = 0
    """Members that work on it, counted once for each partition."""
    waiting: int = 0
    """Deliveries that wait for a member."""
    running: int = 0
    """Deliveries that members have."""
    done: int = 0
    """Recorded outputs since the figures began."""
    oldest: float | None = None
    """Seconds for which the oldest of the running deliveries has been with its member; None without one."""
    unserved_since: float | None = None
    """Since when deliveries wait and a partition has no member; None while that is not so."""


@dataclass(frozen=True)
class PipelineStatus:
    """A pipeline, over all partitions of its input stream."""

    pipeline: str
    """Its path, as ``namespace/name``."""
    input: str
    """Its input stream."""
    most: int = 0
    """The most active instances of one partition (``maxParallel``)."""
    active: int = 0
    """Active instances."""
    lag: int = 0
    """Records of the input that have neither begun an instance nor been passed over."""
    began: int = 0
    """Instances that have begun since the figures began."""
    done: int = 0
    """Instances that have ended well since then."""
    failed: int = 0
    """Instances that have failed since then."""
    cancelled: int = 0
    """Instances that were cancelled since then."""
    dead_letters: int = 0
    """Root events that were carried to a dead-letter stream since then."""
    skipped: int = 0
    """Records that retention removed before this pipeline had them, since then."""
    stages: tuple[StageStatus, ...] = ()
    """Its stages, in the order of the declaration."""


@dataclass(frozen=True)
class ApplicationStatus:
    """One snapshot of an application."""

    application: str
    """Its name."""
    time: float
    """When the driver took the snapshot."""
    folder: str = ""
    """Its folder."""
    running: bool = False
    """Whether a driver runs it now."""
    driver: str = ""
    """The driver that runs it, as ``host/pid/…``."""
    schema: int | None = None
    """The newest version of its schema."""
    query: QueryStatus = field(default_factory=QueryStatus)
    """Its query."""
    query_starts: int = 0
    """How often this driver has started the query."""
    commit_age: float | None = None
    """Seconds since the newest commit; None before the first one that this driver saw."""
    moved: int | None = None
    """The newest batch whose records are in the tables."""
    counted_from: int | None = None
    """The first batch that the counts since the beginning contain; None before the first."""
    gateways: tuple[GatewayStatus, ...] = ()
    """Its gateways."""
    partitions: tuple[PartitionState, ...] = ()
    """The partitions of its streams."""
    pipelines: tuple[PipelineStatus, ...] = ()
    """Its pipelines."""
    errors: tuple[str, ...] = ()
    """Errors that hold now."""
    registry_error: str = ""
    """Why the registry did not answer; empty when it did."""
    cause: Cause = field(default_factory=Cause)
    """The reason why it waits."""
