"""A sink server's disk: readers see only committed rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.sinks.server.journal import TransactionState
from wallaroo_spark.sinks.server.output_directory import HIDDEN, OutputDirectory, checked_worker
from wallaroo_spark.steps import SinkStep, at_each


@contextmanager
def opened(folder: Path, **settings: int) -> Iterator[OutputDirectory]:
    store = OutputDirectory(folder, **settings)
    try:
        yield store
        store.transactions.validate()
    finally:
        store.close()


def prepare(
    store: OutputDirectory, transaction: str, rows: bytes, worker: str = "w-0", start: int | None = None
) -> str:
    part = store.begin(worker)
    for at in range(0, len(rows), 3):
        part.write([rows[at : at + 3]])
    start = store.transactions.offset(worker) if start is None else start
    return store.prepare(part, transaction, start, start + len(rows))


def shown(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != HIDDEN}


def parts(folder: Path) -> list[str]:
    return [path.name for path in (folder / HIDDEN).glob("*.part")]


def test_rows_are_shown_when_they_are_committed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert prepare(store, "t1", b"hello\n") == ""
        assert shown(tmp_path) == {}
        assert store.uncommitted("w-0") == ["t1"]

        store.decide("w-0", "t1", True)
        assert shown(tmp_path) == {"w-0.out": b"hello\n"}
        assert prepare(store, "t2", b"world\n") == ""
        store.decide("w-0", "t2", True)
        store.decide("w-0", "t2", True)

    assert shown(tmp_path) == {"w-0.out": b"hello\nworld\n"}
    assert parts(tmp_path) == []


def test_aborted_rows_are_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepare(store, "t1", b"hello\n")
        store.decide("w-0", "t1", False)
        store.decide("w-0", "t1", False)
        store.decide("w-0", "t1", True)
        assert store.uncommitted("w-0") == []

    assert (shown(tmp_path), parts(tmp_path)) == ({}, [])


def test_nobody_decides_for_another_worker(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepare(store, "t1", b"hello\n")
        store.decide("w-1", "t1", True)
        store.decide("v", "t1", False)

        assert store.uncommitted("w-0") == ["t1"]
        assert store.uncommitted("w-1") == []
    assert shown(tmp_path) == {}


def test_the_next_server_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepare(store, "t1", b"one\n")
        store.decide("w-0", "t1", True)
        prepare(store, "t2", b"two\n")
        store.begin("w-1").write([b"nobody asked for a vote"])
    with opened(tmp_path) as store:
        assert store.settle("w-0") == 4
        assert store.uncommitted("w-0") == ["t2"]
        store.decide("w-0", "t2", True)

    assert shown(tmp_path) == {"w-0.out": b"one\ntwo\n"}
    assert parts(tmp_path) == []


class Died(BaseException):
    """Stands for the end of the process."""


STEPS = [SinkStep.SERVER_DECIDED, SinkStep.SERVER_HALF_APPENDED, SinkStep.SERVER_APPENDED]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("forgets", [False, True], ids=["", "and the part is gone"])
def test_committed_rows_are_appended_once_after_a_death_at_any_step(
    tmp_path: Path, step: SinkStep, forgets: bool
) -> None:
    def die(at: object) -> None:
        if at is step:
            raise Died

    with opened(tmp_path) as store:
        prepare(store, "t1", b"one\n")
        store.decide("w-0", "t1", True)
        prepare(store, "t2", b"second\n")
        stop = at_each(die)
        try:
            with pytest.raises(Died):
                store.decide("w-0", "t2", True)
        finally:
            stop()
    if forgets and step is SinkStep.SERVER_APPENDED:
        for name in parts(tmp_path):
            (tmp_path / HIDDEN / name).unlink()
    with opened(tmp_path) as store:
        # At once, whether or not the worker ever comes back.
        assert shown(tmp_path) == {"w-0.out": b"one\nsecond\n"}
        assert store.uncommitted("w-0") == []
        assert store.settle("w-0") == 11

    assert shown(tmp_path) == {"w-0.out": b"one\nsecond\n"}
    assert parts(tmp_path) == []


def test_a_log_that_grows_is_written_again_and_says_the_same(tmp_path: Path) -> None:
    with opened(tmp_path, log_lines=10) as store:
        prepare(store, "kept", b"k", worker="w-7")
        for number in range(50):
            prepare(store, f"t{number}", b"x")
            store.decide("w-0", f"t{number}", number % 2 == 0)
    assert (tmp_path / HIDDEN / "log").read_bytes().count(b"\n") <= 12
    with opened(tmp_path) as store:
        assert store.uncommitted("w-7") == ["kept"]
        assert store.settle("w-0") == 25


@pytest.mark.parametrize(("start", "extra", "reason"), [(1, b"", "ends at 0"), (0, b"x", "6 bytes came")])
def test_ranges_that_differ_from_the_arrived_rows_get_a_vote_to_abort(
    tmp_path: Path, start: int, extra: bytes, reason: str
) -> None:
    with opened(tmp_path) as store:
        part = store.begin("w-0")
        part.write([b"hello" + extra])
        assert reason in store.prepare(part, "t", start, start + 5)
        assert store.uncommitted("w-0") == []
    assert parts(tmp_path) == []


def test_a_worker_has_one_transaction_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepare(store, "t1", b"left by a task that was killed\n")
        assert "t1 of w-0 waits for a decision" in prepare(store, "t2", b"hello\n")
        store.decide("w-0", "t1", False)
        assert prepare(store, "t2", b"hello\n") == ""


def test_an_output_that_somebody_else_wrote_to_is_found_out(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepare(store, "t1", b"hello\n")
        store.decide("w-0", "t1", True)
        (tmp_path / "w-0.out").write_bytes(b"hello\nand more")
        assert "14 bytes, and 6 of it are committed" in prepare(store, "t2", b"x")
    with pytest.raises(SinkError, match=r"14 bytes, and 6 of it are committed .* restore it"):
        OutputDirectory(tmp_path)
    (tmp_path / "w-0.out").unlink()
    with pytest.raises(SinkError, match="0 bytes, and 6 of it are committed"):
        OutputDirectory(tmp_path)


def test_a_directory_is_used_by_one_server(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(SinkError, match="in use by another sink server"):
        OutputDirectory(tmp_path)
    with opened(tmp_path):
        pass


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(SinkError, match=r"file/x cannot be used: .*; name a directory"):
        OutputDirectory(tmp_path / "file" / "x")


class Full:
    """A disk that is full from some call of fsync on, until it is not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
        self.calls = 0
        self.after = after
        self.full = True
        self._real = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        if self.full and self.calls > self.after:
            raise OSError(28, "No space left on device")
        self._real(descriptor)


