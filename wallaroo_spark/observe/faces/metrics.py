"""The one table of metrics: ``/metrics``, ``Receiver.metrics()``, the dashboard's tests and ``docs/metrics.md`` use it.

Each row has the name in Prometheus' conventions, with the unit at its end, and the name by those of OpenTelemetry.
``samples`` makes its values from one set of facts. No label has the name of a stream, and only metrics with a
limited number of instances have the label ``instance``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from wallaroo_spark.observe.counters import PHASE_SECONDS, BatchTimes
from wallaroo_spark.observe.figures import Figure, FigureKind, figures, kind_of
from wallaroo_spark.observe.receiver import InstanceStatus, QueryStatus, ReceiverStatus, SlotStatus
from wallaroo_spark.worker.buffer.commit_ages import ACK_SECONDS, AGE, AGE_SUM


@dataclass(frozen=True)
class Facts:
    """Everything that the metrics of one moment are made from."""

    status: ReceiverStatus
    """The snapshot."""
    counts: Mapping[int, Counter[str]] = field(default_factory=dict)
    """The counters of each slot; see :class:`~wallaroo_spark.observe.counters.Aggregate`."""
    driver: Mapping[str, int] = field(default_factory=dict)
    """The driver's own counters: ``commits``, ``registry-errors``."""
    batches: BatchTimes = field(default_factory=BatchTimes)
    """The seconds of the batches."""
    instances: int = 0
    """Number of connector instances that have metrics of their own: those that wait longest."""

    @property
    def subject(self) -> str:
        """The value of the label ``receiver``."""
        return self.status.name


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    labels: tuple[str, ...]
    """The values of the labels, in the order of the metric."""
    value: float
    """The value; for a histogram the sum in its unit."""
    buckets: tuple[tuple[float, int], ...] = ()
    """For a histogram: each upper bound (the last one is infinity), and the number of values up to that bound."""


F = TypeVar("F")


@dataclass(frozen=True)
class Metric(Generic[F]):
    """One row of the table."""

    name: str
    """Its name for Prometheus, without the suffixes of a histogram's parts."""
    unit: str
    """Its unit in UCUM, as OpenTelemetry writes it."""
    help: str
    """One sentence on its meaning."""
    samples: Callable[[F], Iterable[Sample]]
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


def of_records(
    record: type[Any],
    labels: tuple[str, ...],
    each: Callable[[F], Iterable[tuple[tuple[str, ...], Any]]],
    answers: Callable[[Any], bool] = lambda one: True,
) -> tuple[Metric[F], ...]:
    """The metrics among a record's figures. ``each`` gives the values of the labels and the records; figures of records
    with equal labels are added. A record that does not answer has the figures alone that it has ``always``."""
    return tuple(
        Metric(
            one.metric, one.unit, one.help, functools.partial(_sampled, one, each, answers), labels, otel_name=one.otel
        )
        for one in figures(record)
        if one.metric
    )


def _sampled(
    figure: Figure,
    each: Callable[[F], Iterable[tuple[tuple[str, ...], Any]]],
    answers: Callable[[Any], bool],
    facts: F,
) -> Iterator[Sample]:
    found: dict[tuple[str, ...], float] = {}
    for labels, one in each(facts):
        value = getattr(one, figure.name)
        if (figure.always or answers(one)) and not (figure.absent and value is None):
            found[labels] = found.get(labels, 0.0) + (float(not value) if figure.flipped else float(value or 0.0))
    for labels, total in found.items():
        yield Sample(labels, total)


_SLOT = ("slot",)


def _slots(facts: Facts) -> Iterator[tuple[tuple[str, ...], SlotStatus]]:
    return (((str(slot.slot),), slot) for slot in facts.status.slots)


def _instances(facts: Facts) -> Iterator[tuple[tuple[str, ...], InstanceStatus]]:
    """The instances that wait longest."""
    return (((str(one.slot), one.name), one) for one in facts.status.instances[: facts.instances])


def _of_slots(value: Callable[[SlotStatus], float], *, silent: bool = False) -> Callable[[Facts], Iterator[Sample]]:
    """A value for each slot whose worker has answered, or with ``silent`` for every slot."""
    return lambda facts: (Sample(labels, value(slot)) for labels, slot in _slots(facts) if silent or slot.answers)


