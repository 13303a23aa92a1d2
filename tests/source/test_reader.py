"""The stream reader as Spark calls it, without Spark: offsets in, offsets out, and nothing that passes is an error."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from pyspark_wallaroo import DefaultSource
from tests.source.fleet import TOKEN, LiveFleet
from tests.waiting import SECONDS, eventually
from wallaroo_spark.columnar import ROW_SCHEMA
from wallaroo_spark.connector import stream_id_of
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.options import Options
from wallaroo_spark.registry import NO_QUERY, QUERY_STARTS
from wallaroo_spark.runtime.spark_sessions import with_values
from wallaroo_spark.sidecar import plan_files
from wallaroo_spark.sidecar.plan_files import NamedPlan, PlanName, place_record
from wallaroo_spark.source import Secrets, WallarooDataSource, leader_election
from wallaroo_spark.source import reader as reader_module
from wallaroo_spark.source.driver_files import DriverFiles
from wallaroo_spark.source.fleet_view import LOOKS_BEFORE, FedRecord
from wallaroo_spark.source.ranges import RangePartition
from wallaroo_spark.source.reader import WallarooStreamReader

SCHEMA = from_arrow_schema(ROW_SCHEMA)

pytestmark = pytest.mark.both
EVERYTHING = ReadAllAvailable()
MakeReader = Callable[..., WallarooStreamReader]


@pytest.fixture
def make_reader(fleet: LiveFleet) -> Iterator[MakeReader]:
    made: list[WallarooStreamReader] = []

    def make(**options: Any) -> WallarooStreamReader:
        settings = {"receiver": fleet.options.receiver, "registry": fleet.options.registry, "token": TOKEN, **options}
        made.append(WallarooStreamReader(Options(**settings)))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def send(fleet: LiveFleet, name: str, *numbers: int, slot: int = 0) -> str:
    """Have these messages held by the slot's worker; the stream's id."""
    before = fleet.held(slot)
    stream = fleet.connect(f"shop-{name}", slot).open(name)
    for number in numbers:
        stream.send(b"x", id=number)
    eventually(lambda: fleet.held(slot) == before + len(numbers))
    return str(stream.id)


def latest(reader: WallarooStreamReader, start: dict[str, Any], limit: ReadLimit = EVERYTHING) -> dict[str, Any]:
    """The next offset behind ``start``, once there is one."""
    found: list[dict[str, Any]] = []

    def moved() -> bool:
        found.append(reader.latestOffset(start, limit))
        return found[-1] != start

    eventually(moved)
    return found[-1]


def test_it_begins_where_it_is_told_however_often_it_is_asked(make_reader: MakeReader) -> None:
    begin = {"shop-1": {"7": 12}}

    for reader in (make_reader(starting_offsets=begin), make_reader()):
        streams = begin if reader.options.starting_offsets else {}
        for _ in range(2):
            assert reader.initialOffset()["streams"] == streams


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"max_offsets_per_trigger": 5, "max_bytes_per_trigger": 9, "min_offsets_per_trigger": 2}, ReadMaxRows(5)),
        ({"max_bytes_per_trigger": 9, "min_offsets_per_trigger": 2}, ReadMaxBytes(9)),
        ({"min_offsets_per_trigger": 2}, ReadMinRows(2)),
    ],
    ids=["none", "rows", "bytes", "fewest rows"],
)
def test_spark_is_told_of_one_limit(make_reader: MakeReader, options: dict[str, int], limit: ReadLimit) -> None:
    assert make_reader(**options).getDefaultReadLimit() == limit


def test_an_offset_covers_the_rows_of_all_workers_and_then_stays(fleet: LiveFleet, make_reader: MakeReader) -> None:
    for slot in (0, 1):
        fleet.start(slot)
    fleet.begin()
    first, second = send(fleet, "a", 1, 2, 3), send(fleet, "b", 5, slot=1)
    reader = make_reader()
    start = reader.initialOffset()
    eventually(lambda: len(reader.latestOffset(start, EVERYTHING)["streams"]) == 2)
    end = reader.latestOffset(start, EVERYTHING)

    assert end["streams"] == {"shop-a": {first: 3}, "shop-b": {second: 5}}
    # Spark compares the texts.
    assert json.dumps(reader.latestOffset(json.loads(json.dumps(end)), EVERYTHING)) == json.dumps(end)


def test_all_limits_count_though_spark_can_name_but_one(fleet: LiveFleet, make_reader: MakeReader) -> None:
    fleet.start(0)
    fleet.begin()
    stream = send(fleet, "a", *range(1, 101))
    reader = make_reader(max_offsets_per_trigger=50, max_bytes_per_trigger=1000)
    start = reader.initialOffset()

    end = latest(reader, start, ReadMaxRows(50))["streams"]["shop-a"][stream]
    assert 1 <= end < 50
    assert latest(reader, start, EVERYTHING)["streams"]["shop-a"][stream] == 100


def test_too_few_messages_wait_but_not_forever(fleet: LiveFleet, make_reader: MakeReader) -> None:
    for slot in (0, 1):
        fleet.start(slot)
    fleet.begin()
    send(fleet, "a", 1, 2)
    patient = make_reader(min_offsets_per_trigger=3, max_trigger_delay=600.0)
    eventually(patient._fleet.slots)
    start = patient.initialOffset()
    assert all(patient.latestOffset(start, ReadMinRows(3)) == start for _ in range(5))
    send(fleet, "b", 1, slot=1)
    latest(patient, start, ReadMinRows(3))

    hasty = make_reader(min_offsets_per_trigger=30, max_trigger_delay=0.3)
    latest(hasty, start, ReadMinRows(30))


def test_a_worker_that_does_not_answer_is_no_error(fleet: LiveFleet, make_reader: MakeReader) -> None:
    fleet.start(0, own_process=True)
    fleet.begin()
    send(fleet, "a", 1)
    reader = make_reader()
    start = reader.initialOffset()
    end = latest(reader, start)
    fleet.kill(0)

    assert reader.latestOffset(end, EVERYTHING) == end
    assert reader.latestOffset(start, EVERYTHING) == start
    assert reader.reportLatestOffset() in (None, {**end, "lag": {"rows": 0, "bytes": 0}})


def test_a_run_does_not_end_before_its_commits_are_acknowledged(fleet: LiveFleet, make_reader: MakeReader) -> None:
    fleet.start(0)
    fleet.begin()
    stream = send(fleet, "a", 1, 2)
    reader = make_reader(quiet_seconds=0.2, available_now_timeout=SECONDS)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, EVERYTHING)
    with ThreadPoolExecutor(1) as pool:
        # Spark asks for more once it has committed; telling the worker of that may take longer than being quiet does.
        more = pool.submit(reader.latestOffset, end, EVERYTHING)
        with pytest.raises(TimeoutError):
            more.result(1.5)
        fleet.commit(0, 1, 0, {"shop-a": {stream: 2}})
        assert more.result(SECONDS) == end


def test_the_lag_is_the_rows_behind_the_last_plan(fleet: LiveFleet, make_reader: MakeReader) -> None:
    fleet.start(0)
    fleet.begin()
    stream = send(fleet, "a", *range(1, 11))
    reader = make_reader()
    assert reader.reportLatestOffset() is None
    latest(reader, reader.initialOffset(), ReadMaxRows(4))

    report = reader.reportLatestOffset()

    assert report is not None
    assert report["lag"]["rows"] == 6
    assert report["streams"]["shop-a"][stream] == 10


def test_an_answer_to_an_idle_query_waits_for_a_message(
    fleet: LiveFleet, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wallaroo_spark.source.reader.POLLED_SECONDS", 0.0)
    fleet.start(0)
    fleet.begin()
    reader = make_reader()
    start = reader.initialOffset()
    eventually(
        lambda: reader.latestOffset(start, EVERYTHING) == start and reader._nothing.holds(reader._fleet.stamp, start)
    )

    monkeypatch.setattr("wallaroo_spark.source.reader.WAIT_SECONDS", SECONDS)
    monkeypatch.setattr("wallaroo_spark.source.reader.POLLED_SECONDS", 2 * SECONDS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.latestOffset, start, EVERYTHING)
        send(fleet, "orders", 1)
        end = waiting.result(SECONDS)
        # A worker that is found, or leaves, ends a wait too.
        while end == start:
            end = reader.latestOffset(start, EVERYTHING)

    assert end != start


def test_only_the_first_answer_behind_a_batch_of_this_source_waits_for_a_message(
    fleet: LiveFleet, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wallaroo_spark.source.reader.POLLED_SECONDS", 0.0)
    fleet.start(0)
    fleet.begin()
    send(fleet, "a", 1)
    reader = make_reader()
    batch = latest(reader, reader.initialOffset())
    waits, wait = [], reader._fleet.wait

    def wait_and_send(stamp: int, seconds: float) -> int:
        waits.append(stamp)
        if len(waits) > 1:
            return wait(stamp, seconds)
        send(fleet, "b", 1)
        return wait(stamp, SECONDS)

    monkeypatch.setattr(reader._fleet, "wait", wait_and_send)
    after = reader.latestOffset(batch, EVERYTHING)
    # A worker that is found, or leaves, ends a wait too.
    after = after if after != batch else latest(reader, batch)

    assert len(waits) == 1
    assert after["streams"].keys() == {"shop-a", "shop-b"}
    assert [reader.latestOffset(after, EVERYTHING) for _ in range(3)] == [after] * 3
    assert len(waits) == 2, "batches of other sources do not wait for this one"


def test_rows_that_only_a_progress_report_has_counted_are_planned(
    fleet: LiveFleet, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's word that there is something new may come behind a report that has asked it for a plan."""
    may_arrive = threading.Event()
    may_arrive.set()
    available = WorkerClient.available

    def late(self: WorkerClient, *given: Any, **named: Any) -> dict[str, Any]:
        answer = available(self, *given, **named)
        assert may_arrive.wait(SECONDS)
        return answer

    monkeypatch.setattr(WorkerClient, "available", late)
    fleet.start(0)
    fleet.begin()
    send(fleet, "a", 1)
    reader = make_reader()
    start = latest(reader, reader.initialOffset())
    eventually(
        lambda: reader.latestOffset(start, EVERYTHING) == start and reader._nothing.holds(reader._fleet.stamp, start)
    )
    may_arrive.clear()
    send(fleet, "b", 1, 2)
    report = reader.reportLatestOffset()
    may_arrive.set()

    assert report is not None
    assert report["lag"]["rows"] == 2
    assert latest(reader, start)["streams"].keys() == {"shop-a", "shop-b"}


