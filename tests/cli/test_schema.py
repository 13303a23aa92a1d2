"""The verbs for the schema of an application."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.pipelines.schema.samples import SHOP, pipeline
from wallaroo_spark.cli.main import cli
from wallaroo_spark.pipelines.schema.store import SchemaStore


class Person:
    """Someone at a terminal with an application."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = str(folder / "app")

    def run(self, *arguments: str, status: int = 0, stdin: str = "") -> Result:
        result = CliRunner(env={"WALLAROO_APP": self.app}).invoke(cli, arguments, input=stdin)
        assert result.exit_code == status, result.output
        return result

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status).stdout)

    def file(self, text: str) -> str:
        path = self.folder / "shop.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def version(self) -> int:
        return SchemaStore(self.app).newest().version


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def test_a_dry_run_shows_the_difference_and_changes_nothing(person: Person) -> None:
    first = person.run("apply", person.file(SHOP), "--dry-run").stdout
    assert "+ Stream shop/orders (created)\n    partitions: 2\n    ttl: 7d\n" in first
    assert "A dry run: version 1 would be written, and nothing was changed; of that version: it has the first" in first
    assert person.version() == 0

    person.run("apply", person.file(SHOP))
    again = person.run("apply", person.file(SHOP.replace("maxParallel: 50", "maxParallel: 60")), "--dry-run").stdout

    assert "~ Pipeline shop/fulfil (changed)\n    maxParallel: 50 → 60\n" in again
    assert "= Stream shop/orders (unchanged)\n" in again
    assert person.version() == 1


def test_documents_may_come_from_standard_input(person: Person) -> None:
    assert "Version 1 is written; it has the first Token" in person.run("apply", "-", stdin=SHOP).stdout

    refused = person.run("apply", "-", stdin="kind: Steam\nname: a", status=1).stderr
    assert "standard input, line 1, column 7: kind 'Steam' is not known; did you mean Stream?" in refused


def test_all_problems_are_shown_and_nothing_is_applied(person: Person) -> None:
    file = person.file(SHOP.replace("ttl: 7d", "ttl: long").replace("partitions: 2", "partitons: 2"))

    shown = person.run("apply", file, status=1).stderr
    answer = person.json("apply", file, status=1)

    assert f"{file}, line 7, column 1: partitons is not a field of Stream; did you mean partitions?" in shown
    assert f"{file}, line 8, column 6: ttl is 'long'; write a number with a unit: 90s, 12h, 7d" in shown
    assert answer["written"] is False
    assert [(one["file"], one["line"], one["column"]) for one in answer["problems"]] == [(file, 7, 1), (file, 8, 6)]
    assert person.version() == 0


def test_a_branch_that_is_not_newer_is_not_applied(person: Person) -> None:
    file = person.file(SHOP)
    person.run("apply", file, "--branch", "main", "--timestamp", "1800000000")

    old = person.run("apply", file, "--branch", "main", "--timestamp", "2027-01-15T08:00:00+00:00").stdout
    newer = person.json("apply", file, "--branch", "main", "--timestamp", "2027-01-15T09:00:01+00:00")

    assert old.startswith("Branch 'main' was applied with timestamp 1800000000, and 1800000000 is not newer; nothing")
    assert (newer["version"], newer["written"]) == (2, True)
    assert "give --branch and --timestamp together" in person.run("apply", file, "--branch", "a", status=2).stderr
    for time in ("soon", "2027-01-15T08:00:00"):
        wrong = person.run("apply", file, "--branch", "a", "--timestamp", time, status=2).stderr
        assert f"'{time}' is no time; give seconds since 1970" in " ".join(wrong.split())


def test_a_description_does_nothing_to_the_terminal(person: Person) -> None:
    namespace = r'{kind: Namespace, name: shop, description: "\e[2J\n\u202e"}'

    shown = person.run("apply", person.file(namespace)).stdout + person.run("get", "namespace").stdout

    assert shown.count(r"\x1b[2J\n\u202e") == 2
    assert all(line.isprintable() for line in shown.splitlines())


def test_objects_are_listed_by_kind(person: Person) -> None:
    Path(person.app).mkdir()
    assert person.run("get", "all").stdout == "The schema has version 0, and no such object.\n"
    person.run("apply", person.file(SHOP))

    everything = person.run("get", "all").stdout
    streams = person.run("get", "streams").stdout.splitlines()
    answer = person.json("get", "stream", "orders")

    assert all(name in everything for name in ("shop/fulfil", "shop/news", "shop/quote", "till"))
    assert [line.split() for line in streams] == [
        ["kind", "name", "partitions", "kept", "description"],
        ["Stream", "shop/orders", "2", "7d"],
        ["Stream", "shop/shipments", "1", "for", "ever"],
    ]
    assert answer["version"] == 1
    assert answer["objects"][0]["partitions"] == 2
    assert person.json("get", "stream", "none", status=1)["objects"] == []
    assert "kind 'lake' is not known" in person.run("get", "lake", status=1).stderr
    for kind in ("namespace", "pipeline", "exchange", "endpoint", "token"):
        assert len(person.run("get", kind).stdout.splitlines()) == 2


