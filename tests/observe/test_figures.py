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
    GatewayCounts,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS, METRICS
from wallaroo_spark.observe.figures import figures
from wallaroo_spark.observe.receiver import InstanceStatus, QueryStatus, ReceiverStatus, SlotStatus, WorkerCounts

RECORDS = (
    ReceiverStatus,
    QueryStatus,
    SlotStatus,
    WorkerCounts,
    InstanceStatus,
    ApplicationStatus,
    GatewayCounts,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
PROGRAM = """
import ast, importlib.util, io, json, sys
from pathlib import Path
import wallaroo_spark.observe

def with_figure(name, record):
    '''Load a module of records from a copy in which one record has another field.'''
    known = importlib.util.find_spec(f"wallaroo_spark.observe.{name}")
    text = Path(known.origin).read_text()
    node = next(one for one in ast.parse(text).body if getattr(one, "name", "") == record)
    lines = text.splitlines()
    spare = f'figure(0, "{{spare}}", metric="wallaroo_{record.lower()}_spares", heading="spare")'
    lines[node.end_lineno:node.end_lineno] = [f"    spare: int = {spare}", "    'Spare things.'"]
    copy = Path(sys.argv[1]) / f"{name}.py"
    copy.write_text(chr(10).join(lines))
    spec = importlib.util.spec_from_file_location(known.name, copy)
    sys.modules[known.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    setattr(wallaroo_spark.observe, name, module)
    return module

receiver = with_figure("receiver", "SlotStatus")
application = with_figure("application", "PipelineStatus")

from rich.console import Console
from proving.pages.dashboard import dashboard
from proving.pages.metrics import metrics_page
from wallaroo_spark.observe.faces import terminal
from wallaroo_spark.observe.collect import slot_of
from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS
from wallaroo_spark.observe.faces.records import record_from_json, record_to_json
from wallaroo_spark.observe.faces.metrics import METRICS, Facts
from wallaroo_spark.observe.faces.page import application_document, document
from wallaroo_spark.observe.faces.metrics import exposition
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
    "prometheus": (exposition(Facts(status), METRICS)
                   + exposition(Facts(shop), APPLICATION_METRICS)).decode(),
    "metrics": [values(Facts(status), METRICS)["wallaroo_slotstatus_spares"],
                values(Facts(shop), APPLICATION_METRICS)["wallaroo_pipelinestatus_spares"]],
    "dashboard": dashboard(),
    "report": report_html(record, options={}, versions={}),
    "reference": metrics_page(),
    "terminal": shown(terminal.slots_view(status)) + shown(terminal.application_view(shop)),
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = str(tmp_path_factory.mktemp("records"))
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, check=False, timeout=SECONDS
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