def test_partitions_may_be_the_first_call_of_a_process(
    fleet: LiveFleet, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slot in (0, 1):
        fleet.start(slot)
    fleet.begin()
    streams = {"shop-a": {send(fleet, "a", 1, 2): 2}, "shop-b": {send(fleet, "b", 1, slot=1): 1}}
    monkeypatch.setenv("WALLAROO_TEST_REGISTRY", fleet.options.registry)
    reader = make_reader(registry="env:WALLAROO_TEST_REGISTRY")
    start = reader.initialOffset()
    eventually(lambda: len(reader._fleet.slots()) == 2)
    parts = reader.partitions(start, {**start, "streams": streams})

    assert [part.slot for part in parts if isinstance(part, RangePartition)] == [0, 1]
    # An executor may have neither the driver's environment nor its files.
    assert all(isinstance(part, RangePartition) and part.options.registry == fleet.options.registry for part in parts)
    shipped = pickle.loads(pickle.dumps(reader))
    rows = [
        row for part in parts for batch in shipped.read(pickle.loads(pickle.dumps(part))) for row in batch["stream"]
    ]
    assert sorted(str(row) for row in rows) == ["a", "a", "b"]


def test_a_named_plan_is_the_same_for_all_sources_of_a_query_and_for_a_process_that_begins_with_it(
    fleet: LiveFleet, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plan_files, "INLINE_BYTES", 0)
    monkeypatch.setattr(leader_election, "SUCCESSION_SECONDS", 0.0)
    record = {"workers": "1", "query": QUERY_STARTS, "checkpoint": place_record(str(tmp_path))}
    fleet.registry.publish_fleet(record)
    fleet.start(0)
    fleet.begin()
    stream = send(fleet, "a", 1, 2)
    leader, follower = make_reader(), make_reader()
    start = leader.initialOffset()
    end = latest(leader, start)

    assert "streams" not in end
    assert follower.latestOffset(start, EVERYTHING) == end
    assert leader.latestOffset(again(end), EVERYTHING) == follower.latestOffset(again(end), EVERYTHING) == end
    fresh = make_reader()
    (part,) = fresh.partitions(start, again(end))
    assert isinstance(part, RangePartition)
    assert [(one.key, one.start, one.end) for one in part.ranges] == [(("shop-a", int(stream)), None, 2)]
    report = leader.reportLatestOffset()
    assert report == {**end, "lag": {"rows": 0, "bytes": 0}}


def test_a_source_that_is_not_told_where_plans_lie_waits_and_then_names_the_plan(
    fleet: LiveFleet, make_reader: MakeReader
) -> None:
    named = NamedPlan(PlanName.after(1), PlanName.after(0)).offset(fleet.options.receiver)
    reader = make_reader(replay_timeout=0.2)

    assert reader.latestOffset(named, EVERYTHING) == named
    with pytest.raises(CheckpointError, match=f"the plan {named['plan']} of receiver"):
        reader.partitions(reader.initialOffset(), named)


def test_a_source_that_does_not_reach_the_place_of_its_plans_fails_with_the_plan_s_name(
    fleet: LiveFleet, make_reader: MakeReader, tmp_path: Path
) -> None:
    record = json.dumps({**json.loads(place_record(str(tmp_path))), "mark": "another machine's"})
    fleet.registry.publish_fleet({"workers": "1", "query": QUERY_STARTS, "checkpoint": record})
    named = NamedPlan(PlanName.after(1), PlanName.after(0)).offset(fleet.options.receiver)

    with pytest.raises(CheckpointError, match=f"the plan {named['plan']} of receiver"):
        make_reader().latestOffset(named, EVERYTHING)


def again(value: dict[str, Any]) -> dict[str, Any]:
    """As Spark hands an offset back."""
    found: dict[str, Any] = json.loads(json.dumps(value))
    return found


def test_equal_offsets_have_one_empty_partition_at_first_and_then_none(make_reader: MakeReader) -> None:
    reader = make_reader()
    start = reader.initialOffset()

    (look,) = reader.partitions(start, start)
    assert isinstance(look, RangePartition)
    assert look.ranges == []
    assert reader.partitions(start, start) == []


def test_an_ephemeral_range_of_a_slot_that_is_no_more_is_left_out(fleet: LiveFleet, make_reader: MakeReader) -> None:
    fleet.start(0)
    reader = make_reader()
    start = reader.initialOffset()
    stream = str(stream_id_of("shop-a", "a"))
    eventually(lambda: reader._fleet.workers == 2)

    for slot, count in ((1, 1), (2, 0)):
        end = {**start, "streams": {"shop-a": {stream: f"e:{slot}:17:4"}}}
        assert len(reader.partitions(start, end)) == count


def publish(fleet: LiveFleet, **record: str) -> None:
    fleet.registry.publish_fleet({"workers": "1", **record})


def asked(reader: WallarooStreamReader) -> Future[dict[str, Any]]:
    """The first plan of a source, in a thread."""
    thread = ThreadPoolExecutor(1)
    plan = thread.submit(lambda: reader.latestOffset(reader.initialOffset(), EVERYTHING))
    thread.shutdown(wait=False)
    return plan


def test_a_first_plan_waits_until_the_receiver_has_looked_at_the_queries_that_run(
    fleet: LiveFleet, make_reader: MakeReader
) -> None:
    before = str(time.time() - 1)
    for stale in (NO_QUERY, "the query before", QUERY_STARTS):
        publish(fleet, query=stale, looked=before)
        reader = make_reader()
        plan = asked(reader)
        eventually(lambda reader=reader: reader._fleet.fed.known)
        assert not plan.done()
        publish(fleet, query=QUERY_STARTS, looked=str(time.time() + 1))
        eventually(lambda reader=reader: reader._fleet.fed.query == QUERY_STARTS)
        assert not plan.done()
        publish(fleet, query="mine", looked=str(time.time() + 1))
        assert plan.result(SECONDS) == reader.initialOffset()
        assert reader._partition(0, []).query == "mine"


def test_a_query_that_the_receiver_does_not_feed_fails_with_what_the_receiver_says(
    fleet: LiveFleet, make_reader: MakeReader
) -> None:
    publish(fleet, query=NO_QUERY, looked=str(time.time() + 60), refused="query 7 was not adopted: it is odd")
    with pytest.raises(ConfigurationError, match="no message would ever be acknowledged: query 7 was not adopted"):
        asked(make_reader()).result(SECONDS)
    publish(fleet, query=NO_QUERY, looked=str(time.time() + 60))
    with pytest.raises(ConfigurationError, match="no query that reads it runs in the SparkContext of the receiver"):
        asked(make_reader()).result(SECONDS)
    # A query that it fed ends, and it feeds another one.
    publish(fleet, query="mine", looked=str(time.time() + 60))
    reader = make_reader()
    asked(reader).result(SECONDS)
    publish(fleet, query="another", looked=str(time.time() + 61))
    eventually(lambda: reader._fleet.fed.query == "another")
    with pytest.raises(ConfigurationError, match="the receiver feeds query another, and no longer mine"):
        reader.latestOffset(reader.initialOffset(), EVERYTHING)


def test_a_receiver_whose_driver_has_died_is_no_reason_to_wait_for_ever(
    fleet: LiveFleet, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "ADOPTION_SECONDS", 0.5)
    publish(fleet, query="the query before", looked=str(time.time() - 60))
    with pytest.raises(ConfigurationError, match=r"its driver has told nothing for 0\.5 s"):
        asked(make_reader()).result(SECONDS)
    # One that adopts a query tells that, for as long as it takes.
    publish(fleet, query=QUERY_STARTS, looked=str(time.time() - 60))
    reader = make_reader()
    assert asked(reader).result(SECONDS) == reader.initialOffset()


def test_the_clock_of_the_receiver_s_machine_may_be_another_one() -> None:
    record = FedRecord()
    assert record.after({}) == record
    for number in range(LOOKS_BEFORE + 1):
        assert not record.looks or not record.fresh(100.0)
        for _ in range(2):
            record = record.after({"query": "q", "looked": str(number)})
    assert record.fresh(100.0)
    assert record.after({"query": "q"}).fresh(100.0)
    assert record.after({"query": "q", "looked": "101"}).fresh(100.0)


def source_of(receiver: str) -> WallarooDataSource:
    """The source of a receiver that this driver runs, as a query reads it by format name."""
    secrets = {"orders": Secrets("redis://127.0.0.1:1", TOKEN)}
    return with_values(WallarooDataSource, secrets, "wallaroo")({"receiver": receiver})


@pytest.mark.parametrize(
    ("receiver", "said"),
    [("", r"needs the option receiver; Receiver\.stream\(\) sets it"), ("others", "'others' was not started by this")],
)
def test_the_source_says_of_which_receiver_it_must_be(receiver: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        source_of(receiver).streamReader(SCHEMA)


def test_a_source_carries_its_secrets_to_where_spark_unpickles_it_and_shows_none() -> None:
    shipped = cloudpickle.loads(cloudpickle.dumps(source_of("orders")))
    reader = shipped.streamReader(SCHEMA)

    assert (reader.options.registry, reader.options.token) == ("redis://127.0.0.1:1", TOKEN)
    shown = f"{shipped.options} {shipped.values} {vars(shipped)} {reader.options}"
    assert [secret for secret in (TOKEN, "127.0.0.1:1") if secret in shown] == []


@pytest.mark.parametrize(
    "given",
    [
        {"registry": "redis://:open-sesame@127.0.0.1:1"},
        {"registry": "unix:///run/redis?password=open-sesame"},
        {"token": "open-sesame"},
        {"COOKIE": "open-sesame"},
    ],
)
def test_a_secret_in_clear_is_refused_before_a_plan_can_show_it(given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=rf"option {min(given).lower()} is given in plain text") as caught:
        WallarooDataSource({"receiver": "orders", **given})
    assert "open-sesame" not in str(caught.value)


def test_a_query_of_another_driver_names_where_its_secrets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    given = {"receiver": "orders", "registry": "redis://127.0.0.1:1", "token": "env:FLEET_TOKEN"}
    reader = WallarooDataSource(given).streamReader(SCHEMA)

    assert isinstance(reader, WallarooStreamReader)
    assert reader._partition(0, []).options.token == TOKEN


def test_a_source_that_nobody_has_registered_finds_the_secrets_in_a_file_of_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files, content = DriverFiles(), {"registry": "redis://127.0.0.1:1", "token": TOKEN}
    # This process stands for one that Spark has started, and its parent for the driver.
    for driver in (os.getppid(), 2**22 + 1):
        files.write(driver, "orders", {"registry": "redis://127.0.0.1:2", "token": "before"})
        files.write(driver, "orders", content)
    reader = DefaultSource({"receiver": "orders"}).streamReader(SCHEMA)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]

    assert isinstance(reader, WallarooStreamReader)
    assert (reader.options.registry, reader.options.token) == (content["registry"], TOKEN)
    assert {(path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) for path in written} == {(0o600, 0o700)}
    assert "orders" not in " ".join(path.name for path in written)
    assert DriverFiles().read("returns") is None
    # Only its own file is deleted, and those of drivers that have ended.
    files.delete(os.getppid(), "orders", {**content, "token": "another"})
    assert files.read("orders") == content
    files.write(os.getppid(), "returns", content)
    assert not list(tmp_path.rglob(f"{2**22 + 1}-*"))
    files.delete(os.getppid(), "orders", content)
    with pytest.raises(ConfigurationError, match="'orders' was not started by this driver"):
        DefaultSource({"receiver": "orders"}).streamReader(SCHEMA)


def test_the_source_has_one_schema() -> None:
    source = source_of("orders")

    assert isinstance(source.streamReader(SCHEMA), WallarooStreamReader)
    with pytest.raises(ConfigurationError, match=r"leave \.schema"):
        source.streamReader(StructType(SCHEMA.fields[:3]))
