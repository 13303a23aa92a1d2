"""``wallaroo-spark explain`` for a code, a pasted message, an alert, and for what nothing knows."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from wallaroo_spark.cli.explain import WIDTH
from wallaroo_spark.cli.main import cli
from wallaroo_spark.codes import ENTRIES, GROUPS
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import Options


def explain(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(cli, ["explain", *arguments], input=text)


@pytest.mark.parametrize("code", ENTRIES)
def test_a_code_is_explained_with_cause_and_cure(code: str) -> None:
    shown = explain(code)

    said = " ".join(shown.stdout.split())
    assert shown.exit_code == 0
    assert said.startswith(f"{code} {ENTRIES[code].title} Cause: ")
    assert f"Cause: {ENTRIES[code].cause}" in said
    assert f"What to do: {ENTRIES[code].cure}" in said
    assert ENTRIES[code].page in said
    assert max(map(len, shown.stdout.splitlines())) <= WIDTH


def test_the_message_of_a_real_error_is_explained() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Options.parse({"maxFrameByte": "4m"})

    words = f"Error: {caught.value}".split()

    assert explain(*words).stdout == explain("option-unknown").stdout
    assert explain("-", text=f"lines before\n{' '.join(words)}\n").stdout == explain("option-unknown").stdout


def test_an_alert_is_explained_as_its_cause() -> None:
    assert explain("WallarooWorkersDie").stdout == explain("worker-lost").stdout


def test_without_a_text_all_codes_are_listed_by_subject() -> None:
    shown = explain()

    assert shown.exit_code == 0
    assert [line for line in shown.stdout.splitlines() if line and not line.startswith(" ")] == [
        group.title for group in GROUPS.values()
    ]
    codes = [line.split()[0] for line in shown.stdout.splitlines() if line.startswith("  ") and line[2] != " "]
    assert codes == list(ENTRIES)


@pytest.mark.parametrize(("text", "hint"), [("workr-lost", "worker-lost"), ("zzzz", "lists all"), ("[]", "lists all")])
def test_an_unknown_code_shows_the_nearest_and_fails(text: str, hint: str) -> None:
    shown = explain(text)

    assert (shown.exit_code, shown.stdout) == (1, "")
    assert hint in shown.stderr


def test_json_has_the_whole_entries() -> None:
    found = json.loads(explain("--json", "no room [sink-write-failed]; ended [query-failed]").stdout)
    unknown = explain("--json", "workr-lost")
    everything = json.loads(explain("--json").stdout)

    assert [one["code"] for one in found["codes"]] == ["sink-write-failed", "query-failed"]
    assert found["codes"][0]["cure"] == ENTRIES["sink-write-failed"].cure
    assert unknown.exit_code == 1
    assert json.loads(unknown.stdout)["nearest"][0]["code"] == "worker-lost"
    assert sum(len(group["codes"]) for group in everything["groups"]) == len(ENTRIES)
