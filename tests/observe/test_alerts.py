"""The alert rules and the dashboard: each alert fires for its fault and for no other, and all expressions are valid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from proving.pages.dashboard import dashboard
from proving.servers.prometheus import promtool
from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS, METRICS, Metric
from wallaroo_spark.observe.figures import FigureKind

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "conf" / "prometheus" / "wallaroo-alerts.yaml"
CONFIG = ROOT / "conf" / "prometheus" / "prometheus.yaml"
DASHBOARDS = [ROOT / "conf" / "grafana" / name for name in ("wallaroo.json", "wallaroo-applications.json")]
MINUTES = 40
"""How long each history is, in minutes, with a sample each minute."""


def names() -> set[str]:
    """The names of all series of the table."""
    parts = {
        FigureKind.HISTOGRAM: ("_bucket", "_sum", "_count"),
        FigureKind.COUNTER: ("",),
        FigureKind.GAUGE: ("",),
    }
    metrics: list[Metric[Any]] = [*METRICS, *APPLICATION_METRICS]
    return {metric.name + part for metric in metrics for part in parts[metric.kind]}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_expressions(files: Sequence[Path] = DASHBOARDS) -> Iterator[tuple[str, str]]:
    """Each panel's title with each of its expressions, as Grafana fills them in."""
    for panel in (panel for file in files for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]):
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$receiver", ".*").replace("$application", ".*")
            yield panel["title"], expression.replace("$__rate_interval", "1m")


HEALTHY = {
    'up{job="wallaroo", instance="driver:4140"}': "1x40",
    'wallaroo_query_up{receiver="orders"}': "1x40",
    'wallaroo_slot_up{receiver="orders", slot="0"}': "1x40",
    'wallaroo_slot_up{receiver="orders", slot="1"}': "1x40",
    'wallaroo_worker_deaths_total{receiver="orders", slot="0"}': "1x40",
    'wallaroo_ack_age_seconds{receiver="orders", slot="0"}': "2x40",
    'wallaroo_batch_running_seconds{receiver="orders"}': "1x40",
    'wallaroo_buffered_messages{receiver="orders", slot="0"}': "100x40",
    'wallaroo_commits_total{receiver="orders"}': "0+60x40",
    'wallaroo_buffer_used_bytes{receiver="orders", slot="0"}': "50x40",
    'wallaroo_buffer_limit_bytes{receiver="orders", slot="0"}': "100x40",
    'wallaroo_dropped_streams_total{receiver="orders", slot="0"}': "3x40",
    'wallaroo_driver_registry_up{receiver="orders"}': "1x40",
    'wallaroo_registry_up{receiver="orders", slot="0"}': "1x40",
    'wallaroo_checkpoint_up{receiver="orders"}': "1x40",
    'wallaroo_handshakes_refused_total{receiver="orders", slot="0", reason="wrong-cookie"}': "4x40",
    'wallaroo_handshakes_refused_total{receiver="orders", slot="0", reason="redirected"}': "0+5x40",
    'wallaroo_protocol_violations_total{receiver="orders", slot="0", fault="ids-not-increasing"}': "9x40",
    'wallaroo_protocol_violations_total{receiver="orders", slot="0", fault="superseded"}': "0+5x40",
    'wallaroo_door_refusals_total{receiver="orders", slot="0", code="kafka-not-leader-or-follower"}': "0+5x40",
    'wallaroo_unreadable_batches_total{receiver="orders", slot="0"}': "2x40",
    'wallaroo_internal_errors_total{receiver="orders", slot="0"}': "1x40",
    'wallaroo_application_up{application="shop"}': "1x40",
    'wallaroo_application_batch_running_seconds{application="shop"}': "1x40",
    'wallaroo_gateway_oldest_call_seconds{application="shop", gateway="g0"}': "1x40",
    'wallaroo_gateway_up{application="shop", gateway="g0"}': "1x40",
    'wallaroo_gateway_up{application="shop", gateway="g1"}': "1x40",
    'wallaroo_pipeline_lag_records{application="shop", pipeline="shop/fulfil"}': "9000-100x40",
    'wallaroo_group_lag_records{application="shop", stream="shop/orders", group="audit"}': "5000x40",
    'wallaroo_stage_unserved_seconds{application="shop", pipeline="shop/fulfil", stage="ship"}': "0x40",
    'wallaroo_stage_failing_seconds{application="shop", pipeline="shop/fulfil", stage="charge"}': "0 1x20 0x20",
}
"""The series of a receiver that works, over 40 minutes. Old faults are over, and connectors move between workers."""

