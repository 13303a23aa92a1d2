"""A whole application on one machine: gateways and query in Spark, a real Redis, and clients over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.engine.application import shop
from tests.waiting import SECONDS, eventually
from wallaroo_spark import read_instances, read_stream, sinks
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.cli.main import cli
from wallaroo_spark.client import Client, Event
from wallaroo_spark.engine import Application
from wallaroo_spark.errors import ArgumentValueError, CheckpointError, ConfigurationError, PipelineError, WallarooError
from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.published import in_folder, in_registry
from wallaroo_spark.pipelines.schema.applying import apply_files, delete_objects
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.registry import application_registry
from wallaroo_spark.streams.places import checkpoint_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(4 * SECONDS)


class Shop:
    """The shop's application, which tests may stop and start again."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.spark, self.folder = spark, folder
        self.application: Any = None

    def start(self) -> None:
        self.application = Application(
            self.spark, self.folder, state_partitions=2, move_seconds=0.2, retention_seconds=1
        )
        self.application.start()

    def client(self) -> Client:
        registry, name = self.application.registry_url, self.application.name
        return Client(registry=registry, application=name, timeout=SECONDS)

    def instances(self) -> list[Any]:
        """The instances that have ended, in their order."""
        found = read_instances(self.spark, self.folder).where("outcome is not null").orderBy("partition", "instance")
        return list(found.collect())


