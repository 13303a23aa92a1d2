"""Channels between two programs, over real QUIC on the loopback."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator

import pytest

from tests.aqueduct.serving import Serving, empty, fail, receive_on, send_on, serving
from tests.pems import Pems
from tests.waiting import SECONDS, until
from wallaroo_spark import aqueduct
from wallaroo_spark.aqueduct.connection import AqueductConnection
from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError

SMALL = aqueduct.Limits(window_bytes=64 * 1024, window_messages=100)


@pytest.fixture
async def served(pems: Pems) -> AsyncIterator[Serving]:
    """A server whose connections the test itself has."""
    async with serving(pems) as made:
        yield made


@pytest.fixture(autouse=True)
async def _limit() -> AsyncIterator[None]:
    async with asyncio.timeout(SECONDS):
        yield


async def answering(connection: AqueductConnection) -> None:
    """Answer each message on the channel that came with it."""
    async for message in connection.requests:
        async with message.attachments[0].sender() as answers:
            await answers.send(b"hello " + message.payload)


async def test_each_message_is_answered_on_the_channel_that_it_brings(pems: Pems) -> None:
    async with serving(pems, answering) as served, served.connect() as connection:
        found = []
        for name in (b"Ann", b"Bob"):
            answers, theirs = connection.channel()
            await connection.entrypoint.send(name, attach=[theirs])
            found += [message.payload async for message in answers]

    assert found == [b"hello Ann", b"hello Bob"]


async def test_channels_are_attached_to_messages_of_channels_to_any_depth(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        sender = client.entrypoint
        there = server.requests
        for depth in range(20):
            # The receiver goes to the other side, whose messages come at once, before it was taken there.
            inner, theirs = client.channel("sender")
            await sender.send(b"%d" % depth, attach=[theirs])
            sender = inner
        await sender.send(b"the innermost")
        for depth in range(20):
            message = await there.receive()
            assert message is not None
            assert message.payload == b"%d" % depth
            there = message.attachments[0].receiver()
        innermost = await there.receive()

    assert innermost is not None
    assert innermost.payload == b"the innermost"


async def test_a_server_makes_channels_too(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        back, theirs = client.channel()
        await client.entrypoint.send(b"", attach=[theirs])
        first = await server.requests.receive()
        assert first is not None
        asked, for_client = server.channel()
        async with first.attachments[0].sender() as to_client:
            await to_client.send(b"who are you", attach=[for_client])
        question = await back.receive()
        assert question is not None
        async with question.attachments[0].sender() as answer:
            await answer.send(b"Ann")
        told = [message.payload async for message in asked]

    assert told == [b"Ann"]


async def test_a_message_is_acked_when_it_is_in_the_queue_of_its_receiver(served: Serving) -> None:
    async with served.connect() as client:
        sent = [await client.entrypoint.send(b"%d" % number) for number in range(10)]

        assert [await message.acked for message in sent] == [True] * 10
        assert await sent[0].acked  # Again, and later.


async def test_the_end_of_a_channel_comes_behind_all_of_its_messages(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        for number in range(1000):
            await client.entrypoint.send(b"%d" % number)
        await client.entrypoint.finish()
        found = [message.payload async for message in server.requests]

        assert found == [b"%d" % number for number in range(1000)]
        assert await server.requests.receive() is None
        with pytest.raises(aqueduct.SenderClosed):
            await client.entrypoint.send(b"too late")
        await until(lambda: empty(client) and empty(server))


async def test_a_cancelled_channel_drops_what_was_not_taken(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        sent = await client.entrypoint.send(b"x")
        await sent.acked
        client.entrypoint.cancel()

        with pytest.raises(aqueduct.Cancelled):
            await receive_on(server.requests)
        with pytest.raises((aqueduct.Cancelled, aqueduct.SenderClosed)):
            await client.entrypoint.send(b"too late")
        await until(lambda: empty(client) and empty(server))


async def test_a_sender_is_told_that_its_receiver_was_closed(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        (await client.entrypoint.send(b"x"), await server.requests.receive())
        server.requests.close()

        with pytest.raises(aqueduct.ReceiverClosed):
            await send_on(client.entrypoint)
        with pytest.raises(aqueduct.ReceiverClosed):
            await server.requests.receive()
        await until(lambda: empty(client) and empty(server))


async def test_sending_waits_while_the_other_side_does_not_take(pems: Pems) -> None:
    async with serving(pems, limits=SMALL) as served, served.connect(limits=SMALL) as client:
        server = await served.accepted.get()
        accepted = 0

        async def send() -> None:
            nonlocal accepted
            for number in range(1000):
                await client.entrypoint.send(b"%4d" % number + bytes(1000))
                accepted += 1
            await client.entrypoint.finish()

        sending = asyncio.create_task(send())
        # What was sent is acked until the queue of the receiver is at its limit, which is the window again.
        await until(lambda: server._driver.machine.counts().queued_bytes >= SMALL.window_bytes)
        await until(client.entrypoint._turn.locked)
        assert accepted < 300

        found = [message.payload[:4] async for message in server.requests]
        await sending

    assert found == [b"%4d" % number for number in range(1000)]


async def test_a_send_that_waits_ends_with_its_channel(pems: Pems) -> None:
    async with serving(pems, limits=SMALL) as served, served.connect(limits=SMALL) as client:
        server = await served.accepted.get()
        waiting = asyncio.create_task(_send_for_ever(client.entrypoint))
        await until(client.entrypoint._turn.locked)
        await client.entrypoint.finish()
        with pytest.raises(aqueduct.SenderClosed):
            await waiting
        async for _ in server.requests:
            pass


async def _send_for_ever(sender: aqueduct.Sender) -> None:
    while True:
        await sender.send(bytes(10_000))


async def test_messages_without_order_and_without_promise(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        await client.headers()
        for number in range(20):
            await client.entrypoint.send(b"u%d" % number, unordered=True)
        sent = await client.entrypoint.send(b"datagram", unreliable=True)
        found: list[tuple[bytes, bool]] = []
        while len(found) < 21:
            message = await server.requests.receive()
            assert message is not None
            found.append((message.payload, message.reliable))
        assert await sent.acked

    assert sorted(found) == sorted([(b"u%d" % number, True) for number in range(20)] + [(b"datagram", False)])


async def test_an_unreliable_message_fits_into_a_packet_or_is_refused(served: Serving) -> None:
    async with served.connect() as client:
        await client.headers()
        server = await served.accepted.get()
        with pytest.raises(aqueduct.MessageTooLarge):
            await client.entrypoint.send(bytes(2000), unreliable=True)
        await client.entrypoint.send(bytes(1100), unreliable=True)
        received = await server.requests.receive()

    assert received is not None
    assert len(received.payload) == 1100


async def test_a_oneshot_channel_finishes_itself(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        answer, theirs = client.channel(oneshot=True)
        await client.entrypoint.send(b"?", attach=[theirs])
        asked = await server.requests.receive()
        assert asked is not None
        sender = asked.attachments[0].sender()
        await sender.send(b"42")
        with pytest.raises(aqueduct.SenderClosed):
            await sender.send(b"43")

        assert [message.payload async for message in answer] == [b"42"]


async def test_attachments_that_nobody_expects_leave_nothing_behind(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        answers, for_answers = client.channel()
        upload, for_upload = client.channel("sender")
        await client.entrypoint.send(b"with two ends", attach=[for_answers, for_upload])
        await upload.send(b"nobody takes it")
        message = await server.requests.receive()
        del message
        gc.collect()

        with pytest.raises(aqueduct.Cancelled):
            await answers.receive()
        with pytest.raises(aqueduct.ReceiverClosed):
            await send_on(upload)
        await client.entrypoint.finish()
        assert await server.requests.receive() is None
        await until(lambda: empty(client) and empty(server))


async def test_an_end_that_is_never_attached_is_lost(served: Serving) -> None:
    async with served.connect() as client:
        receiver, theirs = client.channel()
        sender, others = client.channel("sender")
        del theirs, others
        gc.collect()

        with pytest.raises(aqueduct.Lost, match="attached to no message"):
            await receiver.receive()
        with pytest.raises(aqueduct.Lost, match="attached to no message"):
            await sender.send(b"x")
        await until(lambda: client._driver.machine.counts().receivers == 0)


async def test_a_used_sender_that_is_dropped_is_cancelled_with_a_warning(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        sender, theirs = client.channel("sender")
        await client.entrypoint.send(b"", attach=[theirs])
        await sender.send(b"x")
        message = await server.requests.receive()
        assert message is not None
        receiver = message.attachments[0].receiver()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            del sender
            gc.collect()

        with pytest.raises(aqueduct.Cancelled):
            await receive_on(receiver)
    assert any("dropped without finish or cancel" in str(one.message) for one in warned)


async def test_a_block_of_a_sender_finishes_it_and_an_error_in_it_cancels_it(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        (good, for_good), (bad, for_bad) = client.channel("sender"), client.channel("sender")
        await client.entrypoint.send(b"", attach=[for_good, for_bad])
        async with good:
            await good.send(b"all")
        await bad.send(b"half")
        with pytest.raises(ZeroDivisionError):
            await fail(bad)
        message = await server.requests.receive()
        assert message is not None
        first, second = (attached.receiver() for attached in message.attachments)

        assert [one.payload async for one in first] == [b"all"]
        with pytest.raises(aqueduct.Cancelled):
            async for _ in second:
                pass


async def test_an_attachment_is_one_of_both_ends(served: Serving) -> None:
    async with served.connect() as client:
        server = await served.accepted.get()
        _kept, theirs = client.channel()
        await client.entrypoint.send(b"", attach=[theirs])
        message = await server.requests.receive()
        assert message is not None
        attached = message.attachments[0]

        assert attached.is_sender
        assert attached.sender() is attached.sender()
        with pytest.raises(ArgumentValueError, match=r"a receiver is asked for.*\[attachment-kind\]"):
            attached.receiver()


async def test_what_cannot_be_sent_is_refused(served: Serving) -> None:
    async with served.connect() as client:
        receiver, theirs = client.channel()
        with pytest.raises(ArgumentTypeError, match="type str"):
            await client.entrypoint.send("text")
        with pytest.raises(ArgumentTypeError, match="second values"):
            await client.entrypoint.send(b"", attach=[receiver])
        await client.entrypoint.send(b"", attach=[theirs])
        with pytest.raises(ArgumentValueError):
            await client.entrypoint.send(b"", attach=[theirs])


async def test_hundreds_of_channels_leave_nothing_behind(pems: Pems) -> None:
    """In rounds, as a connection has no more than some at a time."""
    async with serving(pems, answering) as served, served.connect() as client:
        server = await served.accepted.get()

        async def ask(number: int) -> bytes:
            answer, theirs = client.channel(oneshot=number % 2 == 0)
            await client.entrypoint.send(b"%d" % number, attach=[theirs])
            found = await answer.receive()
            assert found is not None
            return found.payload

        for round_ in range(3):
            found = await asyncio.gather(*(ask(number) for number in range(100)))
            assert found == [b"hello %d" % number for number in range(100)], round_
        await until(lambda: client._driver.machine.counts().receivers == 0)
        await until(lambda: server._driver.machine.counts().senders == 0)
        await until(lambda: client._driver.machine.counts().links == 0)