def _count(name: str, count: str, unit: str, help: str, otel_name: str = "") -> Metric[Facts]:
    """The metric of one of the workers' counters, by slot."""

    def samples(facts: Facts) -> Iterator[Sample]:
        for slot, counts in facts.counts.items():
            yield Sample((str(slot),), counts[count])

    return Metric(name, unit, help, samples, _SLOT, otel_name=otel_name)


def _counts(prefix: str, names: tuple[str, ...] = ()) -> Callable[[Facts], Iterator[Sample]]:
    """The workers' counters with a prefix, by slot and by the rest of the name; ``names`` are always there."""

    def samples(facts: Facts) -> Iterator[Sample]:
        for slot, counts in facts.counts.items():
            found = {name.removeprefix(prefix) for name in counts if name.startswith(prefix)}
            for name in sorted(found.union(names)):
                yield Sample((str(slot), name), counts[prefix + name])

    return samples


def _whole(value: Callable[[Facts], float | None]) -> Callable[[Facts], Iterator[Sample]]:
    """One value for the receiver; None is left out."""

    def samples(facts: Facts) -> Iterator[Sample]:
        found = value(facts)
        if found is not None:
            yield Sample((), float(found))

    return samples


def cumulative(bounds: Iterable[float], counts: Iterable[int]) -> tuple[tuple[float, int], ...]:
    """The buckets of a histogram from the number of values in each; the last bound is infinity."""
    return tuple(zip((*bounds, math.inf), itertools.accumulate(counts), strict=True))


def _ack_latency(facts: Facts) -> Iterator[Sample]:
    for slot, counts in facts.counts.items():
        found = [counts[AGE + ("+Inf" if bound == math.inf else f"{bound:g}")] for bound in (*ACK_SECONDS, math.inf)]
        yield Sample((str(slot),), counts[AGE_SUM] / 1e6, cumulative(ACK_SECONDS, found))


def batch_phases(batches: BatchTimes) -> Iterator[Sample]:
    """The histogram of each phase of the batches."""
    for phase, times in batches.phases.items():
        found = [times.buckets[bound] for bound in (*PHASE_SECONDS, math.inf)]
        yield Sample((phase,), times.seconds, cumulative(PHASE_SECONDS, found))


def _flag(value: bool) -> float:
    return 1.0 if value else 0.0


