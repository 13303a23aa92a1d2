"""``groups`` and the verbs that end what an instance waits for, at a real gateway of an application in memory."""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.testing.test_fake_application import SHOP
from tests.waiting import SECONDS
from wallaroo_spark.cli.durable.groups import groups
from wallaroo_spark.cli.main import cli
from wallaroo_spark.client import Client, Event
from wallaroo_spark.client.client import GROUP_ACTIONS
from wallaroo_spark.observe.application import ApplicationStatus, GroupStatus, PartitionState
from wallaroo_spark.observe.published import SnapshotFile, to_text
from wallaroo_spark.pipelines.controller import groups as controller_groups
from wallaroo_spark.testing import FakeApplication

GONE = "there is no stream shop/dead"
BILLING = ("shop/orders", "billing")
TOKEN = """
kind: Token
name: worker
permissions:
  - {access: publish, kind: Stream, namespace: shop, name: orders}
  - {access: subscribe, namespace: shop}
"""


class Operator:
    """Someone at a terminal, and a program with a client."""

    def __init__(self, application: FakeApplication, client: Client, token: str) -> None:
        self.application = application
        self.client = client
        self._env = {"WALLAROO_GATEWAY": application.address, "WALLAROO_TOKEN": token}

    def run(self, *arguments: str, status: int = 0, stdin: str = "") -> Result:
        result = CliRunner(env=self._env).invoke(cli, arguments, input=stdin)
        assert result.exit_code == status, (result.output, result.exception)
        return result


@pytest.fixture
def operator() -> Iterator[Operator]:
    with FakeApplication(f"{SHOP}---{TOKEN}") as application:
        token = application.create_token("worker")
        with Client(application.address, token=token, timeout=SECONDS) as client:
            events = (Event("order.created", {"order": number}) for number in range(1, 5))
            client.publish("shop/orders", *events, partition=0)
            yield Operator(application, client, token)


def test_a_group_is_moved_in_one_partition_and_in_all(operator: Operator) -> None:
    with operator.client.consume("shop/orders", group="billing", start="beginning") as deliveries:
        with next(deliveries) as first:
            assert (first.first, len(first.events)) == (1, 4)
        moved = operator.run("groups", "move", *BILLING, "--to", "3", "--partition", "0")
        again = next(deliveries)
        assert (again.first, len(again.events)) == (3, 2)
        everywhere = operator.run("groups", "move", *BILLING, "--to", "beginning", "--json")
        assert next(deliveries).first == 1

    assert moved.stdout == "Group billing of shop/orders is moved, on 1 partition.\n"
    assert json.loads(everywhere.stdout) == {
        "stream": "shop/orders", "group": "billing", "action": "move", "partitions": 2,
    }  # fmt: skip
    assert "'nowhere'" in operator.run("groups", "move", *BILLING, "--to", "nowhere", status=1).stderr


def test_a_group_is_paused_resumed_and_deleted(operator: Operator) -> None:
    with operator.client.consume("shop/orders", group="billing", start="beginning", max_events=1) as deliveries:
        with next(deliveries):
            assert "is paused, on 2 partitions" in operator.run("groups", "pause", *BILLING).stdout
        assert "goes on, on 2 partitions" in operator.run("groups", "resume", *BILLING).stdout
        assert next(deliveries).first == 2
        assert "had deliveries taken away, on 1 partition" in operator.run("groups", "take-away", *BILLING).stdout

    kept = operator.run("groups", "delete", *BILLING, stdin="n\n", status=1)
    assert "Delete group billing of shop/orders and its position? [y/N]" in kept.stderr
    operator.run("groups", "delete", *BILLING, "--yes")
    gone = operator.run("groups", "pause", *BILLING, status=1)
    assert "there is no group billing" in gone.stderr


