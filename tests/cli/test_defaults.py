"""Defaults of options from the environment and from profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.conftest import COOKIE, Desk
from wallaroo_spark.cli.main import cli, config_file

PROFILES = """
context = "first"

[contexts.first]
receiver = "nobody"

[contexts.test]
registry = "{url}"
receiver = "{receiver}"

[contexts.test.streams]
sort = "name"

[contexts.wrong.status]
colour = "red"
"""


@pytest.fixture
def profiles(desk: Desk, tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "config.toml"
    path.write_text(PROFILES.format(url=desk.url, receiver=desk.receiver))
    return {"WALLAROO_CONFIG": str(path)}


def run(environment: dict[str, str], *arguments: str) -> Result:
    return CliRunner(env=environment).invoke(cli, arguments)


def test_the_environment_gives_defaults_to_every_verb(desk: Desk) -> None:
    environment = {"WALLAROO_REGISTRY": desk.url, "WALLAROO_RECEIVER": desk.receiver}

    for verb in ("status", "streams"):
        assert json.loads(run(environment, verb, "--json").stdout)["receiver"] == desk.receiver


def test_the_verbs_of_a_group_and_tokens_have_defaults_too(desk: Desk, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('context = "test"\n[contexts.test.up]\nlisten = "127.0.0.1:7911"\n')
    shown = run({"WALLAROO_CONFIG": str(config), "WALLAROO_COOKIE": "sesame"}, "dev", "up", "--help").stdout
    tapped = run(
        {"WALLAROO_REGISTRY": desk.url, "WALLAROO_RECEIVER": "nobody", "WALLAROO_TOKEN": "secret"}, "tap", "orders"
    )

    assert "[default: 127.0.0.1:7911]" in shown
    assert "[default: sesame]" in shown
    assert "receiver 'nobody' has no worker" in tapped.stderr


def test_a_profile_gives_defaults_and_is_named_in_three_ways(desk: Desk, profiles: dict[str, str]) -> None:
    given = run(profiles, "--context", "test", "status", "--json")
    named = run({**profiles, "WALLAROO_CONTEXT": "test"}, "status", "--json")
    usual = run({**profiles, "WALLAROO_REGISTRY": desk.url}, "status", "--json")

    assert [json.loads(one.stdout)["receiver"] for one in (given, named, usual)] == [
        desk.receiver,
        desk.receiver,
        "nobody",
    ]


def test_a_flag_precedes_the_environment_and_that_precedes_the_profile(profiles: dict[str, str]) -> None:
    environment = {**profiles, "WALLAROO_RECEIVER": "of-environment"}

    assert json.loads(run(environment, "--context", "test", "status", "--json").stdout)["receiver"] == "of-environment"
    flag = run(environment, "--context", "test", "status", "--json", "--receiver", "of-flag")
    assert json.loads(flag.stdout)["receiver"] == "of-flag"


def test_workers_on_the_command_line_precede_a_registry_of_the_environment(desk: Desk, tmp_path: Path) -> None:
    """They are two ways to one receiver; before, this was refused as if both had been typed."""
    elsewhere = {"WALLAROO_REGISTRY": "redis://127.0.0.1:1", "WALLAROO_RECEIVER": "nobody", "WALLAROO_COOKIE": COOKIE}
    (tmp_path / "lines").write_text("one\n")
    desk.open.set()
    sent = run(elsewhere, "send", str(tmp_path / "lines"), "--workers", desk.address, "--instance", "shop-1")
    both = run(elsewhere, "send", "-", "--workers", desk.address, "--registry", desk.url, "--receiver", "x")

    assert (sent.exit_code, sent.stderr) == (0, "")
    assert both.exit_code == 2
    assert "give either --workers host:port, or --registry URL" in both.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--context", "nowhere"), "profile 'nowhere' is not in "),
        (("--context", "wrong"), "has 'colour', which status has no option for"),
    ],
)
def test_a_wrong_profile_is_refused(profiles: dict[str, str], arguments: tuple[str, ...], said: str) -> None:
    shown = run(profiles, *arguments, "status")

    assert shown.exit_code == 1
    assert said in shown.stderr


def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("context =")

    shown = run({"WALLAROO_CONFIG": str(path)}, "status")

    assert f"the file of profiles {path} cannot be read" in shown.stderr


def test_a_profile_without_a_file_is_refused(tmp_path: Path) -> None:
    shown = run({"WALLAROO_CONFIG": str(tmp_path / "none")}, "--context", "test", "status")

    assert "profile 'test' is not known: there is no file" in shown.stderr


def test_the_file_is_in_the_user_s_config_folder() -> None:
    assert config_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/wallaroo-spark/config.toml")
    assert config_file({}) == Path("~/.config/wallaroo-spark/config.toml").expanduser()
