"""A configuration that cannot work is refused before anything starts, in one sentence with the way out."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from wallaroo_spark.checkpoint import PlannedBatch
from wallaroo_spark.errors import CheckpointError, ConfigurationError, PackageMissingError
from wallaroo_spark.options import Options
from wallaroo_spark.receiver import checks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_asynchronous_progress_tracking_is_refused(spark: SparkSession) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    checks.synchronous(writer, (), "file:///checkpoint")
    checks.synchronous(writer.option("asyncProgressTrackingEnabled", "false"), (), "file:///checkpoint")

    with pytest.raises(ConfigurationError, match="with asyncProgressTrackingEnabled a planned range may change"):
        checks.synchronous(writer.option("asyncProgressTrackingEnabled", True), (), "file:///checkpoint")


def test_a_checkpoint_with_holes_is_refused(spark: SparkSession) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")

    with pytest.raises(CheckpointError) as refused:
        checks.synchronous(writer, (3, 4, 7, 8, 9, 11), "file:///checkpoint")

    assert refused.value.message == (
        "checkpoint file:///checkpoint lacks batches 3, 4, 7, 8, 9 within its logs, as asynchronous progress tracking "
        "leaves them; use another checkpoint"
    )


def test_a_writer_that_cannot_be_looked_into_is_let_through() -> None:
    checks.synchronous(object(), (), "file:///checkpoint")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tls_certificate": "a.pem"}, "tls.certificate needs tls.key"),
        ({"tls_key": "a.key"}, "tls.key needs tls.certificate"),
        ({"tls_ca": "ca.pem"}, "tls.ca needs tls.certificate"),
        ({"tls_workers_ca": "ca.pem"}, "tls.workersCa needs tls.certificate"),
        ({"tls_bind_instances": True}, "tls.bindInstances needs tls.ca"),
    ],
)
def test_half_of_a_pair_of_options_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        checks.combinations(Options(**given))


@pytest.mark.parametrize(
    ("trigger", "kafka_port", "warns"),
    [
        ("every 5 s", 9092, False),
        ("every 7.5 s", 9092, True),
        ("every 7.5 s", None, False),
        ("as soon as possible", 9092, False),
        ("available now", 9092, False),
        ("", 9092, False),
        ("5 seconds", 9092, False),
        ("10 seconds", 9092, True),
        ("1 minute", 9092, True),
    ],
)
def test_a_trigger_that_lets_clients_of_doors_wait_is_warned_of(
    trigger: str, kafka_port: int | None, warns: bool
) -> None:
    warning = checks.slow_trigger(trigger, Options(receiver="orders", kafka_port=kafka_port))
    assert bool(warning) == warns
    if warns:
        assert f"receiver 'orders' has the trigger '{trigger}'" in warning
    assert bool(checks.slow_trigger(trigger, Options(otlp_port=kafka_port))) == warns


@pytest.mark.parametrize(
    ("option", "secret", "extra", "module"),
    [
        ("http_port", "bearer token", "http", "httptools"),
        ("kafka_port", "password", "kafka-door", "google_crc32c"),
        ("otlp_port", "bearer token", "otlp", "grpc"),
    ],
)
def test_a_door_needs_a_secret_beyond_loopback_and_its_package(
    option: str, secret: str, extra: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {option: 9000}
    options = Options(**given)
    with pytest.raises(ConfigurationError, match=f"set cookie, which is its {secret}"):
        checks.doors(options, "0.0.0.0")
    checks.doors(options, "127.0.0.1")
    checks.doors(dataclasses.replace(options, cookie="secret"), "0.0.0.0")

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PackageMissingError, match=re.escape(f"pip install 'wallaroo-spark[{extra}]'")):
        checks.doors(options, "127.0.0.1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option quic needs tls.certificate and tls.key"),
        ({"tls_certificate": "a.pem", "tls_key": "a.key", "tls_ca": "ca.pem"}, "does not go with tls.ca"),
    ],
    ids=["without a certificate", "with certificates of connectors"],
)
def test_quic_is_refused_where_it_cannot_work(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        checks.quic(Options(quic=True, **given))
    checks.quic(Options(**given))


def test_quic_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(quic=True, tls_certificate="a.pem", tls_key="a.key")
    checks.quic(options)
    monkeypatch.setitem(sys.modules, "aioquic", None)
    with pytest.raises(PackageMissingError, match=re.escape("pip install 'wallaroo-spark[quic]'")):
        checks.quic(options)


def test_whole_pairs_of_options_are_fine() -> None:
    checks.combinations(Options())
    whole = Options(tls_certificate="a.pem", tls_key="a.key", tls_ca="ca.pem", tls_bind_instances=True)
    checks.combinations(whole)
    with pytest.raises(ConfigurationError):
        checks.combinations(dataclasses.replace(whole, tls_key=""))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"advertise": "worker-{pod}"}, r"option advertise: 'worker-\{pod\}' has \{pod\}, and only \{slot\} and"),
        ({"inner_advertise": "worker-{slot}:x"}, "option innerAdvertise: address 'worker-0:x' has port 'x'"),
        ({"advertise": "worker:6553{slot}", "workers": 7}, "option advertise: .* has port '65536'"),
        ({"port": 65_530, "workers": 7}, "option port: 65530 and 7 slots go beyond port 65535; begin lower"),
        ({"inner_port": 65_535}, "option innerPort: 65535 and 2 slots go beyond"),
        ({"port": 7100, "inner_port": 7101}, "options port and innerPort: from 7100 and 7101 on, 2 slots share ports"),
    ],
)
def test_addresses_that_cannot_be_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        checks.addresses(Options(**given))


def test_addresses_by_slot_are_fine() -> None:
    fine: dict[str, Any] = {"advertise": "worker-{slot}.example.com:{port}", "inner_advertise": "10.0.0.{slot}"}
    checks.addresses(Options(port=7100, inner_port=7102, **fine))


@pytest.mark.parametrize("door", ["http_port", "kafka_port"])
def test_a_door_that_other_machines_reach_needs_a_secret(door: str) -> None:
    given: dict[str, Any] = {door: 9092}
    with pytest.raises(ConfigurationError, match=r"listen at 0\.0\.0\.0 .* or door\.tokens, or listen on"):
        checks.doors(Options(**given), "0.0.0.0")
    checks.doors(Options(**given, cookie="a secret"), "0.0.0.0")
    checks.doors(Options(**given, door_tokens="/etc/tokens"), "0.0.0.0")
    checks.doors(Options(**given), "127.0.0.1")


def test_a_checkpoint_whose_sources_stand_apart_without_an_order_is_refused() -> None:
    checks.decided("file:///checkpoint", None)
    checks.decided("file:///checkpoint", PlannedBatch(4, {}))

    with pytest.raises(CheckpointError, match=r"several references in batch 4 for stream 7 of 'shop-1', .*opaque ids"):
        checks.decided("file:///checkpoint", PlannedBatch(4, {}, (("shop-1", "7"),)))
