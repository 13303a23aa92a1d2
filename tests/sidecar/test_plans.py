"""Plans beside a checkpoint: names that are never given twice, chains that lead to a snapshot, files that are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import VersionedReferences
from wallaroo_spark.sidecar.plan_files import (
    LINKS,
    LINKS_AT_MOST,
    Chain,
    NamedPlan,
    PlanFiles,
    PlanName,
    PlanReader,
    place_record,
    plans_at,
)

BASE = PlanName(7, "0123abcd")
LARGEST = str((1 << 64) - 1)


def test_a_name_and_an_offset_come_back_from_their_text() -> None:
    named = NamedPlan(PlanName.after(11), BASE)

    assert PlanName.parse(str(named.plan)) == named.plan
    assert named.plan.number == 12
    assert NamedPlan.of(named.offset("orders")) == named
    assert named.offset("orders", "opaque")["ids"] == "opaque"
    assert NamedPlan.of({"wallaroo": 1, "receiver": "orders", "streams": {}}) is None
    assert PlanName.after(11) != PlanName.after(11)


@pytest.mark.parametrize("text", ["", "7", "7-xyz", "-0123abcd", "7-0123abcd.changes", "../7-0123abcd"])
def test_a_text_that_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a plan"):
        PlanName.parse(text)


def test_a_chain_has_an_end() -> None:
    chain = Chain(NamedPlan(BASE, BASE))
    while not chain.full:
        chain = chain.then(PlanName.after(chain.named.plan.number), 1)
    assert chain.links == LINKS_AT_MOST
    assert chain.named.base == BASE

    few = Chain(NamedPlan(BASE, BASE)).then(PlanName.after(7), 4)
    assert not few.snapshot_is_due(8)
    assert few.snapshot_is_due(7)
    assert Chain(few.named, links=LINKS, changes=1).snapshot_is_due(1_000_000)


def test_a_snapshot_that_is_written_beside_shortens_the_chain() -> None:
    at = Chain(NamedPlan(BASE, BASE)).then(PlanName(8, "00000008"), 10)
    last = at.then(PlanName(9, "00000009"), 5)

    assert last.from_snapshot(at) == Chain(NamedPlan(last.named.plan, at.named.plan), 1, 5)


@pytest.fixture
def files(tmp_path: Path) -> PlanFiles:
    return PlanFiles(str(tmp_path / "checkpoint"), ".orders")


SNAPSHOT: dict[str, dict[str, Any]] = {"shop-1": {"1": 5, LARGEST: int(LARGEST)}, "": {"0": "e:0:1:2"}}


def test_files_give_back_every_reference_and_every_stream_that_was_forgotten(files: PlanFiles) -> None:
    changes: dict[str, dict[str, Any]] = {"shop-1": {"1": None, "2": 0}, "shöp": {"3": "e:1:1:1"}}
    child = PlanName.after(BASE.number)
    files.write_snapshot(BASE, SNAPSHOT)
    files.write_changes(child, BASE, changes)

    assert files.read_snapshot(BASE) == SNAPSHOT
    assert files.read_changes(child) == (BASE, changes, None)
    assert sorted(files.files()) == [(7, f"{BASE}.snapshot"), (8, f"{child}.changes")]


def test_many_streams_go_into_several_batches(files: PlanFiles) -> None:
    many = {f"shop-{n % 3}": {str(stream): stream for stream in range(20_000)} for n in range(3)}
    files.write_snapshot(BASE, VersionedReferences.of(many))
    assert files.read_snapshot(BASE) == many


def test_a_reader_follows_the_chain_and_reads_each_file_once(files: PlanFiles, monkeypatch: Any) -> None:
    files.write_snapshot(BASE, SNAPSHOT)
    chain = Chain(NamedPlan(BASE, BASE))
    expected = VersionedReferences.of(SNAPSHOT)
    for number in range(10):
        name = PlanName.after(chain.named.plan.number)
        files.write_changes(name, chain.named.plan, {"shop-1": {"1": number}})
        expected = expected.with_changes({"shop-1": {"1": number}})
        chain = chain.then(name, 1)
    read: list[PlanName] = []
    real = PlanFiles.read_changes
    monkeypatch.setattr(PlanFiles, "read_changes", lambda self, name: (read.append(name), real(self, name))[1])

    reader = PlanReader()
    references, found = reader.read(chain.named, files)
    assert references == expected
    assert found == chain
    name = PlanName.after(chain.named.plan.number)
    files.write_changes(name, chain.named.plan, {"": {"0": None}})
    later, _ = reader.read(NamedPlan(name, BASE), files)

    assert later == {"shop-1": {"1": 9, LARGEST: int(LARGEST)}}
    assert later.changes_since(references) == {"": {"0": None}}
    assert len(read) == 11


def test_a_plan_that_is_missing_or_damaged_is_named_with_the_way_out(files: PlanFiles, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"{BASE}\.snapshot is missing.*restore the folder _wallaroo"):
        files.read_snapshot(BASE)
    files.write_snapshot(BASE, SNAPSHOT)
    path = next((tmp_path / "checkpoint").rglob("*.snapshot"))
    whole = path.read_bytes()
    for end in (0, 10, len(whole) // 2, len(whole) - 9):
        path.write_bytes(whole[:end])
        with pytest.raises(CheckpointError, match="is damaged"):
            files.read_snapshot(BASE)
    files.write_changes(BASE, PlanName(7, "ffffffff"), {})
    with pytest.raises(CheckpointError, match="is not older than itself"):
        files.read_changes(BASE)


def test_a_source_finds_the_plans_by_the_record_of_the_driver(tmp_path: Path) -> None:
    location = str(tmp_path / "check point")
    PlanFiles(location, "orders").write_snapshot(BASE, SNAPSHOT)
    found = plans_at(place_record(location), "orders")

    assert found is not None
    assert found.read_snapshot(BASE) == SNAPSHOT
    assert plans_at("", "orders") is None
    assert plans_at("no JSON", "orders") is None


def test_a_folder_of_the_same_name_on_another_machine_is_not_used(tmp_path: Path) -> None:
    record = place_record(str(tmp_path / "ours"))
    (tmp_path / "ours" / "_wallaroo" / "identity").write_text("another")

    assert plans_at(record, "orders") is None


def test_no_credentials_are_in_the_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from wallaroo_spark.sidecar import plan_files
    from wallaroo_spark.storage.locations import PortableLocation

    # The record has random hexadecimal digits too.
    secrets = {"access_key": "the-key", "secret_key": "the-word", "session_token": "the-token"}
    settings = {**secrets, "region": "eu-1"}
    monkeypatch.setattr(
        plan_files, "for_tasks", lambda location, spark: PortableLocation("s3://bucket/checkpoint", settings)
    )
    record = place_record(str(tmp_path))
    assert "eu-1" in record
    assert not any(secret in record for secret in secrets.values())
    monkeypatch.setattr(plan_files, "for_tasks", lambda location, spark: PortableLocation("s3://key:word@bucket/c"))
    assert place_record(str(tmp_path)) == ""
