"""A publisher with real files, a real Redis and real sockets; the commit log is written by the test."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.pems import Pems
from tests.pubsub.running import TOPIC, Client, Stage, new_stage, rows_of
from tests.waiting import eventually
from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub.messages import Closed, Data, Snapshot, Update, Why, encode, unpack_rows
from wallaroo_spark.pubsub.publishing.publisher import ENDED
from wallaroo_spark.pubsub.publishing.topic_log import StagedFile, TopicLog
from wallaroo_spark.pubsub.times import Time
from wallaroo_spark.pubsub.topic_catalog import PublisherProgress
from wallaroo_spark.registry import EmbeddedRedis


@pytest.fixture
def stage(file_redis: EmbeddedRedis, tmp_path: Path) -> Iterator[Stage]:
    with new_stage(tmp_path, file_redis.url) as made:
        yield made


def test_a_batch_is_sent_once_it_is_committed_and_not_before(stage: Stage) -> None:
    with stage.publisher() as address, Client(address) as client:
        client.hello()
        assert client.take() == Snapshot((0,), ())
        stage.publish(0, [1, 2])
        stage.publish(0, [1, 2, 3])
        stage.commit(0)

        assert rows_of(client.take()) == (0, [{"n": 1}, {"n": 2}, {"n": 3}])
        assert client.take() == Update(((0, -1), (1, 1)))

        stage.publish(1, [4])
        stage.publish(2, [5])
        stage.commit(1)
        assert rows_of(client.take()) == (1, [{"n": 4}])
        assert client.take() == Update(((1, -1), (2, 1)))


def test_a_late_subscriber_gets_the_next_batches(stage: Stage) -> None:
    stage.publish(0, [1])
    stage.commit(0)
    with stage.publisher() as address, Client(address) as client:
        client.hello()
        assert client.take() == Snapshot((1,), (0,))
        stage.publish(1, [2])
        stage.commit(1)

        assert rows_of(client.take()) == (1, [{"n": 2}])


def test_batches_that_publish_nothing_move_the_frontier(stage: Stage) -> None:
    with stage.publisher() as address, Client(address) as client:
        client.hello()
        assert client.take() == Snapshot((0,), ())
        stage.commit(0)
        assert client.take() == Update(((0, -1), (1, 1)))
        stage.publish(1, [])
        stage.commit(1)
        assert client.take() == Update(((1, -1), (2, 1)))


def test_publishers_share_the_partitions_of_a_batch(stage: Stage) -> None:
    with (
        stage.publisher(0, partitions=2) as even,
        stage.publisher(1, partitions=2) as odd,
        Client(even) as first,
        Client(odd) as second,
    ):
        for partition, client in enumerate((first, second)):
            client.hello(partition)
            assert client.take() == Snapshot((0,), ())
        stage.publish(0, [1], [2], [3])
        stage.commit(0)

        assert [rows_of(first.take())[1] for _ in range(2)] == [[{"n": 1}], [{"n": 3}]]
        assert rows_of(second.take()) == (0, [{"n": 2}])
        assert first.take() == second.take() == Update(((0, -1), (1, 1)))


def test_times_of_two_parts(stage: Stage) -> None:
    with stage.publisher(pairs=True) as address, Client(address) as client:
        client.hello()
        assert client.take() == Snapshot(((0, 0),), ())
        stage.publish(0, [7, 3], column="n")
        stage.commit(0)

        assert [rows_of(client.take())[0] for _ in range(2)] == [(0, 3), (0, 7)]
        assert client.take() == Update((((0, 0), -1), ((1, 0), 1)))
        with Client(address) as late:
            late.hello()
            assert late.take() == Snapshot(((1, 0),), ((0, 7),))


def test_a_subscriber_goes_on_where_it_was_at_the_next_publisher(stage: Stage) -> None:
    for batch in range(3):
        stage.publish(batch, [batch])
        stage.commit(batch)
    with stage.publisher() as address, Client(address) as client:
        client.hello(resume=(1,), identity="history")

        assert client.take() == Snapshot((1,), ())
        assert rows_of(client.take()) == (1, [{"n": 1}])
        assert client.take() == Update(((1, -1), (2, 1)))
        assert rows_of(client.take()) == (2, [{"n": 2}])
        assert client.take() == Update(((2, -1), (3, 1)))


def test_a_batch_that_is_no_longer_retained_is_refused_with_the_reason(stage: Stage) -> None:
    for batch in range(6):
        stage.publish(batch, [batch])
        stage.commit(batch)
    stage.topic_log.keep_from(3)
    with stage.publisher() as address:
        for batch, why in ((2, Why.NOT_KEPT), (3, None)):
            with Client(address) as client:
                client.hello(resume=(batch,))
                answer = client.take()
                assert (answer.why if isinstance(answer, Closed) else None) == why


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cookie": "guess"}, "the cookie is not the one of this topic"),
        ({"version": "0"}, "protocol version '0' is not supported; '1' is"),
        ({"identity": "another"}, "topic 'totals' has a new history"),
    ],
)
def test_a_subscriber_that_is_refused_is_told_the_reason(stage: Stage, fields: dict[str, Any], said: str) -> None:
    with stage.publisher() as address, Client(address) as client:
        client.hello(**fields)
        (closed,) = client.take_all()

    assert isinstance(closed, Closed)
    assert closed.why is Why.REFUSED
    assert closed.reason.startswith(said)
    assert "biscuit" not in closed.reason
    assert "guess" not in closed.reason


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a message of 1195725856 bytes is announced"),
        (encode(Update(((0, 1),))), "expected a hello and no bytes behind it, and received a Update message"),
        (encode(Data(1, b"\xc0")), "a subscriber sends no data"),
        (b"\x00\x00\x00\x04\x92\x04\x90\x01", "a hello is not an array of its seven fields"),
    ],
    ids=["another protocol", "no hello", "data", "damaged"],
)
def test_bytes_that_are_not_a_hello_are_refused_and_harm_no_other_subscriber(
    stage: Stage, data: bytes, said: str
) -> None:
    with stage.publisher() as address, Client(address) as other:
        other.hello()
        assert isinstance(other.take(), Snapshot)
        with Client(address) as client:
            client.send(data)
            (closed,) = client.take_all()
        assert isinstance(closed, Closed)
        assert said in closed.reason

        stage.commit(0)
        assert other.take() == Update(((0, -1), (1, 1)))


def test_a_silent_peer_is_not_waited_for(stage: Stage) -> None:
    with stage.publisher(handshake_timeout=0.05) as address, Client(address) as client:
        assert client.take_all() == [Closed(Why.REFUSED, "no hello came within 0.05 seconds")]


def test_a_subscriber_that_sends_bytes_behind_its_hello_is_closed(stage: Stage) -> None:
    with stage.publisher() as address, Client(address) as client:
        client.hello()
        assert client.take() == Snapshot((0,), ())
        client.send(b"and another thing")

        assert client.take() is None


def test_redis_has_its_progress_and_the_number_of_subscribers(stage: Stage) -> None:
    with stage.publisher(lease_seconds=20) as address, Client(address) as client:
        eventually(lambda: stage.topics.served(TOPIC)[0].progress == PublisherProgress(None, 0))
        client.hello()
        stage.commit(0)

        eventually(lambda: stage.topics.served(TOPIC)[0].progress == PublisherProgress(0, 1))


def test_a_slow_subscriber_is_cut_off_with_a_reason_while_another_goes_on(stage: Stage) -> None:
    with (
        stage.publisher(max_subscriber_bytes=20_000) as address,
        Client(address, receive_bytes=4096) as slow,
        Client(address) as quick,
    ):
        (service,) = stage.services
        for client in (slow, quick):
            client.hello()
            assert client.take() == Snapshot((0,), ())
        batch = 0
        while service.machine.subscribers == 2:
            assert batch < 60
            stage.publish(batch, list(range(100_000)))
            stage.commit(batch)
            rows = quick.take()
            assert isinstance(rows, Data)
            assert rows.time == batch
            assert quick.take() == Update(((batch, -1), (batch + 1, 1)))
            batch += 1
        stage.commit(batch)
        assert quick.take() == Update(((batch, -1), (batch + 1, 1)))
        ends = slow.take_all()

    assert isinstance(ends[-1], Closed)
    assert ends[-1].why is Why.SLOW
    assert "is too slow" in ends[-1].reason


@pytest.mark.parametrize("rows", [10, 700_000], ids=["one message", "two messages"])
def test_two_hundred_subscribers_that_a_batch_wakes_read_it_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    opened: list[int] = []
    messages = TopicLog.messages

    def counted(topic_log: TopicLog, batch: int, file: StagedFile) -> Iterator[tuple[Time, pa.RecordBatch]]:
        opened.append(batch)
        return messages(topic_log, batch, file)

    monkeypatch.setattr(TopicLog, "messages", counted)
    with stage.publisher(max_subscribers=200) as address, ExitStack() as ending:
        clients = [ending.enter_context(Client(address)) for _ in range(200 if rows == 10 else 20)]
        for client in clients:
            client.hello()
            assert client.take() == Snapshot((0,), ())
        stage.publish(0, list(range(rows)))
        stage.commit(0)

        for client in clients:
            found = []
            while isinstance(message := client.take(), Data):
                found.append(unpack_rows(message.payload)["n"].to_numpy())
            assert np.array_equal(np.concatenate(found), np.arange(rows))
            assert message == Update(((0, -1), (1, 1)))
    assert opened == [0]


def test_the_end_of_a_topic_comes_behind_all_that_is_committed(stage: Stage) -> None:
    setup = stage.setup(lease_seconds=20)
    with stage.thread(setup) as thread, Client(stage.address(setup)) as client:
        client.hello()
        assert client.take() == Snapshot((0,), ())
        stage.publish(0, [1])
        stage.publish(1, [2])
        stage.commit(0)
        stage.leases.publish_fleet({ENDED: "yes"})
        stage.leases.forget_slots_from(0)

        rows, update, closed = client.take_all()

        assert rows_of(rows) == (0, [{"n": 1}])
        assert update == Update(((0, -1), (1, 1)))
        assert closed == Closed(Why.ENDED, "topic totals has ended")
        eventually(lambda: not thread.alive(0.1))


def test_a_newer_submission_takes_over_and_subscribers_are_sent_there(stage: Stage) -> None:
    with stage.publisher(lease_seconds=20) as before, Client(before) as client:
        client.hello()
        assert client.take() == Snapshot((0,), ())
        with stage.publisher() as after:
            assert after != before
            (closed,) = client.take_all()
            with Client(after) as again:
                again.hello(resume=(0,), identity="history")
                assert again.take() == Snapshot((0,), ())

    assert closed == Closed(Why.LATER, "the partition is served by another publisher")


def test_a_publisher_that_is_stopped_says_come_back(stage: Stage) -> None:
    setup = stage.setup()
    with ExitStack() as ending:
        ending.enter_context(stage.thread(setup))
        client = Client(stage.address(setup))
        client.hello()
        assert client.take() == Snapshot((0,), ())
    with client:
        (closed,) = client.take_all()

    assert closed == Closed(Why.LATER, "its task was ended")
    assert stage.leases.leases() == {}


def test_a_copy_of_the_same_submission_waits_and_takes_over_from_the_dead(stage: Stage) -> None:
    setup = stage.setup(lease_seconds=20)
    holder = stage.leases.acquire(0, setup.submission, "killed", "127.0.0.1:1", "")
    assert holder is not None

    def taken_over() -> bool:
        lease = stage.leases.leases().get(0)
        return lease is not None and lease.holder != "killed" and lease.connect != ""

    with stage.thread(setup):
        eventually(taken_over)


def test_a_checkpoint_that_is_made_again_ends_the_publisher(stage: Stage) -> None:
    stage.commit(0)
    stage.commit(1)
    setup = stage.setup()
    with stage.thread(setup) as thread, Client(stage.address(setup)) as client:
        client.hello()
        assert client.take() == Snapshot((2,), ())
        stage.checkpoint.remove("commits/1")

        with pytest.raises(PubSubError, match="batch 1 was committed, and now the newest is 0"):
            eventually(lambda: not thread.alive(0.1))
        (closed,) = client.take_all()

    assert closed == Closed(Why.LATER, "the publisher has failed and is started again")


def test_everything_goes_through_tls(stage: Stage, pems: Pems) -> None:
    with stage.publisher(tls_certificate=pems.server, tls_key=pems.server_key) as address:
        context = ssl.create_default_context(cafile=pems.ca)
        with Client(address, tls=context) as client:
            client.hello()
            assert client.take() == Snapshot((0,), ())
            stage.publish(0, [1])
            stage.commit(0)
            assert rows_of(client.take()) == (0, [{"n": 1}])
