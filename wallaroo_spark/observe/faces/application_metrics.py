"""The table of an application's metrics, as :mod:`wallaroo_spark.observe.faces.metrics` is that of a receiver's.

Labels have the names of declared objects, of which there are few, and of durable groups. The counters of pipelines and
streams go on over restarts of the driver, those of gateways begin anew with the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wallaroo_spark.observe.application import (
    ApplicationStatus,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.counters import BatchTimes
from wallaroo_spark.observe.faces.metrics import Metric, Sample, batch_phases, cumulative, of_records

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


_PIPELINE, _STAGE, _GATEWAY = ("pipeline",), ("pipeline", "stage"), ("gateway",)
Samples = Callable[[ApplicationFacts], Iterator[Sample]]


def _whole(value: Callable[[ApplicationFacts], float | None]) -> Samples:
    def samples(facts: ApplicationFacts) -> Iterator[Sample]:
        found = value(facts)
        if found is not None:
            yield Sample((), float(found))

    return samples


def _stages(facts: ApplicationFacts) -> Iterator[tuple[tuple[str, str], StageStatus]]:
    return (((one.pipeline, stage.stage), stage) for one in facts.status.pipelines for stage in one.stages)


def _pipelines(facts: ApplicationFacts) -> Iterator[tuple[tuple[str], PipelineStatus]]:
    return (((one.pipeline,), one) for one in facts.status.pipelines)


def _partitions(facts: ApplicationFacts) -> Iterator[tuple[tuple[str], PartitionState]]:
    return (((one.stream,), one) for one in facts.status.partitions)


def _every_gateway(facts: ApplicationFacts) -> Iterator[tuple[tuple[str], GatewayStatus]]:
    return (((one.gateway,), one) for one in facts.status.gateways)


def _groups(facts: ApplicationFacts) -> Iterator[tuple[tuple[str, str], GroupStatus]]:
    return (
        ((one.stream, group.group), group) for one in facts.status.partitions for group in one.groups if group.durable
    )


def _gateways(value: Callable[[GatewayStatus], float], *, silent: bool = False) -> Samples:
    """A value for each gateway that has reported, or with ``silent`` for each one."""

    def samples(facts: ApplicationFacts) -> Iterator[Sample]:
        for one in facts.status.gateways:
            if silent or one.age is not None:
                yield Sample((one.gateway,), float(value(one)))

    return samples


def _count(name: str, count: str, unit: str, help: str) -> Metric[ApplicationFacts]:
    """The metric of one of the gateways' counters."""
    return Metric(name, unit, help, _gateways(lambda one: one.counts.get(count, 0)), _GATEWAY)


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


def _ended(facts: ApplicationFacts) -> Iterator[Sample]:
    for one in facts.status.pipelines:
        for outcome, value in (("done", one.done), ("failed", one.failed), ("cancelled", one.cancelled)):
            yield Sample((one.pipeline, outcome), float(value))


def _running_seconds(facts: ApplicationFacts) -> float:
    query = facts.status.query
    return max(0.0, facts.status.time - query.since) if query.batch is not None and query.since is not None else 0.0


APPLICATION_METRICS: tuple[Metric[ApplicationFacts], ...] = (
    Metric(
        "wallaroo_application_up",
        "1",
        "1 while the application's query runs, 0 otherwise.",
        _whole(lambda facts: facts.status.running and facts.status.query.state == "running"),
    ),
    Metric(
        "wallaroo_application_healthy",
        "1",
        "1 when /healthz answers 200, 0 when it answers 503.",
        _whole(lambda facts: facts.status.cause.healthy),
    ),
    Metric(
        "wallaroo_application_errors",
        "{error}",
        "Errors of the driver's work that hold now; the work is repeated.",
        _whole(lambda facts: len(facts.status.errors)),
    ),
    Metric(
        "wallaroo_application_batches_total",
        "{batch}",
        "Batches that Spark has reported.",
        _whole(lambda facts: facts.batches.batches),
    ),
    Metric(
        "wallaroo_application_rows_total",
        "{row}",
        "Events that these batches have read: of clients, carried between keys, and due timers.",
        _whole(lambda facts: facts.batches.rows),
    ),
    Metric(
        "wallaroo_application_batch_phase_seconds",
        "s",
        "Seconds of each phase of a batch, as wallaroo_batch_phase_seconds.",
        lambda facts: batch_phases(facts.batches),
        ("phase",),
        histogram=True,
    ),
    Metric(
        "wallaroo_application_batch_running_seconds",
        "s",
        "Seconds that the running batch has lasted; 0 between batches.",
        _whole(_running_seconds),
    ),
    Metric(
        "wallaroo_application_committed_batch",
        "{batch}",
        "Number of the newest committed batch; absent before the first commit.",
        _whole(lambda facts: facts.status.query.committed_batch),
    ),
    Metric(
        "wallaroo_pipeline_ended_instances_total",
        "{instance}",
        "Instances that have ended, by outcome.",
        _ended,
        ("pipeline", "outcome"),
    ),
    Metric(
        "wallaroo_gateway_up",
        "1",
        "1 while the gateway holds its lease and listens, 0 otherwise.",
        _gateways(lambda one: one.state == "serving", silent=True),
        _GATEWAY,
    ),
    Metric(
        "wallaroo_gateway_calls_total",
        "{call}",
        "Calls that have ended, by method, and by outcome: ok, cancelled, or the code of a refusal. The requests of "
        "PublishMany also count one by one, as PublishMany.request.",
        _calls,
        ("gateway", "method", "outcome"),
    ),
    Metric(
        "wallaroo_gateway_commit_seconds", "s", "Seconds from a call to its commit.", _commits, _GATEWAY, histogram=True
    ),
    _count("wallaroo_gateway_deliveries_total", "deliveries", "{delivery}", "Deliveries to members of the gateway."),
    _count(
        "wallaroo_gateway_tokens_refused_total",
        "tokens-refused",
        "{call}",
        "Calls and messages that were refused for their token.",
    ),
    _count(
        "wallaroo_gateway_inbox_files_total",
        "inbox-files",
        "{file}",
        "Files that the gateway has written to its inbox.",
    ),
    _count("wallaroo_gateway_inbox_events_total", "inbox-events", "{event}", "Events in these files."),
    _count("wallaroo_gateway_inbox_bytes_total", "inbox-bytes", "By", "Bytes of these events."),
    _count("wallaroo_gateway_inbox_seconds_total", "inbox-seconds", "s", "Seconds that writing these files has taken."),
    *of_records(ApplicationStatus, (), lambda facts: [((), facts.status)]),
    *of_records(PartitionState, ("stream",), _partitions),
    *of_records(GroupStatus, ("stream", "group"), _groups),
    *of_records(PipelineStatus, _PIPELINE, _pipelines),
    *of_records(StageStatus, _STAGE, _stages, lambda stage: not stage.in_spark),
    *of_records(GatewayStatus, _GATEWAY, _every_gateway, lambda gateway: gateway.age is not None),
)
"""All metrics of an application, in the order of ``docs/metrics.md``."""
