"""The ranges that doors have given up: durable before a worker is told, and known to the next driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from wallaroo_spark.checkpoint.files import CheckpointFiles
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.sidecar import given_up
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.given_up import FILE, GivenUpRanges


def planned(start: int, end: int, name: str = "http/shop-1", stream: int = 2**64 - 1) -> PlannedRange:
    return PlannedRange(StreamKey(name, stream), start, end)


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFiles:
    return CheckpointFiles(str(tmp_path))


def test_the_next_driver_knows_what_was_recorded(files: CheckpointFiles) -> None:
    first = files.given_up("orders")
    first.record([planned(4, 2**63), planned(7, 9, "kafka/billing/0", 5)])
    first.record([planned(1, 2, "http/shop-2")])

    for known in (first, files.given_up("orders")):
        assert known.of(["http/shop-1", "kafka/billing/0", "http/unknown"]) == [
            planned(4, 2**63),
            planned(7, 9, "kafka/billing/0", 5),
        ]
    assert files.given_up("payments").of(["http/shop-1"]) == []


def test_ranges_that_touch_each_other_become_one_and_a_later_one_takes_the_place_of_others() -> None:
    known = GivenUpRanges()
    for start, end, is_known in ((4, 9, (4, 9)), (6, 8, (4, 9)), (9, 11, (4, 11)), (20, 22, (20, 22))):
        known.record([planned(start, end)])
        assert known.of(["http/shop-1"]) == [planned(*is_known)]


def test_a_range_that_cannot_be_written_is_not_known(files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    known = files.given_up("orders")
    monkeypatch.setattr(SidecarFolder, "write", lambda *_: (_ for _ in ()).throw(CheckpointError("the disk is full")))
    with pytest.raises(CheckpointError, match="full"):
        known.record([planned(1, 2)])

    assert known.of(["http/shop-1"]) == []


def test_those_that_were_given_up_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_up, "MOST_STREAMS", 3)
    known = GivenUpRanges()
    for stream in (1, 2, 1, 3, 4):
        known.record([planned(5, 6, stream=stream)])

    assert [one.key.stream_id for one in known.of(["http/shop-1"])] == [2, 3, 4]


@pytest.mark.parametrize("content", ["", "[1]", '[["http/a", "x", 1, 2]]', "{"])
def test_a_damaged_file_is_an_error_that_names_it(files: CheckpointFiles, tmp_path: Path, content: str) -> None:
    files.given_up("orders").record([planned(1, 2)])
    (path,) = tmp_path.rglob(FILE)
    path.write_text(content)

    with pytest.raises(CheckpointError, match=FILE) as caught:
        files.given_up("orders").of(["http/shop-1"])
    assert caught.value.code == "checkpoint-damaged"
