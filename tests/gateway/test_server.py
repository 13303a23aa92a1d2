"""A gateway with its gRPC server and real clients; the controllers run in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication, ServedGateway, serving
from tests.gateway.shop import SHOP, TOKENS, event, join, publish, work
from tests.waiting import SECONDS, eventually
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.server import gateway as gateway_module
from wallaroo_spark.gateway.tokens import create_token
from wallaroo_spark.pipelines.controller.messages.events import RecordsPublished
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.declarations import TokenDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey

pytestmark = pytest.mark.timeout(SECONDS)


def stub(kind: Any, channel: Any) -> Any:
    return kind(channel)


def streams(channel: Any) -> Any:
    return stub(rpc.StreamsStub, channel)


async def joined(call: Any, first: Any) -> Any:
    """Join, and return the call once the member is there."""
    await call.write(first)
    answer = await call.read()
    assert answer.WhichOneof("event") == "joined", answer
    return call


async def until(condition: Callable[[], bool]) -> None:
    """Wait in a thread until a condition holds."""
    await asyncio.to_thread(eventually, condition)


async def refused(call: Any) -> tuple[str, str, str]:
    """The status, the code and the text of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    trailing = dict(caught.value.trailing_metadata() or ())
    return caught.value.code().name, str(trailing.get("wallaroo-code", "")), caught.value.details() or ""


async def test_a_publish_is_answered_with_the_places_of_its_events(channel: Any) -> None:
    answer = await streams(channel).Publish(publish("a", "b"))
    assert [(place.partition, place.offset) for place in answer.places] == [(0, 1), (0, 2)]

    again = await streams(channel).Publish(publish("b", "c"))
    assert [place.offset for place in again.places] == [2, 3]


async def test_events_without_a_partition_are_divided_and_keep_their_places_in_the_answer(
    application: MemoryApplication, channel: Any
) -> None:
    ids = [f"e{number}" for number in range(20)]
    answer = await streams(channel).Publish(publish(*ids, partition=None))
    for id, place in zip(ids, answer.places, strict=True):
        found = {key.partition: table for key, table in application.records.items()}
        assert found[place.partition][place.offset - 1].id == id
    assert {place.partition for place in answer.places} == {0, 1}


async def test_received_is_answered_before_a_batch_runs(
    application: MemoryApplication, served: ServedGateway, channel: Any
) -> None:
    application.hold()
    answer = await streams(channel).Publish(publish("a", durability=pb.RECEIVED))
    assert not answer.places
    assert not application.records
    application.release()
    after = await streams(channel).Publish(publish("b"))
    assert [place.offset for place in after.places] == [2]


async def test_delayed_events_are_written_when_their_time_has_come(
    application: MemoryApplication, channel: Any
) -> None:
    in_a_second = round(time.time() * 1000) + 1000
    answer = await streams(channel).Publish(publish("later", not_before=in_a_second))
    assert not answer.places
    key = PartitionKey("shop/orders", 0)
    await until(lambda: [one.id for one in application.records[key]] == ["later"])
    assert round(time.time() * 1000) >= in_a_second


async def test_requests_on_one_connection_are_answered_with_their_numbers_and_problems(channel: Any) -> None:
    call = streams(channel).PublishMany()
    for number, request in enumerate((publish("a"), publish(), publish("b"), publish("c", stream="shop/none"))):
        request.request = number
        await call.write(request)
    await call.done_writing()
    answers = {answer.request: answer async for answer in call}
    assert [answers[number].problem.code for number in range(4)] == ["", "request-invalid", "", "object-unknown"]
    assert [answers[number].places[0].offset for number in (0, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (publish("a", stream="shop/none"), "NOT_FOUND", "object-unknown"),
        (publish("a", stream=""), "NOT_FOUND", "object-unknown"),
        (publish(), "INVALID_ARGUMENT", "request-invalid"),
        (publish(""), "INVALID_ARGUMENT", "request-invalid"),
        (publish("a", partition=2), "INVALID_ARGUMENT", "request-invalid"),
        (publish("a", durability=7), "INVALID_ARGUMENT", "request-invalid"),
        (publish("a", not_before=1 << 63), "INVALID_ARGUMENT", "request-invalid"),
        (publish("a", not_before=1 << 60), "INVALID_ARGUMENT", "request-invalid"),
        (pb.PublishRequest(stream="shop/orders", events=[event("a", Bad="x")]), "INVALID_ARGUMENT", "request-invalid"),
        (
            pb.PublishRequest(stream="shop/orders", events=[event("a", time="now")]),
            "INVALID_ARGUMENT",
            "request-invalid",
        ),
    ],
)
async def test_a_request_that_is_not_valid_is_refused_with_status_code_and_way_out(
    channel: Any, request_: pb.PublishRequest, status: str, code: str
) -> None:
    found = await refused(streams(channel).Publish(request_))
    assert found[:2] == (status, code)
    assert found[2]


