"""The tables of metrics of receivers and of applications: ``/metrics``, ``Receiver.metrics()``, the dashboard's tests
and ``docs/metrics.md`` use them.

Each row has the name in Prometheus' conventions, with the unit at its end, and the name by those of OpenTelemetry. A
figure of a record is a row by itself; every other row is a function that computes it, with the help as its docstring.
No label of a receiver's has the name of a stream, and only metrics with a limited number of instances have the label
``instance``. Labels of an application's have the names of declared objects, of which there are few, and of durable
groups. The counters of pipelines and streams go on over restarts of the driver, those of gateways begin anew with the
gateway.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wallaroo_spark.extras import command, installed
from wallaroo_spark.observe.application import (
    ApplicationStatus,
    GatewayCounts,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.figures import Figure, FigureKind, figures, kind_of
from wallaroo_spark.observe.query_facts import PHASE_SECONDS, BatchTimes
from wallaroo_spark.observe.receiver import (
    DOOR_REFUSED,
    DoorStatus,
    InstanceStatus,
    QueryStatus,
    ReceiverStatus,
    SlotStatus,
    WorkerCounts,
)
from wallaroo_spark.worker.buffer.commit_ages import ACK_SECONDS, AGE, AGE_SUM

S = TypeVar("S")


@dataclass(frozen=True)
class Facts(Generic[S]):
    """Everything that the metrics of one moment are made from."""

    status: S
    """The snapshot of a receiver or an application."""
    batches: BatchTimes = field(default_factory=BatchTimes)
    """The seconds of the batches."""
    counts: Mapping[int, Counter[str]] = field(default_factory=dict)
    """The counters of each slot; see :class:`~wallaroo_spark.observe.record.Aggregate`."""
    driver: Mapping[str, int] = field(default_factory=dict)
    """The driver's own counters: ``commits``, ``registry-errors``."""
    instances: int = 0
    """Number of connector instances that have metrics of their own: those that wait longest."""


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    labels: tuple[str, ...]
    """The values of the labels, in the order of the metric."""
    value: float
    """The value; for a histogram the sum in its unit."""
    buckets: tuple[tuple[float, int], ...] = ()
    """For a histogram: each upper bound (the last one is infinity), and the number of values up to that bound."""


Compute = Callable[[Facts[S]], float | Iterable[Sample] | None]
"""Computes a metric: one number, or the samples of all its labels; None: it has no value now."""
F = TypeVar("F", bound=Callable[[Any], float | Iterable[Sample] | None])
Parts = Callable[[Facts[S]], Iterable[tuple[tuple[str, ...], Any]]]
"""The parts of a subject that have the figures of a record, each with the values of the labels."""


@dataclass(frozen=True)
class Metric(Generic[S]):
    """One row of the table."""

    name: str
    """Its name for Prometheus, without the suffixes of a histogram's parts."""
    unit: str
    """Its unit in UCUM, as OpenTelemetry writes it."""
    help: str
    """One sentence on its meaning."""
    compute: Compute[S]
    """Makes its values."""
    labels: tuple[str, ...] = ()
    """Its labels, apart from that of its subject (``receiver`` or ``application``), which every metric has."""
    histogram: bool = False
    otel_name: str = ""
    """Its name by OpenTelemetry's conventions, where that has not the same parts as ``name``."""

    @property
    def kind(self) -> FigureKind:
        """Its kind."""
        return FigureKind.HISTOGRAM if self.histogram else kind_of(self.name)

    @property
    def otel(self) -> str:
        """Its name by OpenTelemetry's conventions."""
        return self.otel_name or self.name.removesuffix("_total").replace("_", ".")

    def samples(self, facts: Facts[S]) -> Iterator[Sample]:
        """Its values."""
        found = self.compute(facts)
        if isinstance(found, float | int):
            yield Sample((), float(found))
        elif found is not None:
            yield from found


class MetricTable(list[Metric[S]], Generic[S]):
    """The metrics of receivers or of applications, in the order of ``docs/metrics.md``.

    Every metric has the label ``label``, whose value is the name of the subject; ``name`` finds it in a snapshot.
    """

    def __init__(self, label: str, name: Callable[[S], str]) -> None:
        super().__init__()
        self.label = label
        self.name = name

    def metric(
        self, name: str, unit: str, labels: tuple[str, ...] = (), *, histogram: bool = False, otel: str = ""
    ) -> Callable[[F], F]:
        """Add the decorated function as a metric. Its docstring is the help."""

        def add(compute: F) -> F:
            help = " ".join((compute.__doc__ or "").split())
            self.append(Metric(name, unit, help, compute, labels, histogram, otel))
            return compute

        return add

    def add_figures(
        self,
        record: type[Any],
        labels: tuple[str, ...],
        parts: Parts[S],
        answers: Callable[[Any], bool] = lambda one: True,
    ) -> None:
        """Add the metrics among a record's figures. Figures of parts with equal labels are added up.

        A part that does not answer has the figures alone that it has ``always``. A part may also be a mapping of
        counters, by the names of the fields with dashes.
        """
        for one in figures(record):
            if one.metric:
                samples = _sums(one, parts, answers)
                self.append(Metric(one.metric, one.unit, one.help, samples, labels, otel_name=one.otel))


