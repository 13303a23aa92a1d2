"""``check``: each thing that a receiver needs, whole and broken, with real servers and a real Spark."""

from __future__ import annotations

import datetime
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tests.pems import Pems
from tests.security.acl import users
from wallaroo_spark import aqueduct
from wallaroo_spark.cli.main import cli
from wallaroo_spark.event_loop import LoopThread
from wallaroo_spark.observe.collect import RegistryCollector
from wallaroo_spark.observe.receiver import DoorStatus, ReceiverStatus
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.runtime.spark_checks import slow_processes


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


class Desk:
    """A configuration file that a test changes, and the findings of a check of it."""

    def __init__(self, folder: Path, registry: str) -> None:
        self.checkpoint = folder / "checkpoint"
        self._path = folder / "receive.yaml"
        self._values = {
            "receiver": "orders",
            "registry": registry,
            "workers": 1,
            "checkpoint": str(self.checkpoint),
            "sink": {"format": "noop"},
        }

    def run(self, *flags: str, **values: Any) -> Result:
        self._path.write_text(yaml.safe_dump(self._values | values), encoding="utf-8")
        return CliRunner().invoke(cli, ["check", str(self._path), *flags])

    def findings(self, *flags: str, **values: Any) -> list[dict[str, str]]:
        """The findings of a check with these values; its exit status has to fit them."""
        outcome = self.run("--json", *flags, **values)
        *found, verdict = map(json.loads, outcome.stdout.splitlines())
        assert verdict["sound"] is (not problems(found))
        assert outcome.exit_code == (0 if verdict["sound"] else 1)
        return found


@pytest.fixture
def desk(tmp_path: Path, redis_url: str) -> Desk:
    return Desk(tmp_path, redis_url)


def problems(found: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(one["subject"], one["text"]) for one in found if one["state"] == "problem"]


def test_a_sound_configuration_has_no_problem(desk: Desk) -> None:
    outcome = desk.run("--without-spark")

    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.endswith("The receiver can be started.\n")
    assert all(line.startswith("ok ") for line in outcome.stdout.splitlines()[:-1])


def test_each_problem_of_the_file_is_a_finding(desk: Desk) -> None:
    found = problems(desk.findings("--without-spark", wokers=2, port=70_000))

    assert [subject for subject, _ in found] == ["file", "file"]
    assert "did you mean workers?" in found[1][1]


def test_a_redis_that_is_not_there_is_a_problem(desk: Desk) -> None:
    [(subject, text)] = problems(desk.findings("--without-spark", registry="redis://127.0.0.1:1"))

    assert subject == "Redis"
    assert "127.0.0.1:1 cannot be reached" in text


def test_a_user_without_the_rights_of_the_fleet_is_a_problem(desk: Desk) -> None:
    with EmbeddedRedis() as server:
        urls = users(server.url, {"orders": "orders"})

        assert problems(desk.findings("--without-spark", registry=urls["fleet"])) == []
        [(subject, text)] = problems(desk.findings("--without-spark", registry=urls["operators"]))

    assert subject == "Redis"
    assert "permissions of the URL's user" in text


