"""A figure is declared once: a field that is added to a record is found in every face, without another change."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.observe.application import (
    ApplicationStatus,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.faces.application_metrics import APPLICATION_METRICS
from wallaroo_spark.observe.faces.metrics import METRICS
from wallaroo_spark.observe.figures import figures
from wallaroo_spark.observe.receiver import InstanceStatus, QueryStatus, ReceiverStatus, SlotStatus

RECORDS = (
    ReceiverStatus,
    QueryStatus,
    SlotStatus,
    InstanceStatus,
    ApplicationStatus,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
PROGRAM = """
import dataclasses, io, json
from wallaroo_spark.observe import application, receiver
from wallaroo_spark.observe.figures import figure

def with_figure(record):
    spare = figure(0, "{spare}", "Spare things.", metric=f"wallaroo_{record.__name__.lower()}_spares", terminal="spare",
                   page="Spare")
    kind = dataclasses.make_dataclass(record.__name__, [("spare", int, spare)], bases=(record,), frozen=True)
    kind.__module__ = record.__module__
    return kind

receiver.SlotStatus = with_figure(receiver.SlotStatus)
application.PipelineStatus = with_figure(application.PipelineStatus)

from rich.console import Console
from proving.pages.dashboard import dashboard
from proving.pages.metrics import metrics_page
from wallaroo_spark.observe.faces import terminal
from wallaroo_spark.observe.collect import slot_of
from wallaroo_spark.observe.faces.application_metrics import APPLICATION_METRICS, ApplicationFacts
from wallaroo_spark.observe.faces.as_json import record_from_json, record_to_json
from wallaroo_spark.observe.faces.metrics import METRICS, Facts
from wallaroo_spark.observe.faces.page import application_document, document
from wallaroo_spark.observe.faces.prometheus import exposition
from wallaroo_spark.observe.faces.report import report_html
from wallaroo_spark.observe.server.endpoints import values
from wallaroo_spark.observe.record import ApplicationRecord, RunRecord

def shown(table):
    console = Console(file=io.StringIO(), width=300)
    console.print(table)
    return console.file.getvalue().split()

slot = slot_of(receiver.SlotStatus(0, "serving"), {"spare": 7}, 1000.0)
status = receiver.ReceiverStatus("orders", 1000.0, running=True, slots=(slot,))
pipeline = application.PipelineStatus("shop/fulfil", "shop/orders", spare=8)
shop = application.ApplicationStatus("shop", 1000.0, pipelines=(pipeline,))
record, run = RunRecord(), ApplicationRecord()
record.add(status)
run.add(shop)
pages = [document(record, age=0, patience=1, query={}), application_document(run, age=0, patience=1, query={})]
print(json.dumps({
    "json": [record_to_json(slot)["spare"],
             record_from_json(receiver.ReceiverStatus, record_to_json(status)).slots[0].spare],
    "page": [pages[0]["status"]["slots"][0]["spare"], pages[1]["status"]["pipelines"][0]["spare"]],
    "columns": [[one["label"] for one in page["columns"][of]][-1] for page, of in zip(pages, ("slots", "pipelines"))],
    "prometheus": (exposition(Facts(status), METRICS, "receiver")
                   + exposition(ApplicationFacts(shop), APPLICATION_METRICS, "application")).decode(),
    "metrics": [values(Facts(status), METRICS)["wallaroo_slotstatus_spares"],
                values(ApplicationFacts(shop), APPLICATION_METRICS)["wallaroo_pipelinestatus_spares"]],
    "dashboard": dashboard(),
    "report": report_html(record, options={}, versions={}),
    "reference": metrics_page(),
    "terminal": shown(terminal.slots_view(status)) + shown(terminal.application_at_a_glance(shop)),
}))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert finished.returncode == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


def test_a_new_figure_is_found_in_every_face(found: dict[str, Any]) -> None:
    assert found["json"] == [7, 7]
    assert found["page"] == [7, 8]
    assert found["columns"] == ["Spare", "Spare"]
    assert 'wallaroo_slotstatus_spares{receiver="orders",slot="0"} 7.0' in found["prometheus"]
    assert 'wallaroo_pipelinestatus_spares{application="shop",pipeline="shop/fulfil"} 8.0' in found["prometheus"]
    assert [one["value"] for metric in found["metrics"] for one in metric] == [7, 8]
    assert "sum by (application, pipeline) (wallaroo_pipelinestatus_spares" in found["dashboard"]
    assert ">Spare</th>" in found["report"]
    assert "| `wallaroo_slotstatus_spares` | gauge | `slot` | Spare things. |" in found["reference"]
    assert found["terminal"].count("spare") == 2
    assert {"7", "8"} <= set(found["terminal"])


@pytest.mark.parametrize("record", RECORDS, ids=[record.__name__ for record in RECORDS])
def test_each_metric_of_a_record_is_in_the_tables_once(record: type[Any]) -> None:
    names = [metric.name for metric in METRICS] + [metric.name for metric in APPLICATION_METRICS]

    assert [names.count(one.metric) for one in figures(record) if one.metric] == [
        1 for one in figures(record) if one.metric
    ]
