"""A location beside a checkpoint that tasks cannot reach is refused before it is needed, with the way out."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.elsewhere import Elsewhere
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pubsub import Topic
from wallaroo_spark.sidecar import task_access
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.task_access import FOLDER, require_reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.no_cover]


def probes(checkpoint: Path) -> list[str]:
    """The probe files that remain."""
    return [path.name for path in checkpoint.glob(f"_wallaroo/{FOLDER}/*")]


class Vault:
    """A file system that Spark's Hadoop has and nobody else, and of which it has no ``AbstractFileSystem``."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, name = spark.newSession(), uuid.uuid4().hex[:8]
        self.spark.conf.set("fs.vault.impl", "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme")
        self.spark.conf.set(f"fs.viewfs.mounttable.{name}.link./data", folder.as_uri())
        self.checkpoint = f"vault://{name}/data/checkpoint"


@pytest.fixture
def vault(spark: SparkSession, tmp_path: Path) -> Vault:
    return Vault(spark, tmp_path)


def test_the_driver_has_files_there_as_on_a_disk(vault: Vault, tmp_path: Path) -> None:
    beside = SidecarFolder(vault.checkpoint, "sinks", spark=vault.spark)
    beside.write("7.json", b"one")
    beside.write("7.json", b"two")
    assert not beside.create("7.json", b"three")
    assert beside.create("8.json", b"four")
    assert (beside.names(), beside.read("7.json")) == (["7.json", "8.json"], b"two")
    beside.delete("7.json")
    folder = tmp_path / "checkpoint/_wallaroo/sinks"
    assert [path.name for path in folder.iterdir() if path.suffix != ".crc"] == ["8.json"]


def test_a_file_system_that_only_spark_s_hadoop_has_is_refused(vault: Vault, tmp_path: Path) -> None:
    checkpoint = vault.checkpoint
    with pytest.raises(ConfigurationError) as caught:
        require_reach(vault.spark, checkpoint, "sink bills")
    told = caught.value.message
    assert told.startswith(f"sink bills needs {checkpoint}/_wallaroo in its tasks, which do not reach it: ")
    assert "there is no file system for this scheme" in told
    assert told.endswith("check that the executors may use that file system")
    assert (tmp_path / "checkpoint" / "_wallaroo" / FOLDER).is_dir()
    assert probes(tmp_path / "checkpoint") == []

    with (
        pytest.raises(ConfigurationError, match=f"topic 'totals' needs {checkpoint}/.* do not reach it"),
        Topic(vault.spark, "totals", checkpoint=checkpoint),
    ):
        pytest.fail("its publishers could not publish anything")


def test_disks_that_machines_do_not_share_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As executors on other machines see it: the same path, another disk.
    monkeypatch.setattr(task_access, "on_one_machine", lambda master: False)
    monkeypatch.setattr(task_access, "for_tasks", lambda location, session: str(tmp_path / "another disk"))
    with pytest.raises(ConfigurationError) as caught:
        require_reach(spark, str(tmp_path / "checkpoint"), "sink bills")
    assert "does not have the file that the driver has written; give a location that all machines share" in str(
        caught.value
    )
    assert probes(tmp_path / "checkpoint") == []


def test_a_reachable_checkpoint_passes_and_no_probe_file_remains(spark: SparkSession, tmp_path: Path) -> None:
    elsewhere = Elsewhere(spark, tmp_path)
    require_reach(elsewhere.spark, "/data/checkpoint", "sink bills")
    assert (tmp_path / "data/checkpoint/_wallaroo" / FOLDER).is_dir()
    assert probes(tmp_path / "data/checkpoint") == []
