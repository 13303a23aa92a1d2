"""``tap`` shows messages that a real worker holds, with the tap token alone, and leaves the query as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.conftest import COOKIE, TOKEN, Desk
from tests.waiting import eventually
from wallaroo_spark.cli.main import cli
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.inner.calls import COMMITTED, Notice, PlanQuestion, SampleQuestion
from wallaroo_spark.inner.client import WorkerClient, status_token, tap_token

SECONDS = 60.0


def tapped(desk: Desk, *arguments: str, token: str = tap_token(TOKEN)) -> Any:
    where = ["--registry", desk.url, "--receiver", desk.receiver, "--token", token]
    return CliRunner().invoke(cli, ["tap", *where, *arguments])


def test_messages_are_seen_while_the_query_waits_and_are_committed_afterwards(desk: Desk) -> None:
    desk.open.clear()
    with BlockingConnector(
        "orders", instance="shop-1", workers=desk.address, cookie=COOKIE, drain_timeout=SECONDS
    ) as connector:
        orders = connector.open("orders", id=2**64 - 7)
        payloads = [b'{"item": "book"}', b"\xff\x00", bytes(500)]
        orders.send_many(payloads, ids=[5, 6, 7], keys=[b"k", None, None])
        connector.open("clicks").send(b"click", id=1)
        eventually(lambda: desk.client.plan(PlanQuestion({})).rows == 4)
        before = desk.client.plan(PlanQuestion({}))

        text = tapped(desk, "orders", "--count", "3", "--payload", "json").stdout.splitlines()
        shown = tapped(desk, "*", "--count", "4", "--rate", "100", "--json")
        values = [json.loads(line) for line in shown.stdout.splitlines()]
        alone = tapped(desk, str(2**64 - 7), "--instance", "shop-1", "--count", "1", "--bytes", "9", token=TOKEN)

        assert [line.split(" ", 1)[1] for line in text] == [
            'shop-1/orders 5 key=k item="book"',
            "shop-1/orders 6 (no JSON) \\xff\\x00",
            "shop-1/orders 7 (no JSON) " + "\\x00" * 200 + " … (500 bytes)",
        ]
        assert {(one["stream"], one["message_id"]) for one in values} == {
            ("orders", 5), ("orders", 6), ("orders", 7), ("clicks", 1)
        }  # fmt: skip
        assert {one["stream_id"] for one in values if one["stream"] == "orders"} == {2**64 - 7}
        assert next(one for one in values if one["message_id"] == 6)["value_base64"] == "/wA="
        assert alone.exit_code == 0
        assert desk.client.plan(PlanQuestion({})) == before
        assert orders.acknowledged is None

        desk.open.set()
        connector.drain(SECONDS)
        assert orders.acknowledged == 7


def test_only_new_messages_follow_and_no_sample_exceeds_its_limits(desk: Desk) -> None:
    desk.open.clear()
    with BlockingConnector(
        "orders", instance="shop-1", workers=desk.address, cookie=COOKIE, drain_timeout=SECONDS
    ) as connector:
        orders = connector.open("orders")
        orders.send_many([bytes(1000)] * 300, ids=range(1, 301))
        client = WorkerClient(desk.registry.leases()[0].flight, tap_token(TOKEN))
        try:
            newest = client.sample(SampleQuestion("orders", rows=10, cut=8, wait=5.0))
            while newest.rows["message_id"].to_pylist()[-1] < 300:
                newest = client.sample(SampleQuestion("orders", rows=10, cut=8, wait=5.0))
            assert newest.rows["message_id"].to_pylist() == list(range(291, 301))
            assert {len(value) for value in newest.rows["value"].to_pylist()} == {8}
            assert set(newest.rows["size"].to_pylist()) == {1000}
            nothing = client.sample(SampleQuestion("orders", cursor=newest.cursor))
            assert nothing.rows.num_rows == 0
            orders.send(b"next", id=301)
            following = client.sample(SampleQuestion("orders", wait=5.0, cursor=nothing.cursor))
            assert following.rows["value"].to_pylist() == [b"next"]
        finally:
            client.close()
        desk.open.set()


@pytest.mark.parametrize(
    "token", [status_token(TOKEN), tap_token("another"), "guess"], ids=["the status token", "another fleet", "a guess"]
)
def test_the_status_token_and_others_see_no_message(desk: Desk, token: str) -> None:
    refused = tapped(desk, "orders", token=token)

    assert refused.exit_code == 1
    assert "token" in refused.stderr
    assert TOKEN not in refused.stderr


def test_the_tap_token_permits_nothing_else(desk: Desk) -> None:
    client = WorkerClient(desk.registry.leases()[0].flight, tap_token(TOKEN))
    try:
        assert client.status()["ready"]
        with pytest.raises(Exception, match="the tap token does not permit this action"):
            client.tell(Notice(COMMITTED, 1, 1, {}))
        with pytest.raises(Exception, match="the tap token does not permit this action"):
            client.stop("no")
    finally:
        client.close()


def test_without_messages_it_ends_with_a_sentence(desk: Desk) -> None:
    none = tapped(desk, "orders", "--wait", "0.1")

    assert (none.exit_code, none.stdout) == (1, "")
    assert "No message of stream 'orders'" in none.stderr


def test_a_receiver_without_workers_is_named(desk: Desk) -> None:
    refused = CliRunner().invoke(
        cli, ["tap", "orders", "--registry", desk.url, "--receiver", "nobody", "--token", "guess"]
    )

    assert "receiver 'nobody' has no worker" in refused.stderr
