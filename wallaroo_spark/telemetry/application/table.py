"""The table of an application's metrics, as :mod:`wallaroo_spark.telemetry.table` is that of a receiver's.

Labels have the names of declared objects, of which there are few, and of durable groups. The counters of pipelines and
streams go on over restarts of the driver, those of gateways begin anew with the gateway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wallaroo_spark.status.application.model import ApplicationStatus, GatewayStatus, PipelineStatus, StageStatus
from wallaroo_spark.telemetry.batches import BatchTimes
from wallaroo_spark.telemetry.table import Metric, MetricKind, Sample, batch_phases, cumulative

COMMIT_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets in the counts of gateways, whose room has the same ones."""


@dataclass(frozen=True)
class ApplicationFacts:
    """Everything that the metrics of one moment are made from."""

    status: ApplicationStatus
    """The snapshot."""
    batches: BatchTimes = field(default_factory=BatchTimes)
    """The seconds of the batches."""

    @property
    def subject(self) -> str:
        """The value of the label ``application``."""
        return self.status.application


Samples = Callable[[ApplicationFacts], Iterator[Sample]]


def _whole(value: Callable[[ApplicationFacts], float | None]) -> Samples:
    def samples(facts: ApplicationFacts) -> Iterator[Sample]:
        found = value(facts)
        if found is not None:
            yield Sample((), float(found))

    return samples


def _pipelines(value: Callable[[PipelineStatus], float]) -> Samples:
    return lambda facts: (Sample((one.pipeline,), float(value(one))) for one in facts.status.pipelines)


def _stages(value: Callable[[StageStatus, float], float | None], *, outside: bool = False) -> Samples:
    """A value for each stage; with ``outside`` only for those that take members. None is left out."""

    def samples(facts: ApplicationFacts) -> Iterator[Sample]:
        for pipeline in facts.status.pipelines:
            for stage in pipeline.stages:
                found = None if outside and stage.in_spark else value(stage, facts.status.time)
                if found is not None:
                    yield Sample((pipeline.pipeline, stage.stage), float(found))

    return samples


def _gateways(value: Callable[[GatewayStatus], float], *, silent: bool = False) -> Samples:
    """A value for each gateway that has reported, or with ``silent`` for each one."""

    def samples(facts: ApplicationFacts) -> Iterator[Sample]:
        for one in facts.status.gateways:
            if silent or one.age is not None:
                yield Sample((one.gateway,), float(value(one)))

    return samples


def _count(name: str) -> Samples:
    return _gateways(lambda one: one.counts.get(name, 0))


def _calls(facts: ApplicationFacts) -> Iterator[Sample]:
    for one in facts.status.gateways:
        for name, value in sorted(one.counts.items()):
            if name.startswith("calls:"):
                _, method, outcome = name.split(":", 2)
                yield Sample((one.gateway, method, outcome), float(value))


def _commits(facts: ApplicationFacts) -> Iterator[Sample]:
    for one in facts.status.gateways:
        if one.age is not None:
            bounds = (*(f"{bound:g}" for bound in COMMIT_SECONDS), "+Inf")
            counts = (int(one.counts.get(f"commit:{bound}", 0)) for bound in bounds)
            seconds = float(one.counts.get("commit-seconds", 0.0))
            yield Sample((one.gateway,), seconds, cumulative(COMMIT_SECONDS, counts))


def _records(facts: ApplicationFacts) -> Iterator[Sample]:
    total: Counter[str] = Counter()
    for one in facts.status.partitions:
        total[one.stream] += one.records
    for stream, records in total.items():
        yield Sample((stream,), float(records))


def _groups(name: str) -> Samples:
    """The sum of a figure of each durable group over the partitions."""

    def samples(facts: ApplicationFacts) -> Iterator[Sample]:
        total: Counter[tuple[str, str]] = Counter()
        for one in facts.status.partitions:
            for group in one.groups:
                if group.durable:
                    total[one.stream, group.group] += getattr(group, name)
        for labels, value in total.items():
            yield Sample(labels, float(value))

    return samples


def _ended(facts: ApplicationFacts) -> Iterator[Sample]:
    for one in facts.status.pipelines:
        for outcome, value in (("done", one.done), ("failed", one.failed), ("cancelled", one.cancelled)):
            yield Sample((one.pipeline, outcome), float(value))


def _running_seconds(facts: ApplicationFacts) -> float:
    query = facts.status.query
    return max(0.0, facts.status.time - query.since) if query.batch is not None and query.since is not None else 0.0


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_PIPELINE, _STAGE, _GATEWAY = ("pipeline",), ("pipeline", "stage"), ("gateway",)


