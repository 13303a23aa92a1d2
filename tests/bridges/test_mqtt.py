"""MQTT's messages, from a real broker: acknowledged behind the commit."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

import gmqtt
import pytest
from gmqtt.storage import PersistentStorage

from proving.servers.mosquitto import MosquittoServer
from tests.bridges.support import Bridging
from tests.waiting import eventually
from wallaroo_spark.testing import FakeWorker

KEPT = "did not know this client, and delivers what is published from now on"


async def _publish(server: MosquittoServer, topic: str, payloads: Sequence[str], qos: int, retain: bool) -> None:
    unconfirmed = PersistentStorage()
    client = gmqtt.Client(f"publisher-{uuid.uuid4().hex}", persistent_storage=unconfirmed)
    await client.connect("127.0.0.1", server.port)
    for one in payloads:
        client.publish(topic, one, qos=qos, retain=retain)
    await unconfirmed.wait_empty()
    await client.disconnect()


def publish(server: MosquittoServer, topic: str, *payloads: str, qos: int = 1, retain: bool = False) -> None:
    """Publish, and wait until the broker has all of them."""
    asyncio.run(_publish(server, topic, payloads, qos, retain))


@pytest.mark.parametrize(("version", "qos"), [("5", 1), ("3.1.1", 2)])
def test_messages_stay_at_the_broker_until_their_commit(
    mosquitto: MosquittoServer, worker: FakeWorker, tmp_path: Path, version: str, qos: int
) -> None:
    name = f"plant-{uuid.uuid4().hex[:8]}"
    options = ("--client", name, "--mqtt", version, "--qos", str(qos))
    bridging = Bridging(worker, tmp_path, "mqtt", mosquitto.address, f"{name}/#", *options)
    with bridging.running():
        eventually(lambda: KEPT in bridging.output)
        publish(mosquitto, f"{name}/a", *map(str, range(100)), qos=qos)
        worker.read(100)
    publish(mosquitto, f"{name}/b", "away", qos=qos)

    def arrives(payload: str) -> None:
        publish(mosquitto, f"{name}/c", payload, qos=qos)
        eventually(lambda: payload.encode() in bridging.values(), bridging.output)

    # What the bridge had sent is lost with the worker: only the broker has it.
    worker.crash()
    with bridging.again():
        eventually(lambda: b"away" in bridging.values(), bridging.output)
        # A bridge that ends does not wait for acknowledgements that are on their way: when the second of these is
        # committed, those of the messages before the first have reached it.
        arrives("then")
        arrives("now")

    numbers = [b"%d" % number for number in range(100)]
    assert bridging.values()[:101] == [*numbers, b"away"]
    assert f"{name}/b".encode() in worker.committed["key"].to_pylist()
    # What is acknowledged does not come again.
    with bridging.again():
        arrives("last")
    assert [one for one in bridging.values() if one.isdigit()] == numbers
    assert bridging.output.count(KEPT) == 1


def test_a_retained_message_is_sent_once(mosquitto: MosquittoServer, worker: FakeWorker, tmp_path: Path) -> None:
    name = f"plant-{uuid.uuid4().hex[:8]}"
    bridging = Bridging(worker, tmp_path, "mqtt", mosquitto.address, f"{name}/#", "--client", name)
    publish(mosquitto, f"{name}/state", "retained", retain=True)
    for number in range(3):
        with bridging.again():
            eventually(lambda: bridging.output.count(KEPT) == 1, bridging.output)
            for payload in (b"%da" % number, b"%db" % number):
                publish(mosquitto, f"{name}/a", payload.decode())
                eventually(lambda one=payload: one in bridging.values(), bridging.output)

    assert bridging.values().count(b"retained") == 1
