"""The one table of metrics: ``/metrics``, ``Receiver.metrics()``, the dashboard's tests and ``docs/metrics.md`` use it.

Each row has the name in Prometheus' conventions, with the unit at its end, and the name by those of OpenTelemetry.
``samples`` makes its values from one set of facts. No label has the name of a stream, and only metrics with a
limited number of instances have the label ``instance``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from wallaroo_spark.status import InstanceStatus, ReceiverStatus, SlotStatus
from wallaroo_spark.telemetry.batches import PHASE_SECONDS, BatchTimes
from wallaroo_spark.telemetry.health import health
from wallaroo_spark.worker.buffer.commit_ages import ACK_SECONDS, AGE, AGE_SUM


class MetricKind(StrEnum):
    """The kinds of metrics, by Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Facts:
    """Everything that the metrics of one moment are made from."""

    status: ReceiverStatus
    """The snapshot."""
    counts: Mapping[int, Counter[str]] = field(default_factory=dict)
    """The counters of each slot; see :class:`~.aggregate.Aggregate`."""
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
    kind: MetricKind
    """Its kind."""
    help: str
    """One sentence on its meaning."""
    otel: str
    """Its name by OpenTelemetry's conventions."""
    unit: str
    """Its unit in UCUM, as OpenTelemetry writes it."""
    samples: Callable[[F], Iterable[Sample]]
    """Makes its values."""
    labels: tuple[str, ...] = ()
    """Its labels, apart from that of its subject (``receiver`` or ``application``), which every metric has."""


Slots = Callable[[SlotStatus], float | None]


def _of_slots(value: Slots, *, silent: bool = False) -> Callable[[Facts], Iterator[Sample]]:
    """A value for each slot whose worker has answered, or with ``silent`` for every slot. None values are left out."""

    def samples(facts: Facts) -> Iterator[Sample]:
        for slot in facts.status.slots:
            found = value(slot) if silent or slot.answers else None
            if found is not None:
                yield Sample((str(slot.slot),), float(found))

    return samples


def _count(name: str) -> Callable[[Facts], Iterator[Sample]]:
    """One of the workers' counters, by slot."""

    def samples(facts: Facts) -> Iterator[Sample]:
        for slot, counts in facts.counts.items():
            yield Sample((str(slot),), counts[name])

    return samples


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


def _of_instances(value: Callable[[InstanceStatus], float | None]) -> Callable[[Facts], Iterator[Sample]]:
    """A value of each of the instances that wait longest."""

    def samples(facts: Facts) -> Iterator[Sample]:
        for one in facts.status.instances[: facts.instances]:
            found = value(one)
            if found is not None:
                yield Sample((str(one.slot), one.name), float(found))

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


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_SLOT = ("slot",)