def test_a_pipeline_is_described_with_its_total_and_its_order(person: Person) -> None:
    person.run("apply", person.file(SHOP))

    shown = person.run("describe", "pipeline", "fulfil").stdout
    facts = person.json("describe", "pipeline", "shop/fulfil")["facts"]

    assert facts == [
        "at most 100 active instances: 50 for each of 2 partitions of shop/orders",
        "runs in this order: charge, reserve → ship → tidy",
        "an ack needs an output from: charge, reserve",
    ]
    assert shown.startswith("# version 1 of the schema, applied 20")
    assert all(f"# {fact}\n" in shown for fact in facts)
    assert "inputStream: orders\n" in shown
    assert person.json("describe", "stream", "orders")["facts"] == [
        "read by the pipelines shop/fulfil",
        "written by no stage",
    ]
    missing = person.run("describe", "pipeline", "fulfill", status=1).stderr
    assert "Pipeline 'fulfill' is not declared; did you mean shop/fulfil?" in missing


def test_a_description_can_be_applied_again(person: Person) -> None:
    person.run("apply", person.file(SHOP))

    for kind, name in (("stream", "orders"), ("pipeline", "fulfil"), ("token", "till"), ("endpoint", "quote")):
        shown = person.run("describe", kind, name).stdout
        assert person.run("apply", "-", stdin=shown).stdout.endswith(
            "Nothing to change; the schema stays at version 1.\n"
        )


def test_a_former_version_is_shown(person: Person) -> None:
    person.run("apply", person.file(SHOP))
    person.run("apply", "-", stdin=SHOP.replace("partitions: 2", "partitions: 3"))

    assert person.json("get", "stream", "orders", "--schema-version", "1")["objects"][0]["partitions"] == 2
    assert person.json("get", "stream", "orders")["objects"][0]["partitions"] == 3
    assert "there is no version 7" in person.run("get", "all", "--schema-version", "7", status=1).stderr


def test_objects_are_deleted_all_or_none(person: Person) -> None:
    person.run("apply", person.file(pipeline("  - name: a\n")))

    needed = person.run("delete", "stream", "orders", status=1).stderr
    dry = person.run("delete", "pipeline", "fulfil", "--dry-run").stdout
    person.run("delete", "pipeline", "fulfil", "none", status=1)
    assert person.version() == 1
    gone = person.json("delete", "pipeline", "shop/fulfil")

    assert "the stored Pipeline shop/fulfil: inputStream is 'orders', and there is no stream shop/orders" in needed
    assert "- Pipeline shop/fulfil (deleted)\n" in dry
    assert (gone["version"], gone["changes"][0]["action"]) == (2, "deleted")
    assert person.run("delete", "stream", "orders").stdout.endswith("Version 3 is written.\n")


def test_a_name_in_two_namespaces_needs_its_namespace(person: Person) -> None:
    other = "---\nkind: Namespace\nname: store\n---\nkind: Stream\nname: orders\nnamespace: store\n"
    person.run("apply", "-", stdin=SHOP + other)

    message = person.run("describe", "stream", "orders", status=1).stderr

    assert "is declared in several namespaces; give one of shop/orders, store/orders" in " ".join(message.split())
    assert "name: orders\nnamespace: store\n" in person.run("describe", "stream", "store/orders").stdout


def test_an_application_has_to_be_named() -> None:
    result = CliRunner(env={"WALLAROO_APP": ""}).invoke(cli, ["get", "all"])

    assert result.exit_code == 2
    assert "give --app FOLDER, or set WALLAROO_APP, or use --context" in result.stderr


def test_the_first_and_the_last_token_say_what_they_change_for_everybody(tmp_path: Path) -> None:
    runner, app, files = CliRunner(), str(tmp_path / "app"), [tmp_path / "shop.yaml", tmp_path / "token.yaml"]
    files[0].write_text("kind: Namespace\nname: shop\n", encoding="utf-8")
    files[1].write_text("kind: Token\nname: t\npermissions: [{access: all, namespace: shop}]\n", encoding="utf-8")

    plain, tried, first, again = (
        runner.invoke(cli, ["apply", str(file), "--app", app, *more])
        for file, more in ((files[0], ()), (files[1], ("--dry-run",)), (files[1], ()), (files[1], ()))
    )
    refused = runner.invoke(cli, ["delete", "token", "t", "--app", app])
    there = runner.invoke(cli, ["get", "tokens", "--app", app])
    opened = runner.invoke(cli, ["delete", "token", "t", "--app", app, "--yes"])

    assert plain.output.endswith("Version 1 is written.\n")
    for one in (tried, first):
        assert "gateways refuse every client without a token" in one.output
    assert "refuse" not in again.output
    assert (refused.exit_code, "[last-token]" in refused.output) == (1, True)
    assert "t" in there.output.split()
    assert (opened.exit_code, "everybody who reaches a gateway may do everything" in opened.output) == (0, True)


@pytest.mark.parametrize(
    "verb",
    [
        ("get", "streams"),
        ("describe", "stream", "shop/orders"),
        ("status",),
        ("pipelines", "list"),
        ("pipelines", "instances", "shop/fulfil"),
        ("token", "list"),
    ],
)
def test_a_folder_that_is_not_there_is_said_to_be_that(verb: tuple[str, ...], tmp_path: Path) -> None:
    ended = CliRunner().invoke(cli, [*verb, "--app", str(tmp_path / "nothing")])

    assert ended.exit_code == 1
    assert f"there is no folder {tmp_path / 'nothing'}, so there is no application" in ended.output
