"""Checks of gateways: a real one passes, with and without tokens, and one that answers wrongly does not."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.gateway.shop import SHOP, TOKENS
from tests.waiting import SECONDS
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.conformance import gateways
from wallaroo_spark.conformance.checks import CheckOutcome, CheckResult
from wallaroo_spark.testing import FakeApplication

STREAM = "shop/shipments"


def run(address: str, *names: str, token: str = "", seconds: float = SECONDS) -> dict[str, CheckResult]:
    setting = gateways.CheckedGateway(address, STREAM, token, seconds=seconds)
    checks = [check for check in gateways.CHECKS if not names or check.name in names]
    return {one.check: one for one in gateways.plan(setting, checks).results()}


def failures(results: dict[str, CheckResult]) -> list[str]:
    found = [one for one in results.values() if one.outcome is CheckOutcome.FAILED]
    return [f"{one.check}: expected {one.expected}; came {one.came}" for one in found]


def left_out(results: dict[str, CheckResult]) -> set[str]:
    return {one.check for one in results.values() if one.outcome is CheckOutcome.LEFT_OUT}


def test_a_gateway_passes_every_check() -> None:
    with FakeApplication(SHOP) as application:
        results = run(application.address)

    assert failures(results) == []
    assert left_out(results) == {"no-token"}


def test_a_gateway_with_tokens_passes_every_check() -> None:
    with FakeApplication(SHOP + TOKENS) as application:
        results = run(application.address, token=application.create_token("everything"))
        wrong = run(application.address, "publish", token="wst_of_nobody")

    assert failures(results) == []
    assert left_out(results) == {"unknown-stream"}
    assert "UNAUTHENTICATED, code token-refused" in wrong["publish"].came


class Forwarding(rpc.StreamsServicer, rpc.SchemaServicer):
    """A gateway that forwards to another one. Its subclasses have a fault."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.streams: Any = rpc.StreamsStub(channel)
        self.schema: Any = rpc.SchemaStub(channel)

    def Describe(self, request: Any, context: Any) -> Any:
        return self.call(self.schema.Describe, request, context)

    def Publish(self, request: Any, context: Any) -> Any:
        return self.call(self.streams.Publish, request, context)

    def PublishMany(self, requests: Any, context: Any) -> Any:
        yield from self.channel(self.streams.PublishMany, requests, context)

    def Subscribe(self, requests: Any, context: Any) -> Any:
        yield from self.channel(self.streams.Subscribe, requests, context)

    def call(self, method: Any, request: Any, context: Any) -> Any:
        try:
            return method(request, metadata=self.metadata(context))
        except grpc.RpcError as error:
            self.failed(error, context)

    def channel(self, method: Any, requests: Any, context: Any) -> Any:
        call = method(requests, metadata=self.metadata(context))
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            self.failed(error, context)

    def metadata(self, context: Any) -> Any:
        return [one for one in context.invocation_metadata() if one.key == "authorization"]

    def failed(self, error: Any, context: Any) -> None:
        context.set_trailing_metadata(error.trailing_metadata())
        context.abort(error.code(), error.details())


class NamesNoGateways(Forwarding):
    def Describe(self, request: Any, context: Any) -> Any:
        reply = super().Describe(request, context)
        del reply.gateways[:]
        return reply


class TakesAnyToken(Forwarding):
    token = ""

    def metadata(self, context: Any) -> Any:
        return [("authorization", f"Bearer {TakesAnyToken.token}")]


class ChecksTokensOfDescribeAlone(TakesAnyToken):
    def Describe(self, request: Any, context: Any) -> Any:
        try:
            return self.schema.Describe(request, metadata=Forwarding.metadata(self, context))
        except grpc.RpcError as error:
            self.failed(error, context)


class GivesEachEventTheSamePlace(Forwarding):
    def Publish(self, request: Any, context: Any) -> Any:
        return pb.PublishReply(places=[pb.Place(partition=0, offset=1) for _ in request.events])


class WritesEventsAgain(Forwarding):
    def Publish(self, request: Any, context: Any) -> Any:
        for event in request.events:
            event.source = f"{event.source}/{uuid.uuid4()}"
        return super().Publish(request, context)


class LosesWhatItHasReceived(Forwarding):
    def Publish(self, request: Any, context: Any) -> Any:
        if request.durability == pb.RECEIVED:
            return pb.PublishReply()
        return super().Publish(request, context)


class AnswersTwice(Forwarding):
    def PublishMany(self, requests: Any, context: Any) -> Any:
        for one in super().PublishMany(requests, context):
            yield from (one, one)


class TakesEverything(Forwarding):
    def failed(self, error: Any, context: Any) -> None:
        pass

    def Publish(self, request: Any, context: Any) -> Any:
        return super().Publish(request, context) or pb.PublishReply()


class DeliversInAnotherOrder(Forwarding):
    def Subscribe(self, requests: Any, context: Any) -> Any:
        for one in super().Subscribe(requests, context):
            events = list(reversed(one.delivery.events))
            if events:
                del one.delivery.events[:]
                one.delivery.events.extend(events)
            yield one


class TakesNacksForAcks(Forwarding):
    def Subscribe(self, requests: Any, context: Any) -> Any:
        def changed() -> Iterator[Any]:
            for one in requests:
                number = one.nack.delivery
                yield pb.SubscriberMessage(ack=pb.Ack(delivery=number)) if number else one

        yield from super().Subscribe(changed(), context)


