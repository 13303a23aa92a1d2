"""Connectors over QUIC, to workers inside Spark: their messages arrive once, also when a worker is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pems import Pems
from tests.receiver.support import COOKIE, Batches, Feeders, addresses, numbered, payloads
from tests.waiting import SECONDS, eventually
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def over_quic(pems: Pems) -> dict[str, str | bool]:
    """The options of a receiver."""
    return {"quic": True, "tls_certificate": pems.server, "tls_key": pems.server_key, "tls_workers_ca": pems.ca}


def test_messages_over_quic_become_rows_and_are_acknowledged(
    spark: SparkSession, feeders: Feeders, tmp_path: Path, pems: Pems
) -> None:
    batches = Batches()
    with Receiver(spark, "orders", workers=1, cookie=COOKIE, **over_quic(pems)) as receiver:
        receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint"))
        connector = feeders.connect("shop-1", f"quic://{addresses(receiver)}", ca=pems.ca)
        assert feeders.feed(connector, numbered("orders", 1, 50)).result(SECONDS).acknowledged == 50
        gauges = feeders.connect("car-1", f"quic://{addresses(receiver)}", ca=pems.ca, datagrams=True)
        gauge = gauges.open("gauges", ephemeral=True)
        for number in range(20):
            gauge.send(b"%d" % number)
        eventually(lambda: len(batches.values("gauges")) + gauges.status().lost_messages == 20)
        (slot,) = receiver.status().slots
        assert (slot.quic, slot.quic_connections) == (slot.address, 2)
        (one,) = (one for one in receiver.status().instances if one.name == "shop-1")
        assert one.peer.endswith(" over QUIC")
    assert batches.values("orders") == payloads("orders", 1, 50)


@pytest.mark.long
def test_a_worker_killed_under_connectors_over_quic_loses_and_repeats_nothing(
    spark: SparkSession, feeders: Feeders, tmp_path: Path, pems: Pems
) -> None:
    batches = Batches()
    with Receiver(spark, "orders", workers=2, cookie=COOKIE, lease_seconds=3, **over_quic(pems)) as receiver:
        stream = receiver.stream()
        receiver.start(stream.writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint"))
        connectors = [
            feeders.connect(name, registry=receiver.registry_url, quic=True, ca=pems.ca)
            for name in ("shop-a", "shop-b")
        ]
        streams = [connector.open(name) for connector, name in zip(connectors, "ab", strict=True)]
        for opened in streams:
            for number in range(1, 101):
                opened.send(f"{opened.name} {number}".encode(), id=number)
        status = receiver.status()
        victim = next(status.slots[one.slot] for one in status.instances if one.name == "shop-a")
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        eventually(lambda: receiver.status().slots[victim.slot].submissions == 2)
        for opened in streams:
            for number in range(101, 201):
                opened.send(f"{opened.name} {number}".encode(), id=number)
        for connector in connectors:
            connector.drain(SECONDS)
    assert batches.values("a") == [f"a {number}".encode() for number in range(1, 201)]
    assert batches.values("b") == [f"b {number}".encode() for number in range(1, 201)]
