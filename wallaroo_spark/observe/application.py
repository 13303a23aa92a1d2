"""The live state of an application as values. Times are seconds since 1970 UTC, ages and durations are seconds.

Source: ``docs/pipelines/see.md#the-status``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wallaroo_spark.errors import printable
from wallaroo_spark.observe.figures import figure
from wallaroo_spark.observe.receiver import Cause, QueryStatus
from wallaroo_spark.texts import count, day_and_clock, duration


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
    submissions: int = figure(0, "{submission}", "wallaroo_gateway_submissions_total", always=True, heading="starts")
    """Submissions of the gateway's Spark job, including the first."""
    age: float | None = None
    """Seconds since its last report; None without one."""
    members: int = figure(0, "{member}", "wallaroo_gateway_members", heading="members")
    """Channels of groups, stages, exchanges and endpoints."""
    requests: int = figure(0, "{call}", "wallaroo_gateway_waiting_calls", terminal="calls")
    """Calls that wait for their commit."""
    oldest_request: float | None = figure(None, "s", "wallaroo_gateway_oldest_call_seconds", terminal="oldest call")
    """Seconds since the oldest of these calls began; 0 when none waits."""
    deliveries: int = figure(0, "{delivery}", "wallaroo_gateway_open_deliveries", heading="deliveries")
    """Deliveries that members have and have not settled."""
    queued: int = figure(0, "{event}", "wallaroo_gateway_queued_events", terminal="queued")
    """Events that wait in memory for the inbox."""
    unread_files: int = figure(0, "{file}", terminal="unread files")
    """Files of its inbox that no committed batch has read."""
    unread_events: int = figure(0, "{event}", "wallaroo_gateway_unread_events", always=True, terminal="unread events")
    """Events in the inbox that no committed batch has read."""
    last_error: str = ""
    """The error with which its job last ended; empty when it never did."""
    refused_age: float | None = None
    """Seconds since it refused a token last; None when it never did."""
    refused_reason: str = ""
    """Why it refused that token."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Its counters since its start, by name; ``docs/metrics.md`` has their meaning."""


@dataclass(frozen=True)
class GatewayCounts:
    """The counters of a gateway that are metrics; in ``GatewayStatus.counts`` their names have dashes."""

    deliveries: int = figure(0, "{delivery}", "wallaroo_gateway_deliveries_total")
    """Deliveries to members of the gateway."""
    tokens_refused: int = figure(0, "{call}", "wallaroo_gateway_tokens_refused_total")
    """Calls and messages that were refused for their token."""
    inbox_files: int = figure(0, "{file}", "wallaroo_gateway_inbox_files_total")
    """Files that the gateway has written to its inbox."""
    inbox_events: int = figure(0, "{event}", "wallaroo_gateway_inbox_events_total")
    """Events in these files."""
    inbox_bytes: int = figure(0, "By", "wallaroo_gateway_inbox_bytes_total")
    """Bytes of these events."""
    inbox_seconds: float = figure(0.0, "s", "wallaroo_gateway_inbox_seconds_total")
    """Seconds that writing these files has taken."""


@dataclass(frozen=True)
class GroupStatus:
    """A group of subscribers on one partition."""

    group: str
    cursor: int = figure(0, "{offset}", terminal="position", page="Cursor")
    """The last offset that is done."""
    lag: int = figure(0, "{record}", "wallaroo_group_lag_records", heading="lag")
    """Records behind the cursor of a durable group, over all partitions."""
    members: int = figure(0, "{member}", "wallaroo_group_members", terminal="members")
    """Members of a durable group, counted once for each partition."""
    durable: bool = False
    """Whether it outlives its members."""
    attempts: int = 0
    """How often the open delivery was delivered; 0 without an open delivery."""
    oldest: float | None = figure(None, "s", terminal="open for")
    """Seconds since the open delivery could be delivered first; None without an open delivery."""
    since: float | None = None
    """When the open delivery could be delivered first; None without an open delivery."""
    paused: bool = False
    """Whether an operator has paused it."""
    idle_since: float | None = None
    """When its last member left; None while it has one."""
    overdue: int = 0
    """Deliveries that were taken away from members, which have not ended them: these are given no other one."""
    reason: str = ""
    """Why its open delivery has failed before; empty when it has not."""
    letters_refused: int = 0
    """Dead letters that their stream has refused: these events are only where the group has read them."""
    refused_reason: str = ""
    """Why the last of them was refused; empty before the first."""

    @property
    def note(self) -> str:
        """The remarks on it."""
        letters = count(self.letters_refused, "dead letter was", "dead letters were")
        parts = [
            "paused" if self.paused else "",
            "" if self.durable else "ephemeral",
            "" if self.idle_since is None else f"no member since {day_and_clock(self.idle_since)}",
            _overdue(self.overdue),
            printable(self.reason),
            f"{letters} refused: {printable(self.refused_reason)}" if self.letters_refused else "",
        ]
        return "; ".join(filter(None, parts))