async def test_a_subscriber_gets_batches_in_order_and_each_ack_is_settled(channel: Any) -> None:
    await streams(channel).Publish(publish("a", "b", "c"))
    call = await joined(streams(channel).Subscribe(), join(max_events=2))

    first = (await call.read()).delivery
    assert [one.id for one in first.events] == ["a", "b"]
    assert (first.partition, first.first, first.missed, first.more) == (0, 1, 0, False)
    await call.write(pb.SubscriberMessage(ack=pb.Ack(delivery=first.delivery)))
    found = [await call.read(), await call.read()]
    assert {one.WhichOneof("event") for one in found} == {"settled", "delivery"}
    second = next(one.delivery for one in found if one.HasField("delivery"))
    assert [one.id for one in second.events] == ["c"]
    await call.write(pb.SubscriberMessage(ack=pb.Ack(delivery=second.delivery)))
    await call.done_writing()
    assert (await call.read()).settled.delivery == second.delivery
    assert await call.read() is grpc.aio.EOF


async def test_a_nacked_batch_and_that_of_a_lost_client_are_delivered_again(channel: Any) -> None:
    await streams(channel).Publish(publish("a"))
    first = await joined(streams(channel).Subscribe(), join())
    number = (await first.read()).delivery.delivery
    await first.write(pb.SubscriberMessage(nack=pb.Nack(delivery=number, delay=1)))
    found = [await first.read(), await first.read()]
    again = next(one.delivery for one in found if one.HasField("delivery"))
    assert again.events[0].id == "a"
    assert again.delivery != number

    first.cancel()
    second = await joined(streams(channel).Subscribe(), join())
    assert (await second.read()).delivery.events[0].id == "a"


async def test_a_member_has_no_more_deliveries_at_once_than_its_concurrency(channel: Any) -> None:
    await streams(channel).Publish(publish("a", partition=0))
    await streams(channel).Publish(publish("b", partition=1))
    call = await joined(streams(channel).Subscribe(), join(concurrency=1))
    given = (await call.read()).delivery
    # The next message is about the ack, because the other delivery waits for it.
    await call.write(pb.SubscriberMessage(begin=pb.Begin(delivery=given.delivery)))
    assert (await call.read()).statement.state == pb.StatementResult.PENDING
    await call.write(pb.SubscriberMessage(ack=pb.Ack(delivery=given.delivery)))
    found = [await call.read(), await call.read()]
    other = next(one.delivery for one in found if one.HasField("delivery"))
    assert {given.partition, other.partition} == {0, 1}


async def test_a_large_delivery_comes_in_messages_below_the_limit_of_clients(
    application: MemoryApplication, channel: Any
) -> None:
    application.attach = False
    for number in range(3):
        big = pb.PublishRequest(stream="shop/orders", partition=0, events=[event(f"b{number}", data=bytes(2_000_000))])
        await streams(channel).Publish(big)
    call = await joined(streams(channel).Subscribe(), join(max_events=3))
    parts = [(await call.read()).delivery for _ in range(3)]
    assert [(part.first, part.more, len(part.events)) for part in parts] == [(1, True, 1), (2, True, 1), (3, False, 1)]
    assert len({part.delivery for part in parts}) == 1


async def test_stages_work_in_their_order_with_outputs_and_stream_outputs(
    application: MemoryApplication, channel: Any
) -> None:
    pipelines = stub(rpc.PipelinesStub, channel)
    charge = await joined(pipelines.Work(), work("charge"))
    ship = await joined(pipelines.Work(), work("ship"))
    await streams(channel).Publish(publish("a", partition=1))

    given = (await charge.read()).delivery
    assert (given.instance, given.partition, given.root_event.id) == (1, 1, "a")
    await charge.write(pb.WorkerMessage(ack=pb.Ack(delivery=given.delivery)))
    refusal = (await charge.read()).settled
    assert refusal.problem.code == "ack-refused"
    assert "requires an output" in refusal.problem.text
    given = (await charge.read()).delivery
    paid = pb.Payload(data=b"paid", content_type="text/plain")
    await charge.write(pb.WorkerMessage(ack=pb.Ack(delivery=given.delivery, output=paid)))
    assert not (await charge.read()).settled.problem.code

    given = (await ship.read()).delivery
    assert given.outputs["charge"] == paid
    assert given.root_event.id == "a"
    parcel = pb.StreamEvents(stream="shipments", events=[event("parcel", "sent")])
    await ship.write(pb.WorkerMessage(ack=pb.Ack(delivery=given.delivery, stream_outputs=[parcel])))
    assert not (await ship.read()).settled.problem.code
    answer = await streams(channel).Publish(publish("other", stream="shop/shipments"))
    assert answer.places[0].offset == 2