@pytest.fixture(scope="module")
def the_shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One running application for the tests of this file."""
    running = Shop(spark, shop.declare(tmp_path_factory.mktemp("application")))
    running.start()
    yield running
    running.application.stop()


def take(client: Client, stream: str, group: str, count: int) -> list[Event]:
    """The first events of a stream, each acked, for a durable group."""
    events: list[Event] = []
    with client.consume(stream, group=group, start="beginning", durable=True) as member:
        for delivery in member:
            with delivery:
                events += delivery.events
            if len(events) >= count:
                return events
    return events


def test_published_events_have_offsets_and_the_same_event_is_written_once(the_shop: Shop) -> None:
    with the_shop.client() as client:
        first = client.publish("shop/ledger", Event("t", 1, id="1", source="/a"), Event("t", 2, id="2", source="/a"))
        again = client.publish("shop/ledger", Event("t", 2, id="2", source="/a"), Event("t", 3, id="3", source="/a"))

        assert [(place.partition, place.offset) for place in first + again] == [(0, 1), (0, 2), (0, 2), (0, 3)]
        assert [event.value for event in take(client, "shop/ledger", "readers", 3)] == [1, 2, 3]


def test_orders_go_through_all_stages_and_their_shipments_are_written_once(the_shop: Shop) -> None:
    numbers = range(3)
    with the_shop.client() as client, shop.working(client):
        client.publish("shop/orders", *map(shop.order, numbers))
        shipments = take(client, "shop/shipments", "readers", len(numbers))
        eventually(lambda: len(the_shop.instances()) >= len(numbers), pause=0.5)

    assert sorted(map(shop.number_of, shipments)) == list(numbers)
    instances = the_shop.instances()
    assert [one.outcome for one in instances] == ["done"] * len(numbers)
    assert [sorted(stage.stage for stage in one.stages) for one in instances] == [sorted(shop.STAGES)] * len(numbers)
    written = [(output.partition, offset) for one in instances for output in one.outputs for offset in output.offsets]
    assert sorted(written) == [(0, offset + 1) for offset in numbers]
    assert read_stream(the_shop.spark, the_shop.folder, "shop/shipments").count() == len(numbers)


def test_the_status_has_what_has_happened_and_is_read_from_the_folder_and_from_the_registry(the_shop: Shop) -> None:
    application = the_shop.application
    found = eventually(lambda: _at_rest(application.snapshot()))

    [fulfil] = found.pipelines
    assert (fulfil.began, fulfil.done, fulfil.failed, fulfil.lag) == (3, 3, 0, 0)
    assert [(stage.stage, stage.done, stage.in_spark) for stage in fulfil.stages] == [
        ("charge", 3, False), ("reserve", 3, True), ("ship", 3, False), ("tidy", 3, False),
    ]  # fmt: skip
    last = {(one.stream, one.partition): one.last for one in found.partitions}
    assert last["shop/orders", 0] + last["shop/orders", 1] == last["shop/shipments", 0] == 3
    [readers] = next(one for one in found.partitions if one.stream == "shop/shipments").groups
    assert (readers.group, readers.cursor, readers.lag) == ("readers", 3, 0)
    [gateway] = found.gateways
    assert (gateway.gateway, gateway.state, gateway.generation) == ("g0", "serving", 1)
    assert gateway.counts["calls:Publish:ok"] >= 3
    for again in (
        eventually(lambda: (shown := in_folder(the_shop.folder)).pipelines == found.pipelines and shown),
        in_registry(application.registry_url, application.name, 2),
    ):
        assert (again.pipelines, again.running) == (found.pipelines, True)
        assert again.cause.healthy


def _at_rest(found: ApplicationStatus) -> ApplicationStatus | None:
    """The snapshot once all members have left, and the gateway has reported."""
    stages = [stage for one in found.pipelines for stage in one.stages]
    reported = all(one.age is not None and not one.members for one in found.gateways)
    return found if reported and not any(stage.members for stage in stages) else None


def test_a_transaction_writes_to_several_streams_with_the_ack_or_not_at_all(the_shop: Shop) -> None:
    with the_shop.client() as client:
        before = client.publish("shop/ledger", Event("t", "begin"))[0].offset
        with client.consume("shop/ledger", group="movers", start=before, durable=True) as member:
            delivery = next(member)
            delivery.begin().publish("shop/ledger", Event("t", "lost"))
            delivery.nack()
            again = next(member)
            with again.transaction() as transaction:
                transaction.publish("shop/ledger", Event("t", "debit"), Event("t", "credit"))
        after = client.publish("shop/ledger", Event("t", "end"))[0].offset

    assert [event.value for event in again.events] == ["begin"]
    assert [[place.offset for place in one.places] for one in transaction.written] == [[before + 1, before + 2]]
    assert after == before + 3


def test_a_new_version_with_a_function_that_cannot_be_imported_is_reported_and_other_pipelines_go_on(
    the_shop: Shop,
) -> None:
    shop.apply(Path(the_shop.folder), shop.MORE.format(function="tests.engine.application.stage_functions:misspelt"))
    eventually(lambda: the_shop.application.status()["errors"])
    (error,) = the_shop.application.status()["errors"]
    assert error.startswith("stage count of pipeline shop/more cannot run: the driver cannot import tests.engine.")

    with the_shop.client() as client:
        assert client.publish("shop/ledger", Event("t", "still here"))

    shop.apply(Path(the_shop.folder), shop.MORE.format(function="tests.engine.application.stage_functions:reserve"))
    eventually(lambda: not the_shop.application.status()["errors"])


def test_a_stage_that_fails_for_ever_is_a_cause_with_its_reason_until_its_instance_is_cancelled(the_shop: Shop) -> None:
    function = "{function}\n    retry: {{delay: 100ms, maxDelay: 200ms}}"
    failing = function.format(function="tests.engine.application.stage_functions:fails")
    shop.apply(Path(the_shop.folder), shop.MORE.format(function=failing))
    with the_shop.client() as client:
        eventually(lambda: "shop/more" in (one.pipeline for one in the_shop.application.snapshot().pipelines))
        client.publish("shop/ledger", Event("shop.counted", 1))
        found = eventually(lambda: (seen := the_shop.application.snapshot()).cause.code == "stage-failing" and seen)
        [stage] = next(one for one in found.pipelines if one.pipeline == "shop/more").stages
        assert not found.cause.healthy
        assert "the ledger is closed" in stage.reason
        assert stage.failed >= 3
        assert eventually(
            lambda: "stage-failing" in CliRunner().invoke(cli, ["status", "--app", the_shop.folder]).stdout
        )
        [instance] = eventually(lambda: instances(the_shop.folder))
        assert "the ledger is closed" in instance["reason"]
        client.cancel("shop/more", instance["partition"], instance["instance"])
    eventually(lambda: all(one.code != "stage-failing" for one in the_shop.application.snapshot().causes))
    shop.apply(Path(the_shop.folder), shop.MORE.format(function="tests.engine.application.stage_functions:reserve"))


def instances(folder: str) -> list[dict[str, Any]]:
    """What ``pipelines instances`` shows of active instances that have failed before."""
    shown = CliRunner().invoke(
        cli, ["pipelines", "instances", "shop/more", "--app", folder, "--state", "active", "--json"]
    )
    return [one for one in json.loads(shown.stdout)["instances"] if one["reason"]]


def await_expiry(the_shop: Shop) -> None:
    """Wait until all records so far of the stream with a short ttl were in its table and are not any more."""
    table = Path(the_shop.folder) / "streams" / "shop" / "brief"
    batch = CheckpointFiles(checkpoint_of(the_shop.folder), the_shop.spark).committed() or 0
    eventually(lambda: (the_shop.application.snapshot().moved or 0) >= batch, pause=0.2)
    eventually(lambda: not list(table.rglob("*.parquet")), pause=0.2)
    assert read_stream(the_shop.spark, the_shop.folder, "shop/brief").collect() == []


def test_records_expire_and_a_subscriber_that_was_away_is_told_how_many_it_missed(the_shop: Shop) -> None:
    with the_shop.client() as client:
        first = client.publish("shop/brief", Event("t", 1))[0].offset
        with client.consume("shop/brief", group="away", start=first, durable=True) as member, next(member) as delivery:
            assert [event.value for event in delivery.events] == [1]
        client.publish("shop/brief", *(Event("t", number) for number in (2, 3, 4)))
        await_expiry(the_shop)
        with client.consume("shop/brief", group="away", durable=True) as member:
            assert client.publish("shop/brief", Event("t", 5))[0].offset == first + 4
            with next(member) as delivery:
                assert [event.value for event in delivery.events] == [5]
        assert delivery.missed == 3


def test_a_second_driver_is_refused(the_shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match=r"another driver .* runs the application") as refused:
        Application(the_shop.spark, the_shop.folder).start()

    assert refused.value.code == "application-in-use"
    assert the_shop.application.status()["running"]


def test_a_gateway_that_is_killed_is_started_again_and_clients_go_on(the_shop: Shop) -> None:
    with application_registry(the_shop.application.registry_url, the_shop.application.name) as registry:
        holder = registry.leases()[0].holder
    with the_shop.client() as client:
        first = client.publish("shop/ledger", Event("t", 1, id="before", source="/k"))
        os.kill(int(holder.split("/")[1]), signal.SIGKILL)
        again = client.publish("shop/ledger", Event("t", 1, id="before", source="/k"), Event("t", 2))

    assert again[0] == first[0]
    [gateway] = the_shop.application.status()["gateways"]
    assert gateway["submissions"] == 2


@pytest.mark.long
def test_many_events_are_written_once_when_the_gateway_is_killed_meanwhile(the_shop: Shop) -> None:
    count = 3000
    with application_registry(the_shop.application.registry_url, the_shop.application.name) as registry:
        holder = registry.leases()[0].holder
    events = (Event("bulk", number, id=str(number), source="/bulk") for number in range(count))
    found = []
    with the_shop.client() as client:
        for published in client.publish_many("shop/orders", events, batch=50):
            found.append(published.index)
            if len(found) == 1:
                os.kill(int(holder.split("/")[1]), signal.SIGKILL)
        again = [
            one.place
            for one in client.publish_many(
                "shop/orders", [Event("bulk", id=str(number), source="/bulk") for number in range(0, count, 100)]
            )
        ]

    assert found == list(range(count))
    assert len(set(again)) == count // 100
    table = read_stream(the_shop.spark, the_shop.folder, "shop/orders").where("type = 'bulk'")
    eventually(lambda: table.count() >= count, pause=0.5)
    assert table.count() == table.select("id").distinct().count() == count


def test_rows_of_a_query_become_events_that_consumers_read_in_order(the_shop: Shop, tmp_path: Path) -> None:
    rows = the_shop.spark.range(0, 3000, 1, 2).selectExpr("cast(id AS string) AS value", "'k' AS key", "'row' AS type")
    writer = sinks.stream(the_shop.folder, "shop/orders", checkpoint=str(tmp_path))
    for batch in (0, 1, 1):
        writer(rows, batch)

    def written() -> list[Any]:
        table = read_stream(the_shop.spark, the_shop.folder, "shop/orders").where("type = 'row'")
        return list(table.orderBy("offset").collect())

    eventually(lambda: len(written()) >= 6000, pause=0.5)
    found = written()
    assert [int(row.data) for row in found] == [*range(3000)] * 2
    assert len({row.partition for row in found}) == 1
    assert (found[0].id, found[0].source) == ("shop.orders/1/0/0", "/sinks/shop.orders")


def test_an_application_that_is_stopped_goes_on_where_it_was(the_shop: Shop) -> None:
    with the_shop.client() as client:
        last = client.publish("shop/ledger", Event("t", "last"))[0].offset
        take(client, "shop/ledger", "lasting", last)
        expired = client.publish("shop/brief", Event("t", "expires"))[0].offset
    await_expiry(the_shop)
    the_shop.application.stop()
    assert the_shop.application.await_end(0)
    assert not the_shop.application.status()["running"]

    the_shop.start()
    with the_shop.client() as client:
        assert client.publish("shop/ledger", Event("t", "new"))[0].offset == last + 1
        assert [event.value for event in take(client, "shop/ledger", "lasting", 1)] == ["new"]
        assert client.publish("shop/brief", Event("t", "new"))[0].offset == expired + 1


AGAIN = "kind: Stream\nname: again\nnamespace: shop\n"


def test_a_deleted_stream_takes_its_table_with_it_and_one_of_its_name_begins_anew(
    the_shop: Shop, tmp_path: Path
) -> None:
    document = tmp_path / "again.yaml"
    document.write_text(AGAIN, encoding="utf-8")
    store = SchemaStore(the_shop.folder)
    table = Path(the_shop.folder) / "streams" / "shop" / "again"

    def published(client: Client, *numbers: int) -> Any:
        """The offsets of events, once the gateway knows the stream."""
        with contextlib.suppress(ConfigurationError, PipelineError):
            places = client.publish("shop/again", *(Event("t", one, id=str(one), source="/a") for one in numbers))
            return [place.offset for place in places]

    with the_shop.client() as client:
        apply_files(store, [str(document)], time.time())
        assert eventually(lambda: published(client, 1, 2), pause=0.1) == [1, 2]
        eventually(lambda: list(table.rglob("*.parquet")), pause=0.1)
        delete_objects(store, [ObjectKey("Stream", "shop", "again")], time.time())
        eventually(lambda: not table.exists(), pause=0.1)
        with pytest.raises(ArgumentValueError, match="has no stream shop/again"):
            read_stream(the_shop.spark, the_shop.folder, "shop/again")
        apply_files(store, [str(document)], time.time())
        assert eventually(lambda: published(client, 2), pause=0.1) == [3]
        assert [event.value for event in take(client, "shop/again", "readers", 1)] == [2]
        eventually(lambda: list(table.rglob("*.parquet")), pause=0.1)
    assert [row["offset"] for row in read_stream(the_shop.spark, the_shop.folder, "shop/again").collect()] == [3]


WIDE = "kind: Stream\nname: wide\nnamespace: shop\npartitions: {partitions}\n"


def test_added_partitions_have_the_groups_and_the_events_that_the_others_know(the_shop: Shop, tmp_path: Path) -> None:
    document, store = tmp_path / "wide.yaml", SchemaStore(the_shop.folder)

    def declare(partitions: int) -> None:
        document.write_text(WIDE.format(partitions=partitions), encoding="utf-8")
        apply_files(store, [str(document)], time.time())

    def publish(client: Client, *numbers: int) -> list[Any]:
        with contextlib.suppress(ConfigurationError, PipelineError):
            return client.publish("shop/wide", *(Event("t", one, id=str(one), source="/a") for one in numbers))
        return []

    declare(2)
    with the_shop.client() as client:
        places = eventually(lambda: publish(client, *range(20)), pause=0.1)
        take(client, "shop/wide", "lasting", 20)
        declare(3)
        # The gateway may not know of the added partition yet, and then it does.
        assert publish(client, *range(20)) == places
        numbers = iter(range(20, 100_000))
        sent, first = [*range(20)], 0

        def reaches_the_added_partition() -> bool:
            nonlocal first
            first = next(numbers)
            sent.append(first)
            return publish(client, first)[0].partition == 2

        eventually(reaches_the_added_partition, pause=0.1)
        assert publish(client, *range(20)) == places
        rest = take(client, "shop/wide", "lasting", len(sent) - 20)
    assert sorted(event.value for event in rest) == sent[20:]
    table = read_stream(the_shop.spark, the_shop.folder, "shop/wide")
    eventually(lambda: table.count() >= len(sent), pause=0.5)
    assert sorted(int(row["id"]) for row in table.select("id").collect()) == sent


def test_a_lost_inbox_ends_the_application_and_is_refused_until_it_is_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing is answered as received that no batch would read."""
    running = Shop(spark, shop.declare(tmp_path))
    running.start()
    inbox = tmp_path / "shop" / "_wallaroo" / "inbox"
    try:
        with running.client() as client:
            client.publish("shop/ledger", Event("t", 1, id="1", source="/a"))
            inbox.rename(tmp_path / "away")
            with pytest.raises(PipelineError, match="was deleted or is an older copy") as ended:
                running.application.await_end(SECONDS)
            assert ended.value.code == "inbox-lost"
    finally:
        running.application.stop()

    shutil.copytree(tmp_path / "away", inbox)
    for claim in (inbox / "g0").glob("*.claim"):
        claim.unlink()
    with pytest.raises(CheckpointError, match=r"g0 .*it has no claim") as refused:
        running.start()
    assert refused.value.code == "inbox-lost"

    shutil.rmtree(inbox)
    for gateway in (tmp_path / "away").iterdir():
        (inbox / gateway.name).mkdir(parents=True)
    # The remedy of the message, which names one file at a time.
    while (named := _start_names_a_file(running)) is not None:
        named.touch()
    try:
        with running.client() as client:
            client.publish("shop/ledger", Event("t", 2, id="2", source="/a"), durability="received")
            assert [event.value for event in take(client, "shop/ledger", "readers", 2)] == [1, 2]
    finally:
        running.application.stop()


