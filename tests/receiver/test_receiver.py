"""The receiver: its options, its refusals, and that a receiver that cannot start leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from proving.processes import command_of, descendants
from tests.receiver.support import addresses
from tests.waiting import eventually
from wallaroo_spark.errors import CheckpointError, ConfigurationError, RegistryError
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.testing import Proxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_options_may_be_written_either_way() -> None:
    one = Receiver(None, "orders", maxOffsetsPerTrigger=5, leaseSeconds="2s", **{"tls.ca": "ca.pem"})
    other = Receiver(None, "orders", max_offsets_per_trigger=5, lease_seconds=2.0, tls_ca="ca.pem", cookie=None)

    assert one.options == other.options
    assert one.options.receiver == "orders"
    assert one.owner != other.owner


def test_an_unknown_option_is_refused_with_the_likely_name() -> None:
    with pytest.raises(ConfigurationError, match="option max_ofsets_per_trigger is not known; did you mean"):
        Receiver(None, "orders", max_ofsets_per_trigger=5)


@pytest.mark.parametrize("name", ["", "two words", "a/b", "{orders}", "x" * 101])
def test_a_name_that_cannot_name_keys_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="use 1 to 100 letters, digits, dots, dashes and underscores"):
        Receiver(None, name)


def test_a_receiver_that_is_not_started_says_so(tmp_path: Path) -> None:
    receiver = Receiver(None, "orders")

    with pytest.raises(ConfigurationError, match=r"not started; call start\(\), or use it in a with statement"):
        receiver.stream()
    with pytest.raises(ConfigurationError, match=r"not started; call start\(\), or use it in a with statement"):
        receiver.start(object(), checkpoint=str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"not started; call start\(\), or use it in a with statement"):
        receiver.start_query(object(), checkpoint=str(tmp_path))
    status = receiver.status()
    assert (status.name, status.running, status.slots, status.query.state) == ("orders", False, (), "none")
    assert status.cause.code == "not-running"
    assert (status.query.checkpoint, status.query.committed_batch, status.query.watcher_error) == ("", None, "")
    receiver.stop()
    receiver.stop()


def redis_servers() -> set[int]:
    return {pid for pid in descendants(os.getpid()) if "redis-server" in command_of(pid)}


def test_a_receiver_that_cannot_start_leaves_nothing_behind(spark: SparkSession) -> None:
    of_other_tests = redis_servers()
    with (
        pytest.raises(ConfigurationError, match="9 workers and the query need 10 task slots"),
        Receiver(spark, "orders", workers=9),
    ):
        pytest.fail("it must not start")
    with (
        pytest.raises(RegistryError, match="cannot be reached"),
        Receiver(spark, "orders", workers=1, registry="redis://127.0.0.1:1"),
    ):
        pytest.fail("it must not start")

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wallaroo-orders")]
    assert redis_servers() <= of_other_tests


def test_a_second_receiver_of_a_name_in_one_program_is_refused_and_the_first_goes_on(spark: SparkSession) -> None:
    with Receiver(spark, "orders", workers=1) as receiver:
        found = addresses(receiver)
        second = Receiver(spark, "orders", workers=1)
        with pytest.raises(ConfigurationError, match="receiver 'orders' runs in this program already; call stop"):
            second.start()

        assert (second.addresses, addresses(receiver)) == ([], found)
        assert receiver.status().running
    second.start()
    second.stop()


def test_a_file_that_executors_lack_ends_the_start_at_once(spark: SparkSession, tmp_path: Path) -> None:
    missing = str(tmp_path / "no.pem")
    with (
        pytest.raises(ConfigurationError, match=rf"worker 0 cannot start: on \S+: .*{missing}"),
        Receiver(spark, "orders", workers=1, tls_certificate=missing, tls_key=missing),
    ):
        pytest.fail("it must not start")


@pytest.mark.long
def test_a_port_that_another_program_keeps_ends_the_start_with_the_way_out(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match=rf"worker 0 cannot start: .*listen on 127\.0\.0\.1:{port}: "),
            Receiver(spark, "orders", workers=1, port=port),
        ):
            pytest.fail("it must not start")


def test_a_query_that_cannot_start_leaves_the_receiver_ready_for_another(spark: SparkSession, tmp_path: Path) -> None:
    with Receiver(spark, "orders", workers=1) as receiver:
        writer = receiver.stream().writeStream
        with pytest.raises(ConfigurationError, match="the checkpoint has no location"):
            receiver.start(writer.format("noop"), checkpoint="")
        broken = tmp_path / "broken"
        for log in ("offsets", "commits"):
            (broken / log).mkdir(parents=True)
            (broken / log / "0").write_text("nonsense\n{}")
        with pytest.raises(CheckpointError):
            receiver.start(writer.format("noop"), checkpoint=str(broken))
        with pytest.raises(Exception, match="no-such-format"):
            receiver.start(writer.format("no-such-format"), checkpoint=str(tmp_path / "unused"))

        query = receiver.start(receiver.stream().writeStream.format("noop"), checkpoint=str(tmp_path / "good"))

        assert query.isActive
        assert receiver.stream() is receiver.stream()
    assert not query.isActive
    assert receiver.status().slots == ()


def test_leases_of_a_killed_fleet_do_not_count_as_workers(spark: SparkSession) -> None:
    with EmbeddedRedis() as redis, Registry(redis.url, "orders", lease_seconds=60) as registry:
        old = registry.acquire(0, registry.next_submission(), "killed", "127.0.0.1:1", "127.0.0.1:2")
        assert old is not None
        with Receiver(spark, "orders", workers=1, registry=redis.url) as receiver:
            assert registry.leases()[0].generation > old.generation
            assert addresses(receiver) == registry.leases()[0].connect != old.connect


def test_a_start_waits_for_a_redis_that_goes_away_meanwhile(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with (
        EmbeddedRedis() as redis,
        Registry(redis.url, "orders") as registry,
        Proxy(("127.0.0.1", urlsplit(redis.url).port or 0)) as proxy,
        ThreadPoolExecutor(1) as thread,
    ):
        url = redis.url.replace(redis.url.rpartition("@")[2], f"{proxy.address}/0")
        receiver = Receiver(spark, "orders", workers=1, registry=url)
        starting = thread.submit(receiver.start)
        eventually(registry.fleet)
        proxy.refuse()
        eventually(lambda: "receiver 'orders' waits for its registry" in caplog.text)
        proxy.accept()
        starting.result()
        with receiver:
            assert addresses(receiver) == registry.leases()[0].connect
            caplog.clear()
            proxy.refuse()
            writer = receiver.stream().writeStream.format("noop")
            beginning = thread.submit(receiver.start, writer, checkpoint=str(tmp_path))
            eventually(lambda: "receiver 'orders' waits for its registry" in caplog.text)
            proxy.accept()
            assert beginning.result().isActive


def test_a_driver_that_was_away_too_long_gives_in_to_the_one_that_has_its_name(spark: SparkSession) -> None:
    with EmbeddedRedis() as redis, Registry(redis.url, "orders") as registry:
        with ExitStack() as last:
            receiver = Receiver(spark, "orders", workers=1, registry=redis.url).start()
            last.callback(receiver.stop)

            def take_over() -> bool:
                registry.unlock("receiver", receiver.owner)
                return registry.lock("receiver", "another", 60)

            eventually(take_over)
            registry.publish_fleet({"workers": "another's"})
            eventually(lambda: "is run by another driver (another)" in receiver._rounds.error)
            assert registry.fleet() == {"workers": "another's"}
            # Its worker ends, and is not submitted against the other driver's.
            registry.acquire(0, registry.next_submission(), "another's", "127.0.0.1:1", "127.0.0.1:2")
            eventually(
                lambda: not receiver.status().slots[0].answers and receiver.status().slots[0].state != "starting"
            )
            with pytest.raises(ConfigurationError, match=r"is run by another driver \(another\)"):
                receiver.__exit__(None)
        assert registry.locked_by("receiver") == "another"


def test_an_embedded_registry_that_dies_is_started_again_and_filled(spark: SparkSession) -> None:
    with Receiver(spark, "orders", workers=1, lease_seconds=1) as receiver:
        embedded = receiver._embedded
        assert embedded is not None
        first = embedded.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        eventually(lambda: embedded.running and embedded.pid != first)
        with Registry(receiver.registry_url, "orders") as registry:
            eventually(lambda: 0 in registry.leases() and registry.fleet())
            assert addresses(receiver) == registry.leases()[0].connect
        assert receiver.status().slots[0].submissions == 1


def test_a_receiver_that_lets_everybody_in_says_so_as_it_starts_and_in_its_status(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedRedis() as redis, Receiver(spark, "open", workers=1, registry=redis.url, host="0.0.0.0") as receiver:
        (warning,) = receiver.status().warnings
        assert warning.startswith(
            "receiver 'open': its workers accept every peer that reaches them: the cookie is empty"
        )
        assert warning in [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