def _metric(
    name: str, kind: MetricKind, text: str, unit: str, samples: Samples, *labels: str
) -> Metric[ApplicationFacts]:
    """A row. The name by OpenTelemetry follows from that for Prometheus, because both have the same parts."""
    otel = name.removesuffix("_total").replace("_", ".")
    return Metric(name, kind, text, otel, unit, samples, labels)


APPLICATION_METRICS: tuple[Metric[ApplicationFacts], ...] = (
    _metric(
        "wallaroo_application_up",
        _G,
        "1 while the application's query runs, 0 otherwise.",
        "1",
        _whole(lambda facts: facts.status.running and facts.status.query.state == "running"),
    ),
    _metric(
        "wallaroo_application_healthy",
        _G,
        "1 when /healthz answers 200, 0 when it answers 503.",
        "1",
        _whole(lambda facts: facts.status.cause.healthy),
    ),
    _metric(
        "wallaroo_application_registry_up",
        _G,
        "1 while the registry (Redis) answers the driver, 0 otherwise.",
        "1",
        _whole(lambda facts: not facts.status.registry_error),
    ),
    _metric(
        "wallaroo_application_errors",
        _G,
        "Errors of the driver's work that hold now; the work is repeated.",
        "{error}",
        _whole(lambda facts: len(facts.status.errors)),
    ),
    _metric(
        "wallaroo_application_batches_total",
        _C,
        "Batches that Spark has reported.",
        "{batch}",
        _whole(lambda facts: facts.batches.batches),
    ),
    _metric(
        "wallaroo_application_rows_total",
        _C,
        "Events that these batches have read: of clients, carried between keys, and due timers.",
        "{row}",
        _whole(lambda facts: facts.batches.rows),
    ),
    _metric(
        "wallaroo_application_batch_phase_seconds",
        _H,
        "Seconds of each phase of a batch, as wallaroo_batch_phase_seconds.",
        "s",
        lambda facts: batch_phases(facts.batches),
        "phase",
    ),
    _metric(
        "wallaroo_application_batch_running_seconds",
        _G,
        "Seconds that the running batch has lasted; 0 between batches.",
        "s",
        _whole(_running_seconds),
    ),
    _metric(
        "wallaroo_application_committed_batch",
        _G,
        "Number of the newest committed batch; absent before the first commit.",
        "{batch}",
        _whole(lambda facts: facts.status.query.committed_batch),
    ),
    _metric(
        "wallaroo_application_commit_age_seconds",
        _G,
        "Seconds since the newest commit; absent before the first one that the driver has seen.",
        "s",
        _whole(lambda facts: facts.status.commit_age),
    ),
    _metric(
        "wallaroo_application_query_starts_total",
        _C,
        "How often the driver has started the query.",
        "{start}",
        _whole(lambda facts: facts.status.query_starts),
    ),
    _metric("wallaroo_stream_records_total", _C, "Records of a stream.", "{record}", _records, "stream"),
    _metric(
        "wallaroo_group_lag_records",
        _G,
        "Records behind the cursor of a durable group, over all partitions.",
        "{record}",
        _groups("lag"),
        "stream",
        "group",
    ),
    _metric(
        "wallaroo_group_members",
        _G,
        "Members of a durable group, counted once for each partition.",
        "{member}",
        _groups("members"),
        "stream",
        "group",
    ),
    _metric(
        "wallaroo_pipeline_lag_records",
        _G,
        "Records of the input that have neither begun an instance nor been passed over.",
        "{record}",
        _pipelines(lambda one: one.lag),
        *_PIPELINE,
    ),
    _metric(
        "wallaroo_pipeline_active_instances",
        _G,
        "Active instances.",
        "{instance}",
        _pipelines(lambda one: one.active),
        *_PIPELINE,
    ),
    _metric(
        "wallaroo_pipeline_begun_instances_total",
        _C,
        "Instances that have begun.",
        "{instance}",
        _pipelines(lambda one: one.began),
        *_PIPELINE,
    ),
    _metric(
        "wallaroo_pipeline_ended_instances_total",
        _C,
        "Instances that have ended, by outcome.",
        "{instance}",
        _ended,
        "pipeline",
        "outcome",
    ),
    _metric(
        "wallaroo_pipeline_dead_letters_total",
        _C,
        "Root events of failed instances that were carried to a dead-letter stream.",
        "{event}",
        _pipelines(lambda one: one.dead_letters),
        *_PIPELINE,
    ),
    _metric(
        "wallaroo_pipeline_skipped_records_total",
        _C,
        "Records that retention has removed before the pipeline had them.",
        "{record}",
        _pipelines(lambda one: one.skipped),
        *_PIPELINE,
    ),
    _metric(
        "wallaroo_stage_outputs_total",
        _C,
        "Recorded outputs of a stage: deliveries that are done.",
        "{output}",
        _stages(lambda one, _: one.done),
        *_STAGE,
    ),
    _metric(
        "wallaroo_stage_waiting",
        _G,
        "Deliveries of a stage that wait for a member.",
        "{delivery}",
        _stages(lambda one, _: one.waiting, outside=True),
        *_STAGE,
    ),
    _metric(
        "wallaroo_stage_running",
        _G,
        "Deliveries of a stage that members have.",
        "{delivery}",
        _stages(lambda one, _: one.running, outside=True),
        *_STAGE,
    ),
    _metric(
        "wallaroo_stage_members",
        _G,
        "Members of a stage, counted once for each partition.",
        "{member}",
        _stages(lambda one, _: one.members, outside=True),
        *_STAGE,
    ),
    _metric(
        "wallaroo_stage_oldest_seconds",
        _G,
        "Seconds for which the oldest delivery of a stage has been with its member; 0 when no member has one.",
        "s",
        _stages(lambda one, _: one.oldest or 0.0, outside=True),
        *_STAGE,
    ),
    _metric(
        "wallaroo_stage_unserved_seconds",
        _G,
        "Seconds for which deliveries of a stage have waited on a partition without a member; 0 when none do.",
        "s",
        _stages(
            lambda one, now: 0.0 if one.unserved_since is None else max(0.0, now - one.unserved_since), outside=True
        ),
        *_STAGE,
    ),
    _metric(
        "wallaroo_gateway_up",
        _G,
        "1 while the gateway holds its lease and listens, 0 otherwise.",
        "1",
        _gateways(lambda one: one.state == "serving", silent=True),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_submissions_total",
        _C,
        "Submissions of the gateway's Spark job, including the first.",
        "{submission}",
        _gateways(lambda one: one.submissions, silent=True),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_calls_total",
        _C,
        "Calls that have ended, by method, and by outcome: ok, cancelled, or the code of a refusal. The requests of "
        "PublishMany also count one by one, as PublishMany.request.",
        "{call}",
        _calls,
        "gateway",
        "method",
        "outcome",
    ),
    _metric(
        "wallaroo_gateway_commit_seconds",
        _H,
        "Seconds from a call to its commit.",
        "s",
        _commits,
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_waiting_calls",
        _G,
        "Calls that wait for their commit.",
        "{call}",
        _gateways(lambda one: one.requests),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_oldest_call_seconds",
        _G,
        "Seconds since the oldest of these calls began; 0 when none waits.",
        "s",
        _gateways(lambda one: one.oldest_request or 0.0),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_members",
        _G,
        "Channels of groups, stages, exchanges and endpoints.",
        "{member}",
        _gateways(lambda one: one.members),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_open_deliveries",
        _G,
        "Deliveries that members have and have not settled.",
        "{delivery}",
        _gateways(lambda one: one.deliveries),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_deliveries_total",
        _C,
        "Deliveries to members of the gateway.",
        "{delivery}",
        _count("deliveries"),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_tokens_refused_total",
        _C,
        "Calls and messages that were refused for their token.",
        "{call}",
        _count("tokens-refused"),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_queued_events",
        _G,
        "Events that wait in memory for the inbox.",
        "{event}",
        _gateways(lambda one: one.queued),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_unread_events",
        _G,
        "Events in the inbox that no committed batch has read.",
        "{event}",
        _gateways(lambda one: one.unread_events, silent=True),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_inbox_files_total",
        _C,
        "Files that the gateway has written to its inbox.",
        "{file}",
        _count("inbox-files"),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_inbox_events_total",
        _C,
        "Events in these files.",
        "{event}",
        _count("inbox-events"),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_inbox_bytes_total",
        _C,
        "Bytes of these events.",
        "By",
        _count("inbox-bytes"),
        *_GATEWAY,
    ),
    _metric(
        "wallaroo_gateway_inbox_seconds_total",
        _C,
        "Seconds that writing these files has taken.",
        "s",
        _count("inbox-seconds"),
        *_GATEWAY,
    ),
)
"""All metrics of an application, in the order of ``docs/metrics.md``."""
