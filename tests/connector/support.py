"""Common parts of the tests of this room: a connector to a scripted worker, and the loss of its session."""

from __future__ import annotations

from typing import Any

from tests.connector.conftest import QUICK
from tests.connector.scripted_worker import ScriptedWorker, spin
from wallaroo_spark.connector import Connector, Stream


def connector(worker: ScriptedWorker, **settings: Any) -> Connector:
    return Connector("orders", **{"instance": "shop-1", "workers": worker.address, "retry": QUICK, **settings})


async def starved(sender: Connector) -> str:
    """Wait until a send waits; return the reason."""
    await spin(lambda: sender.waiting_for is not None)
    return sender.waiting_for or ""


async def send_all(stream: Stream, count: int, payload: bytes = b"x") -> None:
    for _ in range(count):
        await stream.send(payload)


async def lose(worker: ScriptedWorker) -> None:
    """Cut the session, and wait until the connector is back."""
    before = len(worker.hellos)
    worker.session.stream.abort()
    await worker.until(lambda: len(worker.hellos) > before)
