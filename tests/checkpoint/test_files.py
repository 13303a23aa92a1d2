"""Checkpoints on disk and behind URIs, while Spark is at work in them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from wallaroo_spark.checkpoint import CheckpointFiles, PlannedBatch, QueryProgress
from wallaroo_spark.errors import CheckpointError, ConfigurationError

from .conftest import DATA, Checkpoint, offset, offsets_text


def plan(batch: int) -> PlannedBatch:
    return PlannedBatch(batch, {"shop-1": {"7": 100 * (batch + 1)}})


def sampled(batch: int) -> PlannedBatch:
    end = 100 * (batch + 1)
    return PlannedBatch(batch, {"shop-1": {"7": end, "9": f"e:1700000000000:{end}"}})


class Counting:
    """A file system that counts opened files, and calls the test before each of them is opened."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.opened: list[str] = []
        self.listed = 0
        self.before_open: Any = lambda path: None

    def get_file_info(self, selector: Any) -> Any:
        self.listed += isinstance(selector, fs.FileSelector)
        return self.inner.get_file_info(selector)

    def open_input_stream(self, path: str) -> Any:
        self.opened.append(path)
        self.before_open(path)
        return self.inner.open_input_stream(path)


def counted(checkpoint: Checkpoint) -> tuple[CheckpointFiles, Counting]:
    files = CheckpointFiles(str(checkpoint.folder))
    files.filesystem = Counting(files.filesystem)
    return files, files.filesystem


@pytest.mark.parametrize(
    ("sample", "committed", "planned"),
    [
        ("v1", 1, 2),
        ("v1-with-rate", 1, None),
        ("v1-with-silent-source", 1, None),
        ("v2-with-silent-source", 1, 2),
        ("v2-two-receivers", 1, None),
        ("v2-named", 1, None),
        ("async", 11, None),
    ],
)
def test_files_that_spark_left_behind_are_read(sample: str, committed: int, planned: int | None) -> None:
    progress = CheckpointFiles(str(DATA / sample)).progress("orders")
    assert progress == QueryProgress(sampled(committed), sampled(planned) if planned is not None else None)


def test_asynchronous_progress_tracking_shows_as_holes() -> None:
    assert CheckpointFiles(str(DATA / "async")).holes() == (1, 2, 3, 4, 5, 7, 8, 9, 10)
    assert CheckpointFiles(str(DATA / "v1")).holes() == ()


def test_nothing_yet_is_no_progress(tmp_path: Path) -> None:
    files = CheckpointFiles(str(tmp_path / "not made yet"))
    assert files.progress("orders") == QueryProgress(None, None)
    assert not files.exists()
    assert files.query_id() is None
    assert files.holes() == ()


def test_a_checkpoint_exists_once_a_batch_is_planned(checkpoint: Checkpoint) -> None:
    files = CheckpointFiles(str(checkpoint.folder))
    assert not files.exists()
    checkpoint.plan(0)
    assert files.exists()
    assert files.query_id() == "query-1"


def test_batches_move_from_planned_to_committed(checkpoint: Checkpoint) -> None:
    files = CheckpointFiles(str(checkpoint.folder))
    checkpoint.plan(0)
    assert files.progress("orders") == QueryProgress(None, plan(0))
    checkpoint.commit(0)
    assert files.progress("orders") == QueryProgress(plan(0), None)
    checkpoint.plan(1)
    assert files.progress("orders") == QueryProgress(plan(0), plan(1))


def test_batches_are_ordered_as_numbers(checkpoint: Checkpoint) -> None:
    for batch in (8, 9, 10):
        checkpoint.run(batch)
    assert CheckpointFiles(str(checkpoint.folder)).progress("orders") == QueryProgress(plan(10), None)


def test_a_commit_whose_plan_was_cleaned_up_speaks_for_those_before_it(checkpoint: Checkpoint) -> None:
    checkpoint.run(3)
    checkpoint.commit(4)
    assert CheckpointFiles(str(checkpoint.folder)).progress("orders") == QueryProgress(plan(3), None)


