"""``streams``, ``top`` and ``list``, against a registry, a worker and a connector that are real."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from tests.cli.conftest import COOKIE, Desk
from tests.waiting import eventually
from wallaroo_spark.cli.main import cli
from wallaroo_spark.connector import BlockingConnector


@pytest.fixture
def fed(desk: Desk) -> Iterator[Desk]:
    """A desk that holds three rows of one stream and one row of another, and commits nothing more."""
    desk.open.clear()
    with BlockingConnector("orders", instance="shop-1", workers=desk.address, cookie=COOKIE) as connector:
        for name, rows in (("orders.jsonl", 3), ("returns.jsonl", 1)):
            stream = connector.open(name)
            for number in range(rows):
                stream.send(b"x", id=number + 1)
        eventually(lambda: desk.client.inspect(10)["rows"] == 4)
        yield desk
        desk.open.set()


def run(desk: Desk, verb: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [verb, "--registry", desk.url, "--receiver", desk.receiver, *arguments])


def test_streams_have_references_lag_and_age(fed: Desk) -> None:
    shown = run(fed, "streams", "--sort", "held", "--json")

    answer = json.loads(shown.stdout)
    assert (shown.exit_code, answer["total"]) == (0, 2)
    first, second = answer["streams"]
    assert (first["instance"], first["name"], first["state"]) == ("shop-1", "orders.jsonl", "open")
    assert (first["received"], first["planned"], first["committed"]) == ("3", None, None)
    assert (first["rows"], first["lag_rows"], first["rows_in"], second["rows"]) == (3, 3, 3, 1)
    assert first["ack_age"] > 0


def test_streams_are_found_by_name_id_and_instance(fed: Desk) -> None:
    def names(*arguments: str) -> list[str]:
        return [one["name"] for one in json.loads(run(fed, "streams", "--json", *arguments).stdout)["streams"]]

    everything = json.loads(run(fed, "streams", "--json").stdout)["streams"]
    of_returns = next(one["stream_id"] for one in everything if one["name"] == "returns.jsonl")

    assert names("--sort", "name") == ["orders.jsonl", "returns.jsonl"]
    assert names("--stream", "orders.jsonl") == ["orders.jsonl"]
    assert names("--stream", of_returns) == ["returns.jsonl"]
    assert names("--instance", "nobody") == []
    assert len(names("--instance", "shop-1")) == 2


def test_a_bounded_answer_has_the_worst_streams_and_counts_all(fed: Desk) -> None:
    shown = run(fed, "streams", "--limit", "1")

    names, row, rest = shown.stdout.splitlines()
    assert "ack age" in names
    assert row.split()[:3] == ["shop-1", "orders.jsonl", "open"]
    assert rest == "1 of 2 streams; --instance and --stream find others"


def test_top_prints_one_frame_for_a_pipe(fed: Desk) -> None:
    shown = run(fed, "top", "--once", "--every", "0.1")

    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith(f"Receiver '{fed.receiver}'")
    assert "4 rows are held, and the next batch has not begun" in shown.stdout
    assert ["shop-1", "0", "streaming"] in [line.split()[:3] for line in shown.stdout.splitlines()]
    assert "\x1b" not in shown.stdout


def test_top_as_json_has_the_model_and_rates(fed: Desk) -> None:
    answer = json.loads(run(fed, "top", "--once", "--every", "0.1", "--json").stdout)

    assert answer["rates"] == {"rows_in": 0.0, "rows_out": 0.0}
    assert answer["instances"][0]["rows"] == 4


@pytest.mark.parametrize("verb", ["top", "streams"])
def test_a_receiver_must_be_named(desk: Desk, verb: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--registry", desk.url])

    assert shown.exit_code == 2
    assert "set WALLAROO_REGISTRY and WALLAROO_RECEIVER, or use --context" in shown.stderr


def test_list_shows_every_receiver_of_a_registry(desk: Desk) -> None:
    shown = CliRunner().invoke(cli, ["list", "--registry", desk.url])
    answer = json.loads(CliRunner().invoke(cli, ["list", "--registry", desk.url, "--json"]).stdout)

    assert shown.exit_code == 0, shown.output
    assert desk.receiver in [line.split()[0] for line in shown.stdout.splitlines()]
    mine = next(one for one in answer["receivers"] if one["receiver"] == desk.receiver)
    assert (mine["running"], mine["totals"]["serving"], mine["cause"]["code"]) == (True, 1, "no-connector")
