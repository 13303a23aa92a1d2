"""The log on the disk: whole records, whatever cut it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import steady
from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.server.journal import Journal, decode_log, encode_record

records = st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3), max_size=6)


@steady
@given(records, st.data())
def test_a_log_cut_anywhere_has_all_records_before_the_cut(
    written: list[dict[str, object]], data: st.DataObject
) -> None:
    lines = [encode_record(record) for record in written]
    wire = b"".join(lines)
    cut = data.draw(st.integers(0, len(wire)))
    garbage = data.draw(st.binary(max_size=5))

    found, end = decode_log(wire[:cut] + garbage.replace(b"\n", b" "), "log")

    whole = [record for number, record in enumerate(written) if sum(map(len, lines[: number + 1])) <= cut]
    assert found == whole
    assert end == sum(map(len, lines[: len(whole)]))


def test_a_log_that_goes_on_behind_a_damaged_record_is_refused() -> None:
    wire = bytearray(b"".join(encode_record({"n": n}) for n in range(3)))
    wire[3] ^= 1

    with pytest.raises(SinkError, match="log is damaged at byte 0, and goes on behind it; restore it"):
        decode_log(bytes(wire), "log")


def test_appended_records_are_read_by_the_next_process_and_a_torn_end_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    journal = Journal(path)
    assert journal.read() == []
    journal.append({"n": 1})
    journal.append({"n": 2}, synced=False)
    journal.close()
    with path.open("ab") as file:
        file.write(encode_record({"n": 3})[:-4])

    journal = Journal(path)
    assert journal.read() == [{"n": 1}, {"n": 2}]
    journal.append({"n": 4})
    journal.close()
    assert Journal(path).read() == [{"n": 1}, {"n": 2}, {"n": 4}]


def test_a_log_that_is_written_again_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log")
    for number in range(5):
        journal.append({"n": number})
    journal.rewrite([{"n": 9}])
    assert journal.lines == 1
    journal.append({"n": 10})
    journal.close()

    assert Journal(tmp_path / "log").read() == [{"n": 9}, {"n": 10}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_a_failed_append_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "log")
    journal.append({"n": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            journal.append({"n": 2})
    journal.append({"n": 3})

    assert Journal(tmp_path / "log").read() == [{"n": 1}, {"n": 3}]
