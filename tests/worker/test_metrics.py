"""What Prometheus sees of a worker."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from tests.worker.bench import Bench
from wallaroo_spark.protocol import DRAFT_BE
from wallaroo_spark.worker.metrics import COUNTERS, WorkerCollector


def scrape(*benches: Bench) -> str:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: [bench.state.status() for bench in benches]))
    return generate_latest(registry).decode()


def test_counts_and_gauges_are_told_apart_by_slot() -> None:
    busy, idle = Bench(slot=0), Bench(slot=1, ready=False)
    connector = busy.join(DRAFT_BE)
    connector.open(1)
    connector.messages(1, [1, 2])
    connector.leave()
    connector = busy.join(DRAFT_BE)
    connector.open(1)
    connector.messages(1, [2])
    text = scrape(busy, idle)

    assert 'wallaroo_messages_total{slot="0"} 2.0' in text
    assert 'wallaroo_replayed_total{slot="0"} 1.0' in text
    assert 'wallaroo_messages_total{slot="1"} 0.0' in text
    assert 'wallaroo_worker_sessions{slot="0"} 1.0' in text
    assert 'wallaroo_worker_ready{slot="1"} 0.0' in text
    assert 'wallaroo_worker_batch{slot="1"} -1.0' in text


def test_every_fault_is_counted_by_name() -> None:
    bench = Bench()
    bench.connect().send(b"GET / HTTP/1.1\r\n")

    assert 'wallaroo_faults_total{fault="not-this-protocol",slot="0"} 1.0' in scrape(bench)


def test_a_scrape_without_workers_is_empty_of_samples() -> None:
    lines = scrape().splitlines()

    assert lines
    assert all(line.startswith("#") for line in lines)


def test_whatever_a_worker_counts_has_a_metric() -> None:
    bench = Bench()
    connector = bench.join(DRAFT_BE)
    connector.open(1)
    connector.messages(1, [1])

    assert {name for name in bench.counts if not name.startswith("fault:")} <= COUNTERS.keys()
