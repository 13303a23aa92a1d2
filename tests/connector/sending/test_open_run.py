"""Messages sent one by one that are recorded together: the same as if each were recorded by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.connector.conftest import REVISIONS
from tests.connector.scripted_worker import ScriptedWorker, spin
from tests.connector.support import connector, lose, send_all
from tests.waiting import SECONDS
from wallaroo_spark.connector import Connector, Stream
from wallaroo_spark.connector.sending.send_batches import OpenRun
from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import REVISIONS as BY_NAME
from wallaroo_spark.protocol import U64_MAX, V3, Flags, Message, Revision

STREAM = 7
FRAMES = st.lists(
    st.tuples(
        st.binary(max_size=50),
        st.none() | st.integers(1, 2**40),
        st.none() | st.integers(0, 2**63 - 1),
        st.none() | st.binary(max_size=9),
    ),
    max_size=12,
)


def opened(revision: Revision = V3, flags: int = 0, increasing: bool = True, **changed: int) -> OpenRun:
    run = OpenRun(revision, STREAM, flags, increasing=increasing)
    run.open(**{"floor": 10, "following": 11, "messages": 100, "room": 10_000, "longest": 1000, **changed})
    return run


class TestRun:
    @given(fields=FRAMES, name=st.sampled_from(REVISIONS), ephemeral=st.booleans())
    def test_the_frames_are_those_of_single_messages(self, fields: list[Any], name: str, ephemeral: bool) -> None:
        revision = BY_NAME[name]
        flags = Flags.EPHEMERAL if ephemeral and name != "v3" else Flags.NONE
        run, expected = opened(revision, int(flags)), []
        for payload, step, event_time, key in fields:
            wanted = None if step is None else run.last + step
            given = None if name == "draft-le" else key
            if event_time is None and given is None:
                message_id = run.add(payload, wanted)
            else:
                message_id = run.add_any(payload, wanted, 0, event_time, given)
            assert message_id is not None
            expected.append(Message(STREAM, message_id, payload, flags, event_time, given))
        taken = run.close()
        if not expected:
            assert taken is None
            return
        assert taken is not None
        assert list(taken.ids) == [message.message_id for message in expected]
        assert taken.data == b"".join(revision.encode(message) for message in expected)

    @pytest.mark.parametrize(
        ("changed", "payload", "wanted"),
        [
            ({}, b"x", 10),
            ({}, b"x", -1),
            ({}, b"x", U64_MAX + 1),
            ({}, b"x" * 1001, None),
            ({"room": 40}, b"x" * 40, None),
            ({"messages": 0}, b"x", None),
            ({"increasing": False}, b"x", 50),
        ],
    )
    def test_a_message_that_needs_a_closer_look_changes_nothing(
        self, changed: dict[str, Any], payload: bytes, wanted: int | None
    ) -> None:
        run = opened(**changed)
        assert run.add(payload, wanted) is None
        if wanted is None or 0 <= wanted <= U64_MAX:
            assert run.add_any(payload, wanted, 0, 5, None) is None
        assert (run.count, run.close()) == (0, None)

    def test_a_value_that_no_frame_carries_raises_and_changes_nothing(self) -> None:
        run = opened()
        with pytest.raises(LocalProtocolError, match="v3 messages have no flags"):
            run.add_any(b"x", None, int(Flags.UNSTABLE_REFERENCE), None, None)
        with pytest.raises(LocalProtocolError, match="event time is noon"):
            run.add_any(b"x", None, 0, "noon", None)  # type: ignore[arg-type]  # refused
        assert (run.count, run.add(b"x", None)) == (0, 11)

    def test_a_closed_run_takes_nothing(self) -> None:
        run = opened()
        assert run.add(b"x", None) == 11
        assert run.close() is not None
        assert (run.add(b"x", None), run.add_any(b"x", None, 0, 5, None)) == (None, None)

    def test_ids_below_the_committed_ones_do_not_lower_the_numbering(self) -> None:
        run = opened(floor=3, following=21)
        assert [run.add(b"x", wanted) for wanted in (4, 5, None, 22, None)] == [4, 5, 21, 22, 23]


def runs(sender: Connector) -> int:
    """How many runs the streams of a connector keep."""
    return sum(len(stream.messages._sent) for stream in sender._streams)  # type: ignore[attr-defined]  # it resends


class TestStream:
    async def test_messages_sent_one_by_one_are_recorded_together(self, revision: str) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await send_all(stream, 200)
            assert (stream.last, stream.unacknowledged, sender.unacknowledged) == (200, 200, 200)
            assert runs(sender) == 2, "the first one, and the messages behind it"
            await worker.until(lambda: worker.only.last == 200)
            worker.commit()
            await sender.drain()
        assert worker.only.ids == list(range(1, 201))
        assert worker.errors == []

    async def test_streams_in_turn_keep_the_order_of_each(self, revision: str) -> None:
        async with ScriptedWorker() as worker, connector(worker, revision=revision) as sender:
            streams = [await sender.open(name) for name in "ab"]
            for number in range(50):
                for stream in streams:
                    await stream.send(b"%d" % number)
                    await stream.send(b"%d" % number, event_time=number)
            await sender.drain()
            for name in "ab":
                assert worker.named(name).payloads == [b"%d" % (number // 2) for number in range(100)]
        assert worker.errors == []

    async def test_an_acknowledgement_finds_the_messages_that_were_just_sent(self) -> None:
        async with ScriptedWorker(auto_commit=False) as worker, connector(worker) as sender:
            stream = await sender.open("a")
            await send_all(stream, 5)
            await worker.until(lambda: worker.only.last == 5)
            worker.commit()
            await spin(lambda: stream.acknowledged == 5)
            await send_all(stream, 5)
            assert (stream.unacknowledged, sender._state.budget.held > 0) == (5, True)
            await worker.until(lambda: worker.only.last == 10)
            worker.commit()
            await sender.drain()
            assert sender._state.budget.held == 0

    async def test_a_run_does_not_outlive_its_session(self, revision: str) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision=revision) as sender:
            stream = await sender.open("a")
            await send_all(stream, 10)
            await lose(worker)
            await send_all(stream, 10)
            await worker.until(lambda: worker.only.last == 20)
            worker.commit()
            await sender.drain()
        assert worker.only.ids == list(range(1, 21))

    async def test_a_nack_closes_the_run(self) -> None:
        worker = ScriptedWorker(auto_commit=False)
        async with worker, connector(worker, revision="draft-le") as sender:
            stream = await sender.open("a")
            await send_all(stream, 10)
            await worker.until(lambda: worker.only.last == 10)
            worker.session.nack(stream.id, 3)
            for _ in range(200):
                await stream.send(b"x")
                await asyncio.sleep(0)
            await worker.until(lambda: worker.only.last == 210)
            worker.commit()
            await sender.drain()
        assert worker.only.ids == list(range(1, 211))
        assert worker.errors == []

    async def test_an_ended_stream_and_a_closed_connector_take_nothing(self) -> None:
        async with ScriptedWorker() as worker, connector(worker) as sender:
            ended, still_open = await sender.open("a"), await sender.open("b")
            await send_all(ended, 3)
            await ended.end()
            with pytest.raises(LocalProtocolError, match="'a' has ended"):
                await ended.send(b"x")
            await send_all(still_open, 3)
            await sender.close()
            with pytest.raises(LocalProtocolError, match="the connector is closed"):
                await still_open.send(b"x")

    async def test_a_message_that_is_wrong_is_refused_to_its_sender_alone(self) -> None:
        async with ScriptedWorker() as worker, connector(worker, max_frame_bytes=1024) as sender:
            stream = await sender.open("a")
            await send_all(stream, 3)
            with pytest.raises(LocalProtocolError, match="makes a frame of"):
                await stream.send(b"x" * 2000)
            with pytest.raises(LocalProtocolError, match="message id 3 is not above 3"):
                await stream.send(b"x", id=3)
            with pytest.raises(LocalProtocolError, match="not an unsigned 64-bit integer"):
                await stream.send(b"x", id=U64_MAX + 1)
            with pytest.raises(LocalProtocolError, match="a payload is bytes"):
                await stream.send("text")  # type: ignore[arg-type]  # refused
            assert await stream.send(b"x", id=U64_MAX) == U64_MAX
            with pytest.raises(LocalProtocolError, match="not an unsigned 64-bit integer"):
                await stream.send(b"x")
            await sender.drain()
        assert worker.only.ids == [1, 2, 3, U64_MAX]
        assert worker.errors == []

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        cuts=st.lists(st.integers(1, 6000), max_size=6),
        credits=st.integers(1, 90),
        memory=st.sampled_from([1, 2000, 1 << 20]),
        name=st.sampled_from(REVISIONS),
        steps=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6),
        keeps_buffer=st.booleans(),
    )
    def test_a_connection_may_be_cut_after_any_byte(
        self, cuts: list[int], credits: int, memory: int, name: str, steps: list[tuple[int, bool]], keeps_buffer: bool
    ) -> None:
        async def send(stream: Stream) -> None:
            for count, pause in steps:
                first = (stream.last or 0) + 1
                for number in range(count):
                    event_time = number if number % 7 == 3 else None
                    await stream.send(b"x" * 40, id=first + number, event_time=event_time)
                if pause:
                    await asyncio.sleep(0)

        async def run() -> None:
            worker = ScriptedWorker(cut_after=cuts, credits=credits, keeps_buffer=keeps_buffer)
            settings = {"revision": name, "max_unacknowledged": memory}
            async with asyncio.timeout(SECONDS), worker, connector(worker, **settings) as sender:
                streams = [await sender.open(name) for name in "abc"]
                await asyncio.gather(*(send(stream) for stream in streams))
                for stream in streams:
                    stream._sender.messages.validate()
                    await stream.end()
                await sender.drain()
                assert sender._state.budget.held == 0
                for stream in streams:
                    assert worker.named(stream.name).ids == list(range(1, sum(count for count, _ in steps) + 1))
            assert worker.errors == []

        asyncio.run(run())
