"""The users of Redis that the page on security names: each can do its work, and nobody but the fleet anything more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from tests.pubsub.running import COOKIE as TOPICS_COOKIE
from tests.pubsub.running import TOPIC, Stage
from tests.security.acl import users
from tests.security.conftest import Ear
from tests.waiting import SECONDS, eventually
from tests.worker.running import COOKIE, TOKEN, Fleet, Running, fleet
from wallaroo_spark.cli.main import cli
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.errors import RegistryError, TransportError
from wallaroo_spark.inner.calls import COMMITTED, REWIND, Notice, PlanQuestion
from wallaroo_spark.inner.client import WorkerClient, status_token
from wallaroo_spark.pubsub import subscribe
from wallaroo_spark.pubsub.topic_catalog import TopicRecord
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.registry import EmbeddedRedis, Registry

READERS = ("connectors", "subscribers", "operators")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """A Redis of its own, with the page's users."""
    with EmbeddedRedis() as server:
        # The receiver of a test's fleet has a name that nobody chooses, so its pattern is that of all of them.
        yield users(server.url, {"orders": "fleet*", "topic:totals": f"topic:{TOPIC}"})


@pytest.fixture(scope="module")
def guarded(urls: dict[str, str], ear: Ear) -> Iterator[Fleet]:
    with fleet(urls["fleet"]) as made:
        made.registry.publish_fleet({"status_token": status_token(TOKEN), "workers": "1"})
        made.registry.lock("receiver", "driver-of-the-tests", 600)
        yield made


@pytest.fixture(scope="module")
def worker(guarded: Fleet) -> Running:
    return guarded.start()


def test_the_fleet_s_user_may_do_all_that_driver_and_workers_do(guarded: Fleet, worker: Running) -> None:
    registry = guarded.registry
    registry.ping()
    assert registry.next_submission() > 0
    assert registry.lock("other", "me", 10)
    assert (registry.lock_left("other") or 0) > 0
    registry.unlock("other", "me")
    assert registry.locked_by("other") is None
    assert registry.assign("shop-0", 0, 1).slot == 0
    spare = registry.acquire(7, 1, "w-7", "", "")
    assert spare is not None
    assert registry.claim(spare, {1, 2}) == {1, 2}
    registry.renew(spare, instances=["shop-7"], claims=[1, 2])
    registry.unclaim(spare, {1})
    registry.release(spare)
    registry.forget_slots_from(1)
    with Registry(guarded.url, "checkpoints") as checkpoints:
        assert checkpoints.lock("file:/x", "me", 10)


def test_a_connector_finds_its_worker_with_its_own_user_and_is_acknowledged(
    urls: dict[str, str], guarded: Fleet, worker: Running
) -> None:
    with BlockingConnector(
        guarded.receiver, instance="shop-1", registry=urls["connectors"], cookie=COOKIE
    ) as connector:
        stream = connector.open("rows")
        stream.send(b"x", id=5)
        ends = eventually(lambda: worker.client.plan(PlanQuestion()).ends.get("shop-1"))
        worker.commit({"shop-1": ends})
        connector.drain(SECONDS)


def test_a_subscriber_reads_a_topic_with_its_own_user(urls: dict[str, str], tmp_path: Path) -> None:
    stage = Stage(tmp_path, urls["fleet"])
    with stage.lasting:
        stage.topics.announce(TopicRecord(TOPIC, 1, "history", False, b"", "the test"))
        with (
            stage.publisher(),
            subscribe(TOPIC, registry=urls["subscribers"], cookie=TOPICS_COOKIE, wait=SECONDS) as subscription,
        ):
            stage.publish(0, [1, 2])
            stage.commit(0)
            _, table = next(iter(subscription.epochs()))
        assert table.to_pydict() == {"n": [1, 2]}
        stage.topics.withdraw(TOPIC)


@pytest.mark.usefixtures("own_logging")
def test_an_operator_sees_the_status_with_a_user_of_its_own(
    urls: dict[str, str], guarded: Fleet, worker: Running
) -> None:
    given = ["status", "--registry", urls["operators"], "--receiver", guarded.receiver]
    shown = CliRunner().invoke(cli, given)
    assert (shown.exit_code, "serving" in shown.output) == (0, True), shown.output


def everything_read_by(url: str, receiver: str) -> str:
    """All that a user may read of a receiver's keys, whatever the command."""
    found = []
    with redis.Redis.from_url(url, decode_responses=True) as client:
        for name in ("leases", "assignments", "claims", "submission", "fleet", "lock:receiver"):
            for command in ("GET", "HVALS", "HGETALL", "DUMP"):
                try:
                    found.append(str(client.execute_command(command, f"wallaroo:{{{receiver}}}:{name}")))
                except redis.ResponseError:
                    continue
    return "\n".join(found)


@pytest.mark.parametrize("user", READERS)
def test_the_records_in_redis_give_no_access_to_the_inner_port(
    user: str, urls: dict[str, str], guarded: Fleet, worker: Running
) -> None:
    read = everything_read_by(urls[user], guarded.receiver)
    assert TOKEN not in read
    assert (worker.lease.flight in read) == (user != "subscribers")
    assert (status_token(TOKEN) in read) == (user == "operators")
    onlooker = WorkerClient(worker.lease.flight, status_token(TOKEN), SECONDS)
    assert onlooker.status()["sessions"] >= 0
    forgeries = [
        lambda: onlooker.tell(Notice(COMMITTED, worker.epoch, 99, {"shop-1": {"1": 99}})),
        lambda: onlooker.tell(Notice(REWIND, worker.epoch + 1, 99, {}, {"shop-1": {"1": 99}})),
        lambda: onlooker.followed(0, 0.0),
        lambda: onlooker.stop("a forger"),
        lambda: onlooker.plan(PlanQuestion()),
        lambda: onlooker.available(-1, 0),
        lambda: list(onlooker.read([PlannedRange(StreamKey("shop-1", 1), None, 1)], boundaries=True, wait=0)),
    ]
    for forgery in forgeries:
        with pytest.raises(TransportError, match=r"does not permit this action|missing or wrong"):
            forgery()
    assert worker.client.status()["epoch"] == worker.epoch


WRITES = [
    "SET {key} x", "DEL {key}", "HSET {key} 0 x", "HDEL {key} 0", "EXPIRE {key} 1", "RENAME {key} y", "EVAL return 0",
    "FLUSHALL", "FLUSHDB", "CONFIG GET *", "ACL LIST", "MONITOR", "KEYS *", "SCRIPT FLUSH", "CLIENT LIST", "SHUTDOWN",
]  # fmt: skip


@pytest.mark.parametrize("user", READERS)
def test_the_others_may_write_nothing(user: str, urls: dict[str, str], guarded: Fleet, worker: Running) -> None:
    with redis.Redis.from_url(urls[user]) as client:
        for command in WRITES:
            for name in ("leases", "fleet"):
                words = command.format(key=f"wallaroo:{{{guarded.receiver}}}:{name}").split()
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*words, *(["0"] if words[0] == "EVAL" else []))
    with Registry(urls[user], guarded.receiver, attempts=1) as registry:
        with pytest.raises(RegistryError, match="the permissions of the URL's user"):
            registry.acquire(0, 99, "a thief", "127.0.0.1:1", "127.0.0.1:2")
        assert guarded.registry.leases()[0] == worker.lease


def test_the_fleet_s_user_may_touch_nothing_else_in_that_redis(urls: dict[str, str]) -> None:
    with redis.Redis.from_url(urls["fleet"]) as client:
        for words in (["SET", "other", "x"], ["GET", "other"], ["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