def _overdue(number: int) -> str:
    return f"{count(number, 'delivery', 'deliveries')} taken away, and not yet ended by the member" if number else ""


@dataclass(frozen=True)
class PartitionState:
    """One partition of a stream, after the newest committed batch."""

    stream: str
    """The stream, as ``namespace/name``."""
    partition: int
    """Its number."""
    first: int = figure(1, "{offset}", terminal="first", page="Oldest offset")
    """The oldest kept offset."""
    last: int = figure(0, "{offset}", terminal="last", page="Newest offset")
    """The newest offset."""
    records: int = figure(0, "{record}", "wallaroo_stream_records_total", always=True, adds=True)
    """Records of a stream."""
    delayed: int = figure(0, "{record}", heading="delayed")
    """Deliveries and records that wait for their time."""
    groups: tuple[GroupStatus, ...] = ()


@dataclass(frozen=True)
class StageStatus:
    """A stage of a pipeline, over all partitions."""

    stage: str
    after: tuple[str, ...] = ()
    """Stages that it waits for; empty: the event alone."""
    in_spark: bool = False
    """Whether it is a function that runs in Spark, and so takes no members."""
    members: int = figure(0, "{member}", "wallaroo_stage_members", heading="members")
    """Members of a stage, counted once for each partition."""
    waiting: int = figure(0, "{delivery}", "wallaroo_stage_waiting", heading="waiting")
    """Deliveries of a stage that wait for a member."""
    running: int = figure(0, "{delivery}", "wallaroo_stage_running", heading="running")
    """Deliveries of a stage that members have."""
    retrying: int = figure(0, "{delivery}", "wallaroo_stage_retrying", always=True, heading="retrying")
    """Deliveries of a stage that have failed and wait for the time of their next attempt."""
    done: int = figure(0, "{output}", "wallaroo_stage_outputs_total", always=True, adds=True, heading="done")
    """Recorded outputs of a stage: deliveries that are done."""
    failed: int = figure(
        0, "{delivery}", "wallaroo_stage_failed_deliveries_total", always=True, adds=True, heading="failed"
    )
    """Deliveries of a stage that have failed: nacks, raised functions, and those that ended with their member or their
    time."""
    failing: float | None = figure(None, "s", "wallaroo_stage_failing_seconds", always=True, heading="failing for")
    """Seconds for which a stage has tried the delivery that has failed longest; 0 when none fails."""
    failing_since: float | None = None
    """Since when that delivery is tried; None when none fails."""
    failed_at: float | None = None
    """When that delivery failed last."""
    attempts: int = 0
    """How often that delivery has failed."""
    reason: str = ""
    """Why it failed last."""
    oldest: float | None = figure(None, "s", "wallaroo_stage_oldest_seconds", heading="oldest")
    """Seconds for which the oldest delivery of a stage has been with its member; 0 when no member has one."""
    unserved: float | None = figure(None, "s", "wallaroo_stage_unserved_seconds")
    """Seconds for which deliveries of a stage have waited on a partition without a member; 0 when none do."""
    unserved_since: float | None = None
    """Since when that is so; None while it is not."""
    places: int = 0
    """The most deliveries that its members work on at once (their ``concurrency``); each works on all partitions."""
    overdue: int = figure(0, "{delivery}")
    """Deliveries that were taken away from members, and that these have not ended: they keep places."""

    @property
    def note(self) -> str:
        """The remarks on it."""
        parts = [
            "in Spark" if self.in_spark else "",
            "" if self.unserved is None else f"no member for {duration(self.unserved)}",
            f"delivery {self.attempts} of an instance has failed: {printable(self.reason)}" if self.attempts else "",
            _overdue(self.overdue),
        ]
        return "; ".join(filter(None, parts))