def test_a_driver_whose_folder_was_moved_away_and_restored_ends_and_leaves_it_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    running = Shop(spark, shop.declare(tmp_path))
    running.start()
    folder, copy = tmp_path / "shop", tmp_path / "copy"
    try:
        with running.client() as client:
            client.publish("shop/ledger", Event("t", 1, id="1", source="/a"))
        # Meanwhile the driver moves and deletes files of the batch.
        eventually(lambda: _moved(running) >= 0 and _copied(folder, copy))
        folder.rename(tmp_path / "away")
        copy.rename(folder)
        with pytest.raises(WallarooError, match="was moved, deleted or restored") as ended:
            running.application.await_end(SECONDS)
        assert ended.value.code == "folder-replaced"
    finally:
        running.application.stop()

    running.start()
    with running.client() as client:
        assert [event.value for event in take(client, "shop/ledger", "readers", 1)] == [1]
    running.application.stop()


def _moved(running: Shop) -> int:
    moved = running.application.snapshot().moved
    return -1 if moved is None else moved


def _copied(folder: Path, copy: Path) -> bool:
    """Copy a folder; False when files were deleted meanwhile."""
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(folder, copy)
    except shutil.Error:
        return False
    return True


def _start_names_a_file(running: Shop) -> Path | None:
    """Start the application; return the file that the refusal names."""
    try:
        running.start()
    except CheckpointError as error:
        return Path(error.message.rpartition("file://")[2])
    return None


def test_a_query_that_fails_ends_the_application_with_its_error(spark: SparkSession, tmp_path: Path) -> None:
    folder = shop.declare(tmp_path)
    application = Application(spark, folder, state_partitions=1)
    manifest = tmp_path / "shop" / "_wallaroo" / "batches" / "0.json"
    (manifest / "a folder").mkdir(parents=True)

    with pytest.raises(PipelineError, match=r"the query failed: .*batches"), application:
        application.await_end(SECONDS)
    assert not application.status()["running"]