METRICS: tuple[Metric[Facts], ...] = (
    Metric(
        "wallaroo_messages_total",
        _C,
        "Messages that workers have accepted; a message that is sent again counts once.",
        "wallaroo.messages",
        "{message}",
        _count("messages"),
        _SLOT,
    ),
    Metric(
        "wallaroo_received_bytes_total",
        _C,
        "Bytes that connectors have sent, including the headers of frames.",
        "wallaroo.received",
        "By",
        _count("bytes"),
        _SLOT,
    ),
    Metric(
        "wallaroo_replayed_messages_total",
        _C,
        "Messages that connectors have sent again and that workers had already accepted.",
        "wallaroo.messages.replayed",
        "{message}",
        _count("replayed"),
        _SLOT,
    ),
    Metric(
        "wallaroo_committed_messages_total",
        _C,
        "Messages in committed batches.",
        "wallaroo.messages.committed",
        "{message}",
        _count("committed"),
        _SLOT,
    ),
    Metric(
        "wallaroo_ack_latency_seconds",
        _H,
        "Seconds from the arrival of a message at the worker to its acknowledgement.",
        "wallaroo.ack.latency",
        "s",
        _ack_latency,
        _SLOT,
    ),
    Metric(
        "wallaroo_ack_age_seconds",
        _G,
        "Seconds since the oldest message that is not acknowledged arrived; 0 when there is none.",
        "wallaroo.ack.age",
        "s",
        _of_slots(lambda slot: slot.ack_age or 0.0),
        _SLOT,
    ),
    Metric(
        "wallaroo_acks_total",
        _C,
        "ACK frames that workers have sent.",
        "wallaroo.acks",
        "{frame}",
        _count("acks"),
        _SLOT,
    ),
    Metric(
        "wallaroo_commits_total",
        _C,
        "Batches whose commit the driver has seen.",
        "wallaroo.commits",
        "{batch}",
        _whole(lambda facts: facts.driver.get("commits", 0)),
    ),
    Metric(
        "wallaroo_committed_batch",
        _G,
        "Number of the newest committed batch; absent before the first commit.",
        "wallaroo.batch.committed",
        "{batch}",
        _whole(lambda facts: facts.status.query.committed_batch),
    ),
    Metric(
        "wallaroo_batches_total",
        _C,
        "Batches that Spark has reported.",
        "wallaroo.batches",
        "{batch}",
        _whole(lambda facts: facts.batches.batches),
    ),
    Metric(
        "wallaroo_batch_phase_seconds",
        _H,
        "Seconds of each phase of a batch: plan (how far to read), write_offsets, compile, run (reading, query and "
        "sink), write_commit, and all together.",
        "wallaroo.batch.phase",
        "s",
        lambda facts: batch_phases(facts.batches),
        ("phase",),
    ),
    Metric(
        "wallaroo_batch_running_seconds",
        _G,
        "Seconds that the current phase of the running batch has lasted; 0 between batches.",
        "wallaroo.batch.running",
        "s",
        _whole(
            lambda facts: (
                max(0.0, facts.status.time - facts.status.query.since)
                if facts.status.query.batch is not None and facts.status.query.since is not None
                else 0.0
            )
        ),
    ),
    Metric(
        "wallaroo_query_up",
        _G,
        "1 while a query reads the receiver, 0 otherwise.",
        "wallaroo.query.up",
        "1",
        _whole(lambda facts: _flag(facts.status.query.state == "running")),
    ),
    Metric(
        "wallaroo_checkpoint_up",
        _G,
        "1 while the driver can read the checkpoint of the query, 0 when it cannot, so that nothing is acknowledged.",
        "wallaroo.checkpoint.up",
        "1",
        _whole(lambda facts: _flag(not facts.status.query.watcher_error)),
    ),
    Metric(
        "wallaroo_healthy",
        _G,
        "1 when /healthz answers 200, 0 when it answers 503.",
        "wallaroo.healthy",
        "1",
        _whole(lambda facts: _flag(health(facts.status).healthy)),
    ),
    Metric(
        "wallaroo_slot_up",
        _G,
        "1 while the slot has a worker that answers, 0 otherwise.",
        "wallaroo.slot.up",
        "1",
        _of_slots(lambda slot: _flag(slot.answers), silent=True),
        _SLOT,
    ),
    Metric(
        "wallaroo_worker_deaths_total",
        _C,
        "Ends of the slot's Spark job without a request.",
        "wallaroo.worker.deaths",
        "{death}",
        _count("deaths"),
        _SLOT,
    ),
    Metric(
        "wallaroo_worker_submissions_total",
        _C,
        "Submissions of the slot's Spark job, including the first.",
        "wallaroo.worker.submissions",
        "{submission}",
        _count("submissions"),
        _SLOT,
    ),
    Metric(
        "wallaroo_internal_errors_total",
        _C,
        "Errors of this program that have ended sessions of a worker.",
        "wallaroo.worker.internal_errors",
        "{error}",
        _count("internal-errors"),
        _SLOT,
    ),
    Metric(
        "wallaroo_connections_total",
        _C,
        "Connections that workers have accepted, including those that never sent a HELLO.",
        "wallaroo.connections",
        "{connection}",
        _count("connections"),
        _SLOT,
    ),
    Metric(
        "wallaroo_sessions_started_total",
        _C,
        "Handshakes that were answered by OK.",
        "wallaroo.sessions.started",
        "{session}",
        _count("sessions"),
        _SLOT,
    ),
    Metric(
        "wallaroo_handshakes_refused_total",
        _C,
        "Handshakes that were refused, by reason: a violation such as wrong-cookie, or redirected or try-later.",
        "wallaroo.handshakes.refused",
        "{handshake}",
        _counts("refused:", ("redirected", "try-later", "wrong-cookie", "wrong-version", "worker-full")),
        ("slot", "reason"),
    ),
    Metric(
        "wallaroo_protocol_violations_total",
        _C,
        "Violations of the protocol by connectors, by kind, including those in handshakes.",
        "wallaroo.protocol.violations",
        "{violation}",
        _counts("fault:", ("wrong-cookie", "handshake-timeout", "peer-never-reads", "ids-not-increasing")),
        ("slot", "fault"),
    ),
    Metric(
        "wallaroo_connector_errors_total",
        _C,
        "ERROR frames that connectors have sent.",
        "wallaroo.connector.errors",
        "{error}",
        _count("peer-errors"),
        _SLOT,
    ),
    Metric(
        "wallaroo_sessions",
        _G,
        "Sessions that were answered by OK and have not ended.",
        "wallaroo.sessions.active",
        "{session}",
        _of_slots(lambda slot: slot.sessions),
        _SLOT,
    ),
    Metric(
        "wallaroo_sessions_waiting",
        _G,
        "Accepted connectors that wait for OK.",
        "wallaroo.sessions.waiting",
        "{session}",
        _of_slots(lambda slot: slot.waiting),
        _SLOT,
    ),
    Metric(
        "wallaroo_instances",
        _G,
        "Connector instances that are connected, or of which the worker holds messages.",
        "wallaroo.instances",
        "{instance}",
        _of_slots(lambda slot: slot.instances),
        _SLOT,
    ),
    Metric(
        "wallaroo_streams",
        _G,
        "Streams that are open, or of which the worker holds messages.",
        "wallaroo.streams",
        "{stream}",
        _of_slots(lambda slot: slot.streams),
        _SLOT,
    ),
    Metric(
        "wallaroo_credits",
        _G,
        "Messages that connectors may still send.",
        "wallaroo.credits.available",
        "{message}",
        _of_slots(lambda slot: slot.credits),
        _SLOT,
    ),
    Metric(
        "wallaroo_credits_granted_total",
        _C,
        "Credits that workers have granted.",
        "wallaroo.credits.granted",
        "{message}",
        _count("credits"),
        _SLOT,
    ),
    Metric(
        "wallaroo_buffered_messages",
        _G,
        "Messages that workers hold, because they are not committed.",
        "wallaroo.buffer.messages",
        "{message}",
        _of_slots(lambda slot: slot.rows),
        _SLOT,
    ),
    Metric(
        "wallaroo_buffer_used_bytes",
        _G,
        "Memory of the messages and unfinished frames that workers hold.",
        "wallaroo.buffer.used",
        "By",
        _of_slots(lambda slot: slot.memory_used),
        _SLOT,
    ),
    Metric(
        "wallaroo_buffer_limit_bytes",
        _G,
        "Memory that a worker's buffer may use: the option memoryBudget.",
        "wallaroo.buffer.limit",
        "By",
        _of_slots(lambda slot: slot.memory_budget),
        _SLOT,
    ),
    Metric(
        "wallaroo_pauses_total",
        _C,
        "How many times workers have stopped reading a connection, by how full the buffer was.",
        "wallaroo.pauses",
        "{pause}",
        _counts("paused:", ("soft", "hard")),
        ("slot", "pressure"),
    ),
    Metric(
        "wallaroo_resends_total",
        _C,
        "How many times workers have asked a connector to send a stream again.",
        "wallaroo.resends",
        "{request}",
        _count("resends"),
        _SLOT,
    ),
    Metric(
        "wallaroo_dropped_streams_total",
        _C,
        "How many times a full worker has dropped the messages of a stream, which its connector sends again.",
        "wallaroo.streams.dropped",
        "{stream}",
        _count("shed-streams"),
        _SLOT,
    ),
    Metric(
        "wallaroo_stale_notices_total",
        _C,
        "Notices of the driver that workers have ignored because they already had newer ones.",
        "wallaroo.notices.stale",
        "{notice}",
        _count("stale-commits"),
        _SLOT,
    ),
    Metric(
        "wallaroo_registry_errors_total",
        _C,
        "Calls of a worker to the registry (Redis) that failed.",
        "wallaroo.registry.errors",
        "{error}",
        _count("registry-failures"),
        _SLOT,
    ),
    Metric(
        "wallaroo_driver_registry_errors_total",
        _C,
        "Rounds of the driver in which the registry (Redis) did not answer.",
        "wallaroo.driver.registry.errors",
        "{error}",
        _whole(lambda facts: facts.driver.get("registry-errors", 0)),
    ),
    Metric(
        "wallaroo_registry_up",
        _G,
        "1 while the registry (Redis) answers the slot's worker, 0 otherwise.",
        "wallaroo.registry.up",
        "1",
        _of_slots(lambda slot: _flag(not slot.registry_away)),
        _SLOT,
    ),
    Metric(
        "wallaroo_driver_registry_up",
        _G,
        "1 while the registry (Redis) answers the driver, 0 otherwise.",
        "wallaroo.driver.registry.up",
        "1",
        _whole(lambda facts: _flag(not facts.status.registry_error)),
    ),
    Metric(
        "wallaroo_instance_ack_age_seconds",
        _G,
        "Seconds since the oldest message of a connector instance that is not acknowledged arrived; only for as many "
        "instances as the option metricsInstances allows, those that wait longest.",
        "wallaroo.instance.ack.age",
        "s",
        _of_instances(lambda one: one.ack_age or 0.0),
        ("slot", "instance"),
    ),
    Metric(
        "wallaroo_instance_buffered_messages",
        _G,
        "Messages of a connector instance that the worker holds; limited as wallaroo_instance_ack_age_seconds is.",
        "wallaroo.instance.buffer.messages",
        "{message}",
        _of_instances(lambda one: one.rows),
        ("slot", "instance"),
    ),
)
"""All metrics, in the order of ``docs/metrics.md``."""
