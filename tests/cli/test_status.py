"""status, against a registry and a worker that are real."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from tests.cli.conftest import TOKEN, Desk
from wallaroo_spark.cli.main import cli


def status(desk: Desk, *arguments: str, receiver: str = "") -> Result:
    given = ["--registry", desk.url, "--receiver", receiver or desk.receiver]
    return CliRunner().invoke(cli, ["status", *given, *arguments])


def test_a_serving_worker_is_a_row_of_the_table(desk: Desk) -> None:
    shown = status(desk)

    assert shown.exit_code == 0, shown.output
    head, names, row = shown.stdout.splitlines()
    assert head == f"Receiver '{desk.receiver}', driver driver-of-the-tests"
    assert names.split() == [
        "slot", "state", "address", "sessions", "streams", "messages", "buffered", "pressure", "faults",
    ]  # fmt: skip
    assert row.split() == ["0", "serving", desk.address, "0", "0", "0", "0%", "of", "256", "MiB", "none", "0"]


def test_json_holds_what_the_worker_says_and_no_secret(desk: Desk) -> None:
    shown = status(desk, "--json")

    answer = json.loads(shown.stdout)
    assert (shown.exit_code, answer["running"], answer["driver"]) == (0, True, "driver-of-the-tests")
    assert [slot["state"] for slot in answer["workers"]] == ["serving"]
    assert answer["workers"][0]["worker"]["budget_bytes"] == 256 << 20
    assert TOKEN not in shown.output


def test_a_receiver_that_does_not_run_is_said_to_be_so(desk: Desk) -> None:
    shown = status(desk, receiver="nobody")
    as_json = status(desk, "--json", receiver="nobody")

    assert (shown.exit_code, as_json.exit_code) == (1, 1)
    assert shown.stdout.startswith("Receiver 'nobody' does not run: no driver and no worker holds a lease")
    assert json.loads(as_json.stdout) == {"receiver": "nobody", "running": False, "driver": None, "workers": []}


def test_a_slot_that_nobody_serves_is_vacant(desk: Desk) -> None:
    desk.registry.publish_fleet({"token": TOKEN, "workers": "2"})

    shown = status(desk, "--json")

    assert shown.exit_code == 1
    assert [slot["state"] for slot in json.loads(shown.stdout)["workers"]] == ["serving", "vacant"]


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