def test_a_receiver_that_runs_is_noted_and_its_ports_are_no_problem(desk: Desk, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held, Registry(redis_url, "orders") as registry:
        port = held.getsockname()[1]
        [(subject, text)] = problems(desk.findings("--without-spark", port=port))
        registry.lock("receiver", "the driver of this test", 60)
        running = desk.findings("--without-spark", port=port)
        registry.unlock("receiver", "the driver of this test")

    assert (subject, f"cannot listen on 127.0.0.1:{port}" in text) == ("ports", True)
    assert problems(running) == []
    assert [one["subject"] for one in running if one["state"] == "note"] == ["receiver", "ports"]


def test_the_ports_of_a_running_receivers_doors_are_tried_at_the_host_that_clients_are_told(
    desk: Desk, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as http, socket.create_server(("127.0.0.1", 0)) as kafka:
        ports = [one.getsockname()[1] for one in (http, kafka)]
        closed = lasting_port()
        doors = (
            DoorStatus(0, "http", f"http://127.0.0.1:{ports[0]}", (ports[0],)),
            DoorStatus(0, "kafka", f"127.0.0.1:{ports[1]}", (ports[1], closed)),
        )
        monkeypatch.setattr(RegistryCollector, "status", lambda *_: ReceiverStatus("orders", 0.0, doors=doors))
        with Registry(redis_url, "orders") as registry:
            registry.lock("receiver", "the driver of this test", 60)
            found = desk.findings("--without-spark")
            registry.unlock("receiver", "the driver of this test")

    of_doors = [(one["state"], one["text"]) for one in found if one["subject"] == "doors"]
    assert of_doors[0] == ("ok", "http of slot 0 is reached from here at 127.0.0.1, 1 port")
    assert of_doors[1][0] == "problem"
    assert f"kafka of slot 0 is not reached from here at 127.0.0.1:{closed}" in of_doors[1][1]
    assert len(of_doors) == 2


def test_workers_of_a_running_receiver_are_tried_over_quic(
    desk: Desk, redis_url: str, pems: Pems, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wallaroo_spark.aqueduct.opening.UNREACHABLE_SECONDS", 0.2)
    tls = {"tls.certificate": pems.server, "tls.key": pems.server_key, "tls.workersCa": pems.ca}

    async def silent(connection: aqueduct.Connection) -> None:
        """A worker that says nothing but its headers."""

    async def serve() -> aqueduct.Server:
        return await aqueduct.serve(silent, "127.0.0.1", 0, certificate=pems.server, key=pems.server_key)

    thread = LoopThread("a worker")
    try:
        server = thread.call(serve)
        with Registry(redis_url, "orders") as registry:
            registry.lock("receiver", "the driver of this test", 60)
            registry.acquire(0, 1, "a worker", server.address, "127.0.0.1:1")
            registry.acquire(1, 1, "another worker", "127.0.0.1:1", "127.0.0.1:1")
            found = desk.findings("--without-spark", quic=True, **tls)
            registry.unlock("receiver", "the driver of this test")
        thread.call(server.close)
    finally:
        thread.stop()

    over_quic = [(one["state"], one["text"]) for one in found if one["subject"] == "QUIC"]
    assert over_quic[1] == ("ok", f"slot 0 is reached from here at {server.address}, so UDP is let through")
    assert over_quic[2][0] == "problem"
    assert "whether the network lets UDP through" in over_quic[2][1]
    assert len(over_quic) == 3


def test_the_ports_and_the_secret_of_doors_are_checked(desk: Desk) -> None:
    port = lasting_port(range(2))
    with socket.create_server(("127.0.0.1", port + 1)):
        [(subject, text)] = problems(desk.findings("--without-spark", **{"kafka.port": port, "kafka.nodes": 2}))
    assert (subject, f"option kafka.port: cannot listen on 127.0.0.1:{port + 1}" in text) == ("ports", True)

    [(subject, text)] = problems(desk.findings("--without-spark", **{"http.port": port, "host": "0.0.0.0"}))
    assert (subject, "option http.port: the HTTP door would listen at 0.0.0.0" in text) == ("doors", True)


@pytest.mark.parametrize(("days", "state"), [(-1, "problem"), (10, "note"), (300, "ok")])
def test_a_certificate_that_ends_soon_or_has_ended_is_told(desk: Desk, tmp_path: Path, days: int, state: str) -> None:
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days)
    issued = trustme.CA().issue_cert("localhost", not_before=end - datetime.timedelta(400), not_after=end)
    certificate, key = tmp_path / "worker.pem", tmp_path / "worker.key"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))

    found = desk.findings("--without-spark", tls={"certificate": str(certificate), "key": str(key)})

    told = [one for one in found if one["subject"] == "TLS"]
    assert told[-1]["state"] == state
    assert end.strftime("%Y-%m-%d") in told[-1]["text"]


@pytest.mark.spark
class TestWithSpark:
    def test_executors_and_the_checkpoint_are_looked_at_and_nothing_is_left(
        self, desk: Desk, spark: SparkSession
    ) -> None:
        found = desk.findings()

        assert problems(found) == []
        advice = slow_processes(spark.sparkContext)
        assert [one["text"] for one in found if one["subject"] == "Java"] == ([advice] if advice else [])
        assert [one["subject"] for one in found if one["subject"] != "Java"][-5:] == [
            "Spark",
            "task slots",
            "executors",
            "checkpoint",
            "checkpoint",
        ]
        assert found[-1]["text"] == "Spark writes it where this process reads it"
        assert [path.name for path in desk.checkpoint.parent.iterdir()] == ["receive.yaml"]

    @pytest.mark.long  # it waits a minute for executors
    def test_too_few_task_slots_are_a_problem(self, desk: Desk, spark: SparkSession) -> None:
        [(subject, text)] = problems(desk.findings(workers=500))

        assert subject == "Spark"
        assert "need 501 task slots" in text

    def test_a_checkpoint_that_cannot_be_used_is_a_problem(self, desk: Desk, spark: SparkSession) -> None:
        desk.checkpoint.write_text("a file and no folder", encoding="utf-8")

        [(subject, text)] = problems(desk.findings())

        assert subject == "checkpoint"
        assert str(desk.checkpoint) in text

    def test_a_checkpoint_that_spark_cannot_write_is_named_without_the_stack_of_java(
        self, desk: Desk, spark: SparkSession, tmp_path: Path
    ) -> None:
        file = tmp_path / "a file"
        file.write_text("and no folder", encoding="utf-8")

        [(subject, text)] = problems(desk.findings(checkpoint=str(file / "checkpoint")))

        assert subject == "checkpoint"
        assert text.startswith(f"Spark cannot write {file}/checkpoint-check-")
        assert f"Parent path is not a directory: file:{file}; name a checkpoint in a folder where" in text
        assert " at org." not in text
