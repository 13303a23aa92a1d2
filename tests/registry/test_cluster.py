"""A Redis Cluster of three nodes: everything works as on a single Redis, and the URL of a node as a single Redis is
refused with the right URL."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.security.acl import users
from tests.waiting import eventually
from wallaroo_spark.errors import LeaseLostError, RegistryError, SinkError
from wallaroo_spark.pubsub.topic_catalog import PublisherProgress, ServedPartition, TopicCatalog, TopicRecord, leases_of
from wallaroo_spark.registry import Registry
from wallaroo_spark.registry.embedded import find_server, lasting_port
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.stores.redis import RedisSink

PASSWORD = "open-sesame"
SLOTS = 16384
BUS = 10_000
"""A node's bus is at its port and so many more."""
NODES = 3


class Node:
    """One process of the cluster."""

    def __init__(self, directory: Path, port: int) -> None:
        self.port = port
        self.client = redis.Redis(port=port, password=PASSWORD, decode_responses=True)
        directory.mkdir()
        command = [find_server(), "--port", str(port), "--dir", str(directory), "--bind", "127.0.0.1", "--save", ""]
        command += ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-config-file", "nodes.conf"]
        command += ["--requirepass", PASSWORD, "--masterauth", PASSWORD]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def knows(self, others: list[Node]) -> bool:
        """Whether it is at one with the others on who has which slots; they are introduced until it is."""
        info = self.client.execute_command("CLUSTER INFO")
        if info["cluster_state"] == "ok" and int(info["cluster_size"]) == len(others):
            return True
        for other in others:
            self.client.execute_command("CLUSTER MEET", "127.0.0.1", other.port)
        return False

    def close(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as open_:
        found = []
        for number, port in enumerate(lasting_port((0, BUS)) for _ in range(NODES)):
            found.append(Node(directory / str(number), port))
            open_.callback(found[-1].close)
        for number, node in enumerate(found):
            eventually(node.answers)
            share = range(number * SLOTS // NODES, (number + 1) * SLOTS // NODES)
            node.client.execute_command("CLUSTER ADDSLOTS", *share)
        for node in found:
            eventually(lambda node=node: node.knows(found), pause=0.2)
        yield found


@pytest.fixture
def url(nodes: list[Node]) -> str:
    return f"redis+cluster://:{PASSWORD}@127.0.0.1:{nodes[0].port}/0"


def names_on_all(nodes: list[Node], key: str) -> list[str]:
    """A name for each node, such that this node has the name's keys."""
    found: dict[int, str] = {}
    for number in range(1000):
        slot = int(nodes[0].client.execute_command("CLUSTER KEYSLOT", key.format(f"name-{number}")))
        found.setdefault(slot * NODES // SLOTS, f"name-{number}")
    return [found[node] for node in sorted(found)]


def test_receivers_on_every_node_are_served(nodes: list[Node], url: str) -> None:
    names = names_on_all(nodes, "wallaroo:{{{}}}:leases")
    assert len(names) == NODES
    for name in names:
        with Registry(url, name, lease_seconds=60) as registry:
            registry.ping()
            submission = registry.next_submission()
            lease = registry.acquire(0, submission, "w", "w:7100", "w:7200")
            assert lease is not None
            assert registry.claim(lease, {1, 2}) == {1, 2}
            registry.renew(lease, instances=["shop-1"], claims=[1, 2])
            assert registry.assign("shop-1", 0, 1).connect == "w:7100"
            registry.publish_fleet({"workers": "1"})
            assert registry.fleet() == {"workers": "1"}
            assert registry.leases() == {0: lease}
            assert registry.lock("receiver", "me", 60)
            assert registry.locked_by("receiver") == "me"
            registry.unlock("receiver", "me")
            assert registry.acquire(0, registry.next_submission(), "newer", "", "") is not None
            with pytest.raises(LeaseLostError):
                registry.renew(lease)


def test_topics_are_found_on_all_nodes(nodes: list[Node], url: str) -> None:
    names = names_on_all(nodes, "wallaroo:{{topic:{}}}:record")
    with TopicCatalog(url, lease_seconds=60) as topics:
        for name in names:
            topics.announce(TopicRecord(name, 1, "history", False, b"", "the test"))
            with leases_of(url, name, 60) as leases:
                lease = leases.acquire(0, 1, "p", "p:7300", "")
            assert lease is not None
            topics.report(name, 0, PublisherProgress(4, 1))
            assert topics.served(name) == {0: ServedPartition("p:7300", PublisherProgress(4, 1))}
        assert topics.names() == sorted(names)
        for name in names:
            topics.withdraw(name)
        assert topics.names() == []


def test_a_cluster_that_is_named_as_a_single_redis_is_an_error_with_the_right_url(nodes: list[Node], url: str) -> None:
    for name in names_on_all(nodes, "wallaroo:{{{}}}:leases")[1:]:
        with (
            Registry(url.replace("+cluster", ""), name) as registry,
            pytest.raises(RegistryError, match=r"it is a node of a Redis Cluster; write redis\+cluster://"),
        ):
            registry.ping()


def test_a_wrong_password_and_a_single_redis_are_said(nodes: list[Node], url: str, redis_server: object) -> None:
    with (
        Registry(url.replace(PASSWORD, "a-guess"), "orders", attempts=2) as registry,
        pytest.raises(RegistryError, match="refused the login") as refused,
    ):
        registry.leases()
    assert "a-guess" not in str(refused.value)
    single = str(getattr(redis_server, "url", "")).replace("redis:", "redis+cluster:")
    with (
        Registry(single, "orders", attempts=1) as registry,
        pytest.raises(RegistryError, match="Cluster mode is not enabled"),
    ):
        registry.leases()


def test_the_documented_users_suffice_with_leave_to_ask_for_the_nodes(nodes: list[Node]) -> None:
    name = names_on_all(nodes, "wallaroo:{{{}}}:leases")[2]
    for node in nodes:
        made = users(
            f"redis+cluster://:{PASSWORD}@127.0.0.1:{node.port}/0", {"orders": name}, also="+cluster|slots +command"
        )
    with Registry(made["fleet"], name) as fleet, Registry(made["connectors"], name) as connector:
        lease = fleet.acquire(0, fleet.next_submission(), "w", "w:7100", "")
        assert lease is not None
        assert connector.leases() == {0: lease}
        with pytest.raises(RegistryError, match="the permissions of the URL's user"):
            connector.fleet()


def test_a_slot_that_moves_to_another_node_is_found_there(nodes: list[Node], url: str) -> None:
    name = names_on_all(nodes, "wallaroo:{{{}}}:leases")[1]
    with Registry(url, name, attempts=8) as registry:
        assert registry.lock("receiver", "me", 60)
        mine = next(node for node in nodes if holds(node, name))
        heir = next(node for node in nodes if node is not mine)
        identity = heir.client.execute_command("CLUSTER MYID")
        slot = int(heir.client.execute_command("CLUSTER KEYSLOT", f"wallaroo:{{{name}}}:lock:receiver"))
        mine.client.execute_command("FLUSHALL")
        for node in (heir, mine):
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", identity)
        assert registry.lock("receiver", "another", 60)
        assert registry.locked_by("receiver") == "another"


def holds(node: Node, name: str) -> bool:
    """Whether a node has a receiver's lock."""
    try:
        return bool(node.client.exists(f"wallaroo:{{{name}}}:lock:receiver"))
    except redis.exceptions.MovedError:
        return False


def test_the_sink_says_that_it_does_not_write_to_a_cluster(nodes: list[Node], url: str, tmp_path: Path) -> None:
    for name in names_on_all(nodes, "rows-of-{}")[1:]:
        key = f"rows-of-{name}"
        sink = RedisSink(url.replace("+cluster", ""), checkpoint=str(tmp_path), name="orders", list=key)
        with pytest.raises(
            SinkError, match="this Redis is a node of a cluster, and this sink writes to a single Redis"
        ):
            sink.prepare(Transaction("orders", 0, 0, "a"), iter(()))