class GivesTheSecondMemberEverything(Forwarding):
    members = 0

    def Subscribe(self, requests: Any, context: Any) -> Any:
        def changed() -> Iterator[Any]:
            for one in requests:
                self.members += one.WhichOneof("message") == "join"
                if self.members > 1 and one.WhichOneof("message") == "join":
                    one.join.group = f"group-{uuid.uuid4()}"
                    one.join.start.location = pb.StartPoint.BEGINNING
                yield one

        yield from super().Subscribe(changed(), context)


class KeepsSilent(Forwarding):
    """Leaves out some of the events."""

    kinds: tuple[str, ...] = ()

    def Subscribe(self, requests: Any, context: Any) -> Any:
        for one in super().Subscribe(requests, context):
            if one.WhichOneof("event") not in self.kinds:
                yield one


class GivesNoWarnings(KeepsSilent):
    kinds = ("warning",)


class SettlesNothing(KeepsSilent):
    kinds = ("settled",)


class TellsNoStatements(KeepsSilent):
    kinds = ("statement",)


class DeliversBeforeJoined(Forwarding):
    def Subscribe(self, requests: Any, context: Any) -> Any:
        yield pb.SubscriberEvent(delivery=pb.GroupDelivery(delivery=1, first=1))


@contextlib.contextmanager
def broken(fault: type[Forwarding], address: str) -> Iterator[str]:
    """A gateway with a fault in front of one that is right."""
    server = grpc.server(ThreadPoolExecutor(20), options=[("grpc.max_receive_message_length", -1)])
    with grpc.insecure_channel(address) as channel:
        made = fault(channel)
        rpc.add_StreamsServicer_to_server(made, server)
        rpc.add_SchemaServicer_to_server(made, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


FAULTS: Mapping[str, tuple[type[Forwarding], str]] = {
    "describe": (NamesNoGateways, "the addresses of the gateways"),
    "publish": (GivesEachEventTheSamePlace, "one behind the other"),
    "published-again": (WritesEventsAgain, "the place of the first time"),
    "received": (LosesWhatItHasReceived, "; --timeout is the limit"),
    "publish-many": (AnswersTwice, "(5, 1, ''), (5, 1, '')"),
    "unknown-stream": (TakesEverything, "NOT_FOUND with the code object-unknown; an answer without an error"),
    "invalid-events": (TakesEverything, "INVALID_ARGUMENT with the code request-invalid; an answer without an error"),
    "large-message": (TakesEverything, "INVALID_ARGUMENT with the code request-invalid; an answer without an error"),
    "join-first": (TakesEverything, "the channel has ended without an error"),
    "consume": (DeliversInAnotherOrder, "a, b and c in their order"),
    "nack": (TakesNacksForAcks, "`settled`, and the same events again; DEADLINE_EXCEEDED"),
    "lost-client": (GivesTheSecondMemberEverything, "nothing for a second member"),
    "ack-of-nothing": (GivesNoWarnings, "`warning` for an ack"),
    "transaction": (TellsNoStatements, "PENDING, APPLIED and COMMITTED of the statement"),
}
"""For each check a fault, and a part of what was expected and what came."""
NO_TOKEN = "no-token"
SHORT = 4.0
"""The wait for what a broken gateway never does."""


def test_each_check_finds_a_planted_fault() -> None:
    assert {*FAULTS, NO_TOKEN} == {check.name for check in gateways.CHECKS}


@pytest.fixture(scope="module")
def application() -> Iterator[FakeApplication]:
    with FakeApplication(SHOP) as made:
        yield made


@pytest.mark.parametrize("check", FAULTS)
def test_a_planted_fault_is_found(check: str, application: FakeApplication) -> None:
    fault, expected = FAULTS[check]
    with broken(fault, application.address) as address:
        one = run(address, check, seconds=SHORT)[check]

    assert one.outcome is CheckOutcome.FAILED
    assert expected in f"{one.expected}; {one.came}"


@pytest.mark.parametrize("fault", [TakesAnyToken, ChecksTokensOfDescribeAlone])
def test_a_gateway_that_takes_any_token_is_found(fault: type[Forwarding], monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeApplication(SHOP + TOKENS) as application:
        token = application.create_token("everything")
        monkeypatch.setattr(TakesAnyToken, "token", token)
        with broken(fault, application.address) as address:
            one = run(address, NO_TOKEN, token=token, seconds=SHORT)[NO_TOKEN]

    assert one.expected == "UNAUTHENTICATED with the code token-refused"
    assert one.came.startswith("an answer without an error to ")


def test_a_delivery_without_a_settled_and_one_before_joined_are_found(application: FakeApplication) -> None:
    with broken(SettlesNothing, application.address) as silent, broken(DeliversBeforeJoined, "127.0.0.1:1") as early:
        unsettled, unjoined = (run(one, "consume", seconds=SHORT)["consume"] for one in (silent, early))

    assert unsettled.expected.endswith("`settled` for each ack")
    assert unsettled.came == "the channel has ended without an error"
    assert unjoined.expected == "`joined` behind `join`, before anything else"
    assert unjoined.page.endswith("#the-order-of-messages-of-subscribe-and-work")


def test_a_gateway_that_has_none_of_the_methods_is_found() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    results = run(f"127.0.0.1:{port}")
    server.stop(None).wait()

    assert {name for name, one in results.items() if one.outcome is not CheckOutcome.FAILED} == {NO_TOKEN}
    assert all("UNIMPLEMENTED, without a code" in one.came for one in results.values() if one.expected)