METRICS: tuple[Metric[Facts], ...] = (
    _count(
        "wallaroo_messages_total",
        "messages",
        "{message}",
        "Messages that workers have accepted; a message that is sent again counts once.",
    ),
    _count(
        "wallaroo_received_bytes_total",
        "bytes",
        "By",
        "Bytes that connectors have sent, including the headers of frames.",
        otel_name="wallaroo.received",
    ),
    _count(
        "wallaroo_replayed_messages_total",
        "replayed",
        "{message}",
        "Messages that connectors have sent again and that workers had already accepted.",
        otel_name="wallaroo.messages.replayed",
    ),
    _count(
        "wallaroo_committed_messages_total",
        "committed",
        "{message}",
        "Messages in committed batches.",
        otel_name="wallaroo.messages.committed",
    ),
    Metric(
        "wallaroo_ack_latency_seconds",
        "s",
        "Seconds from the arrival of a message at the worker to its acknowledgement.",
        _ack_latency,
        _SLOT,
        histogram=True,
        otel_name="wallaroo.ack.latency",
    ),
    _count("wallaroo_acks_total", "acks", "{frame}", "ACK frames that workers have sent."),
    Metric(
        "wallaroo_commits_total",
        "{batch}",
        "Batches whose commit the driver has seen.",
        _whole(lambda facts: facts.driver.get("commits", 0)),
    ),
    Metric(
        "wallaroo_committed_batch",
        "{batch}",
        "Number of the newest committed batch; absent before the first commit.",
        _whole(lambda facts: facts.status.query.committed_batch),
        otel_name="wallaroo.batch.committed",
    ),
    Metric(
        "wallaroo_batches_total",
        "{batch}",
        "Batches that Spark has reported.",
        _whole(lambda facts: facts.batches.batches),
    ),
    Metric(
        "wallaroo_batch_phase_seconds",
        "s",
        "Seconds of each phase of a batch: plan (how far to read), write_offsets, compile, run (reading, query and "
        "sink), write_commit, and all together.",
        lambda facts: batch_phases(facts.batches),
        ("phase",),
        histogram=True,
        otel_name="wallaroo.batch.phase",
    ),
    Metric(
        "wallaroo_batch_running_seconds",
        "s",
        "Seconds that the current phase of the running batch has lasted; 0 between batches.",
        _whole(
            lambda facts: (
                max(0.0, facts.status.time - facts.status.query.since)
                if facts.status.query.batch is not None and facts.status.query.since is not None
                else 0.0
            )
        ),
        otel_name="wallaroo.batch.running",
    ),
    Metric(
        "wallaroo_query_up",
        "1",
        "1 while a query reads the receiver, 0 otherwise.",
        _whole(lambda facts: _flag(facts.status.query.state == "running")),
    ),
    Metric(
        "wallaroo_healthy",
        "1",
        "1 when /healthz answers 200, 0 when it answers 503.",
        _whole(lambda facts: _flag(facts.status.healthy)),
    ),
    Metric(
        "wallaroo_slot_up",
        "1",
        "1 while the slot has a worker that answers, 0 otherwise.",
        _of_slots(lambda slot: _flag(slot.answers), silent=True),
        _SLOT,
    ),
    _count("wallaroo_worker_deaths_total", "deaths", "{death}", "Ends of the slot's Spark job without a request."),
    _count(
        "wallaroo_worker_submissions_total",
        "submissions",
        "{submission}",
        "Submissions of the slot's Spark job, including the first.",
    ),
    _count(
        "wallaroo_internal_errors_total",
        "internal-errors",
        "{error}",
        "Errors of this program that have ended sessions of a worker.",
        otel_name="wallaroo.worker.internal_errors",
    ),
    _count(
        "wallaroo_connections_total",
        "connections",
        "{connection}",
        "Connections that workers have accepted, including those that never sent a HELLO.",
    ),
    _count("wallaroo_sessions_started_total", "sessions", "{session}", "Handshakes that were answered by OK."),
    Metric(
        "wallaroo_handshakes_refused_total",
        "{handshake}",
        "Handshakes that were refused, by reason: a violation such as wrong-cookie, or redirected or try-later.",
        _counts("refused:", ("redirected", "try-later", "wrong-cookie", "wrong-version", "worker-full")),
        ("slot", "reason"),
    ),
    Metric(
        "wallaroo_protocol_violations_total",
        "{violation}",
        "Violations of the protocol by connectors, by kind, including those in handshakes.",
        _counts("fault:", ("wrong-cookie", "handshake-timeout", "peer-never-reads", "ids-not-increasing")),
        ("slot", "fault"),
    ),
    _count("wallaroo_connector_errors_total", "peer-errors", "{error}", "ERROR frames that connectors have sent."),
    _count("wallaroo_credits_granted_total", "credits", "{message}", "Credits that workers have granted."),
    Metric(
        "wallaroo_pauses_total",
        "{pause}",
        "How many times workers have stopped reading a connection, by how full the buffer was.",
        _counts("paused:", ("soft", "hard")),
        ("slot", "pressure"),
    ),
    _count(
        "wallaroo_resends_total",
        "resends",
        "{request}",
        "How many times workers have asked a connector to send a stream again.",
    ),
    _count(
        "wallaroo_dropped_streams_total",
        "shed-streams",
        "{stream}",
        "How many times a full worker has dropped the messages of a stream, which its connector sends again.",
        otel_name="wallaroo.streams.dropped",
    ),
    _count(
        "wallaroo_stale_notices_total",
        "stale-commits",
        "{notice}",
        "Notices of the driver that workers have ignored because they already had newer ones.",
        otel_name="wallaroo.notices.stale",
    ),
    _count(
        "wallaroo_registry_errors_total",
        "registry-failures",
        "{error}",
        "Calls of a worker to the registry (Redis) that failed.",
    ),
    Metric(
        "wallaroo_driver_registry_errors_total",
        "{error}",
        "Rounds of the driver in which the registry (Redis) did not answer.",
        _whole(lambda facts: facts.driver.get("registry-errors", 0)),
    ),
    *of_records(ReceiverStatus, (), lambda facts: [((), facts.status)]),
    *of_records(QueryStatus, (), lambda facts: [((), facts.status.query)]),
    *of_records(SlotStatus, _SLOT, _slots, lambda slot: slot.answers),
    *of_records(InstanceStatus, ("slot", "instance"), _instances),
)
"""All metrics, in the order of ``docs/metrics.md``."""
