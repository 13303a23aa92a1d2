"""Messages that no honest client sends: each is refused with a status, a code and a text, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication, ServedGateway
from tests.gateway.shop import event, join, publish, work
from tests.gateway.test_server import joined, refused, streams, stub
from tests.waiting import SECONDS
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.client.refusals import INTERRUPTED
from wallaroo_spark.gateway.server.answers import sendable
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey

pytestmark = pytest.mark.timeout(SECONDS)
METHODS = [
    (service.full_name, method.name, method.client_streaming)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
KEY = PartitionKey("shop/orders", 0)
MIB = 1024 * 1024


async def answer_to(channel: Any, service: str, method: str, streaming: bool, data: bytes) -> tuple[str, str, str]:
    """The answer to bytes that a method is sent as its message."""
    path = f"/{service}/{method}"
    if not streaming:
        return await refused(channel.unary_unary(path)(data))
    call = channel.stream_stream(path)()
    await call.write(data)
    await call.done_writing()
    return await refused(call.read())


@pytest.mark.parametrize(("service", "method", "streaming"), METHODS, ids=[name for _, name, _ in METHODS])
async def test_bytes_that_are_no_message_are_refused(
    channel: Any, caplog: pytest.LogCaptureFixture, service: str, method: str, streaming: bool
) -> None:
    if method in ("Describe", "Receive"):
        streaming = False
    with caplog.at_level(logging.WARNING):
        status, code, text = await answer_to(channel, service, method, streaming, b"\xff\xfe\x01")
    assert (status, code) == ("INVALID_ARGUMENT", "request-invalid")
    assert f"{service}/{method}" in text
    # A stranger cannot fill the log with tracebacks.
    assert not [one for one in caplog.records if one.exc_info]


async def test_a_text_that_is_not_utf_8_is_refused(channel: Any) -> None:
    data = publish("abcdef").SerializeToString().replace(b"abcdef", b"abc\xff\xfef")
    found = await answer_to(channel, "wallaroo.pipelines.v1.Streams", "Publish", False, data)
    assert found[:2] == ("INVALID_ARGUMENT", "request-invalid")


async def test_a_member_that_sends_no_message_after_its_join_is_refused_and_its_delivery_goes_to_another(
    channel: Any,
) -> None:
    await streams(channel).Publish(publish("a"))
    raw = channel.stream_stream("/wallaroo.pipelines.v1.Streams/Subscribe")()
    await raw.write(join().SerializeToString())
    assert pb.SubscriberEvent.FromString(await raw.read()).HasField("joined")
    assert pb.SubscriberEvent.FromString(await raw.read()).delivery.events[0].id == "a"
    other = await joined(streams(channel).Subscribe(), join())
    await raw.write(b"\xff\xff\xff")
    assert (await refused(raw.read()))[:2] == ("INVALID_ARGUMENT", "request-invalid")
    assert (await other.read()).delivery.events[0].id == "a"


async def test_a_message_of_exactly_the_limit_is_taken_and_one_byte_more_is_refused_with_the_limit(
    served: ServedGateway, channel: Any
) -> None:
    limits = served.gateway.limits

    def of(size: int) -> pb.PublishRequest:
        """A request of so many bytes, with two events."""
        made = publish("a", "b")
        made.events[0].binary_data = b"x" * (limits.event_bytes - 200)
        made.events[1].binary_data = b"x" * (size - made.ByteSize() - 100)
        made.events[1].binary_data += b"x" * (size - made.ByteSize())
        assert made.ByteSize() == size
        return made

    assert len((await streams(channel).Publish(of(limits.message_bytes))).places) == 2
    status, code, text = await refused(streams(channel).Publish(of(limits.message_bytes + 1)))
    assert (status, code) == ("INVALID_ARGUMENT", "request-invalid")
    assert f"{limits.message_bytes + 1} bytes" in text
    assert f"{limits.message_bytes} are permitted" in text


async def test_an_event_of_exactly_the_limit_is_taken_and_one_byte_more_is_refused(
    served: ServedGateway, channel: Any
) -> None:
    limit = served.gateway.limits.event_bytes
    one = event("a", data=b"x" * (limit - 100))
    one.binary_data += b"x" * (limit - one.ByteSize())
    assert one.ByteSize() == limit
    await streams(channel).Publish(pb.PublishRequest(stream="shop/orders", events=[one]))
    one.binary_data += b"x"
    found = await refused(streams(channel).Publish(pb.PublishRequest(stream="shop/orders", events=[one])))
    assert found[:2] == ("INVALID_ARGUMENT", "request-invalid")


async def test_delayed_events_that_a_controller_may_refuse_are_not_answered_before_it_has_them(
    application: MemoryApplication, channel: Any
) -> None:
    application.hold()
    call = streams(channel).Publish(publish("a", durability=pb.RECEIVED, not_before=1))
    await streams(channel).Publish(publish("b", durability=pb.RECEIVED))
    assert not call.done()
    application.release()
    assert not (await call).places
    assert {one.id for one in application.records[KEY]} == {"a", "b"}


async def test_a_long_text_of_a_consumer_reaches_the_caller_in_any_script(channel: Any) -> None:
    endpoints = stub(rpc.EndpointsStub, channel)
    consumer = endpoints.Serve()
    await consumer.write(pb.ServeMessage(endpoint="shop/quote"))
    await consumer.initial_metadata()
    call = endpoints.Call()
    await call.write(pb.CallMessage(endpoint="shop/quote", event=event("q")))
    asked = await consumer.read()
    await consumer.write(pb.ServeMessage(call=asked.call, error="価格" * 2000))
    status, code, text = await refused(call.read())
    assert (status, code) == ("UNKNOWN", "call-failed")
    assert "価格価格" in text


def test_a_text_is_cut_to_what_metadata_may_have() -> None:
    assert sendable("a" * 3000) == "a" * 2000
    assert sendable("€" * 3000) == "€" * (2000 // 9)
    assert sendable("50 %") == "50 %"


STRANGE = [
    "\0",
    "a\x1b[31mb",
    "a\r\nb",
    "\u202eevil",
    "\ufeffx",
    "e\u0301",
    "\u00e9",
    "\U0010ffff",
    "'; DROP TABLE",
    "../..",
    " ",
]


async def test_strange_texts_are_kept_as_they_are_and_are_different_events(channel: Any) -> None:
    answer = await streams(channel).Publish(publish(*STRANGE))
    assert len({place.offset for place in answer.places}) == len(STRANGE)
    again = await streams(channel).Publish(publish(*STRANGE))
    assert list(again.places) == list(answer.places)
    call = await joined(streams(channel).Subscribe(), join(max_events=100))
    assert [one.id for one in (await call.read()).delivery.events] == STRANGE


async def test_mutilated_messages_lose_nothing_and_harm_nobody(
    application: MemoryApplication, served: ServedGateway, channel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Random changes of real messages, on every method. Each ends with an answer, or a status with a code."""
    draw = random.Random(14)
    good = [
        publish("x", "y").SerializeToString(),
        join().SerializeToString(),
        work("charge").SerializeToString(),
        pb.SubscriberMessage(ack=pb.Ack(delivery=1)).SerializeToString(),
        pb.WorkerMessage(ack=pb.Ack(delivery=1, output=pb.Payload(data=b"1"))).SerializeToString(),
        pb.SendRequest(exchange="shop/prices", event=event("z")).SerializeToString(),
        pb.CallMessage(endpoint="shop/quote", event=event("q")).SerializeToString(),
        pb.CancelRequest(pipeline="shop/fulfil", instance=1).SerializeToString(),
    ]
    async with grpc.aio.insecure_channel(served.address) as hostile:
        for _ in range(200):
            service, method, streaming = draw.choice(METHODS)
            sent = [_mutilated(draw, draw.choice(good)) for _ in range(draw.randint(1, 4) if streaming else 1)]
            problem = await _send(hostile, f"/{service}/{method}", streaming, sent)
            assert problem is None or problem[1], problem
    assert served.failures == []
    assert not [one for one in caplog.records if one.exc_info]
    # The honest client goes on as if there were no other.
    ids = [f"honest-{number}" for number in range(20)]
    places = (await streams(channel).Publish(publish(*ids))).places
    assert [application.records[KEY][place.offset - 1].id for place in places] == ids


