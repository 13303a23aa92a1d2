"""The table of an application's metrics, as :mod:`wallaroo_spark.observe.faces.metrics` is that of a receiver's.

Labels have the names of declared objects, of which there are few, and of durable groups. The counters of pipelines and
streams go on over restarts of the driver, those of gateways begin anew with the gateway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wallaroo_spark.observe.application import (
    ApplicationStatus,
    GatewayCounts,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.faces.metrics import Facts, MetricTable, Sample, batch_phases, cumulative, running_seconds

COMMIT_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets in the counts of gateways, whose room has the same ones."""
APPLICATION_METRICS = MetricTable[ApplicationStatus]("application", lambda status: status.application)
"""All metrics of an application."""
_Facts = Facts[ApplicationStatus]
_GATEWAY = ("gateway",)


def _stages(facts: _Facts) -> Iterator[tuple[tuple[str, str], StageStatus]]:
    return (((one.pipeline, stage.stage), stage) for one in facts.status.pipelines for stage in one.stages)


def _pipelines(facts: _Facts) -> Iterator[tuple[tuple[str], PipelineStatus]]:
    return (((one.pipeline,), one) for one in facts.status.pipelines)


def _partitions(facts: _Facts) -> Iterator[tuple[tuple[str], PartitionState]]:
    return (((one.stream,), one) for one in facts.status.partitions)


def _gateways(facts: _Facts) -> Iterator[tuple[tuple[str], GatewayStatus]]:
    return (((one.gateway,), one) for one in facts.status.gateways)


def _gateway_counts(facts: _Facts) -> Iterator[tuple[tuple[str], Mapping[str, float]]]:
    """The counters of the gateways that have reported."""
    return (((one.gateway,), one.counts) for one in facts.status.gateways if one.age is not None)


def _groups(facts: _Facts) -> Iterator[tuple[tuple[str, str], GroupStatus]]:
    return (
        ((one.stream, group.group), group) for one in facts.status.partitions for group in one.groups if group.durable
    )


@APPLICATION_METRICS.metric("wallaroo_application_up", "1")
def _up(facts: _Facts) -> float:
    """1 while the application's query runs, 0 otherwise."""
    return facts.status.running and facts.status.query.state == "running"


@APPLICATION_METRICS.metric("wallaroo_application_healthy", "1")
def _healthy(facts: _Facts) -> float:
    """1 when /healthz answers 200, 0 when it answers 503."""
    return facts.status.cause.healthy


@APPLICATION_METRICS.metric("wallaroo_application_errors", "{error}")
def _errors(facts: _Facts) -> float:
    """Errors of the driver's work that hold now; the work is repeated."""
    return len(facts.status.errors)


@APPLICATION_METRICS.metric("wallaroo_application_batches_total", "{batch}")
def _batches(facts: _Facts) -> float:
    """Batches that Spark has reported."""
    return facts.batches.batches


@APPLICATION_METRICS.metric("wallaroo_application_rows_total", "{row}")
def _rows(facts: _Facts) -> float:
    """Events that these batches have read: of clients, carried between keys, and due timers."""
    return facts.batches.rows


@APPLICATION_METRICS.metric("wallaroo_application_batch_phase_seconds", "s", ("phase",), histogram=True)
def _batch_phase(facts: _Facts) -> Iterator[Sample]:
    """Seconds of each phase of a batch, as wallaroo_batch_phase_seconds."""
    return batch_phases(facts.batches)


@APPLICATION_METRICS.metric("wallaroo_application_batch_running_seconds", "s")
def _batch_running(facts: _Facts) -> float:
    """Seconds that the running batch has lasted; 0 between batches."""
    return running_seconds(facts.status.query, facts.status.time)


@APPLICATION_METRICS.metric("wallaroo_application_committed_batch", "{batch}")
def _committed_batch(facts: _Facts) -> float | None:
    """Number of the newest committed batch; absent before the first commit."""
    return facts.status.query.committed_batch


@APPLICATION_METRICS.metric("wallaroo_pipeline_ended_instances_total", "{instance}", ("pipeline", "outcome"))
def _ended(facts: _Facts) -> Iterator[Sample]:
    """Instances that have ended, by outcome."""
    for one in facts.status.pipelines:
        for outcome in ("done", "failed", "cancelled"):
            yield Sample((one.pipeline, outcome), float(getattr(one, outcome)))


@APPLICATION_METRICS.metric("wallaroo_gateway_up", "1", _GATEWAY)
def _gateway_up(facts: _Facts) -> Iterator[Sample]:
    """1 while the gateway holds its lease and listens, 0 otherwise."""
    return (Sample(labels, float(one.state == "serving")) for labels, one in _gateways(facts))


@APPLICATION_METRICS.metric("wallaroo_gateway_calls_total", "{call}", ("gateway", "method", "outcome"))
def _calls(facts: _Facts) -> Iterator[Sample]:
    """Calls that have ended, by method, and by outcome: ok, cancelled, or the code of a refusal. The requests of
    PublishMany also count one by one, as PublishMany.request."""
    for one in facts.status.gateways:
        for name, value in sorted(one.counts.items()):
            if name.startswith("calls:"):
                _, method, outcome = name.split(":", 2)
                yield Sample((one.gateway, method, outcome), float(value))


@APPLICATION_METRICS.metric("wallaroo_gateway_commit_seconds", "s", _GATEWAY, histogram=True)
def _commits(facts: _Facts) -> Iterator[Sample]:
    """Seconds from a call to its commit."""
    bounds = (*(f"{bound:g}" for bound in COMMIT_SECONDS), "+Inf")
    for labels, counts in _gateway_counts(facts):
        found = (int(counts.get(f"commit:{bound}", 0)) for bound in bounds)
        yield Sample(labels, float(counts.get("commit-seconds", 0.0)), cumulative(COMMIT_SECONDS, found))


APPLICATION_METRICS.add_figures(GatewayCounts, _GATEWAY, _gateway_counts)
APPLICATION_METRICS.add_figures(ApplicationStatus, (), lambda facts: [((), facts.status)])
APPLICATION_METRICS.add_figures(PartitionState, ("stream",), _partitions)
APPLICATION_METRICS.add_figures(GroupStatus, ("stream", "group"), _groups)
APPLICATION_METRICS.add_figures(PipelineStatus, ("pipeline",), _pipelines)
APPLICATION_METRICS.add_figures(StageStatus, ("pipeline", "stage"), _stages, lambda stage: not stage.in_spark)
APPLICATION_METRICS.add_figures(GatewayStatus, _GATEWAY, _gateways, lambda gateway: gateway.age is not None)