@dataclass(frozen=True)
class PipelineStatus:
    """A pipeline, over all partitions of its input stream."""

    pipeline: str
    """Its path, as ``namespace/name``."""
    input: str = ""
    """Its input stream."""
    most: int = 0
    """The most active instances of one partition (``maxParallel``)."""
    active: int = figure(0, "{instance}", "wallaroo_pipeline_active_instances", terminal="active")
    """Active instances."""
    lag: int = figure(0, "{record}", "wallaroo_pipeline_lag_records", heading="lag")
    """Records of the input that have neither begun an instance nor been passed over."""
    began: int = figure(
        0, "{instance}", "wallaroo_pipeline_begun_instances_total", terminal="began", page="Begun", adds=True
    )
    """Instances that have begun."""
    done: int = figure(0, "{instance}", adds=True, heading="done")
    """Instances that have ended well."""
    failed: int = figure(0, "{instance}", adds=True, heading="failed")
    """Instances that have failed."""
    cancelled: int = figure(0, "{instance}", adds=True, heading="cancelled")
    """Instances that were cancelled."""
    dead_letters: int = figure(0, "{event}", "wallaroo_pipeline_dead_letters_total", adds=True, heading="dead letters")
    """Root events of failed instances that were carried to a dead-letter stream."""
    skipped: int = figure(0, "{record}", "wallaroo_pipeline_skipped_records_total", adds=True)
    """Records that retention has removed before the pipeline had them."""
    done_at: float | None = None
    """When an instance ended well last."""
    failed_at: float | None = None
    """When an instance failed last."""
    reason: str = ""
    """Why that one failed."""
    stages: tuple[StageStatus, ...] = ()
    """Its stages, in the order of the declaration."""


@dataclass(frozen=True)
class KeyGauges:
    """What the operator writes after each turn of a key, and what the driver adds up.

    The figures that are counted (``adds``) are those of the turn alone, the others are the state after it.
    """

    at: float
    """The time of the turn's batch."""
    partition: PartitionState
    """The partition, with its groups."""
    pipelines: tuple[PipelineStatus, ...] = ()
    """The pipelines whose input it is. A stage without anything to say is left out."""


@dataclass(frozen=True)
class ApplicationStatus:
    """One snapshot of an application."""

    application: str
    time: float
    """When the driver took the snapshot."""
    folder: str = ""
    running: bool = False
    """Whether a driver runs it now."""
    driver: str = ""
    """The driver that runs it, as ``host/pid/…``."""
    schema: int | None = None
    """The newest version of its schema."""
    query: QueryStatus = field(default_factory=QueryStatus)
    query_starts: int = figure(0, "{start}", "wallaroo_application_query_starts_total")
    """How often the driver has started the query."""
    commit_age: float | None = figure(None, "s", "wallaroo_application_commit_age_seconds", absent=True)
    """Seconds since the newest commit; absent before the first one that the driver has seen."""
    moved: int | None = None
    """The newest batch whose records are in the tables."""
    counted_from: int | None = None
    """The first batch that the counts since the beginning contain; None before the first."""
    gateways: tuple[GatewayStatus, ...] = ()
    partitions: tuple[PartitionState, ...] = ()
    """The partitions of its streams."""
    pipelines: tuple[PipelineStatus, ...] = ()
    errors: tuple[str, ...] = ()
    """Errors that hold now."""
    round_age: float | None = figure(None, "s", "wallaroo_application_round_age_seconds")
    """Seconds since the driver has renewed its lock; it does so once a second."""
    registry_error: str = figure("", "1", "wallaroo_application_registry_up", flipped=True)
    """1 while the registry (Redis) answers the driver, 0 otherwise."""
    standby: str = ""
    """The driver that waits to take over when ``driver`` is gone; empty when none does."""
    cause: Cause = field(default_factory=Cause)
    """The reason why it waits: the first of ``causes``."""
    causes: tuple[Cause, ...] = ()
    """All causes that hold, those that do most harm first."""