def _sums(figure: Figure, parts: Parts[S], answers: Callable[[Any], bool]) -> Compute[S]:
    def samples(facts: Facts[S]) -> Iterator[Sample]:
        found: dict[tuple[str, ...], float] = {}
        for labels, part in parts(facts):
            value = _value(figure, part)
            if (figure.always or answers(part)) and not (figure.absent and value is None):
                found[labels] = found.get(labels, 0.0) + (float(not value) if figure.flipped else float(value or 0.0))
        return (Sample(labels, total) for labels, total in found.items())

    return samples


def _value(figure: Figure, part: Any) -> Any:
    if isinstance(part, Mapping):
        return part.get(figure.name.replace("_", "-"), 0)
    return getattr(part, figure.name)


def cumulative(bounds: Iterable[float], counts: Iterable[int]) -> tuple[tuple[float, int], ...]:
    """The buckets of a histogram from the number of values in each; the last bound is infinity."""
    return tuple(zip((*bounds, math.inf), itertools.accumulate(counts), strict=True))


def batch_phases(batches: BatchTimes) -> Iterator[Sample]:
    """The histogram of each phase of the batches."""
    for phase, times in batches.phases.items():
        found = [times.buckets[bound] for bound in (*PHASE_SECONDS, math.inf)]
        yield Sample((phase,), times.seconds, cumulative(PHASE_SECONDS, found))


def running_seconds(query: QueryStatus, now: float) -> float:
    """Seconds since the current phase of the running batch began; 0 between batches."""
    return max(0.0, now - query.since) if query.batch is not None and query.since is not None else 0.0


METRICS = MetricTable[ReceiverStatus]("receiver", lambda status: status.name)
"""All metrics of a receiver."""
APPLICATION_METRICS = MetricTable[ApplicationStatus]("application", lambda status: status.application)
"""All metrics of an application."""
_Facts = Facts[ReceiverStatus]
_Application = Facts[ApplicationStatus]
_Any = Facts[ReceiverStatus] | Facts[ApplicationStatus]
_SLOT, _GATEWAY = ("slot",), ("gateway",)
COMMIT_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets in the counts of gateways, whose room has the same ones."""


def _slots(facts: _Facts) -> Iterator[tuple[tuple[str, ...], SlotStatus]]:
    return (((str(slot.slot),), slot) for slot in facts.status.slots)


def _doors(facts: _Facts) -> Iterator[tuple[tuple[str, ...], DoorStatus]]:
    return (((str(one.slot), one.door), one) for one in facts.status.doors)


def _instances(facts: _Facts) -> Iterator[tuple[tuple[str, ...], InstanceStatus]]:
    """The instances that wait longest."""
    return (((str(one.slot), one.name), one) for one in facts.status.instances[: facts.instances])


def _by_kind(facts: _Facts, prefix: str, *names: str) -> Iterator[Sample]:
    """The workers' counters with a prefix, by slot and by the rest of the name; ``names`` are always there."""
    for slot, counts in facts.counts.items():
        found = {name.removeprefix(prefix) for name in counts if name.startswith(prefix)}
        for name in sorted(found.union(names)):
            yield Sample((str(slot), name), counts[prefix + name])


METRICS.add_figures(WorkerCounts, _SLOT, lambda facts: (((str(slot),), one) for slot, one in facts.counts.items()))


@METRICS.metric("wallaroo_ack_latency_seconds", "s", _SLOT, histogram=True, otel="wallaroo.ack.latency")
def _ack_latency(facts: _Facts) -> Iterator[Sample]:
    """Seconds from the arrival of a message at the worker to its acknowledgement."""
    for slot, counts in facts.counts.items():
        found = [counts[AGE + ("+Inf" if bound == math.inf else f"{bound:g}")] for bound in (*ACK_SECONDS, math.inf)]
        yield Sample((str(slot),), counts[AGE_SUM] / 1e6, cumulative(ACK_SECONDS, found))


@METRICS.metric("wallaroo_handshakes_refused_total", "{handshake}", ("slot", "reason"))
def _handshakes_refused(facts: _Facts) -> Iterator[Sample]:
    """Handshakes that were refused, by reason: a violation such as wrong-cookie, or redirected or try-later."""
    return _by_kind(facts, "refused:", "redirected", "try-later", "wrong-cookie", "wrong-version", "worker-full")


