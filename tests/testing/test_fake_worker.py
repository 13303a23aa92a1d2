"""The fake worker answers as a worker does and follows the test; connectors are those of the SDK."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import SECONDS, eventually
from wallaroo_spark.connector import Backoff, BlockingConnector, Lines
from wallaroo_spark.errors import ConfigurationError, RemoteProtocolError, TransportError, WallarooError
from wallaroo_spark.testing import FakeWorker, Trouble

QUICK = Backoff(initial=0.01, maximum=0.1, give_up_after=SECONDS)


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with FakeWorker(cookie="secret") as made:
        yield made


def connect(worker: FakeWorker, instance: str = "shop-1", **settings: Any) -> BlockingConnector:
    given = {"cookie": "secret", "retry": QUICK, "drain_timeout": SECONDS, **settings}
    return BlockingConnector("orders", instance=instance, workers=worker.address, **given)


def values(table: Any) -> list[bytes]:
    found: list[bytes] = table["value"].to_pylist()
    return found


@pytest.mark.parametrize("revision", ["draft-le", "draft-be", "v3"])
def test_sent_messages_are_read_and_acknowledged_when_the_test_commits_them(worker: FakeWorker, revision: str) -> None:
    with connect(worker, revision=revision) as connector:
        stream = connector.open("orders")
        stream.send_many([b"a", b"b", b"c"], ids=[1, 2, 3])

        table = worker.read(at_least=3)
        assert values(table) == [b"a", b"b", b"c"]
        assert set(table["instance"].to_pylist()) == {"shop-1"}
        assert set(table["stream"].to_pylist()) == {"orders"}
        assert stream.acknowledged is None

        worker.commit()
        connector.drain(SECONDS)
        assert stream.acknowledged == 3
    assert values(worker.committed) == [b"a", b"b", b"c"]


def test_a_wrong_cookie_is_refused_as_a_worker_refuses_it(worker: FakeWorker) -> None:
    with pytest.raises(RemoteProtocolError, match="cookie"), connect(worker, cookie="wrong") as connector:
        connector.open("orders")


def test_credits_run_out_until_the_test_commits() -> None:
    with FakeWorker(cookie="secret", memory_budget=1 << 20) as worker, connect(worker) as connector:
        stream = connector.open("orders")
        sending = threading.Thread(target=stream.send_many, args=([bytes(1000)] * 4000, range(1, 4001)))
        sending.start()
        rows = worker.read(at_least=50).num_rows
        assert rows < 4000
        assert sending.is_alive()
        with worker.committing():
            sending.join(SECONDS)
            connector.drain(SECONDS)
        assert not sending.is_alive()
        assert worker.committed["message_id"].to_pylist() == list(range(1, 4001))


def test_the_uncommitted_messages_of_a_dead_worker_are_sent_again(worker: FakeWorker) -> None:
    with connect(worker) as connector:
        stream = connector.open("orders")
        stream.send_many([b"a", b"b"], ids=[1, 2])
        worker.commit(at_least=2)
        stream.send_many([b"c", b"d"], ids=[3, 4])
        before = worker.read(at_least=2)

        worker.crash()

        after = worker.commit()
        assert values(after) == values(before) == [b"c", b"d"]
        connector.drain(SECONDS)
        assert stream.acknowledged == 4
    assert values(worker.committed) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("revision", ["draft-le", "draft-be", "v3"])
def test_a_worker_that_leaves_in_good_order_is_come_back_to(worker: FakeWorker, revision: str) -> None:
    with connect(worker, revision=revision) as connector:
        stream = connector.open("orders")
        stream.send(b"a", id=1)
        worker.read()

        worker.restart()

        stream.send(b"b", id=2)
        with worker.committing():
            connector.drain(SECONDS)
    assert values(worker.committed) == [b"a", b"b"]


@pytest.mark.parametrize("revision", ["draft-le", "draft-be", "v3"])
def test_a_query_that_goes_back_has_committed_messages_sent_again(
    worker: FakeWorker, revision: str, tmp_path: Path
) -> None:
    file = tmp_path / "orders.txt"
    file.write_bytes(b"a\nb\nc\n")
    with connect(worker, revision=revision, drain_timeout=0) as connector:

        def feed() -> None:
            with suppress(WallarooError):  # The connector is closed under it.
                connector.feed(Lines(str(file), follow=True))

        feeding = threading.Thread(target=feed)
        feeding.start()
        assert values(worker.commit(at_least=3)) == [b"a", b"b", b"c"]

        worker.go_back()

        assert worker.committed.num_rows == 0
        assert values(worker.commit(at_least=3)) == [b"a", b"b", b"c"]
        connector.close()
        feeding.join(SECONDS)
        assert not feeding.is_alive()


def test_a_cut_connection_is_made_again_and_nothing_is_repeated(worker: FakeWorker) -> None:
    with connect(worker) as connector:
        stream = connector.open("orders")
        stream.send_many([b"a", b"b"], ids=[1, 2])
        worker.read(at_least=2)
        worker.network.reset()
        stream.send(b"c", id=3)
        with worker.committing():
            connector.drain(SECONDS)
    assert values(worker.committed) == [b"a", b"b", b"c"]
    assert worker.network.connections == 2


def test_a_network_that_stalls_keeps_acknowledgements_back(worker: FakeWorker) -> None:
    with connect(worker) as connector:
        stream = connector.open("orders")
        stream.send(b"a", id=1)
        worker.network.become(Trouble.STALL)
        worker.commit()
        with pytest.raises(TransportError, match="not everything"):
            connector.drain(0.2)
        worker.network.become(Trouble.NONE)
        connector.drain(SECONDS)
        assert stream.acknowledged == 1


def test_a_hello_has_no_answer_before_the_query_begins() -> None:
    with FakeWorker(ready=False) as worker:
        opened = threading.Event()

        def open_stream() -> None:
            with connect(worker, cookie="") as connector:
                connector.open("orders")
                opened.set()

        opening = threading.Thread(target=open_stream)
        opening.start()
        assert not opened.wait(0.2)
        worker.begin()
        assert opened.wait(SECONDS)
        opening.join(SECONDS)


def test_a_connector_is_asked_to_come_back_while_the_registry_is_away(worker: FakeWorker) -> None:
    with connect(worker) as connector:
        opening = threading.Thread(target=connector.open, args=("orders",))
        with worker.registry_away():
            opening.start()
            while worker.network.connections < 3:
                assert opening.is_alive()
                opening.join(0.01)
        opening.join(SECONDS)
        assert not opening.is_alive()


def test_a_connector_is_sent_to_another_worker(worker: FakeWorker) -> None:
    with FakeWorker(cookie="secret") as other, worker.redirecting(other.address), connect(worker) as connector:
        connector.open("orders").send(b"a", id=1)
        assert values(other.commit()) == [b"a"]


def test_missing_messages_are_an_error_with_the_number_of_those_that_arrived(worker: FakeWorker) -> None:
    with connect(worker) as connector:
        connector.open("orders").send(b"a", id=1)

        def error() -> str:
            with pytest.raises(TransportError) as caught:
                worker.read(at_least=5, seconds=0.2)
            return str(caught.value)

        # The message may be on its way at first.
        eventually(lambda: re.search(r"has 1 messages after 0.2 s, and the test needs 5.*shop-1", error()))
        worker.commit()


def test_options_that_the_fake_worker_sets_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="FakeWorker sets port itself"):
        FakeWorker(port=7100)


def test_it_must_be_started() -> None:
    with pytest.raises(ConfigurationError, match="with statement"):
        FakeWorker().read()
