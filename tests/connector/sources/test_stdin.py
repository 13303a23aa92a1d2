"""Standard input as a source."""

from __future__ import annotations

import asyncio
import io
import os

import pytest

from wallaroo_spark.connector import Record, Stdin
from wallaroo_spark.connector.sources import records as stdin_module
from wallaroo_spark.errors import ConfigurationError


class TestStdin:
    async def test_lines_come_without_their_newlines_and_without_references(self) -> None:
        source = Stdin(io.BytesIO(b"one\r\n\ntwo"))
        assert [record async for record in source.read(None)] == [
            Record(None, b"one\r"),
            Record(None, b""),
            Record(None, b"two"),
        ]
        assert not source.replayable

    async def test_no_more_lines_are_read_ahead_than_allowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stdin_module, "READ_BYTES", 2)
        file = io.BytesIO(b"x\n" * 1000)
        records = Stdin(file, most_waiting=3).read(None)
        for taken in range(1, 500):
            await anext(records)
            # Those that wait, the one taken, and one that the reader has in its hand.
            assert file.tell() <= 2 * (taken + 3 + 1)
        assert len([record async for record in records]) == 501

    async def test_a_reader_that_stops_does_not_wait_for_the_next_line(self) -> None:
        receiving, sending = os.pipe()
        with os.fdopen(receiving, "rb") as file, os.fdopen(sending, "wb", buffering=0) as pipe:
            pipe.write(b"one\n")
            records = Stdin(file).read(None)
            assert await anext(records) == Record(None, b"one")
            waiting = asyncio.ensure_future(anext(records))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()

    async def test_a_line_without_end_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stdin_module, "LONGEST_RECORD", 30)
        with pytest.raises(ConfigurationError, match="more than 30 bytes"):
            await anext(Stdin(io.BytesIO(b"x" * 100)).read(None))

    async def test_a_file_that_cannot_be_read_is_an_error(self) -> None:
        file = io.BytesIO()
        file.close()
        with pytest.raises(ValueError, match="closed file"):
            await anext(Stdin(file).read(None))