@pytest.mark.parametrize("after", range(3), ids=["the part", "its name", "the log"])
def test_a_full_disk_is_a_vote_to_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    with opened(tmp_path) as store:
        disk = Full(monkeypatch, after)
        assert "No space left on device" in prepare(store, "t1", b"hello\n")
        assert store.uncommitted("w-0") == []
        disk.full = False
        assert prepare(store, "t1", b"hello\n") == ""
        store.decide("w-0", "t1", True)

    assert shown(tmp_path) == {"w-0.out": b"hello\n"}


def test_rows_that_cannot_be_written_are_not_kept_in_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        part = store.begin("w-0")
        part.path = tmp_path / "missing" / "x.part"
        part.write([b"hello"])
        part.write([b"hello"])
        assert "x.part cannot be written: No such file" in store.prepare(part, "t", 0, 10)


@pytest.mark.parametrize("after", range(3), ids=["the decision", "the output", "its name"])
def test_a_decision_that_a_full_disk_stops_is_carried_out_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with opened(tmp_path) as store:
        prepare(store, "t1", b"hello\n")
        disk = Full(monkeypatch, after)
        with pytest.raises(SinkError, match=r"No space left on device; make room"):
            store.decide("w-0", "t1", True)
        state = store.transactions.state("t1")
        assert state is (TransactionState.COMMITTED if after else TransactionState.PREPARED)
        if after:
            assert "not in its output yet" in prepare(store, "t2", b"x")
        disk.full = False
        if after:
            assert store.settle("w-0") == 6
        else:
            store.decide("w-0", "t1", True)
        assert shown(tmp_path) == {"w-0.out": b"hello\n"}


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "-x", "a b", "x" * 129])
def test_a_worker_that_cannot_name_a_file_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="use 1 to 128 of the characters"):
        checked_worker(name)
