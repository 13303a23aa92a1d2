"""Files as sources: lines and framed records, from any reference, once or while they grow."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wallaroo_spark.connector import Framed, Lines, Record
from wallaroo_spark.connector.sources import files as files_module
from wallaroo_spark.errors import ConfigurationError, ReplayError

POLL = 0.001
HYPOTHESIS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def once(source: Lines | Framed, after: int | None = None) -> list[Record]:
    records = source.read(after)
    assert not isinstance(records, AsyncIterator)
    return list(records)


def following(source: Lines | Framed, after: int | None = None) -> AsyncIterator[Record]:
    records = source.read(after)
    assert isinstance(records, AsyncIterator)
    return records


def put(path: Path, content: bytes) -> None:
    """Write a file, from asynchronous tests too: a few bytes hold nothing up."""
    path.write_bytes(content)


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.txt"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that records lie across chunks."""
    monkeypatch.setattr(files_module, "CHUNK_BYTES", 7)


@pytest.mark.usefixtures("small_chunks")
class TestLines:
    @HYPOTHESIS
    @given(st.lists(st.binary(max_size=20)).map(b"\n".join), st.data())
    def test_lines_give_the_file_back_and_resume_from_the_reference_of_any(
        self, path: Path, content: bytes, data: st.DataObject
    ) -> None:
        path.write_bytes(content)
        records = once(Lines(path))
        assert b"".join(record.payload + b"\n" for record in records) in (content, content + b"\n")
        assert [record.id for record in records] == sorted({record.id or 0 for record in records})
        for record in records:
            assert record.id is not None
            assert content[: record.id].endswith(record.payload + b"\n") or record.id == len(content)
        if records:
            at = data.draw(st.integers(0, len(records) - 1))
            assert once(Lines(path), records[at].id) == records[at + 1 :]

    def test_a_carriage_return_stays_and_bytes_need_not_be_text(self, path: Path) -> None:
        path.write_bytes(b"a\r\n\xff\x00\n\nend")
        assert once(Lines(path)) == [Record(3, b"a\r"), Record(6, b"\xff\x00"), Record(7, b""), Record(10, b"end")]

    def test_the_name_is_the_path_as_it_was_given(self, path: Path) -> None:
        assert Lines("some/../orders.txt").name == "some/../orders.txt"
        assert Lines(path, name="orders").name == "orders"

    def test_a_file_that_is_not_there_is_named(self, path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"orders\.txt cannot be read: No such file"):
            once(Lines(path))

    def test_a_file_shorter_than_the_reference_was_truncated(self, path: Path) -> None:
        path.write_bytes(b"a\nb\n")
        with pytest.raises(ReplayError, match="has 4 bytes, and was read to offset 10: it was truncated"):
            once(Lines(path), 10)

    def test_a_reference_within_a_line_is_not_one_of_this_file(self, path: Path) -> None:
        path.write_bytes(b"abc\ndef\n")
        with pytest.raises(ReplayError, match="the committed reference 2 is not the end of a line"):
            once(Lines(path), 2)

    def test_a_last_line_without_newline_can_be_the_reference_as_long_as_nothing_was_added(self, path: Path) -> None:
        path.write_bytes(b"abc")
        assert once(Lines(path), 3) == []
        path.write_bytes(b"abcdef\n")
        with pytest.raises(ReplayError, match="reference 3 is not the end of a line"):
            once(Lines(path), 3)

    def test_a_line_without_end_is_given_up(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files_module, "LONGEST_RECORD", 30)
        path.write_bytes(b"ok\n" + b"x" * 100)
        with pytest.raises(ConfigurationError, match="more than 30 bytes at offset 3"):
            once(Lines(path))


@pytest.mark.usefixtures("small_chunks")
class TestFramed:
    @HYPOTHESIS
    @given(st.lists(st.binary(max_size=30), max_size=20), st.data())
    def test_records_come_back_and_resume_from_the_reference_of_any(
        self, path: Path, payloads: list[bytes], data: st.DataObject
    ) -> None:
        path.write_bytes(framed(*payloads))
        records = once(Framed(path))
        assert [record.payload for record in records] == payloads
        assert not records or records[-1].id == path.stat().st_size
        if records:
            at = data.draw(st.integers(0, len(records) - 1))
            assert once(Framed(path), records[at].id) == records[at + 1 :]

    @pytest.mark.parametrize("missing", [1, 3, 6])
    def test_a_record_cut_short_by_the_end_of_the_file_is_an_error(self, path: Path, missing: int) -> None:
        path.write_bytes(framed(b"one", b"two")[:-missing])
        with pytest.raises(ReplayError, match="ends within the record at offset 7"):
            once(Framed(path))

    def test_a_length_beyond_reason_is_named_with_its_place(self, path: Path) -> None:
        path.write_bytes(framed(b"one") + b"this is text, and no length")
        with pytest.raises(ConfigurationError, match="announces a record of 1952999795 bytes at offset 7"):
            once(Framed(path))

    async def test_a_growing_file_is_waited_for(self, path: Path) -> None:
        put(path, framed(b"one")[:-1])
        records = following(Framed(path, follow=True, poll=POLL))
        waiting = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0)
        with path.open("ab") as file:
            file.write(b"e" + framed(b"two"))
        assert [await waiting, await anext(records)] == [Record(7, b"one"), Record(14, b"two")]


class TestFollowing:
    async def test_lines_come_once_their_newline_has_come(self, path: Path) -> None:
        put(path, b"one\ntw")
        records = following(Lines(path, follow=True, poll=POLL))
        assert await anext(records) == Record(4, b"one")
        waiting = asyncio.ensure_future(anext(records))
        with path.open("ab") as file:
            for piece in (b"o", b"\nthr", b"ee\n"):
                file.write(piece)
                file.flush()
                # The source looks between two pieces. Nothing announces a look, and without one the lines are the same.
                await asyncio.sleep(2 * POLL)
        assert [await waiting, await anext(records)] == [Record(8, b"two"), Record(14, b"three")]

    async def test_it_resumes_behind_a_reference(self, path: Path) -> None:
        put(path, b"one\ntwo\n")
        assert await anext(following(Lines(path, follow=True, poll=POLL), 4)) == Record(8, b"two")

    async def test_a_truncated_file_ends_it_with_a_clear_error(self, path: Path) -> None:
        put(path, b"one\ntwo\n")
        records = following(Lines(path, follow=True, poll=POLL), 8)
        waiting = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0)
        os.truncate(path, 3)
        with pytest.raises(ReplayError, match="has 3 bytes, and was read to offset 8"):
            await waiting

    @pytest.mark.parametrize("replacement", [b"new\n", None])
    async def test_a_rotated_file_is_read_to_its_end_and_then_ends_with_a_clear_error(
        self, path: Path, replacement: bytes | None
    ) -> None:
        put(path, b"one\n")
        records = following(Lines(path, follow=True, poll=POLL))
        assert await anext(records) == Record(4, b"one")
        with path.open("ab") as file:
            os.rename(path, path.with_suffix(".1"))
            if replacement is not None:
                put(path, replacement)
            file.write(b"two\n")
        assert await anext(records) == Record(8, b"two")
        with pytest.raises(ReplayError, match="moved, deleted or replaced while it was followed, and read to offset 8"):
            await anext(records)
