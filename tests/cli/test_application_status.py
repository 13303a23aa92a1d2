"""``status --app`` and ``support --app``: an application's snapshot from its folder and from its registry."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.test_support import members
from tests.observe import application_fakes as fakes
from wallaroo_spark.cli.main import cli
from wallaroo_spark.gateway.tokens import TokenStore
from wallaroo_spark.observe.published import LOCK, SnapshotFile, to_text
from wallaroo_spark.pipelines.schema.declarations import Permission, TokenDeclaration
from wallaroo_spark.registry import EmbeddedRedis, application_registry


def run(*arguments: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(cli, arguments)


def test_a_busy_application_is_shown_from_its_folder(tmp_path: Path) -> None:
    SnapshotFile(str(tmp_path)).write(to_text(fakes.busy(time.time())))

    shown = run("status", "--app", str(tmp_path))
    as_json = run("status", "--json", WALLAROO_APP=str(tmp_path))

    assert shown.exit_code == 0, shown.output
    assert "shop: 182 active instances, 420 records wait, 36 calls in flight" in shown.stdout
    for text in ("Gateways", "10.0.0.1:7300", "39,995", "score-the-risk-of-this-order", "in Spark", "audit", "9,200"):
        assert text in shown.stdout
    assert json.loads(as_json.stdout)["pipelines"][0]["pipeline"] == "shop/fulfil"


def test_trouble_is_shown_with_its_way_out_and_the_exit_status_is_1(tmp_path: Path) -> None:
    SnapshotFile(str(tmp_path)).write(to_text(fakes.busy(time.time(), trouble=True)))

    shown = run("status", "--app", str(tmp_path))

    assert shown.exit_code == 1
    assert "1 of 3 gateways do not serve (g1); its last error: ExecutorLostFailure" in shown.stdout
    assert "no member for" in shown.stdout


def test_an_old_snapshot_is_that_of_an_application_which_does_not_run(tmp_path: Path) -> None:
    nothing = run("status", "--app", str(tmp_path))
    SnapshotFile(str(tmp_path)).write(to_text(fakes.busy(time.time() - 60)))
    old = run("status", "--app", str(tmp_path))

    for shown in (nothing, old):
        assert shown.exit_code == 1
        assert "no driver runs it" in shown.stdout
    assert "unknown" in old.stdout
    assert "serving" not in old.stdout


def test_the_registry_says_whether_the_driver_lives(file_redis: EmbeddedRedis) -> None:
    arguments = ("status", "--registry", file_redis.url, "--application", "shop-of-the-test")
    with application_registry(file_redis.url, "shop-of-the-test") as registry:
        registry.publish_report(to_text(dataclasses.replace(fakes.busy(time.time()), application="shop-of-the-test")))
        dead = run(*arguments)
        registry.lock(LOCK, "node/1/x", 60)
        alive = run(*arguments)

    assert (dead.exit_code, alive.exit_code) == (1, 0)
    assert "no driver runs it" in dead.stdout
    assert "shop-of-the-test: 182 active instances" in alive.stdout


@pytest.mark.parametrize("arguments", [("--application", "shop"), ("--app", "x", "--registry", "")])
def test_an_application_is_named_by_its_folder_or_with_its_registry(arguments: tuple[str, ...]) -> None:
    shown = run("status", *arguments)

    assert shown.exit_code == (2 if "--application" in arguments else 1)


def test_a_bundle_has_the_status_and_the_files_and_nothing_of_tokens(tmp_path: Path) -> None:
    folder, archive = tmp_path / "shop", tmp_path / "bundle.tar.gz"
    SnapshotFile(str(folder)).write(to_text(fakes.busy(time.time())))
    declared = TokenDeclaration(name="seller", permissions=(Permission(access="all"),))
    token, kept = TokenStore(str(folder)).create(declared, time.time())

    shown = run("support", "--app", str(folder), "--output", str(archive))

    assert shown.exit_code == 0, shown.output
    found = members(archive)
    assert json.loads(found["application.json"])["cause"]["code"] == "application-flowing"
    files = json.loads(found["application-files.json"])
    assert [one["name"] for one in files["files"]] == ["_wallaroo/status/snapshot.json"]
    assert files["tokens"] == 1
    assert [text for text in found.values() if token in text or kept.id in text] == []