def test_files_that_are_not_batches_are_skipped(checkpoint: Checkpoint) -> None:
    checkpoint.run(0)
    for log in ("offsets", "commits"):
        for name in (".9.crc", ".9.0f3a.tmp", "9.tmp", "nine", "٩"):
            (checkpoint.folder / log / name).write_text("anything")
        (checkpoint.folder / log / "9").mkdir()
        (checkpoint.folder / log / "8").touch()
    assert CheckpointFiles(str(checkpoint.folder)).progress("orders") == QueryProgress(plan(0), None)


def test_a_commit_file_that_is_half_written_commits_nothing(checkpoint: Checkpoint) -> None:
    checkpoint.run(0)
    checkpoint.plan(1)
    (checkpoint.folder / "commits/1").write_text('v1\n{"nextBatch')
    files = CheckpointFiles(str(checkpoint.folder))
    assert files.progress("orders") == QueryProgress(plan(0), plan(1))
    checkpoint.commit(1)
    assert files.progress("orders") == QueryProgress(plan(1), None)


def test_another_receivers_checkpoint_has_no_progress_of_ours(checkpoint: Checkpoint) -> None:
    checkpoint.run(0)
    assert CheckpointFiles(str(checkpoint.folder)).progress("returns") == QueryProgress(None, None)


def test_nothing_is_read_again_while_nothing_changes(checkpoint: Checkpoint) -> None:
    files, filesystem = counted(checkpoint)
    checkpoint.run(0)
    checkpoint.plan(1)
    first = files.progress("orders")
    opened = len(filesystem.opened)
    assert opened == 3
    assert files.progress("orders") == first
    assert len(filesystem.opened) == opened
    checkpoint.commit(1)
    assert files.progress("orders") == QueryProgress(plan(1), None)
    assert len(filesystem.opened) == opened + 1


def test_new_batches_are_found_without_a_listing(checkpoint: Checkpoint) -> None:
    files, filesystem = counted(checkpoint)
    checkpoint.run(0)
    files.progress("orders")
    listed = filesystem.listed

    for batch in range(1, 20):
        checkpoint.plan(batch)
        assert files.progress("orders") == QueryProgress(plan(batch - 1), plan(batch))
        checkpoint.commit(batch)
        assert files.progress("orders") == QueryProgress(plan(batch), None)
        assert files.committed() == batch
    # Several at once, as after a pause.
    checkpoint.run(20)
    checkpoint.run(21)
    assert files.progress("orders") == QueryProgress(plan(21), None)

    assert filesystem.listed == listed


@pytest.mark.parametrize("seed", range(8))
def test_every_change_of_the_files_is_seen_as_by_a_new_reader(checkpoint: Checkpoint, seed: int) -> None:
    """Files of the newest batches are added, written again, half written and removed."""
    chance = random.Random(seed)
    files = CheckpointFiles(str(checkpoint.folder))
    checkpoint.run(0)
    newest = 0
    for _ in range(60):
        match chance.randrange(8):
            case 0 | 1 | 2:
                newest += 1
                checkpoint.plan(newest)
            case 3:
                checkpoint.run(newest)
            case 4:
                checkpoint.put(f"commits/{newest}", "" if chance.random() < 0.5 else "v1")
            case 5:
                checkpoint.put(f"offsets/{newest}", offsets_text(offset({"shop-1": {"7": chance.randrange(9000)}})))
            case 6 if newest:
                (checkpoint.folder / f"commits/{newest}").unlink(missing_ok=True)
                (checkpoint.folder / f"offsets/{newest}").unlink(missing_ok=True)
                newest -= 1
            case 7:
                for log in ("offsets", "commits"):
                    (checkpoint.folder / log / str(max(0, newest - 3))).unlink(missing_ok=True)
        # Removals of older files are seen when the folders are listed again, and nothing depends on them.
        assert files.progress("orders") == CheckpointFiles(str(checkpoint.folder)).progress("orders")


def test_a_gap_in_the_numbers_is_seen_when_the_folders_are_listed_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = counted(checkpoint)
    checkpoint.run(0)
    files.progress("orders")
    checkpoint.run(7)
    monkeypatch.setattr("wallaroo_spark.checkpoint.files._LIST_SECONDS", 0.0)

    assert files.progress("orders") == QueryProgress(plan(7), None)