@METRICS.metric("wallaroo_door_refusals_total", "{request}", ("slot", "code"), otel="wallaroo.door.refusals")
def _door_refusals(facts: _Facts) -> Iterator[Sample]:
    """Requests that doors have refused, by the code of docs/errors.md; clients send some of them again by
    themselves."""
    return _by_kind(facts, DOOR_REFUSED, "http-unauthorized", "kafka-sasl-authentication-failed", "otlp-unauthorized")


@METRICS.metric("wallaroo_protocol_violations_total", "{violation}", ("slot", "fault"))
def _protocol_violations(facts: _Facts) -> Iterator[Sample]:
    """Violations of the protocol by connectors, by kind, including those in handshakes."""
    return _by_kind(facts, "fault:", "wrong-cookie", "handshake-timeout", "peer-never-reads", "ids-not-increasing")


@METRICS.metric("wallaroo_pauses_total", "{pause}", ("slot", "pressure"))
def _pauses(facts: _Facts) -> Iterator[Sample]:
    """How many times workers have stopped reading a connection, by how full the buffer was."""
    return _by_kind(facts, "paused:", "soft", "hard")


@METRICS.metric("wallaroo_slot_up", "1", _SLOT)
def _slot_up(facts: _Facts) -> Iterator[Sample]:
    """1 while the slot has a worker that answers, 0 otherwise."""
    return (Sample(labels, float(slot.answers)) for labels, slot in _slots(facts))


@METRICS.metric("wallaroo_commits_total", "{batch}")
def _commits(facts: _Facts) -> float:
    """Batches whose commit the driver has seen."""
    return facts.driver.get("commits", 0)


@APPLICATION_METRICS.metric("wallaroo_application_committed_batch", "{batch}")
@METRICS.metric("wallaroo_committed_batch", "{batch}", otel="wallaroo.batch.committed")
def _committed_batch(facts: _Any) -> float | None:
    """Number of the newest committed batch; absent before the first commit."""
    return facts.status.query.committed_batch


@APPLICATION_METRICS.metric("wallaroo_application_batches_total", "{batch}")
@METRICS.metric("wallaroo_batches_total", "{batch}")
def _batches(facts: _Any) -> float:
    """Batches that Spark has reported."""
    return facts.batches.batches


@METRICS.metric("wallaroo_batch_phase_seconds", "s", ("phase",), histogram=True, otel="wallaroo.batch.phase")
def _batch_phase(facts: _Facts) -> Iterator[Sample]:
    """Seconds of each phase of a batch: plan (how far to read), write_offsets, compile, run (reading, query and sink),
    write_commit, and all together."""
    return batch_phases(facts.batches)


@METRICS.metric("wallaroo_batch_running_seconds", "s", otel="wallaroo.batch.running")
def _batch_running(facts: _Facts) -> float:
    """Seconds that the current phase of the running batch has lasted; 0 between batches."""
    return running_seconds(facts.status.query, facts.status.time)


@METRICS.metric("wallaroo_query_up", "1")
def _query_up(facts: _Facts) -> float:
    """1 while a query reads the receiver, 0 otherwise."""
    return facts.status.query.state == "running"


@APPLICATION_METRICS.metric("wallaroo_application_healthy", "1")
@METRICS.metric("wallaroo_healthy", "1")
def _healthy(facts: _Any) -> float:
    """1 when /healthz answers 200, 0 when it answers 503."""
    return facts.status.cause.healthy


@METRICS.metric("wallaroo_driver_registry_errors_total", "{error}")
def _driver_registry_errors(facts: _Facts) -> float:
    """Rounds of the driver in which the registry (Redis) did not answer."""
    return facts.driver.get("registry-errors", 0)


METRICS.add_figures(ReceiverStatus, (), lambda facts: [((), facts.status)])
METRICS.add_figures(QueryStatus, (), lambda facts: [((), facts.status.query)])
METRICS.add_figures(SlotStatus, _SLOT, _slots, lambda slot: slot.answers)
METRICS.add_figures(DoorStatus, ("slot", "door"), _doors)
METRICS.add_figures(InstanceStatus, ("slot", "instance"), _instances)


def _stages(facts: _Application) -> Iterator[tuple[tuple[str, str], StageStatus]]:
    return (((one.pipeline, stage.stage), stage) for one in facts.status.pipelines for stage in one.stages)


def _pipelines(facts: _Application) -> Iterator[tuple[tuple[str], PipelineStatus]]:
    return (((one.pipeline,), one) for one in facts.status.pipelines)


def _partitions(facts: _Application) -> Iterator[tuple[tuple[str], PartitionState]]:
    return (((one.stream,), one) for one in facts.status.partitions)