async def test_a_transaction_is_written_with_the_ack_and_its_places_are_in_the_answer(channel: Any) -> None:
    await streams(channel).Publish(publish("a"))
    call = await joined(streams(channel).Subscribe(), join())
    number = (await call.read()).delivery.delivery
    states = pb.StatementResult
    await call.write(pb.SubscriberMessage(begin=pb.Begin(delivery=number)))
    for state in (states.PENDING, states.APPLIED):
        assert (await call.read()).statement == pb.StatementResult(delivery=number, place=-1, state=state)
    ids = [f"t{one}" for one in range(8)]
    for stream in ("shop/shipments", "shop/orders"):
        events = pb.StreamEvents(stream=stream, events=[event(id, "other") for id in ids])
        await call.write(pb.SubscriberMessage(statement=pb.Statement(delivery=number, events=events)))
    found = [(await call.read()).statement for _ in range(4)]
    assert sorted((one.place, one.state) for one in found) == sorted(
        (place, state) for place in (0, 1) for state in (states.PENDING, states.APPLIED)
    )
    await call.write(pb.SubscriberMessage(ack=pb.Ack(delivery=number)))
    states_told, settled = [], None
    while settled is None:
        one = await call.read()
        if one.HasField("statement"):
            states_told.append(one.statement.state)
        # The committed events are a delivery of their own, which may come first.
        settled = one.settled if one.HasField("settled") else None
    assert states_told == [states.COMMITTED, states.COMMITTED]
    written = settled.written
    assert [one.stream for one in written] == ["shop/shipments", "shop/orders"]
    assert [place.offset for place in written[0].places] == [*range(1, 9)]
    assert all(place.offset for place in written[1].places)
    assert len(written[1].places) == 8


async def test_a_refused_statement_ends_the_delivery_and_nothing_is_written(
    application: MemoryApplication, channel: Any
) -> None:
    await streams(channel).Publish(publish("a"))
    call = await joined(streams(channel).Subscribe(), join())
    number = (await call.read()).delivery.delivery
    await call.write(pb.SubscriberMessage(begin=pb.Begin(delivery=number)))
    await call.read()
    for stream in ("shop/shipments", "shop/none"):
        events = pb.StreamEvents(stream=stream, events=[event("t")])
        await call.write(pb.SubscriberMessage(statement=pb.Statement(delivery=number, events=events)))
    settled = None
    results = []
    while settled is None:
        one = await call.read()
        if one.HasField("statement"):
            results.append((one.statement.place, one.statement.state))
        settled = one.settled if one.HasField("settled") else None
    assert settled.problem.code == "object-unknown"
    assert (1, pb.StatementResult.REJECTED) in results
    assert (await call.read()).delivery.events[0].id == "a"
    assert not [record for key, table in application.records.items() for record in table if record.id == "t"]


async def test_a_message_for_a_delivery_that_is_not_open_is_dropped_with_a_warning(channel: Any) -> None:
    call = await joined(streams(channel).Subscribe(), join())
    await call.write(pb.SubscriberMessage(ack=pb.Ack(delivery=7)))
    warning = (await call.read()).warning
    assert (warning.delivery, "was never given" in warning.text) == (7, True)


async def test_an_active_instance_is_cancelled_and_an_unknown_one_is_an_error(channel: Any) -> None:
    pipelines = stub(rpc.PipelinesStub, channel)
    await streams(channel).Publish(publish("a"))
    worker = await joined(pipelines.Work(), work("charge"))
    given = (await worker.read()).delivery
    await pipelines.Cancel(pb.CancelRequest(pipeline="shop/fulfil", partition=0, instance=given.instance))
    assert (await worker.read()).withdrawn.delivery == given.delivery
    again = pb.CancelRequest(pipeline="shop/fulfil", partition=0, instance=given.instance)
    assert (await refused(pipelines.Cancel(again)))[:2] == ("FAILED_PRECONDITION", "request-refused")


async def test_a_member_cannot_join_a_group_of_the_other_kind(channel: Any) -> None:
    await joined(streams(channel).Subscribe(), join())
    call = streams(channel).Subscribe()
    await call.write(join(durable=False))
    assert (await refused(call.read()))[:2] == ("FAILED_PRECONDITION", "join-refused")


