"""Feeding sources: every record once, whatever happens to the connection, and fairly."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.connector.conftest import REVISIONS
from tests.connector.scripted_worker import ScriptedWorker
from tests.connector.support import connector, lose
from tests.waiting import SECONDS
from wallaroo_spark.connector import FeedProgress, FeedResult, Lines, Record, Records, Stdin, record
from wallaroo_spark.errors import LocalProtocolError, RemoteProtocolError, ReplayError


def numbers(count: int, name: str = "numbers") -> Records:
    return Records(name, lambda: ((number, b"%d" % number) for number in range(1, count + 1)))


class TestFeeding:
    async def test_the_lines_of_a_file_arrive_byte_for_byte(self, tmp_path: Path, revision: str) -> None:
        path = tmp_path / "orders.bin"
        content = b"\r\n".join(bytes([number % 256]) * (number % 50) for number in range(3000)) + b"\xffno newline"
        path.write_bytes(content)
        async with ScriptedWorker(credits=100) as worker, connector(worker, revision=revision) as sender:
            result = await sender.feed(Lines(path))
            log = worker.named(str(path))
            assert b"\n".join(log.payloads) == content
            assert result == FeedResult(len(log.payloads), sum(map(len, log.payloads)), len(content))
            await worker.until(lambda: log.ended == 1)
        assert worker.errors == []

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        cuts=st.lists(st.integers(1, 8000), max_size=6),
        credits=st.integers(1, 60),
        name=st.sampled_from(REVISIONS),
        committing=st.booleans(),
    )
    def test_a_connection_may_be_cut_after_any_byte(
        self, cuts: list[int], credits: int, name: str, committing: bool
    ) -> None:
        async def run() -> None:
            worker = ScriptedWorker(cut_after=cuts, credits=credits, auto_commit=committing)
            async with asyncio.timeout(SECONDS), worker, connector(worker, revision=name) as sender:
                feeding = asyncio.gather(sender.feed(numbers(150, "a")), sender.feed(numbers(100, "b")))
                if not committing:
                    await worker.until(lambda: worker.named("a").last == 150 and worker.named("b").last == 100)
                    worker.commit()
                results = await feeding
                assert worker.named("a").ids == list(range(1, 151))
                assert worker.named("b").ids == list(range(1, 101))
                assert [result.messages for result in results] == [150, 100]
            assert worker.errors == []

        asyncio.run(run())

    async def test_committed_records_are_not_read_again(self) -> None:
        afters: list[int | None] = []

        class Watched(Records):
            def read(self, after: int | None) -> Iterator[Record]:
                afters.append(after)
                records = super().read(after)
                assert isinstance(records, Iterator)
                return records

        source = Watched("a", lambda: ((number, b"x") for number in range(1, 11)))
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            feeding = asyncio.create_task(sender.feed(source))
            await worker.until(lambda: worker.only.last == 10)
            worker.only.committed = 4
            await lose(worker)
            await worker.until(lambda: worker.only.last == 10)
            worker.commit()
            assert await feeding == FeedResult(10, 10, 10)
            assert await sender.feed(source) == FeedResult(0, 0, 10)
        assert afters == [None, 4, 10]

    async def test_nothing_is_kept_for_sending_again(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker, max_unacknowledged=1) as sender:
            feeding = asyncio.create_task(sender.feed(numbers(500)))
            await worker.until(lambda: worker.only.last == 500)
            assert sender.unacknowledged == 0
            worker.commit()
            assert (await feeding).messages == 500

    async def test_after_a_nack_the_source_is_read_again_even_from_before_the_acknowledged_reference(self) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision="draft-le") as sender:
            feeding = asyncio.create_task(sender.feed(numbers(20)))
            await worker.until(lambda: worker.only.last == 20)
            worker.only.accepted = worker.only.accepted[:15]
            worker.commit()
            (stream_id,) = worker.streams
            worker.session.nack(stream_id, 5)
            await worker.until(lambda: worker.only.last == 20)
            worker.commit()
            assert (await feeding).acknowledged == 20
            assert worker.only.ids == list(range(1, 21))

    async def test_a_source_that_waits_for_more_is_read_again_all_the_same(self, tmp_path: Path) -> None:
        path = tmp_path / "growing.txt"
        path.write_bytes(b"one\ntwo\n")
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            feeding = asyncio.create_task(sender.feed(Lines(path, follow=True, poll=0.001)))
            await worker.until(lambda: worker.only.last == 8)
            await lose(worker)
            await worker.until(lambda: worker.only.last == 8)
            with path.open("ab") as file:
                file.write(b"three\n")
            await worker.until(lambda: worker.only.last == 14)
            assert worker.only.payloads == [b"one", b"two", b"three"]
            feeding.cancel()
            await asyncio.wait([feeding])
            # The end of the block does not wait for a feed that was given up.
            await sender.drain()

    async def test_progress_counts_each_record_once_and_ends_with_everything_acknowledged(self) -> None:
        seen: list[FeedProgress] = []
        worker = ScriptedWorker(cut_after=[3000, 6000], credits=50)
        async with worker, connector(worker) as sender:
            await sender.feed(numbers(600), progress=seen.append)
        assert seen[-1] == FeedProgress("numbers", 600, sum(len(str(n)) for n in range(1, 601)), 600, 600)
        assert [progress.messages for progress in seen] == sorted(progress.messages for progress in seen)
        assert len(seen) > 3

    async def test_a_feed_that_is_cancelled_has_counted_everything_that_was_sent(self) -> None:
        seen: list[FeedProgress] = []

        class Waiting(Records):
            async def read(self, after: int | None) -> AsyncIterator[Record]:
                for number in (1, 2, 3):
                    yield Record(number, b"x")
                await asyncio.Event().wait()

        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            feeding = asyncio.create_task(sender.feed(Waiting("waiting", lambda: ()), progress=seen.append))
            await worker.until(lambda: worker.only.last == 3)
            feeding.cancel()
            await asyncio.wait({feeding})
        assert feeding.cancelled()
        assert (seen[-1].messages, seen[-1].sent, seen[-1].acknowledged) == (3, 3, None)

    async def test_the_lines_of_a_large_file_are_counted_once_whatever_was_sent_again(
        self, tmp_path: Path, revision: str
    ) -> None:
        path = tmp_path / "orders.txt"
        path.write_bytes(b"".join(b"%d\n" % number for number in range(20_000)))
        worker = ScriptedWorker(cut_after=[20_000, 400_000, 100_000], credits=3000)
        async with worker, connector(worker, revision=revision) as sender:
            result = await sender.feed(Lines(path, name="a"))
            assert (result.messages, result.acknowledged) == (20_000, path.stat().st_size)
            assert worker.only.payloads == [b"%d" % number for number in range(20_000)]
        assert worker.errors == []

    async def test_feeds_take_turns(self) -> None:
        async with ScriptedWorker(credits=5) as worker, connector(worker) as sender:
            feeding = asyncio.gather(*(sender.feed(numbers(500, name)) for name in "abcd"))
            await worker.until(lambda: any(worker.named(name).last == 500 for name in "abcd"))
            least = min(worker.named(name).last or 0 for name in "abcd")
            await feeding
        assert least > 250, "one feed was kept from sending"

    async def test_a_feed_that_stops_to_read_goes_on_with_its_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 0.0
        monkeypatch.setattr(record, "time", SimpleNamespace(monotonic=lambda: now))

        def read(name: str) -> Iterator[Record]:
            nonlocal now
            for number in range(1, 501):
                if name == "d" and number in (20, 60, 100):
                    # Longer than records that were read wait for those behind them.
                    now += 2 * record.GROUP_SECONDS
                yield Record(number, b"x")

        async with ScriptedWorker(credits=5) as worker, connector(worker) as sender:
            sources = (Records(name, partial(read, name)) for name in "abcd")
            feeding = asyncio.gather(*(sender.feed(source) for source in sources))
            await worker.until(lambda: any(worker.named(name).last == 500 for name in "abcd"))
            least = min(worker.named(name).last or 0 for name in "abcd")
            await feeding
        assert least > 250, "another feed's turn went before what was left of this one's"

    async def test_a_stream_may_stay_open_and_be_fed_again(self, revision: str) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision=revision) as sender:
            assert (await sender.feed(numbers(3, "a"), end=False)).acknowledged == 3
            assert await sender.feed(numbers(5, "a")) == FeedResult(2, 2, 5)
            assert worker.only.ids == [1, 2, 3, 4, 5]
        assert worker.errors == []

    async def test_opaque_references_are_fed_and_resumed(self) -> None:
        ids = [30, 10, 20, 50, 40]
        source = Records("a", lambda: [(number, b"x") for number in ids], opaque=True)
        worker = ScriptedWorker(auto_commit=False, increasing=False)
        async with worker, connector(worker, message_ids="opaque") as sender:
            feeding = asyncio.create_task(sender.feed(source))
            await worker.until(lambda: worker.only.last == 40)
            worker.only.committed, worker.only.accepted, worker.keeps_buffer = 10, worker.only.accepted[:2], True
            await lose(worker)
            await worker.until(lambda: worker.only.last == 40)
            worker.commit()
            assert (await feeding).messages == 5
            assert worker.only.ids == ids


class TestErrors:
    async def test_a_feed_that_was_given_up_may_begin_again_in_the_same_session(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            feeding = asyncio.create_task(sender.feed(numbers(10, "a"), end=False))
            await worker.until(lambda: worker.only.last == 10)
            feeding.cancel()
            await asyncio.wait([feeding])
            again = asyncio.create_task(sender.feed(numbers(12, "a")))
            await worker.until(lambda: worker.only.last == 12)
            worker.commit()
            assert (await again).messages == 12
            assert (worker.only.ids, worker.only.duplicates) == (list(range(1, 13)), 10)

    async def test_with_opaque_ids_it_may_not_because_it_would_repeat(self) -> None:
        worker = ScriptedWorker(auto_commit=False, increasing=False)
        async with worker, connector(worker, message_ids="opaque") as sender:
            source = Records("a", lambda: [(3, b"x"), (1, b"y")], opaque=True)
            feeding = asyncio.create_task(sender.feed(source))
            await worker.until(lambda: worker.only.last == 1)
            feeding.cancel()
            await asyncio.wait([feeding])
            with pytest.raises(LocalProtocolError, match="given up in this session with messages unacknowledged"):
                await sender.feed(source)

    async def test_an_error_of_a_source_is_raised_and_the_connector_stays_usable(self) -> None:
        def broken() -> Iterator[tuple[int, bytes]]:
            yield 1, b"x"
            raise OSError("the disk is on fire")

        async with ScriptedWorker() as worker, connector(worker) as sender:
            reports: list[FeedProgress] = []
            with pytest.raises(OSError, match="on fire"):
                await sender.feed(Records("a", broken), progress=reports.append)
            assert reports[-1].messages == 1
            assert (await sender.feed(numbers(3, "b"))).messages == 3

    async def test_a_source_without_the_requested_records_raises(self, tmp_path: Path) -> None:
        path = tmp_path / "orders.txt"
        path.write_bytes(b"one\ntwo\n")
        async with ScriptedWorker() as worker, connector(worker) as sender:
            await sender.feed(Lines(path))
            path.write_bytes(b"o\n")
            with pytest.raises(ReplayError, match="truncated or replaced"):
                await sender.feed(Lines(path))

    @pytest.mark.parametrize("ids", [(2, 1), (1, 1)])
    async def test_references_that_do_not_increase_are_refused(self, ids: tuple[int, int]) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            with pytest.raises(LocalProtocolError, match="is not above"):
                await sender.feed(Records("a", lambda: [(number, b"x") for number in ids]))

    @pytest.mark.parametrize(("size", "complaint"), [(2000, "makes a frame of"), (-1, "a payload is bytes")])
    async def test_an_invalid_record_is_named_and_the_records_before_it_are_sent(
        self, size: int, complaint: str
    ) -> None:
        odd: Any = b"x" * size if size > 0 else "text"
        async with ScriptedWorker() as worker, connector(worker, max_frame_bytes=1024) as sender:
            source = Records("a", lambda: [(5, b"x"), (6, b"x"), (7, odd), (8, b"x")])
            with pytest.raises(LocalProtocolError, match=complaint) as caught:
                await sender.feed(source)
            assert size < 0 or "item 2 of source 'a', id 7" in caught.value.message
            await worker.until(lambda: worker.only.ids == [5, 6])

    async def test_the_error_that_ends_the_connector_ends_its_feeds(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            feeding = asyncio.gather(
                sender.feed(numbers(10, "a")), sender.feed(numbers(10_000, "b")), return_exceptions=True
            )
            await worker.until(lambda: worker.named("a").last == 10)
            worker.session.write(worker.session.session.error("go away"))
            outcomes = await feeding
        assert all(isinstance(outcome, RemoteProtocolError) for outcome in outcomes), outcomes

    async def test_an_error_of_a_progress_callback_ends_only_its_feed(self) -> None:
        def refuse(progress: FeedProgress) -> None:
            raise RuntimeError(f"no more after {progress.name}")

        async with ScriptedWorker() as worker, connector(worker) as sender:
            with pytest.raises(RuntimeError, match="no more after a"):
                await sender.feed(numbers(10, "a"), progress=refuse)
            assert (await sender.feed(numbers(3, "b"))).messages == 3


class TestStandardInput:
    @pytest.mark.parametrize("name", ["draft-le", "draft-be"])
    async def test_its_lines_are_ephemeral_messages(self, name: str) -> None:
        worker = ScriptedWorker(auto_commit=False, keeps_buffer=True)
        async with worker, connector(worker, revision=name) as sender:
            result = await sender.feed(Stdin(io.BytesIO(b"one\ntwo\n")))
        assert (result.messages, result.acknowledged) == (2, None)
        await worker.until(lambda: worker.only.ended == 1)
        assert worker.only.payloads == [b"one", b"two"]

    async def test_without_flags_its_lines_are_kept_until_they_are_acknowledged(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker, revision="v3") as sender:
            feeding = asyncio.create_task(sender.feed(Stdin(io.BytesIO(b"one\ntwo\n"))))
            await worker.until(lambda: worker.only.payloads == [b"one", b"two"])
            await lose(worker)
            await worker.until(lambda: worker.only.payloads == [b"one", b"two"])
            worker.commit()
            assert await feeding == FeedResult(2, 6, 2)


def test_a_source_is_anything_that_can_be_read_behind_a_reference() -> None:
    from wallaroo_spark.connector import Framed, Source

    sources: list[Callable[[], Source]] = [
        lambda: Lines("a"),
        lambda: Framed("a"),
        lambda: numbers(1),
        lambda: Stdin(io.BytesIO()),
    ]
    assert [make().replayable for make in sources] == [True, True, True, False]
