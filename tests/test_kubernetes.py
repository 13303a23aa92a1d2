"""The chart of conf/kubernetes: what it renders, and what it refuses. ``python -m proving.kubernetes`` installs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from proving.kubernetes.control_plane import HELM, VERSION
from tests.conftest import ROOT
from wallaroo_spark.cli.main import cli

pytestmark = pytest.mark.long

CHART = ROOT / "conf" / "kubernetes" / "chart"
KUBE_SCORE = "github.com/zegl/kube-score/cmd/kube-score@v1.20.0"
EVERYTHING = (
    "slots.service=LoadBalancer", "slots.advertise=worker-{slot}.orders.example.com:{port}", "tls.secret=orders-tls",
    "tls.clients=true", "redis.enabled=false", r"receive.http\.port=8080", r"receive.kafka\.port=9092",
)  # fmt: skip
RUN = ("--kube-version", VERSION)

Render = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm and kube-score, built by Go."""
    folder = tmp_path_factory.mktemp("programs")
    for package in (HELM, KUBE_SCORE):
        subprocess.run(["go", "install", package], env=os.environ | {"GOBIN": str(folder)}, check=True)
    return folder


@pytest.fixture
def render(programs: Path) -> Render:
    """Renders the chart with these values."""

    def rendered(*values: str) -> subprocess.CompletedProcess[str]:
        sets = [text for value in values for text in ("--set", value)]
        command = [str(programs / "helm"), "template", "orders", str(CHART), "-n", "streaming", *RUN, *sets]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return rendered


def objects(text: str) -> dict[tuple[str, str], Any]:
    """The rendered objects by kind and name."""
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(text) if item}


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_the_receiver_of_the_chart_is_valid(
    render: Render, values: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WALLAROO_COOKIE", "WALLAROO_REGISTRY", "WALLAROO_STATUS_PAGE_TOKEN"):
        monkeypatch.setenv(name, "redis://redis.example:6379")
    found = objects(render(*values).stdout)
    (tmp_path / "receive.yaml").write_text(found["ConfigMap", "orders"]["data"]["receive.yaml"], encoding="utf-8")

    ended = CliRunner().invoke(cli, ["validate", str(tmp_path / "receive.yaml")])
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_helm_and_a_checker_of_policies_find_nothing(
    render: Render, programs: Path, values: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "release.yaml").write_text(render(*values).stdout, encoding="utf-8")
    # Executors are pods that no rendered object makes; a tag that never changes needs no pull.
    ignored = ["--ignore-test", "service-targets-pod", "--ignore-test", "container-image-pull-policy"]
    for command in (
        [str(programs / "helm"), "lint", "--strict", str(CHART)],
        [str(programs / "kube-score"), "score", *ignored, str(tmp_path / "release.yaml")],
    ):
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_each_slot_has_a_service_with_the_ports_of_its_doors(render: Render) -> None:
    found = objects(render(*EVERYTHING).stdout)
    service = found["Service", "orders-slot-1"]["spec"]

    assert service["selector"]["slot.wallaroo/1"] == "serving"
    assert sorted(port["port"] for port in service["ports"]) == [7101, 8081, 9096, 9097, 9098, 9099]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("executor.instances=1", "2 workers and their batches need at least 3"),
        ("receive.cookie=abc", "receive.cookie is set by the chart"),
        ("slots.advertise=here", "slots.advertise needs slots.service"),
        ("slots.servce=ClusterIP", "additional properties 'servce' not allowed"),
        ("receive.workers=0", "minimum"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(render: Render, value: str, reason: str) -> None:
    refused = render(value)

    assert refused.returncode != 0
    assert reason in refused.stderr