def test_a_plan_that_vanishes_between_list_and_read_is_looked_for_again(checkpoint: Checkpoint) -> None:
    files, filesystem = counted(checkpoint)
    checkpoint.run(0)

    def clean_up(path: str) -> None:
        if path.endswith("offsets/0") and not (checkpoint.folder / "offsets/1").exists():
            checkpoint.run(1)
            checkpoint.remove("offsets/0")
            checkpoint.remove("commits/0")

    filesystem.before_open = clean_up
    assert files.progress("orders") == QueryProgress(plan(1), None)


def test_a_plan_that_is_not_whole_yet_is_read_again(checkpoint: Checkpoint) -> None:
    files, filesystem = counted(checkpoint)
    whole = offsets_text(offset({"shop-1": {"7": 100}}))
    (checkpoint.folder / "offsets/0").write_text(whole[:-5])

    def finish(path: str) -> None:
        if filesystem.opened.count(path) == 2:
            checkpoint.plan(0)

    filesystem.before_open = finish
    assert files.progress("orders") == QueryProgress(None, plan(0))


def test_a_plan_that_stays_damaged_is_an_error(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "offsets/0").write_text("v1\n{}")
    with pytest.raises(CheckpointError, match="offsets/0 is truncated"):
        CheckpointFiles(str(checkpoint.folder)).progress("orders")


def test_bytes_that_are_no_text_are_an_error_that_names_the_place(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "offsets/0").write_bytes(b"v1\n\xff\xfe\n-")
    with pytest.raises(CheckpointError, match=r"checkpoint file://.*checkpoint cannot be read"):
        CheckpointFiles(str(checkpoint.folder)).progress("orders")


def test_a_file_in_place_of_the_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "commits").write_text("not a directory")
    with pytest.raises(CheckpointError, match="cannot be read"):
        CheckpointFiles(str(tmp_path)).progress("orders")


def test_metadata_without_an_id_names_no_query(checkpoint: Checkpoint) -> None:
    files = CheckpointFiles(str(checkpoint.folder))
    for text in ("{}", "[]", "{half"):
        checkpoint.put("metadata", text)
        assert files.query_id() is None


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}", "FILE://{}", "{}/", "{}/./"])
def test_every_way_to_write_a_local_path_is_one_place(checkpoint: Checkpoint, form: str) -> None:
    checkpoint.run(0)
    files = CheckpointFiles(form.format(checkpoint.folder))
    assert files.progress("orders") == QueryProgress(plan(0), None)
    assert files.identity == CheckpointFiles(str(checkpoint.folder)).identity == f"file://{checkpoint.folder}"
    assert repr(files) == f"CheckpointFiles('file://{checkpoint.folder}')"


def test_relative_paths_and_links_lead_to_the_same_place(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.folder.parent)
    Path("link").symlink_to(checkpoint.folder)
    assert CheckpointFiles("checkpoint").identity == CheckpointFiles("link").identity


def test_blanks_and_percent_signs_are_taken_as_they_stand(tmp_path: Path) -> None:
    made = Checkpoint(tmp_path / "a b%20c#d")
    made.run(0)
    for location in (str(made.folder), f"file://{made.folder}"):
        assert CheckpointFiles(location).progress("orders") == QueryProgress(plan(0), None)


def test_any_file_system_that_pyarrow_opens_will_do() -> None:
    files = CheckpointFiles("mock:///bucket/a b%20c/")
    assert files.identity == "mock:///bucket/a b%20c"
    for source in sorted((DATA / "v1").rglob("[0-9]*")):
        name = f"bucket/a b%20c/{source.relative_to(DATA / 'v1')}"
        files.filesystem.create_dir(name.rpartition("/")[0])
        with files.filesystem.open_output_stream(name) as stream:
            stream.write(source.read_bytes())
    assert files.progress("orders") == QueryProgress(sampled(1), sampled(2))


def test_the_root_of_a_file_system_will_do() -> None:
    files = CheckpointFiles("mock:///")
    assert not files.exists()