def _mutilated(draw: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(draw.randint(0, 4)):
        kind = draw.randrange(4)
        at = draw.randrange(len(found) + 1)
        if kind == 0 and found:
            found[at % len(found)] = draw.randrange(256)
        elif kind == 1:
            found[at:at] = draw.randbytes(draw.randint(1, 20))
        elif kind == 2:
            del found[at : at + draw.randint(1, 10)]
        else:
            found += found[at:]
    return bytes(found)


async def _send(channel: Any, path: str, streaming: bool, sent: list[bytes]) -> tuple[str, str, str] | None:
    """Send messages and leave after an answer, or after a short time; the status and the code of an error."""
    call = channel.stream_stream(path)() if streaming else channel.unary_stream(path)(sent[0])
    try:
        for data in sent if streaming else ():
            await call.write(data)
        if streaming and len(sent) % 2:
            await call.done_writing()
            await call.read()
        elif not streaming and not path.endswith("Receive"):
            await call.read()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        # A write that fails has a status of its own; that of the call is the answer of the gateway.
        if await call.details() == INTERRUPTED:
            return None
        trailing = dict(await call.trailing_metadata() or ())
        return (await call.code()).name, str(trailing.get("wallaroo-code", "")), await call.details()
    except BaseException:
        call.cancel()
        raise
    call.cancel()
    return None