async def test_every_channel_and_call_ends_with_try_again_when_the_gateway_ends(
    application: MemoryApplication, served: ServedGateway, channel: Any
) -> None:
    call = await joined(streams(channel).Subscribe(), join())
    application.hold()
    waiting = asyncio.ensure_future(refused(streams(channel).Publish(publish("a"))))
    await until(lambda: any(isinstance(one, RecordsPublished) for _, one in application.seen))
    served.gateway.end("a test")
    assert (await waiting)[:2] == ("UNAVAILABLE", "gateway-ends")
    status, code, text = await refused(call.read())
    assert (status, code) == ("UNAVAILABLE", "gateway-ends")
    assert "try again" in text
    assert (await refused(streams(channel).Publish(publish("b"))))[0] == "UNAVAILABLE"


async def test_an_error_of_the_inbox_ends_the_gateway(served: ServedGateway, channel: Any) -> None:
    served.files.failure = OSError("the disk is full")
    assert (await refused(streams(channel).Publish(publish("a"))))[0] == "UNAVAILABLE"
    assert [str(error) for error in served.failures] == ["the disk is full"]


async def test_a_full_inbox_refuses_publishes_and_not_acks(application: MemoryApplication) -> None:
    async with (
        serving(application, limits=GatewayLimits(inbox_rows=2)) as served,
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        served.files.stuck.clear()
        waiting = [asyncio.ensure_future(_code(streams(channel).Publish(publish(f"e{one}")))) for one in range(8)]
        found = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert next(iter(found[0])).result() == "gateway-busy"
        served.files.stuck.set()
        codes = await asyncio.gather(*waiting)
        assert set(codes) == {"", "gateway-busy"}


async def _code(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(dict(error.trailing_metadata() or ())["wallaroo-code"])
    return ""


async def test_what_waits_while_a_file_is_written_goes_into_the_next_one(served: ServedGateway, channel: Any) -> None:
    served.files.stuck.clear()
    begun = served.files.begun
    calls = [asyncio.ensure_future(_code(streams(channel).Publish(publish("first"))))]
    await until(lambda: served.files.begun > begun)
    calls += [asyncio.ensure_future(_code(streams(channel).Publish(publish(f"e{one}")))) for one in range(50)]
    await until(lambda: len(served.gateway.queue) == 50)
    before = served.files.writes
    served.files.stuck.set()
    assert await asyncio.gather(*calls) == [""] * 51
    assert served.files.writes - before == 2


async def test_a_declared_token_closes_every_method_to_those_without_one() -> None:
    application = MemoryApplication(SHOP + TOKENS)
    texts = {}
    for name in ("seller", "worker", "everything"):
        declared = application.schema.objects[ObjectKey("Token", "", name)]
        assert isinstance(declared, TokenDeclaration)
        texts[name], kept = create_token(declared, 0.0)
        application.tokens[kept.id] = kept
    try:
        async with serving(application) as served, grpc.aio.insecure_channel(served.address) as channel:
            await _check_access(channel, texts)
            # A revoked token ends the channel that it has opened.
            call = await joined(streams(channel).Subscribe(metadata=_bearer(texts["worker"])), join())
            assert (await call.read()).delivery.events[0].id == "a"
            application.tokens.clear()
            assert (await refused(call.read()))[:2] == ("UNAUTHENTICATED", "token-refused")
    finally:
        application.close()


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def _check_access(channel: Any, texts: dict[str, str]) -> None:
    describe = stub(rpc.SchemaStub, channel).Describe
    assert (await refused(streams(channel).Publish(publish("a"))))[:2] == ("UNAUTHENTICATED", "token-refused")
    assert (await refused(describe(pb.DescribeRequest())))[:2] == ("UNAUTHENTICATED", "token-refused")
    for call in (streams(channel).Subscribe(), stub(rpc.PipelinesStub, channel).Work(), streams(channel).PublishMany()):
        assert (await refused(call.read()))[:2] == ("UNAUTHENTICATED", "token-refused")
    seller, worker = _bearer(texts["seller"]), _bearer(texts["worker"])
    await streams(channel).Publish(publish("a"), metadata=seller)
    found = await refused(streams(channel).Publish(publish("a", stream="shop/shipments"), metadata=seller))
    assert found[:2] == ("PERMISSION_DENIED", "permission-missing")
    found = await refused(streams(channel).Publish(publish("a"), metadata=worker))
    assert found[:2] == ("PERMISSION_DENIED", "permission-missing")
    described = await describe(pb.DescribeRequest(), metadata=seller)
    assert "Token" not in described.schema
    assert "orders" in described.schema
    assert described.gateways
    assert described.version == 1


async def test_a_gateway_whose_file_system_hangs_ends_and_its_clients_are_told(application: MemoryApplication) -> None:
    async with (
        serving(application, limits=GatewayLimits(file_seconds=1.0)) as served,
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        member = await joined(streams(channel).Subscribe(), join())
        served.files.stuck.clear()
        received = streams(channel).Publish(publish("b", durability=pb.RECEIVED))
        for call in (streams(channel).Publish(publish("a")), received, member.read()):
            assert (await refused(call))[:2] == ("UNAVAILABLE", "gateway-ends")
        (failure,) = served.failures
        assert "has not answered for 1 seconds (write)" in str(failure)
        # Nothing waits for the thread that hangs.
        await served.gateway.close()


async def test_a_gateway_that_cannot_look_at_the_commit_log_ends_and_its_clients_are_told(
    application: MemoryApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(application, limits=GatewayLimits(file_seconds=1.0)) as served,
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        member = await joined(streams(channel).Subscribe(), join())
        hung = threading.Event()
        monkeypatch.setattr(served.files, "await_commit", lambda: hung.wait(SECONDS))
        assert (await refused(member.read()))[:2] == ("UNAVAILABLE", "gateway-ends")
        hung.set()


async def test_a_hung_read_of_a_table_ends_the_channel_that_needs_it_and_not_the_gateway(
    application: MemoryApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.attach = False
    async with (
        serving(application, limits=GatewayLimits(file_seconds=1.0)) as served,
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        await streams(channel).Publish(publish("a"))
        hung = threading.Event()
        monkeypatch.setattr(served.files, "read", lambda *_: hung.wait(SECONDS))
        readers = [await joined(streams(channel).Subscribe(), join(f"g{number}")) for number in range(20)]
        # The threads that hang do not keep the inbox from being written.
        await streams(channel).Publish(publish("b", durability=pb.RECEIVED))
        for reader in readers:
            assert (await refused(reader.read()))[:2] == ("UNAVAILABLE", "folder-silent")
        hung.set()
        assert served.failures == []


async def test_a_gateway_in_whose_place_another_has_begun_ends_although_it_writes_nothing(
    application: MemoryApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was cut from Redis, whose lease another process has taken."""
    monkeypatch.setattr(gateway_module, "GENERATION_SECONDS", 0.1)
    async with serving(application) as served, grpc.aio.insecure_channel(served.address) as channel:
        member = await joined(streams(channel).Subscribe(), join())
        served.files.newer = True
        assert (await refused(member.read()))[:2] == ("UNAVAILABLE", "gateway-ends")
        assert [getattr(one, "code", "") for one in served.failures] == ["inbox-superseded"]


async def test_a_gateway_whose_inbox_was_deleted_ends_although_it_writes_nothing(
    application: MemoryApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "GENERATION_SECONDS", 0.1)
    async with serving(application) as served, grpc.aio.insecure_channel(served.address) as channel:
        member = await joined(streams(channel).Subscribe(), join())

        def lost() -> bool:
            raise CheckpointError("the inbox was deleted", code="inbox-lost")

        monkeypatch.setattr(served.files, "superseded", lost)
        assert (await refused(member.read()))[:2] == ("UNAVAILABLE", "gateway-ends")
        assert [getattr(one, "code", "") for one in served.failures] == ["inbox-lost"]


async def test_a_file_system_that_fails_for_a_moment_ends_no_gateway_and_its_clients_try_again(
    application: MemoryApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "FOLLOW_SECONDS", 0.05)
    application.attach = False
    async with serving(application) as served, grpc.aio.insecure_channel(served.address) as channel:
        failed: list[int] = []

        def fail(*_: object) -> Any:
            failed.append(1)
            raise CheckpointError("the bucket does not answer", code="checkpoint-unreadable")

        await streams(channel).Publish(publish("a"))
        with monkeypatch.context() as broken:
            broken.setattr(served.files, "schema", fail)
            broken.setattr(served.files, "read", fail)
            await until(lambda: len(failed) > 3)
            member = await joined(streams(channel).Subscribe(), join())
            assert (await refused(member.read()))[:2] == ("UNAVAILABLE", "checkpoint-unreadable")
        member = await joined(streams(channel).Subscribe(), join())
        assert (await member.read()).delivery.events[0].id == "a"
        assert served.failures == []