def test_a_scheme_that_nothing_opens_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"ftp://host/a: there is no file system for this scheme.*hdfs.*s3"):
        CheckpointFiles("ftp://host/a")


def test_no_location_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no location"):
        CheckpointFiles(" ")


@pytest.mark.parametrize(
    ("location", "identity"),
    [
        ("gs://bucket/a//b/", "gs://bucket/a/b"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
        ("abfss://box:c2VzYW1l@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
        ("dbfs:/mnt/a", "file:///dbfs/mnt/a"),
    ],
)
def test_a_places_identity_is_plain_and_says_no_secret(location: str, identity: str) -> None:
    assert CheckpointFiles(location).identity == identity


@pytest.mark.parametrize("scheme", ["ftp", "gs"])
def test_no_error_repeats_credentials(scheme: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CheckpointFiles(f"{scheme}://me:sesame@host/a?secret_key=mellon")
    assert f"checkpoint {scheme}://host/a: " in str(caught.value)
    shown = f"{caught.value} {caught.value.fields} {caught.value.__cause__}"
    assert "sesame" not in shown
    assert "mellon" not in shown


def test_a_copy_of_a_running_checkpoint_is_read_as_it_is(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.run(0)
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint.folder, copy)
    checkpoint.run(1)
    assert CheckpointFiles(str(copy)).progress("orders") == QueryProgress(plan(0), None)


def test_the_commit_log_says_when_it_changed_where_that_is_cheap(checkpoint: Checkpoint) -> None:
    assert CheckpointFiles(str(checkpoint.folder / "none")).stamp() == 0
    files = CheckpointFiles(str(checkpoint.folder))
    checkpoint.commit(0)
    assert files.stamp() == (checkpoint.folder / "commits").stat().st_mtime_ns


def test_a_store_without_real_folders_has_no_modification_time() -> None:
    assert CheckpointFiles("dbfs:/checkpoints/orders").stamp() is None
    assert CheckpointFiles("/Volumes/main/default/checkpoints/orders").stamp() is None
    assert CheckpointFiles("mock:///checkpoint").stamp() is None


@pytest.mark.parametrize(("sample", "newest"), [("v1", 1), ("v2-named", 1), ("async", 11)])
def test_the_newest_committed_batch_is_known_for_every_source_of_the_query(sample: str, newest: int) -> None:
    assert CheckpointFiles(str(DATA / sample)).committed() == newest


def test_a_commit_that_is_being_written_is_none(tmp_path: Path) -> None:
    files = CheckpointFiles(str(tmp_path))
    assert files.committed() is None
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "commits" / "1").write_text("v1\n{")

    assert files.committed() == 0


def test_a_place_on_two_machines_is_two_checkpoints_and_a_shared_one_is_one(tmp_path: Path) -> None:
    path, ours, theirs = tmp_path / "checkpoint", tmp_path / "ours", tmp_path / "theirs"

    def mounted(volume: Path) -> str:
        """The identity of the checkpoint on a machine with this volume at that path."""
        volume.mkdir(exist_ok=True)
        volume.rename(path)
        try:
            return CheckpointFiles(str(path)).key
        finally:
            path.rename(volume)

    keys = [mounted(volume) for volume in (ours, theirs, ours, theirs)]
    assert keys[:2] == keys[2:]
    assert keys[0] != keys[1]
    assert all(key.startswith(f"file://{path}#") for key in keys)


def test_a_place_that_has_one_name_everywhere_goes_by_that() -> None:
    assert CheckpointFiles("mock:///bucket/checkpoint").key == "mock:///bucket/checkpoint"
    assert CheckpointFiles("/Volumes/main/default/orders").key == "file:///Volumes/main/default/orders"


def test_the_offsets_and_settings_of_planned_batches_are_read_as_spark_wrote_them(tmp_path: Path) -> None:
    files, nothing = CheckpointFiles(str(DATA / "v1")), CheckpointFiles(str(tmp_path))

    assert files.newest_offsets() == files.source_offsets(2) != files.source_offsets(1)
    assert files.settings()["spark.sql.shuffle.partitions"]
    assert files.source_offsets(99) == nothing.newest_offsets() == ()
    assert nothing.settings() == {}