def test_the_work_of_an_instance_is_taken_away_and_the_instance_is_cancelled(operator: Operator) -> None:
    with operator.client.stage("shop/fulfil", "charge", concurrency=1) as works:
        taken = next(works)
        named = f"{taken.partition}/{taken.instance}"
        said = operator.run("pipelines", "take-away", "shop/fulfil", named, "--stage", "charge")
        again = operator.run("pipelines", "take-away", "shop/fulfil", named, status=1)
        cancelled = operator.run("pipelines", "cancel", "shop/fulfil", named, "--json")

    assert said.stdout == f"Stage charge of instance {named} of shop/fulfil is taken away.\n"
    assert "no member has a delivery of instance" in again.stderr
    assert json.loads(cancelled.stdout) == {
        "pipeline": "shop/fulfil", "partition": taken.partition, "instance": taken.instance, "done": "cancelled",
    }  # fmt: skip
    (ended,) = [one for one in operator.application.instances("shop/fulfil") if one.outcome]
    assert (ended.instance, ended.outcome) == (taken.instance, "cancelled")
    wrong = operator.run("pipelines", "cancel", "shop/fulfil", "seventeen", status=2)
    assert "give PARTITION/INSTANCE, such as 0/17" in wrong.stderr


def snapshot(age: float = 0) -> ApplicationStatus:
    idle = GroupStatus("billing", 17, 3, durable=True, idle_since=1_700_000_000.0, paused=True)
    open_ = GroupStatus(
        "audit", 5, 15, 1, True, 3, 42.0, overdue=1, reason="no ledger", letters_refused=1, refused_reason=GONE
    )
    partitions = (
        PartitionState("shop/orders", 1, 1, 20, groups=(open_, idle)),
        PartitionState("shop/paid", 0, 1, 9, groups=(GroupStatus("other", 9, 0, 1),)),
    )
    return ApplicationStatus("shop", time.time() - age, running=True, partitions=partitions)


def test_groups_are_listed_with_their_places_and_what_holds_them(tmp_path: Path) -> None:
    runner = CliRunner(env={"WALLAROO_APP": str(tmp_path)})
    SnapshotFile(str(tmp_path)).write(to_text(snapshot()))

    shown = runner.invoke(cli, ["groups", "list"])
    one = runner.invoke(cli, ["groups", "list", "shop/orders", "--json"])
    none = runner.invoke(cli, ["groups", "list", "shop/nothing"])

    assert (shown.exit_code, one.exit_code) == (0, 0), shown.output
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert rows["billing"].split()[1:6] == ["shop/orders", "1", "17", "3", "0"]
    assert "paused; no member since 2023-11-14 22:13:20 UTC" in rows["billing"]
    assert "42.0 s" in rows["audit"] or "42 s" in rows["audit"]
    assert "1 delivery taken away, and not yet ended by the member; no ledger" in rows["audit"]
    assert f"1 dead letter was refused: {GONE}" in rows["audit"]
    assert "ephemeral" in rows["other"]
    found = json.loads(one.stdout)["groups"]
    assert [(row["stream"], row["partition"], row["group"], row["cursor"], row["paused"]) for row in found] == [
        ("shop/orders", 1, "audit", 5, False),
        ("shop/orders", 1, "billing", 17, True),
    ]
    assert none.stdout == "There are no groups.\n"


def test_the_list_of_an_application_that_does_not_run_says_so(tmp_path: Path) -> None:
    SnapshotFile(str(tmp_path)).write(to_text(snapshot(age=60)))

    shown = CliRunner().invoke(cli, ["groups", "list", "--app", str(tmp_path)])

    assert shown.exit_code == 1
    assert "billing" in shown.stdout
    assert "no driver runs it" in shown.stderr


@pytest.mark.parametrize("arguments", [(), ("--application", "shop")])
def test_an_application_has_to_be_named_for_the_list(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(cli, ["groups", "list", *arguments]).exit_code == 2


def test_every_change_that_programs_have_is_a_verb() -> None:
    assert {verb.replace("-", "_") for verb in groups.commands if verb != "list"} == GROUP_ACTIONS.keys()


def test_the_verbs_that_refusals_of_the_controller_name_are_there() -> None:
    named = set(re.findall(r"wallaroo-spark groups (\w+)", inspect.getsource(controller_groups)))

    assert {"list", "delete"} <= named <= groups.commands.keys()
