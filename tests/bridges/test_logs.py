"""Where a bridge begins in a log, with a log in memory and a real worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from tests.bridges.test_streams import QUICK, feeding, values
from tests.waiting import until
from wallaroo_spark.bridges.bridge import LogStream, SourceLog, reference_of
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ReplayError
from wallaroo_spark.testing import FakeWorker


class Numbers(LogStream):
    """A log of numbers, of which the oldest may be deleted."""

    def __init__(self, begin: str, end: int, identity: bytes = b"some") -> None:
        super().__init__("numbers")
        self.retry = QUICK
        self.begin, self.first, self.end, self.identity = begin, 0, end, identity
        self.readings = 0

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        log = SourceLog("the log", self.identity, self.first, self.end)
        at = self.start(log, after, begin=self.begin, lost="refuse")
        self.readings += 1
        while True:
            yield [Record(log.reference(number), b"%d" % number) for number in range(at, self.end)]
            at = self.end
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("before", [0, 5])
async def test_latest_keeps_its_beginning_when_a_worker_is_lost_before_the_first_commit(before: int) -> None:
    log = Numbers("latest", before)
    with FakeWorker() as worker:
        async with feeding(worker, log):
            await until(lambda: log.readings)
            log.end += 2
            await asyncio.to_thread(worker.read, 2)
            await asyncio.to_thread(worker.crash)
            log.end += 1
            await asyncio.to_thread(worker.commit, 2)
            await asyncio.to_thread(worker.commit, 1)

        assert values(worker) == [b"%d" % number for number in range(before, before + 3)]


def test_what_is_deleted_in_front_of_the_first_commit_is_noticed() -> None:
    log = Numbers("earliest", 5)

    def start(after: int | None = None) -> int:
        found = SourceLog("the log", log.identity, log.first, log.end)
        return log.start(found, log.began if after is None else after, begin="earliest", lost="refuse")

    # A receiver that has gone back to its beginning is sent everything, also what was committed when this one began.
    assert (start(reference_of(2, b"some")), start(), start()) == (3, 0, 0)
    log.first = 2
    with pytest.raises(ReplayError, match="the log begins at position 2, and is committed up to -1"):
        start()
    log.identity = b"another"
    with pytest.raises(ReplayError, match="the log was deleted and made again"):
        start()
