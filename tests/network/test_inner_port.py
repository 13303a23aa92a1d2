"""The way to a worker's inner port fails: every wait of a reading task or the driver ends, and the rest is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.waiting import SECONDS, eventually
from tests.worker.peer import good
from tests.worker.running import TOKEN, Fleet, Running
from wallaroo_spark.errors import RegistryError, ReplayError, TransportError
from wallaroo_spark.inner import client as flight_client
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import Message
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.registry import Registry
from wallaroo_spark.source import ranges
from wallaroo_spark.source.ranges import RangePartition, read_ranges
from wallaroo_spark.testing import Proxy, Trouble
from wallaroo_spark.transport import parse_address
from wallaroo_spark.worker.buffer import delivery

MESSAGES = 1000
PAYLOAD = bytes(1000)


@pytest.fixture
def inner(worker: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy between a reading task and the worker's inner port; the rows come in many small batches."""
    monkeypatch.setattr(delivery, "ROWS_A_BATCH", 50)
    with Proxy(parse_address(worker.lease.flight)) as proxy:
        yield proxy


@pytest.fixture
def full(worker: Running) -> Running:
    """A worker with messages, of which a planned range has all."""
    peer = good(worker)
    for number in range(1, MESSAGES + 1):
        peer.send(peer.session.message(Message(1, number, PAYLOAD)))
        if number % 100 == 0:
            eventually(lambda number=number: worker.count("messages") >= number)
    return worker


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that says nothing is given up soon."""
    monkeypatch.setattr(ranges, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(ranges, "LEAST_SILENCE_SECONDS", 0.5)


def away() -> Registry:
    """No registry: the addresses that were planned are all there is."""
    raise RegistryError("Redis is away")


def partition(fleet: Fleet, address: str, **options: float | bool) -> RangePartition:
    planned = [PlannedRange(StreamKey("good", 1), None, MESSAGES)]
    settings: dict[str, Any] = {"replay_timeout": SECONDS, **options}
    known = Options(receiver=fleet.receiver, registry=fleet.url, token=TOKEN, **settings)
    return RangePartition(0, planned, {0: address}, known)


def ids(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch["message_id"].to_pylist()]


def everything() -> list[int]:
    return list(range(1, MESSAGES + 1))


def mend_at_the_next_connection(proxy: Proxy) -> threading.Thread:
    """Existing connections stay half open; a new connection works."""
    before = proxy.connections

    def mend() -> None:
        eventually(lambda: proxy.connections > before)
        proxy.become(Trouble.NONE)

    thread = threading.Thread(target=mend, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("short_silence")
def test_a_read_over_a_half_open_connection_ends_and_the_rest_is_read_again(
    full: Running, workers: Fleet, inner: Proxy
) -> None:
    inner.become(Trouble.SLOW)
    batches = read_ranges(partition(workers, inner.address), away)
    found = ids(iter([next(batches)]))
    assert 0 < len(found) < MESSAGES
    inner.become(Trouble.SWALLOW)
    mending = mend_at_the_next_connection(inner)
    found += ids(batches)
    mending.join(SECONDS)
    assert found == everything()
    assert inner.connections > 1


@pytest.mark.usefixtures("short_silence")
def test_rows_behind_a_half_open_connection_are_read_over_another(full: Running, workers: Fleet, inner: Proxy) -> None:
    inner.become(Trouble.SLOW)
    batches = read_ranges(partition(workers, inner.address), lambda: workers.registry)
    found = ids(iter([next(batches)]))
    inner.become(Trouble.SWALLOW)
    found += ids(batches)
    assert found == everything()


@pytest.mark.usefixtures("short_silence")
def test_a_worker_that_accepts_and_says_nothing_at_all_fails_the_read_within_the_replay_timeout(
    full: Running, workers: Fleet, inner: Proxy
) -> None:
    inner.become(Trouble.SWALLOW)
    with pytest.raises(ReplayError, match="were not sent again within 1 seconds"):
        ids(read_ranges(partition(workers, inner.address, replay_timeout=1.0), away))


@pytest.mark.parametrize("end", [Proxy.cut, Proxy.reset], ids=["cut", "reset"])
def test_a_read_that_is_ended_again_and_again_loses_and_repeats_nothing(
    full: Running, workers: Fleet, inner: Proxy, end: Callable[[Proxy], None]
) -> None:
    found: list[int] = []
    for number, batch in enumerate(read_ranges(partition(workers, inner.address), away)):
        found += ids(iter([batch]))
        if number % 10 == 0 and number < 40:
            end(inner)
    assert found == everything()


def test_a_slow_network_is_slow_and_nothing_else(full: Running, workers: Fleet, inner: Proxy) -> None:
    inner.become(Trouble.SLOW)
    assert ids(read_ranges(partition(workers, inner.address), away)) == everything()
    assert inner.connections == 1


def test_one_request_has_an_end_that_is_no_error(full: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_client, "READ_SECONDS", 1.5)
    here, to_come = PlannedRange(StreamKey("good", 1), None, MESSAGES), PlannedRange(StreamKey("good", 2), None, 1)
    found = list(full.client.read([here, to_come], boundaries=False, wait=SECONDS))
    read = ids(batch for batch, _ in found)
    # On a slow machine the request may end before all rows have come.
    assert read == everything()[: len(read)]
    assert {index for _, marks in found for index, _, done in marks if done} <= {0}


def test_a_call_over_a_half_open_connection_ends_and_the_next_one_takes_another(worker: Running, inner: Proxy) -> None:
    client = WorkerClient(inner.address, TOKEN, timeout=0.5)

    def answers() -> bool:
        try:
            return bool(client.status()["epoch"] == worker.epoch)
        except TransportError:
            return False

    eventually(answers)
    inner.become(Trouble.SWALLOW)
    for call in (client.status, lambda: client.plan(PlanQuestion()), lambda: client.owes({})):
        with pytest.raises(
            TransportError, match="check that its process runs and that the network between is not cut"
        ) as caught:
            call()
        assert caught.value.fields["reason"] == "timeout"
    inner.become(Trouble.NONE)
    eventually(answers)
    client.close()
