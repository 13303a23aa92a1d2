"""status, against a registry and a worker that are real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from tests.cli.conftest import TOKEN, Desk
from tests.worker.running import TOKEN as WORKERS_TOKEN
from tests.worker.running import fleet
from wallaroo_spark.cli.main import cli
from wallaroo_spark.inner.client import status_token
from wallaroo_spark.observe.faces.records import from_json
from wallaroo_spark.pubsub.topic_catalog import PublisherProgress, TopicCatalog, TopicRecord, leases_of
from wallaroo_spark.registry import NO_QUERY


def status(desk: Desk, *arguments: str, receiver: str = "") -> Result:
    given = ["--registry", desk.url, "--receiver", receiver or desk.receiver]
    return CliRunner().invoke(cli, ["status", *given, *arguments])


def test_a_serving_worker_is_a_row_of_the_table(desk: Desk) -> None:
    shown = status(desk)

    assert shown.exit_code == 0, shown.output
    head, cause, query, names, row = shown.stdout.splitlines()
    assert head == f"Receiver '{desk.receiver}', driver driver-of-the-tests"
    assert cause == f"{desk.receiver} waits: no connector is connected [no-connector]"
    assert query == "query unknown · 0 rows held · lag 0 rows"
    assert names.split("  ")[0].strip() == "slot"
    assert row.split()[:3] == ["0", "serving", desk.address]
    assert row.split()[-4:] == ["MiB", "0", "0", "none"]


def test_json_holds_the_model_and_no_secret(desk: Desk) -> None:
    shown = status(desk, "--json")

    answer = json.loads(shown.stdout)
    assert (shown.exit_code, answer["running"], answer["driver"]) == (0, True, "driver-of-the-tests")
    assert (answer["cause"]["code"], answer["schema"]) == ("no-connector", 1)
    assert [slot["state"] for slot in answer["slots"]] == ["serving"]
    assert answer["slots"][0]["memory_budget"] == 256 << 20
    assert from_json(answer).slots[0].address == desk.address
    assert TOKEN not in shown.output


def test_debug_shows_the_last_events_of_each_worker(desk: Desk) -> None:
    assert "its last events" not in status(desk).stdout
    shown = status(desk, "--debug")
    as_json = json.loads(status(desk, "--debug", "--json").stdout)

    (story,) = (slot["story"] for slot in as_json["slots"])
    assert any("Rewound(epoch=" in line for line in story)
    assert all(f"  {line}" in shown.stdout.splitlines() for line in story)


def test_a_receiver_that_does_not_run_is_said_to_be_so(desk: Desk) -> None:
    shown = status(desk, receiver="nobody")
    as_json = status(desk, "--json", receiver="nobody")

    assert (shown.exit_code, as_json.exit_code) == (1, 1)
    assert shown.stdout.startswith("Receiver 'nobody' does not run: no driver and no worker holds a lease")
    answer = json.loads(as_json.stdout)
    assert (answer["running"], answer["driver"], answer["slots"]) == (False, None, [])
    assert answer["cause"]["code"] == "not-running"


def test_a_slot_that_nobody_serves_is_vacant(desk: Desk) -> None:
    desk.registry.publish_fleet({"status_token": status_token(TOKEN), "workers": "2"})

    shown = status(desk, "--json")

    assert shown.exit_code == 1
    assert [slot["state"] for slot in json.loads(shown.stdout)["slots"]] == ["serving", "vacant"]


def test_a_slot_that_waits_for_its_query_is_not_served(desk: Desk) -> None:
    desk.registry.publish_fleet({"status_token": status_token(TOKEN), "workers": "1", "query": NO_QUERY})

    shown = status(desk)

    assert shown.exit_code == 1
    assert f"{desk.receiver} waits: the receiver feeds no query" in shown.stdout
    assert ["0", "waiting"] in [line.split()[:2] for line in shown.stdout.splitlines()]
    assert "start one with .option('checkpointLocation', …).start(), or with receiver.start_query" in shown.stdout


def test_a_worker_that_does_not_answer_is_unreachable(desk: Desk) -> None:
    submission = desk.registry.next_submission()
    desk.registry.acquire(1, submission, "ghost", "127.0.0.1:2", "127.0.0.1:1")

    shown = status(desk)

    assert shown.exit_code == 1
    assert "unreachable" in shown.stdout
    assert "slot 1: worker at 127.0.0.1:1 did not answer 'status'" in shown.stdout


def test_a_registry_that_is_away_is_one_sentence() -> None:
    shown = CliRunner().invoke(cli, ["status", "--registry", "redis://:hush@127.0.0.1:1", "--receiver", "a"])

    assert shown.exit_code == 1
    assert "Error: Redis at 127.0.0.1:1 cannot be reached" in shown.stderr
    assert "hush" not in shown.output


def announce(desk: Desk, partitions: int) -> None:
    """A topic of which one partition is served."""
    with leases_of(desk.url, "totals", 60) as leases, TopicCatalog(desk.url, lease_seconds=60) as topics:
        topics.announce(TopicRecord("totals", partitions, "abc", False, b"", "a driver"))
        leases.acquire(0, 1, "publisher", "127.0.0.1:7300", "")
        topics.report("totals", 0, PublisherProgress(41, 3))


@pytest.fixture
def topic(desk: Desk) -> Iterator[Desk]:
    announce(desk, 1)
    yield desk
    with TopicCatalog(desk.url) as topics:
        topics.withdraw("totals")


def test_topics_are_shown_beside_a_receiver(topic: Desk) -> None:
    shown = status(topic)

    assert shown.exit_code == 0, shown.output
    names, row = shown.stdout.splitlines()[-2:]
    assert names.split() == ["topic", "partition", "state", "address", "newest", "epoch", "subscribers"]
    assert row.split() == ["totals", "0", "serving", "127.0.0.1:7300", "41", "3"]


def test_topics_are_shown_alone(topic: Desk) -> None:
    announce(topic, 2)

    shown = CliRunner().invoke(cli, ["status", "--registry", topic.url, "--json"])

    assert shown.exit_code == 1, "partition 1 is not served"
    (found,) = json.loads(shown.stdout)["topics"]
    assert (found["topic"], found["driver"], found["identity"]) == ("totals", "a driver", "abc")
    served = {"partition": 0, "state": "serving", "address": "127.0.0.1:7300", "newest": 41, "subscribers": 3}
    vacant = {"partition": 1, "state": "vacant", "address": None, "newest": None, "subscribers": 0}
    assert found["partitions"] == [served, vacant]


def test_a_registry_without_topics_says_so(desk: Desk) -> None:
    shown = CliRunner().invoke(cli, ["status", "--registry", desk.url])

    assert (shown.exit_code, shown.stdout) == (0, "No topic runs in this registry.\n")


def test_workers_that_let_everybody_in_are_said_to(redis_url: str) -> None:
    with fleet(redis_url, host="0.0.0.0", cookie="") as made:
        made.registry.publish_fleet({"status_token": status_token(WORKERS_TOKEN), "workers": "1"})
        made.registry.lock("receiver", "driver-of-the-tests", 60)
        made.start()
        given = ["status", "--registry", redis_url, "--receiver", made.receiver]
        shown, as_json = (CliRunner().invoke(cli, [*given, *more]) for more in ((), ("--json",)))

    said = f"receiver '{made.receiver}': its workers accept every peer that reaches them: the cookie is empty, and they"
    assert (shown.exit_code, as_json.exit_code) == (0, 0), shown.output
    assert f"Warning: {said} listen at every interface" in shown.output
    assert [warning.startswith(said) for warning in json.loads(as_json.stdout)["warnings"]] == [True]


def test_workers_that_ask_for_a_cookie_give_no_warning(desk: Desk) -> None:
    assert json.loads(status(desk, "--json").stdout)["warnings"] == []


def test_watching_repeats_the_status_until_it_is_interrupted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("wallaroo_spark.cli.status.time", SimpleNamespace(sleep=sleep))
    shown = status(desk, "--watch", "--every", "0.5", "--json")

    assert looks == [0.5, 0.5]
    assert [json.loads(line)["name"] for line in shown.stdout.splitlines()] == [desk.receiver] * 2
    assert shown.exit_code == 130
