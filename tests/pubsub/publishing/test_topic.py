"""A topic on a real Spark: the published batches of a query, refusals, and a killed publisher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from proving.processes import command_of, descendants, listeners
from tests.pubsub.running import COOKIE, Client, rows_of
from tests.waiting import SECONDS, eventually
from wallaroo_spark import sinks
from wallaroo_spark.errors import ConfigurationError, PubSubError
from wallaroo_spark.pubsub.messages import Closed, Data, Snapshot, Update, Why
from wallaroo_spark.pubsub.publishing import topic as module
from wallaroo_spark.pubsub.publishing.topic import Topic, publish
from wallaroo_spark.pubsub.topic_catalog import TopicCatalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def started(spark: SparkSession, folder: Path, **options: Any) -> Topic:
    given = {"partitions": 2, "cookie": COOKIE, "lease_seconds": 2, **options}
    return Topic(spark, "totals", checkpoint=str(folder / "checkpoint"), **given)


class Lines:
    """A query of the lines of files, one file a batch; ``each`` is its foreachBatch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._files = 0
        (folder / "lines").mkdir(exist_ok=True)

    def write(self, *numbers: int) -> None:
        draft = self._folder / f".{self._files}"
        draft.write_text("".join(f"{number}\n" for number in numbers))
        draft.rename(self._folder / "lines" / f"{self._files}.txt")
        self._files += 1

    def run(self, each: Callable[[DataFrame, int], None]) -> None:
        """Run the query over all available data, and wait for it. Raises the error that ends it."""
        rows = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._folder / "lines"))
        numbers = rows.selectExpr("CAST(value AS BIGINT) AS n")
        query = (
            numbers.writeStream.foreachBatch(each)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(int(SECONDS))
        finally:
            query.stop()


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Lines:
    return Lines(spark, tmp_path)


def connect(topic: Topic, partition: int, **fields: Any) -> Client:
    with TopicCatalog(topic.registry_url) as topics:
        eventually(lambda: partition in topics.served(topic.name))
        client = Client(topics.served(topic.name)[partition].address)
    client.hello(partition, **fields)
    return client


def epoch_of(client: Client) -> tuple[list[Any], Any]:
    """The rows that come until the frontier moves, and how it does."""
    rows = []
    while isinstance(message := client.take(), Data):
        time, found = rows_of(message)
        rows += [(time, row["n"]) for row in found]
    return sorted(rows), message


def test_published_rows_are_seen_once_when_a_batch_fails_or_runs_again(
    spark: SparkSession, lines: Lines, tmp_path: Path
) -> None:
    fail = [False]

    def each(frame: DataFrame, number: int) -> None:
        publish(frame.repartition(3), "totals")
        with pytest.raises(PubSubError, match=f"batch {number} was published on topic 'totals' already"):
            publish(frame, "totals", epoch=number)
        if fail[0]:
            raise RuntimeError("the batch fails behind its publishing")

    with started(spark, tmp_path) as topic:
        clients = [connect(topic, partition) for partition in range(2)]
        assert [client.take() for client in clients] == [Snapshot((0,), ())] * 2
        lines.write(1, 2, 3, 4, 5, 6)
        lines.run(each)
        ends = [epoch_of(client) for client in clients]
        assert sorted(row for rows, _ in ends for row in rows) == [(0, number) for number in range(1, 7)]
        assert [end for _, end in ends] == [Update(((0, -1), (1, 1)))] * 2

        fail[0] = True
        lines.write(7, 8)
        with pytest.raises(Exception, match="the batch fails behind its publishing"):
            lines.run(each)
        fail[0] = False
        lines.run(each)
        ends = [epoch_of(client) for client in clients]
        assert sorted(row for rows, _ in ends for row in rows) == [(1, 7), (1, 8)]
        assert [end for _, end in ends] == [Update(((1, -1), (2, 1)))] * 2

        with TopicCatalog(topic.registry_url) as topics:
            eventually(lambda: (found := topics.find("totals")) is not None and bool(found.schema))
            record = topics.find("totals")
            assert record is not None
            assert pa.ipc.read_schema(pa.py_buffer(record.schema)) == pa.schema({"n": pa.int64()})
        with pytest.raises(PubSubError, match="batch 1 is committed already"):
            topic.publish(spark.range(3), 1)

        before = kill_publisher(topic, 0)
        assert clients[0].take_all() == []
        eventually(lambda: topic.status()["partitions"][0]["address"] not in (None, before))
        assert topic.status()["partitions"][0]["submissions"] == 2
        with connect(topic, 0, resume=(1,), identity=record.identity) as again:
            assert again.take() == Snapshot((1,), ())
            assert epoch_of(again)[1] == Update(((1, -1), (2, 1)))
        assert topic.status()["partitions"][1]["submissions"] == 1
    assert clients[1].take_all() == [Closed(Why.ENDED, "topic totals has ended")]


def test_subscribers_of_a_topic_that_is_not_stopped_for_good_go_on_when_it_starts_again(
    spark: SparkSession, lines: Lines, tmp_path: Path
) -> None:
    lines.write(1)
    with started(spark, tmp_path, partitions=1) as topic:
        identity = topic.status()["identity"]
        with connect(topic, 0) as client:
            assert client.take() == Snapshot((0,), ())
            topic.stop(for_good=False)
            (closed,) = client.take_all()
        assert isinstance(closed, Closed)
        assert closed.why is Why.LATER
        with pytest.raises(Exception, match="no topic 'totals' runs in this driver"):
            lines.run(lambda frame, number: publish(frame, "totals"))

        topic.start()
        lines.run(lambda frame, number: publish(frame, "totals"))
        with connect(topic, 0, resume=(0,), identity=identity) as again:
            assert again.take() == Snapshot((0,), ())
            assert epoch_of(again) == ([(0, 1)], Update(((0, -1), (1, 1))))


def kill_publisher(topic: Topic, partition: int) -> str:
    """Kill the process that serves a partition; where it served it."""
    address: str = topic.status()["partitions"][partition]["address"]
    (pid,) = listeners(int(address.rpartition(":")[2]), descendants(os.getpid()))
    assert "pyspark" in command_of(pid)
    os.kill(pid, signal.SIGKILL)
    return address


def test_times_of_a_batch_and_a_column(
    spark: SparkSession, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def each(frame: DataFrame, number: int) -> None:
        with pytest.raises(PubSubError, match="epoch column n has the value -5; a part of a time is an integer from 0"):
            publish(frame.selectExpr("n - 8 AS n"), topic, epoch="n")
        publish(frame, topic, epoch=(number, "n"))

    with started(spark, tmp_path, partitions=1, pairs=True) as topic, connect(topic, 0) as client:
        assert client.take() == Snapshot(((0, 0),), ())
        lines.write(7, 3)
        lines.run(each)

        assert epoch_of(client) == ([((0, 3), 3), ((0, 7), 7)], Update((((0, 0), -1), ((1, 0), 1))))

        with pytest.raises(ConfigurationError, match="topic 'totals' runs in this program already"):
            started(spark, tmp_path / "other").start()
        elsewhere = started(spark, tmp_path / "other", partitions=1, registry=topic.registry_url, lease_seconds=0.5)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_running", {})
            with pytest.raises(ConfigurationError, match=r"is run by another driver .*, with another checkpoint"):
                elsewhere.start()
        refused: dict[Any, str] = {
            None: "the times of topic 'totals' are pairs of a batch and a column; name the column with epoch=",
            7: "the times of topic 'totals' are pairs",
            (-1, "id"): "epoch -1 is not a batch id; Spark counts batches from 0",
            "n": "Spark does not report the running batch, for topic 'totals'; call publish inside foreachBatch",
            (9, "m"): "epoch column 'm' is not among the columns id, text",
            (9, "text"): "epoch column text is string; a part of a time is an integer from 0, so cast it",
            1.5: "epoch 1.5 is not a time; give a batch id, a column",
            (9, 9): r"epoch \(9, 9\) is not a time",
            (9, "id"): "topic 'totals' has the columns n: int64, and this batch has id: int64, text: string; select",
        }
        for epoch, said in refused.items():
            with pytest.raises(PubSubError, match=said):
                topic.publish(spark.range(3).selectExpr("id", "'a' AS text"), epoch)


def test_values_and_names_that_few_expect_reach_subscribers_and_what_python_lacks_is_refused(
    spark: SparkSession, lines: Lines, tmp_path: Path
) -> None:
    def each(frame: DataFrame, number: int) -> None:
        refused = {
            "make_ym_interval(0, 1) AS m": "column m is interval year to month, and Python has no interval of months",
            "array(named_struct('a', make_ym_interval(0, 1))) AS m": r"column m is array<struct<a:interval .*: cast it",
            "1 AS m": "the batch has 2 columns m: rename all but one",
        }
        for column, said in refused.items():
            with pytest.raises(ConfigurationError, match=said):
                publish(frame.selectExpr(column, "2 AS m" if column == "1 AS m" else "2 AS n"), topic)
        publish(frame.selectExpr("CAST(x'61ff62' AS STRING) AS `a.b`", "double('nan') AS ` `"), topic)

    with started(spark, tmp_path, partitions=1) as topic, connect(topic, 0) as client:
        client.take()
        lines.write(1)
        lines.run(each)
        _, found = rows_of(client.take())

    assert [[row["a.b"], str(row[" "])] for row in found] == [["a\ufffdb", "nan"]]


@pytest.fixture
def outside(tmp_path: Path) -> Callable[..., Topic]:
    return lambda name="totals", **options: Topic(None, name, checkpoint=str(tmp_path), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": 0}, "topic 'totals': partitions: 0 is not 1 or more"),
        ({"retain": 0}, "topic 'totals': retain: 0 is not 1 or more"),
        ({"name": "a/b"}, "topic name 'a/b': use 1 to 100 letters"),
        ({"tls_key": "key.pem"}, "tls_certificate and tls_key go together"),
        ({"tls_ca": "ca.pem"}, "tls_certificate and tls_key go together, and tls_ca needs both"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(
    outside: Callable[..., Topic], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        outside(**options)


def test_a_topic_that_does_not_run_says_so(outside: Callable[..., Topic]) -> None:
    topic = outside()

    with pytest.raises(PubSubError, match="topic 'totals' does not run; start it, or use it in a with statement"):
        topic.publish(None)  # type: ignore[arg-type]  # refused
    with pytest.raises(PubSubError, match=r"no topic 'totals' runs in this driver \(none do\); start it with Topic"):
        publish(None, "totals")  # type: ignore[arg-type]  # refused
    assert topic.status() == {"topic": "totals", "identity": "", "error": "", "warnings": [], "partitions": []}
    topic.stop()


def test_publishers_that_would_take_every_task_slot_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="9 publishers and the query need 10 task slots, and local"):
        started(spark, tmp_path, partitions=9).start()


def test_a_python_of_the_tasks_without_this_package_is_refused_before_a_task_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "no-such-python")
    writer = sinks.files(str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), name="orders")

    for start in (started(spark, tmp_path).start, lambda: writer(spark.range(1), 0)):
        with pytest.raises(ConfigurationError, match="Spark would run its workers with 'no-such-python', which lacks"):
            start()
