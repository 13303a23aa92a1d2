"""The inbox: numbered files of events, generations that no two processes share, and no event that is forgotten."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conftest import ROOT
from tests.waiting import SECONDS
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.steps import AnyStep, InboxStep, at_each
from wallaroo_spark.streams import inbox as writing
from wallaroo_spark.streams.inbox import InboxFile, InboxPosition, InboxReader, InboxWriter
from wallaroo_spark.streams.rows import INPUT

KEY, OTHER = PartitionKey("shop/orders", 0), PartitionKey("shop/orders", 1)


def opened(folder: Path, gateway: str = "g0") -> InboxWriter:
    writer = InboxWriter(str(folder), gateway)
    writer.open()
    return writer


def test_events_are_read_back_with_their_order(tmp_path: Path) -> None:
    writer = InboxWriter(str(tmp_path), "g0")

    assert (writer.open(), writer.generation) == (1, 1)
    assert writer.write([(KEY, b"one"), (OTHER, b"two"), (KEY, b"three")]) == 1
    assert writer.write([(KEY, b"four")]) == 2

    reader = InboxReader(str(tmp_path))
    assert reader.unread({}) == {"g0": {1: (InboxFile(1, 3, 11), InboxFile(2, 1, 4))}}
    table = pa.Table.from_batches(reader.read("g0", 1, InboxFile(1, 3, 11)))
    assert table.schema == INPUT
    origin = f"g0/{1:020d}"
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("shop/orders", 0, 2, origin, 1, 0, b"one"),
        ("shop/orders", 1, 2, origin, 1, 1, b"two"),
        ("shop/orders", 0, 2, origin, 1, 2, b"three"),
    ]


def test_each_start_has_the_next_generation(tmp_path: Path) -> None:
    assert [InboxWriter(str(tmp_path), "g0").open() for _ in range(3)] == [1, 2, 3]
    assert InboxWriter(str(tmp_path), "g1").open() == 1


def test_processes_that_start_together_never_share_a_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store, which cannot create a file exclusively, as well as on a disk."""
    monkeypatch.setattr(writing, "_CLAIMS", 30)
    writers = [InboxWriter(str(tmp_path), "g0") for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        generations = list(threads.map(lambda writer: writer.open(), writers))

    assert len(set(generations)) == 8
    assert max(generations) == InboxWriter(str(tmp_path), "g0").open() - 1


def test_of_two_claims_of_one_generation_at_most_one_is_taken(tmp_path: Path) -> None:
    """The second process claims between the first one's claim and its check."""
    second: list[int] = []

    def claim(step: AnyStep) -> None:
        if step is InboxStep.GENERATION_CLAIMED and not second:
            second.append(0)
            SidecarFolder(str(tmp_path), "inbox", "g0").write(f"{1:020d}-00000000.claim", b"")

    stop = at_each(claim)
    try:
        assert InboxWriter(str(tmp_path), "g0").open() == 2
    finally:
        stop()


def test_a_dispute_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_CLAIMS", 3)
    claims = iter(range(1, 10))

    def claim(step: AnyStep) -> None:
        if step is InboxStep.GENERATION_CLAIMED:
            SidecarFolder(str(tmp_path), "inbox", "g0").write(f"{next(claims):020d}-00000000.claim", b"")

    stop = at_each(claim)
    try:
        with pytest.raises(CheckpointError, match="gateway g0") as caught:
            InboxWriter(str(tmp_path), "g0").open()
    finally:
        stop()
    assert caught.value.code == "inbox-disputed"


def test_a_writer_that_was_superseded_says_so(tmp_path: Path) -> None:
    old = opened(tmp_path)
    old.write([(KEY, b"one")])
    new = opened(tmp_path)

    assert old.superseded()
    assert not new.superseded()
    with pytest.raises(CheckpointError, match="newer generation than 1") as caught:
        old.write([(KEY, b"two")])
    assert caught.value.code == "inbox-superseded"
    with pytest.raises(ConfigurationError, match="call open"):
        old.write([(KEY, b"three")])
    assert old.open() == 3


def test_a_writer_whose_claim_is_gone_answers_nothing(tmp_path: Path) -> None:
    """The folder was deleted, or an older copy of it was restored, under a living gateway."""
    opened(tmp_path)
    writer = opened(tmp_path)
    writer.write([(KEY, b"one")])
    [claim] = (tmp_path / "_wallaroo" / "inbox" / "g0").glob(f"{2:020d}-*.claim")
    claim.unlink()

    with pytest.raises(CheckpointError, match="its newest claim is of generation 1") as caught:
        writer.superseded()
    assert caught.value.code == "inbox-lost"
    with pytest.raises(CheckpointError) as caught:
        writer.write([(KEY, b"two")])
    assert caught.value.code == "inbox-lost"


def test_a_generation_that_the_checkpoint_has_read_is_not_begun_again(tmp_path: Path) -> None:
    read = InboxPosition(2, 5)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="the checkpoint has read generation 2") as caught:
            InboxWriter(str(tmp_path), "g0").open(read)
        assert caught.value.code == "inbox-lost"
        opened(tmp_path)
    assert InboxWriter(str(tmp_path), "g0").open(read) == 3


