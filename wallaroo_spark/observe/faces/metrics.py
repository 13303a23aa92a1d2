"""The one table of metrics: ``/metrics``, ``Receiver.metrics()``, the dashboard's tests and ``docs/metrics.md`` use it.

Each row has the name in Prometheus' conventions, with the unit at its end, and the name by those of OpenTelemetry. A
figure of a record is a row by itself; every other row is a function that computes it, with the help as its docstring.
No label has the name of a stream, and only metrics with a limited number of instances have the label ``instance``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from wallaroo_spark.observe.counters import PHASE_SECONDS, BatchTimes
from wallaroo_spark.observe.figures import Figure, FigureKind, figures, kind_of
from wallaroo_spark.observe.receiver import (
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
    """The counters of each slot; see :class:`~wallaroo_spark.observe.counters.Aggregate`."""
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
    ) -> Callable[[Compute[S]], Compute[S]]:
        """Add the decorated function as a metric. Its docstring is the help."""

        def add(compute: Compute[S]) -> Compute[S]:
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
_Facts = Facts[ReceiverStatus]
_SLOT = ("slot",)


def _slots(facts: _Facts) -> Iterator[tuple[tuple[str, ...], SlotStatus]]:
    return (((str(slot.slot),), slot) for slot in facts.status.slots)


def _instances(facts: _Facts) -> Iterator[tuple[tuple[str, ...], InstanceStatus]]:
    """The instances that wait longest."""
    return (((str(one.slot), one.name), one) for one in facts.status.instances[: facts.instances])


def _counts(facts: _Facts) -> Iterator[tuple[tuple[str, ...], Mapping[str, int]]]:
    return (((str(slot),), counts) for slot, counts in facts.counts.items())


def _by_kind(facts: _Facts, prefix: str, *names: str) -> Iterator[Sample]:
    """The workers' counters with a prefix, by slot and by the rest of the name; ``names`` are always there."""
    for slot, counts in facts.counts.items():
        found = {name.removeprefix(prefix) for name in counts if name.startswith(prefix)}
        for name in sorted(found.union(names)):
            yield Sample((str(slot), name), counts[prefix + name])


METRICS.add_figures(WorkerCounts, _SLOT, _counts)


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


@METRICS.metric("wallaroo_committed_batch", "{batch}", otel="wallaroo.batch.committed")
def _committed_batch(facts: _Facts) -> float | None:
    """Number of the newest committed batch; absent before the first commit."""
    return facts.status.query.committed_batch


@METRICS.metric("wallaroo_batches_total", "{batch}")
def _batches(facts: _Facts) -> float:
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


@METRICS.metric("wallaroo_healthy", "1")
def _healthy(facts: _Facts) -> float:
    """1 when /healthz answers 200, 0 when it answers 503."""
    return facts.status.healthy


@METRICS.metric("wallaroo_driver_registry_errors_total", "{error}")
def _driver_registry_errors(facts: _Facts) -> float:
    """Rounds of the driver in which the registry (Redis) did not answer."""
    return facts.driver.get("registry-errors", 0)


METRICS.add_figures(ReceiverStatus, (), lambda facts: [((), facts.status)])
METRICS.add_figures(QueryStatus, (), lambda facts: [((), facts.status.query)])
METRICS.add_figures(SlotStatus, _SLOT, _slots, lambda slot: slot.answers)
METRICS.add_figures(InstanceStatus, ("slot", "instance"), _instances)