def _gateways(facts: _Application) -> Iterator[tuple[tuple[str], GatewayStatus]]:
    return (((one.gateway,), one) for one in facts.status.gateways)


def _gateway_counts(facts: _Application) -> Iterator[tuple[tuple[str], Mapping[str, float]]]:
    """The counters of the gateways that have reported."""
    return (((one.gateway,), one.counts) for one in facts.status.gateways if one.age is not None)


def _groups(facts: _Application) -> Iterator[tuple[tuple[str, str], GroupStatus]]:
    return (
        ((one.stream, group.group), group) for one in facts.status.partitions for group in one.groups if group.durable
    )


@APPLICATION_METRICS.metric("wallaroo_application_up", "1")
def _application_up(facts: _Application) -> float:
    """1 while the application's query runs, 0 otherwise."""
    return facts.status.running and facts.status.query.state == "running"


@APPLICATION_METRICS.metric("wallaroo_application_errors", "{error}")
def _application_errors(facts: _Application) -> float:
    """Errors of the driver's work that hold now; the work is repeated."""
    return len(facts.status.errors)


@APPLICATION_METRICS.metric("wallaroo_application_rows_total", "{row}")
def _application_rows(facts: _Application) -> float:
    """Events that these batches have read: of clients, carried between keys, and due timers."""
    return facts.batches.rows


@APPLICATION_METRICS.metric("wallaroo_application_batch_phase_seconds", "s", ("phase",), histogram=True)
def _application_batch_phase(facts: _Application) -> Iterator[Sample]:
    """Seconds of each phase of a batch, as wallaroo_batch_phase_seconds."""
    return batch_phases(facts.batches)


@APPLICATION_METRICS.metric("wallaroo_application_batch_running_seconds", "s")
def _application_batch_running(facts: _Application) -> float:
    """Seconds that the running batch has lasted; 0 between batches."""
    return running_seconds(facts.status.query, facts.status.time)


@APPLICATION_METRICS.metric("wallaroo_pipeline_ended_instances_total", "{instance}", ("pipeline", "outcome"))
def _ended(facts: _Application) -> Iterator[Sample]:
    """Instances that have ended, by outcome."""
    for one in facts.status.pipelines:
        for outcome in ("done", "failed", "cancelled"):
            yield Sample((one.pipeline, outcome), float(getattr(one, outcome)))


@APPLICATION_METRICS.metric("wallaroo_gateway_up", "1", _GATEWAY)
def _gateway_up(facts: _Application) -> Iterator[Sample]:
    """1 while the gateway holds its lease and listens, 0 otherwise."""
    return (Sample(labels, float(one.state == "serving")) for labels, one in _gateways(facts))


@APPLICATION_METRICS.metric("wallaroo_gateway_calls_total", "{call}", ("gateway", "method", "outcome"))
def _calls(facts: _Application) -> Iterator[Sample]:
    """Calls that have ended, by method, and by outcome: ok, cancelled, or the code of a refusal. The requests of
    PublishMany also count one by one, as PublishMany.request."""
    for one in facts.status.gateways:
        for name, value in sorted(one.counts.items()):
            if name.startswith("calls:"):
                _, method, outcome = name.split(":", 2)
                yield Sample((one.gateway, method, outcome), float(value))


@APPLICATION_METRICS.metric("wallaroo_gateway_commit_seconds", "s", _GATEWAY, histogram=True)
def _commit_seconds(facts: _Application) -> Iterator[Sample]:
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


if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MISSING = (
    "the driver's Python has no package prometheus_client, so there are no metrics in Prometheus' format; install the "
    f"extra: {command(['prometheus'])}"
)


def available() -> bool:
    """Whether the extra ``prometheus`` is installed."""
    return installed("prometheus_client")


def exposition(facts: Facts[S], metrics: MetricTable[S]) -> bytes:
    """The text of all metrics, with HELP and TYPE for each. Raises ImportError without the extra ``prometheus``."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    subject = metrics.name(facts.status)

    class Once(Collector):
        def collect(self) -> Iterator[Family]:
            return (_family(metric, facts, metrics.label, subject) for metric in metrics)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry)


def _family(metric: Metric[S], facts: Facts[S], label: str, subject: str) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    labels = [label, *metric.labels]
    if metric.kind is FigureKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for sample in metric.samples(facts):
            buckets = [(_bound(bound), float(count)) for bound, count in sample.buckets]
            histogram.add_metric([subject, *sample.labels], buckets, sample.value)
        return histogram
    kind = CounterMetricFamily if metric.kind is FigureKind.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(metric.name, metric.help, labels=labels)
    for sample in metric.samples(facts):
        family.add_metric([subject, *sample.labels], sample.value)
    return family


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)