def test_an_acknowledged_file_is_found_along_with_the_newer_generation(tmp_path: Path) -> None:
    """A newer generation begins at each moment of a write; a write that succeeds is among the unread files."""
    reader = InboxReader(str(tmp_path))
    seen: list[int] = []

    def overtake(step: AnyStep) -> None:
        if step is InboxStep.EVENTS_WRITTEN:
            InboxWriter(str(tmp_path), "g0").open()
            seen.append(len(reader.unread({})["g0"][1]))

    writer = opened(tmp_path)
    assert writer.write([(KEY, b"one")]) == 1
    stop = at_each(overtake)
    try:
        with pytest.raises(CheckpointError, match="newer generation"):
            writer.write([(KEY, b"two")])
    finally:
        stop()
    assert seen == [2]
    assert reader.unread({})["g0"] == {1: (InboxFile(1, 1, 3), InboxFile(2, 1, 3)), 2: ()}


def test_unread_files_are_those_behind_the_positions(tmp_path: Path) -> None:
    for _ in range(2):
        writer = opened(tmp_path)
        for number in range(3):
            writer.write([(KEY, b"%d" % number)] * (number + 1))
    reader = InboxReader(str(tmp_path))

    assert reader.unread({"g0": InboxPosition(1, 2)}) == {
        "g0": {1: (InboxFile(3, 3, 3),), 2: (InboxFile(1, 1, 1), InboxFile(2, 2, 2), InboxFile(3, 3, 3))}
    }
    assert reader.unread({"g0": InboxPosition(2, 3)}) == {"g0": {2: ()}}


def test_read_files_are_deleted_and_the_number_of_the_generation_stays(tmp_path: Path) -> None:
    for _ in range(2):
        writer = opened(tmp_path)
        writer.write([(KEY, b"one")])
        writer.write([(KEY, b"two")])
    reader = InboxReader(str(tmp_path))

    assert reader.delete_read({"g0": InboxPosition(2, 1), "g7": InboxPosition(3, 4)}) == 1

    assert reader.unread({}) == {"g0": {2: (InboxFile(2, 1, 3),)}}
    names = SidecarFolder(str(tmp_path), "inbox", "g0").names()
    assert names[0] == f"{2:020d}"
    assert [name.endswith(".claim") for name in names] == [False, True]
    assert reader.delete_read({"g0": InboxPosition(2, 2)}) == 1
    assert opened(tmp_path).generation == 3


def test_a_missing_file_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(CheckpointError, match="restore the folder _wallaroo") as caught:
        list(InboxReader(str(tmp_path)).read("g0", 1, InboxFile(4, 2)))
    assert caught.value.code == "inbox-missing"


def test_a_file_that_cannot_be_written_closes_the_writer(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    folder = tmp_path / "_wallaroo" / "inbox" / "g0" / f"{1:020d}"
    folder.write_text("not a folder")

    with pytest.raises(CheckpointError, match="cannot be written"):
        writer.write([(KEY, b"one")])
    folder.unlink()
    with pytest.raises(ConfigurationError, match="call open"):
        writer.write([(KEY, b"one")])
    assert (writer.open(), writer.write([(KEY, b"one")])) == (2, 1)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no event"):
        opened(tmp_path).write([])
    with pytest.raises(ConfigurationError, match="name of a gateway"):
        InboxWriter(str(tmp_path), "g0.1")


def test_a_process_dies_at_each_step_and_its_successor_goes_on(tmp_path: Path) -> None:
    """Each file is whole or not there, and the next process has a generation of its own."""
    script = str(ROOT / "tests" / "streams" / "inbox" / "deaths.py")
    run = subprocess.run(
        [sys.executable, script, str(tmp_path)], capture_output=True, text=True, timeout=SECONDS, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stderr
    deaths = json.loads(run.stdout)

    assert {death["step"] for death in deaths} == {step.name for step in InboxStep}
    for death in deaths:
        assert death["generation"] > max(map(int, death["unread"]), default=0)
        written = [rows for files in death["unread"].values() for _, rows, _ in files]
        assert written == [2] * len(written)
        assert len(written) >= death["answered"] - death["deleted"]
