"""The observer and the page over a real folder and a real Redis, without Spark: the test plays the driver's batches."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.shop import SHOP
from tests.streams.application import ApplicationFiles
from tests.streams.samples import records
from tests.waiting import SECONDS
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.engine.observer import Observer
from wallaroo_spark.observe.application import ApplicationStatus, KeyGauges, PartitionState, PipelineStatus, StageStatus
from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS
from wallaroo_spark.observe.faces.records import record_to_json
from wallaroo_spark.observe.published import GaugeFile, in_folder
from wallaroo_spark.observe.server.driver_pages import ApplicationPage
from wallaroo_spark.observe.server.page_server import PageAddress
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.registry import EmbeddedRedis, application_registry
from wallaroo_spark.runtime.long_jobs import JobRecord
from wallaroo_spark.streams.batch_outputs import BatchOutputs, Manifest
from wallaroo_spark.streams.places import checkpoint_of

CHARGE = StageStatus("charge", waiting=2, running=1, members=1, places=10)
GAUGES = KeyGauges(
    1.0,
    PartitionState("shop/orders", 0, last=3, records=3),
    (PipelineStatus("shop/fulfil", active=3, began=3, stages=(CHARGE,)),),
)


def declare(folder: Path) -> None:
    schema = folder.parent / "shop.yaml"
    schema.write_text(SHOP, encoding="utf-8")
    apply_files(SchemaStore(str(folder)), (str(schema),), 0.0)


def commit(files: ApplicationFiles) -> None:
    """Commit a batch whose manifest has the gauges of one key."""
    batch = files.commit(records(1 + 3 * files.next, 3 + 3 * files.next))
    store = BatchOutputs(files.location)
    manifest = store.manifest(batch)
    assert manifest is not None
    store.seal(Manifest(batch, manifest.files, manifest.timers, {"shop/orders/0": record_to_json(GAUGES, sparse=True)}))


@pytest.mark.timeout(120)
def test_the_page_and_the_metrics_show_the_batches_and_the_reports_of_gateways(
    tmp_path: Path, file_redis: EmbeddedRedis
) -> None:
    folder = tmp_path / "shop"
    declare(folder)
    files = ApplicationFiles(folder)
    commit(files)
    gauges = GaugeFile(files.location)
    known = ApplicationStatus("observed", time.time(), files.location, True, "node/1/x", query_starts=1)
    facts = known, (JobRecord(0, running=True, submissions=1),)
    with application_registry(file_redis.url, "observed") as registry:
        lease = registry.acquire(0, registry.next_submission(), "node/2", "127.0.0.1:7300", "")
        assert lease is not None
        report = {"gateway": "g0", "members": 2, "counts": {"calls:Publish:ok": 5, "commit:0.5": 5, "inbox-events": 7}}
        registry.publish_slot_report(0, json.dumps(report))
        checkpoint = CheckpointFiles(checkpoint_of(files.location))
        observer = Observer("observed", files.location, None, checkpoint, gauges, registry, lambda: facts)
        page = ApplicationPage("observed", PageAddress("127.0.0.1", 0, ""), observer.look, lambda: None, required=True)
        gauges.follow(0)
        gauges.store()
        observer.start()
        page.start()
        try:
            shown = json.loads(get(f"{page.address}api/status"))
            text = get(f"{page.address}metrics")
            home = get(page.address)
        finally:
            page.stop()
            observer.stop()
        published = registry.report()

    assert shown["status"]["pipelines"][0]["stages"][0]["waiting"] == 2
    assert shown["status"]["gateways"][0]["members"] == 2
    assert "application.js" in home
    found = {
        (sample.name, sample.labels.get("method", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["wallaroo_stage_waiting", ""] >= 0
    assert found["wallaroo_gateway_calls_total", "Publish"] == 5
    assert found["wallaroo_gateway_commit_seconds_count", ""] == 5
    assert found["wallaroo_pipeline_begun_instances_total", ""] == 3
    assert {metric.name for metric in APPLICATION_METRICS} - set(text.split()) == set()
    again = in_folder(files.location)
    assert (again.pipelines[0].active, again.gateways[0].address) == (3, "127.0.0.1:7300")
    assert published is not None


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        return str(answer.read().decode())


def test_gauges_are_stored_before_their_manifests_are_deleted_and_go_on_after_a_restart(tmp_path: Path) -> None:
    files = ApplicationFiles(tmp_path)
    for _ in range(2):
        commit(files)
    first = GaugeFile(files.location)
    first.follow(1)
    first.store()
    commit(files)
    BatchOutputs(files.location).keep_from(2)

    again = GaugeFile(files.location)
    again.follow(2)
    again.follow(2)

    assert again.sum().keys["shop/orders/0"].partition.records == 9
    assert again.sum(set()).keys == {}