FAULTS: dict[str, dict[str, str]] = {
    "WallarooDriverDown": {'up{job="wallaroo", instance="driver:4140"}': "1x20 0x20"},
    "WallarooQueryNotRunning": {'wallaroo_query_up{receiver="orders"}': "1x20 0x20"},
    "WallarooSlotNotServed": {'wallaroo_slot_up{receiver="orders", slot="1"}': "1x20 0x20"},
    "WallarooWorkersDie": {'wallaroo_worker_deaths_total{receiver="orders", slot="0"}': "1x30 2+1x10"},
    "WallarooAckTooOld": {'wallaroo_ack_age_seconds{receiver="orders", slot="0"}': "2x30 60+60x10"},
    "WallarooBatchTooLong": {'wallaroo_batch_running_seconds{receiver="orders"}': "1x30 60+60x10"},
    "WallarooNothingCommitted": {'wallaroo_commits_total{receiver="orders"}': "0+60x20 1200x20"},
    "WallarooBufferFull": {'wallaroo_buffer_used_bytes{receiver="orders", slot="0"}': "50x20 74x20"},
    "WallarooStreamsDropped": {'wallaroo_dropped_streams_total{receiver="orders", slot="0"}': "3x30 4x10"},
    "WallarooRegistryAway": {'wallaroo_registry_up{receiver="orders", slot="0"}': "1x20 0x20"},
    "WallarooCheckpointUnreadable": {'wallaroo_checkpoint_up{receiver="orders"}': "1x20 0x20"},
    "WallarooConnectorsRefused": {
        'wallaroo_handshakes_refused_total{receiver="orders", slot="0", reason="wrong-cookie"}': "4x35 5x5"
    },
    "WallarooDoorRefuses": {
        'wallaroo_door_refusals_total{receiver="orders", slot="0", code="http-unauthorized"}': "0x30 5+5x10"
    },
    "WallarooBatchesUnreadable": {'wallaroo_unreadable_batches_total{receiver="orders", slot="0"}': "0x35 1x5"},
    "WallarooProtocolViolated": {
        'wallaroo_protocol_violations_total{receiver="orders", slot="0", fault="ids-not-increasing"}': "9x35 10+2x5"
    },
    "WallarooInternalErrors": {'wallaroo_internal_errors_total{receiver="orders", slot="0"}': "1x30 2x10"},
    "WallarooApplicationStuck": {
        'wallaroo_gateway_oldest_call_seconds{application="shop", gateway="g0"}': "1x30 60+60x10"
    },
    "WallarooPipelineLags": {
        'wallaroo_pipeline_lag_records{application="shop", pipeline="shop/fulfil"}': "900x10 900+100x30"
    },
    "WallarooGroupLags": {
        'wallaroo_group_lag_records{application="shop", stream="shop/orders", group="audit"}': "5000x10 5000+50x30"
    },
    "WallarooGatewayGone": {'wallaroo_gateway_up{application="shop", gateway="g1"}': "1x20 0x20"},
    "WallarooStageWithoutMember": {
        'wallaroo_stage_unserved_seconds{application="shop", pipeline="shop/fulfil", stage="ship"}': "0x30 60+60x10"
    },
    "WallarooStageFailing": {
        'wallaroo_stage_failing_seconds{application="shop", pipeline="shop/fulfil", stage="charge"}': "0x30 60+60x10"
    },
}
"""The series that each fault changes."""


def history(changed: dict[str, str], firing: set[str]) -> dict[str, Any]:
    """A test of promtool: at the end of this history exactly these alerts fire."""
    series = [{"series": name, "values": values} for name, values in {**HEALTHY, **changed}.items()]
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)]
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "name": " ".join(sorted(firing)) or "healthy",
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [{"expr": expression, "eval_time": f"{MINUTES}m", "exp_samples": samples}],
    }


def test_the_rules_and_the_sample_configuration_are_valid() -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stderr

    checked = promtool("check", "config", str(CONFIG))
    assert checked.returncode == 0, checked.stderr


def test_each_alert_fires_for_its_fault_alone_and_none_when_all_is_well(tmp_path: Path) -> None:
    histories = [history({}, set()), *(history(changed, {name}) for name, changed in FAULTS.items())]
    away = {'wallaroo_driver_registry_up{receiver="orders"}': "1x20 0x20"}
    histories.append(history(away, {"WallarooRegistryAway"}))
    for fault in (
        {'wallaroo_application_up{application="shop"}': "1x20 0x20"},
        {'wallaroo_application_batch_running_seconds{application="shop"}': "1x30 60+60x10"},
    ):
        histories.append(history(fault, {"WallarooApplicationStuck"}))
    tests = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": histories}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests), encoding="utf-8")

    tested = promtool("test", "rules", "tests.yaml", folder=tmp_path)

    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert FAULTS.keys() == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_existing_metrics_its_cause_and_the_way_out(rule: dict[str, Any]) -> None:
    assert set(re.findall(r"wallaroo_\w+", rule["expr"])) <= names()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert re.search(r"[.;:] \w", rule["annotations"]["description"])


def test_every_expression_of_the_dashboards_names_existing_metrics() -> None:
    found = {name for _, expression in dashboard_expressions() for name in re.findall(r"wallaroo_\w+", expression)}

    assert found <= names()
    # That of applications shows every metric, the other one all but those of single instances and a few of alerts.
    metrics: list[Metric[Any]] = [*METRICS, *APPLICATION_METRICS]
    hidden = {metric.name for metric in metrics if not any(name.startswith(metric.name) for name in found)}
    assert hidden == {
        "wallaroo_acks_total",
        "wallaroo_checkpoint_up",
        "wallaroo_connections_total",
        "wallaroo_connector_errors_total",
        "wallaroo_driver_registry_up",
        "wallaroo_instance_ack_age_seconds",
        "wallaroo_instance_buffered_messages",
        "wallaroo_lost_messages_total",
        "wallaroo_quic_connections",
        "wallaroo_registry_up",
        "wallaroo_sessions_started_total",
        "wallaroo_stale_notices_total",
    }


def test_the_application_dashboard_is_that_of_the_table_of_metrics() -> None:
    assert DASHBOARDS[1].read_text(encoding="utf-8") == dashboard()


def test_the_expressions_of_the_dashboards_are_valid(tmp_path: Path) -> None:
    recorded = [
        {"record": f"panel:expression_{number}", "expr": expression}
        for number, (_, expression) in enumerate(dashboard_expressions())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}), encoding="utf-8")

    checked = promtool("check", "rules", str(file))

    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: str(file.stem))
def test_panels_of_a_dashboard_do_not_overlap_and_have_ids_of_their_own(file: Path) -> None:
    panels = json.loads(file.read_text(encoding="utf-8"))["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
