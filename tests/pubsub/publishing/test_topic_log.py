"""Staged rows beside a checkpoint: complete once sealed, replaced by a later try, split by time, and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.errors import CheckpointError, PubSubError
from wallaroo_spark.pubsub.publishing import topic_log as module
from wallaroo_spark.pubsub.publishing.topic_log import StagedFile, TopicLog, TopicManifest


def rows(**columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch(columns)


def decoded(topic_log: TopicLog, batch: int, file: StagedFile) -> list[tuple[Any, list[dict[str, Any]]]]:
    return [(time, found.to_pylist()) for time, found in topic_log.messages(batch, file)]


@pytest.fixture
def topic_log(tmp_path: Path) -> TopicLog:
    return TopicLog(str(tmp_path / "checkpoint"), "totals")


def test_staged_rows_are_read_as_messages(topic_log: TopicLog) -> None:
    file = topic_log.stage(7, 3, 0, [rows(a=[1, 2]), rows(a=[3])], None)
    assert file is not None
    topic_log.seal(TopicManifest(7, (file,)))

    found = topic_log.manifest(7)

    assert found == TopicManifest(7, (file,))
    assert (file.partition, file.rows, file.parts) == (3, 3, ((7, 2), (7, 1)))
    assert decoded(topic_log, 7, file) == [(7, [{"a": 1}, {"a": 2}]), (7, [{"a": 3}])]


def test_a_column_makes_times_of_two_parts_and_a_message_for_each(topic_log: TopicLog) -> None:
    file = topic_log.stage(7, 0, 0, [rows(hour=[5, 3, 5], a=["x", "y", "z"])], "hour")
    assert file is not None

    assert decoded(topic_log, 7, file) == [
        ((7, 3), [{"hour": 3, "a": "y"}]),
        ((7, 5), [{"hour": 5, "a": "x"}, {"hour": 5, "a": "z"}]),
    ]
    assert {time for time, _ in file.parts} == {(7, 3), (7, 5)}


@given(batches=st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=4))
def test_every_row_is_in_one_message_of_its_time(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]
) -> None:
    topic_log = TopicLog(str(tmp_path_factory.mktemp("checkpoint")), "totals")
    given = [
        pa.record_batch({"t": pa.array(values, pa.int32()), "i": pa.array(range(len(values)), pa.int64())})
        for values in batches
    ]
    file = topic_log.stage(0, 0, 0, given, "t")

    found = decoded(topic_log, 0, file) if file else []

    assert all(row["t"] == time[1] for time, same in found for row in same)
    together = sorted((row["t"], row["i"]) for _, same in found for row in same)
    assert together == sorted((t, i) for values in batches for i, t in enumerate(values))
    assert all(same for _, same in found)


def test_no_rows_make_no_file(topic_log: TopicLog, tmp_path: Path) -> None:
    assert topic_log.stage(1, 0, 0, [], None) is None
    assert topic_log.stage(1, 0, 0, [rows(a=[1]).slice(0, 0)], "a") is None
    assert not list(tmp_path.rglob("*.arrow"))


def test_large_batches_are_cut_into_messages(topic_log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGE_BYTES", 1000)
    file = topic_log.stage(1, 0, 0, [rows(a=["x" * 100] * 95)], None)
    assert file is not None

    lengths = [found.nbytes for _, found in topic_log.messages(1, file)]

    assert len(lengths) == len(file.parts) == 16
    assert sum(count for _, count in file.parts) == 95
    assert max(lengths) <= 1000


def test_a_row_that_no_message_can_carry_is_refused(topic_log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROW_BYTES", 1000)

    with pytest.raises(PubSubError, match=r"a row of batch 1 takes \d+ bytes, and a message carries one of at most"):
        topic_log.stage(1, 0, 0, [rows(a=["x" * 1100, "y"])], None)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([1, -2]), "epoch column t has the value -2; "),
        (pa.array([1, None]), "epoch column t has 1 nulls; "),
        (pa.array(["1", "2"]), "epoch column t is string; "),
        (pa.array([1.0]), "epoch column t is double; "),
    ],
)
def test_a_column_that_is_no_part_of_a_time_is_refused(topic_log: TopicLog, values: pa.Array, said: str) -> None:
    with pytest.raises(PubSubError, match=said + "a part of a time is an integer from 0, so cast or fill the column"):
        topic_log.stage(1, 0, 0, [pa.record_batch({"t": values})], "t")


def test_a_batch_that_is_run_again_replaces_its_unseen_rows(topic_log: TopicLog) -> None:
    staged = [topic_log.stage(4, 0, 0, [rows(a=[number])], None) for number in (1, 2)]
    tries = [file for file in staged if file is not None]
    assert len(tries) == 2
    for file in tries:
        topic_log.seal(TopicManifest(4, (file,)))

    manifest = topic_log.manifest(4)

    assert manifest == TopicManifest(4, (tries[1],))
    assert tries[0].name != tries[1].name


def test_a_batch_that_published_nothing_has_no_manifest(topic_log: TopicLog) -> None:
    assert topic_log.manifest(3) is None


def test_partitions_are_shared_out_over_publishers() -> None:
    files = tuple(StagedFile(partition, f"{partition}.arrow", 1, 1, ((0, 1),)) for partition in range(5))
    manifest = TopicManifest(0, files)

    assert [[file.partition for file in manifest.of(part, 2)] for part in range(2)] == [[0, 2, 4], [1, 3]]


def test_old_batches_are_deleted_and_reported_as_not_retained(topic_log: TopicLog, tmp_path: Path) -> None:
    files = {}
    for batch in (1, 2, 5):
        staged = topic_log.stage(batch, 0, 0, [rows(a=[batch])], None)
        assert staged is not None
        files[batch] = staged
        topic_log.seal(TopicManifest(batch, (files[batch],)))

    topic_log.keep_from(5)

    assert topic_log.kept_from() == 5
    for batch in (1, 4):
        with pytest.raises(PubSubError, match=f"the rows of batch {batch} on topic totals are no longer retained"):
            topic_log.manifest(batch)
    with pytest.raises(PubSubError, match="the rows of batch 1 on topic totals are no longer retained"):
        decoded(topic_log, 1, files[1])
    assert topic_log.manifest(5) == TopicManifest(5, (files[5],))
    assert topic_log.manifest(6) is None
    assert len(list(tmp_path.rglob("*.arrow"))) == 1


def test_letting_go_of_nothing_writes_nothing(topic_log: TopicLog) -> None:
    topic_log.keep_from(10)

    assert topic_log.kept_from() == 0


def test_a_topic_is_the_same_for_as_long_as_its_shape_is(topic_log: TopicLog) -> None:
    first = topic_log.identity(2, product=False)

    assert topic_log.identity(2, product=False) == first
    others = [
        topic_log.identity(3, product=False),
        topic_log.identity(3, product=True),
        topic_log.identity(2, product=False),
    ]
    assert len({first, *others}) == 4


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "batch": 1, "files": []}', '{"version": 1}'])
def test_a_damaged_manifest_is_named(topic_log: TopicLog, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "checkpoint" / "_wallaroo" / "topics" / "totals"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(text)

    with pytest.raises(CheckpointError, match=r"topics/totals/1\.json is damaged"):
        topic_log.manifest(1)


def test_a_damaged_file_of_rows_is_named(topic_log: TopicLog, tmp_path: Path) -> None:
    file = topic_log.stage(1, 0, 0, [rows(a=[1]), rows(a=[2])], None)
    assert file is not None
    (path,) = tmp_path.rglob("*.arrow")
    path.write_bytes(path.read_bytes()[:-150])

    with pytest.raises(CheckpointError, match=r"\.arrow cannot be read"):
        decoded(topic_log, 1, file)
