"""The snapshot of a connector, and the one sentence on what it waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.connector.conftest import BRIEF
from tests.connector.scripted_worker import ScriptedWorker, spin
from tests.connector.support import connector, send_all, starved
from wallaroo_spark.connector import CONNECTOR_CODES, BlockingConnector, Connector, ConnectorStatus
from wallaroo_spark.errors import TransportError


def snapshot(**given: Any) -> ConnectorStatus:
    values: dict[str, Any] = {
        "program": "orders",
        "instance": "shop-1",
        "state": "connected",
        "worker": "host:7100",
        "credits": 0,
        "streams": 1,
        "unacknowledged_messages": 0,
        "unacknowledged_bytes": 0,
        "oldest_unacknowledged": None,
        "last_error": "",
        "waiting": None,
        "waiting_for": None,
        "down": None,
        "handshake_with": None,
    }
    return ConnectorStatus(**{**values, **given})


FACTS: list[tuple[dict[str, Any], str, str, bool]] = [
    ({"state": "new"}, "connector-not-started", "orders/shop-1 is not connected yet", True),
    ({"state": "closed"}, "connector-closed", "orders/shop-1 is closed", True),
    ({"state": "failed", "last_error": "no cookie"}, "connector-failed", "orders/shop-1 has failed: no cookie", False),
    (
        {"state": "connecting", "down": 12.3, "last_error": "refused"},
        "no-session",
        "orders/shop-1 waits: there is no session with a worker, for 12.3 s; the last reason: refused",
        True,
    ),
    ({"state": "connecting", "down": 61.0}, "no-session", "orders/shop-1 waits: there is no session", False),
    (
        {"state": "connecting", "down": 2.0, "handshake_with": "host:7100"},
        "session-pending",
        "orders/shop-1 waits: the worker at host:7100 has not answered HELLO, for 2.0 s",
        True,
    ),
    (
        {"waiting_for": "credit", "waiting": 3.0, "unacknowledged_messages": 3},
        "no-credits",
        "orders/shop-1 waits: credits 0, for 3.0 s",
        True,
    ),
    ({"waiting_for": "network", "waiting": 61.0}, "network-full", "orders/shop-1 waits: the network takes", False),
    ({"waiting_for": "answer to NOTIFY"}, "stream-pending", "orders/shop-1 waits: the worker has not opened", True),
    ({"waiting_for": "messages that are sent again first"}, "resending", "orders/shop-1 waits: messages of", True),
    (
        {"waiting_for": "memory", "unacknowledged_messages": 7, "unacknowledged_bytes": 900},
        "unacknowledged-full",
        "orders/shop-1 waits: 7 messages (900 bytes) are unacknowledged, which is the limit",
        True,
    ),
    (
        {"unacknowledged_messages": 1, "oldest_unacknowledged": 4.2},
        "commit-awaited",
        "orders/shop-1 waits: 1 message is sent to host:7100 and not committed by Spark yet, the oldest for 4.2 s",
        True,
    ),
    ({}, "idle", "orders/shop-1 has nothing to wait for", True),
    ({"waiting": 3.0}, "commit-awaited", "orders/shop-1 waits: what was sent to host:7100 is not", True),
]


@pytest.mark.parametrize(("given", "code", "sentence", "healthy"), FACTS)
def test_the_reason_of_a_wait_is_one_sentence_and_one_code(
    given: dict[str, Any], code: str, sentence: str, healthy: bool
) -> None:
    cause = snapshot(**given).cause

    assert (cause.code, cause.healthy) == (code, healthy)
    assert cause.sentence.startswith(sentence)


def test_every_code_is_described_and_found() -> None:
    assert {code for _, code, _, _ in FACTS} == set(CONNECTOR_CODES)


async def test_a_connector_shows_where_it_stands_from_its_beginning_to_its_end() -> None:
    async with ScriptedWorker(credits=4, regrant=False, auto_commit=False) as worker:
        sender = connector(worker)
        assert (sender.status().state, sender.status().cause.code) == ("new", "connector-not-started")
        async with sender:
            stream = await sender.open("a")
            idle = sender.status()
            assert (idle.state, idle.worker, idle.credits, idle.streams) == ("connected", worker.address, 3, 1)
            assert (idle.cause.code, idle.oldest_unacknowledged, idle.last_error) == ("idle", None, "")
            sending = asyncio.create_task(send_all(stream, 5))
            assert await starved(sender) == "credit"
            waiting = sender.status()
            assert (waiting.credits, waiting.unacknowledged_messages, waiting.cause.code) == (0, 3, "no-credits")
            assert waiting.unacknowledged_bytes > 3
            assert waiting.waiting is not None
            assert waiting.oldest_unacknowledged is not None
            worker.session.write(worker.session.session.ack(5))
            await sending
            assert sender.status().cause.code == "commit-awaited"
            await worker.until(lambda: len(worker.only.accepted) == 5)
            worker.commit()
            await sender.drain()
            done = sender.status()
            assert (done.unacknowledged_messages, done.unacknowledged_bytes, done.cause.code) == (0, 0, "idle")
            assert (done.oldest_unacknowledged, done.waiting) == (None, None)
            worker.answers.append(lambda session: None)
            worker.session.stream.abort()
            await worker.until(lambda: len(worker.hellos) == 2)
            lost = sender.status()
            assert (lost.state, lost.worker, lost.cause.code) == ("connecting", None, "session-pending")
            assert lost.handshake_with == worker.address
            assert f"connection to {worker.address} was cut" in lost.last_error
        assert (sender.status().state, sender.status().cause.code) == ("closed", "connector-closed")


async def test_a_connector_that_has_failed_says_why(unused_port: int) -> None:
    async with Connector("orders", instance="shop-1", workers=f"127.0.0.1:{unused_port}", retry=BRIEF) as sender:
        with pytest.raises(TransportError):
            await sender.open("a")
        found = sender.status()
        assert (found.state, found.cause.code, found.cause.healthy) == ("failed", "connector-failed", False)
        assert "refused" in found.last_error
        await sender.close()


async def test_the_blocking_form_has_it_too_also_once_it_is_closed() -> None:
    def use(address: str) -> list[str]:
        found = []
        with BlockingConnector("orders", instance="shop-1", workers=address) as sender:
            sender.open("a").send(b"x")
            sender.drain()
            found.append(sender.status().cause.code)
        return [*found, sender.status().cause.code]

    async with ScriptedWorker() as worker:
        assert await asyncio.to_thread(use, worker.address) == ["idle", "connector-closed"]
        await spin(lambda: worker.session.over)
