"""The writing of a checkpoint on a local disk, and the files that a death during a write leaves."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.receiver.support import COOKIE, Feeders, addresses, numbered
from tests.waiting import SECONDS
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.runtime.spark_sessions import MANAGER, SETTING, forget_stale_checksums, quick_on_local_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def receiver(spark: SparkSession) -> Iterator[Receiver]:
    """One running receiver for the tests of this file."""
    with (
        EmbeddedRedis() as server,
        Receiver(spark, "files", workers=1, cookie=COOKIE, registry=server.url, lease_seconds=3) as started,
    ):
        yield started


@pytest.fixture
def feeders() -> Iterator[Feeders]:
    with Feeders() as opened:
        yield opened


def counted(receiver: Receiver, checkpoint: Path) -> Any:
    """A query that keeps state: rows counted by instance."""
    rows = receiver.stream().groupBy("instance").count()
    writer = rows.writeStream.outputMode("update").format("noop")
    return receiver.start(writer, checkpoint=str(checkpoint))


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.rglob(pattern), key=lambda path: int(path.name.partition(".")[0]))


def checksum_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


@pytest.mark.spark
def test_the_quick_manager_is_set_for_the_query_alone(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    query = counted(receiver, tmp_path)
    connector = feeders.connect("set", addresses(receiver))
    assert feeders.feed(connector, numbered("set", 1, 10)).result(SECONDS).acknowledged == 10
    query.stop()

    # Spark's default deletes checksums, so that they are there tells the two managers apart.
    assert checksum_of(newest(tmp_path / "commits", "[0-9]*")).exists()
    assert spark.conf.get(SETTING, None) is None


@pytest.mark.spark
def test_a_manager_that_the_session_names_stays(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(SETTING, "theirs")
    try:
        with quick_on_local_disk(spark, str(tmp_path)):
            assert spark.conf.get(SETTING) == "theirs"
        assert spark.conf.get(SETTING) == "theirs"
    finally:
        spark.conf.unset(SETTING)


@pytest.mark.spark
def test_queries_that_start_at_once_each_get_it_and_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    entered, left = threading.Event(), threading.Event()
    seen: list[str | None] = []

    def other() -> None:
        entered.wait(SECONDS)
        with quick_on_local_disk(spark, str(tmp_path)):
            left.wait(SECONDS)
            seen.append(spark.conf.get(SETTING, None))

    thread = threading.Thread(target=other)
    thread.start()
    with quick_on_local_disk(spark, str(tmp_path)):
        entered.set()
        # Time enough to come in, were it let in.
        thread.join(0.5)
    left.set()
    thread.join(SECONDS)
    assert [(name or "").endswith(f".{MANAGER}") for name in seen] == [True]
    assert spark.conf.get(SETTING, None) is None


@pytest.mark.spark
def test_stale_checksums_are_deleted_also_when_the_user_has_set_the_manager(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "state" / "1.delta"
    file.parent.mkdir()
    for path, when in ((file, 10), (checksum_of(file), 5)):
        path.write_bytes(b"x")
        os.utime(path, (when, when))
    spark.conf.set(SETTING, "theirs")
    try:
        with quick_on_local_disk(spark, str(tmp_path)):
            assert not checksum_of(file).exists()
    finally:
        spark.conf.unset(SETTING)


@pytest.mark.spark
def test_a_checkpoint_elsewhere_is_written_as_spark_does_by_default(spark: SparkSession) -> None:
    with quick_on_local_disk(spark, None):
        assert spark.conf.get(SETTING, None) is None


@pytest.mark.spark
def test_a_session_gets_it_where_the_checkpoint_is_local(spark: SparkSession, tmp_path: Path) -> None:
    with quick_on_local_disk(spark, str(tmp_path)):
        assert (spark.conf.get(SETTING) or "").endswith(f".{MANAGER}")


@pytest.mark.spark
def test_a_query_goes_on_after_a_death_at_each_step_of_a_rename(
    receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    query = counted(receiver, tmp_path)
    connector = feeders.connect("died", addresses(receiver))
    # Two batches at least, so that the state's newest file differs from its first.
    for last_number in (5, 10):
        assert feeders.feed(connector, numbered("died", 1, last_number)).result(SECONDS).acknowledged == last_number
    query.stop()

    for folder in ("offsets", "commits"):
        log = tmp_path / folder
        last = newest(log, "[0-9]*")
        # Before the rename: the written file has a temporary name, and a checksum.
        shutil.copy(last, log / f".{int(last.name) + 1}.0a1b.tmp")
        shutil.copy(checksum_of(last), log / f"..{int(last.name) + 1}.0a1b.tmp.crc")
        # Between the file's rename and its checksum's.
        checksum_of(last).unlink()
    # The same where a file of a state store replaced the one of a batch that did not come to its end.
    written = newest(tmp_path / "state", "[0-9]*.delta")
    other = written.with_name("1.delta")
    assert written.read_bytes() != other.read_bytes()
    shutil.copyfile(other, written)

    query = counted(receiver, tmp_path)
    assert feeders.feed(connector, numbered("died", 1, 20)).result(SECONDS).acknowledged == 20
    query.stop()


class TestStaleChecksums:
    def test_those_written_before_their_file_are_deleted(self, tmp_path: Path) -> None:
        stale, sound, lone = (tmp_path / "state" / "0" / name for name in ("1.delta", "2.delta", "3.delta"))
        stale.parent.mkdir(parents=True)
        for file in (stale, sound, lone):
            for path, when in ((file, 10), (checksum_of(file), 5 if file is stale else 10)):
                path.write_bytes(b"x")
                os.utime(path, (when, when))
        lone.unlink()

        forget_stale_checksums(str(tmp_path))

        assert not checksum_of(stale).exists()
        assert checksum_of(sound).exists()
        assert checksum_of(lone).exists()

    def test_a_checkpoint_without_state_is_left_alone(self, tmp_path: Path) -> None:
        forget_stale_checksums(str(tmp_path))
        assert list(tmp_path.iterdir()) == []
