"""Checks of a gateway of durable streams: a client that publishes to one stream and consumes it in groups of its own.

The events of these checks stay in the stream; their source is ``conformance``. The checks are made one after the other,
because they share the stream, to which nobody else may publish meanwhile. Source: ``docs/conformance.md``.
"""

from __future__ import annotations

import copy
import functools
import queue
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from wallaroo_spark.api import cloudevents_pb2 as ce
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.conformance.checks import (
    Check,
    CheckPlan,
    CheckResult,
    CheckTable,
    Mismatch,
    NotApplicableError,
    Running,
    run_check,
)
from wallaroo_spark.errors import printable

SOURCE = "conformance"
TYPE = "conformance.check"
_CODE = "wallaroo-code"


@dataclass(frozen=True)
class CheckedGateway:
    """What the checks of a gateway have in common."""

    address: str
    stream: str
    """The stream to publish to, as ``namespace/name``."""
    token: str = ""
    credentials: grpc.ChannelCredentials | None = None
    """Those of TLS; None: without it."""
    seconds: float = 30.0
    """The longest wait for an answer, a commit among them."""
    quiet: float = 0.5
    """The time in which something must not come."""
    running: Running = field(default_factory=Running)
    """The clients."""


class CheckingClient:
    """The client of one check."""

    def __init__(self, setting: CheckedGateway) -> None:
        self.setting = setting
        self.name = secrets.token_hex(8)
        """A name of its own, for its group and in the ids of its events."""
        if setting.credentials is None:
            self._channel = grpc.insecure_channel(setting.address)
        else:
            self._channel = grpc.secure_channel(setting.address, setting.credentials)
        stubs: Any = rpc  # The generated code has no types.
        self.streams = stubs.StreamsStub(self._channel)
        self.schema = stubs.SchemaStub(self._channel)

    def __enter__(self) -> CheckingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all calls."""
        self._channel.close()

    def event(self, id: str, **fields: Any) -> ce.CloudEvent:
        """An event."""
        made = {"source": SOURCE, "spec_version": "1.0", "type": TYPE, "binary_data": id.encode(), **fields}
        return ce.CloudEvent(id=f"{self.name}-{id}", **made)

    def request(self, *ids: str, **fields: Any) -> pb.PublishRequest:
        """A request for events with these ids."""
        given = {"stream": self.setting.stream, "partition": 0, **fields}
        return pb.PublishRequest(events=[self.event(one) for one in ids], **given)

    def publish(self, *ids: str, **fields: Any) -> Any:
        """Publish events; the answer."""
        return self.call(self.streams.Publish, self.request(*ids, **fields), "the answer of Publish")

    def call(self, method: Any, request: Any, expected: str) -> Any:
        """The answer of a method. Raises :class:`Mismatch` for an error."""
        try:
            return method(request, timeout=self.setting.seconds, metadata=self.metadata)
        except grpc.RpcError as error:
            raise Mismatch(expected, _shown(error)) from None

    def refused(self, method: Any, request: Any, status: str, code: str, *, token: str | None = None) -> None:
        """The method fails with this status and code."""
        metadata = self.metadata if token is None else _with_token(token)
        expected = f"{status} with the code {code}"
        try:
            method(request, timeout=self.setting.seconds, metadata=metadata)
        except grpc.RpcError as error:
            if _status_and_code(error) == (status, code):
                return
            raise Mismatch(expected, _shown(error)) from None
        raise Mismatch(expected, f"an answer without an error to {_text(request) or 'an empty request'}")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The token, where there is one."""
        return _with_token(self.setting.token)

    def join(self, **fields: Any) -> pb.JoinGroup:
        """The request to join this check's group."""
        return pb.JoinGroup(**{"stream": self.setting.stream, "group": self.name, "partitions": [0], **fields})

    def member(self, **join: Any) -> CheckingMember:
        """A member of this check's group, once it is joined. The group begins at the latest event, and ends with it."""
        member = CheckingMember(self)
        member.send(join=self.join(**join))
        member.next("joined", "`joined` behind `join`, before anything else")
        return member


class CheckingMember:
    """A channel of ``Subscribe``."""

    def __init__(self, client: CheckingClient) -> None:
        self._client = client
        self._given: queue.SimpleQueue[pb.SubscriberMessage | None] = queue.SimpleQueue()
        self._call = client.streams.Subscribe(
            iter(self._given.get, None), timeout=client.setting.seconds, metadata=client.metadata
        )
        self._came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="conformance-member", daemon=True).start()

    def _read(self) -> None:
        try:
            for event in self._call:
                self._came.put(event)
            self._came.put(None)
        except grpc.RpcError as error:
            self._came.put(error)

    def send(self, **message: Any) -> None:
        """Send a message."""
        self._given.put(pb.SubscriberMessage(**message))

    def close(self) -> None:
        """Send nothing more."""
        self._given.put(None)

    def cancel(self) -> None:
        """Go without a word."""
        self._call.cancel()
        self.close()

    def next(self, kind: str, expected: str) -> Any:
        """The next event of the channel, which has to be of this kind."""
        found = self.event(expected)
        if found.WhichOneof("event") != kind:
            raise Mismatch(expected, _text(found))
        return getattr(found, kind)

    def both(self, one: str, other: str, expected: str) -> tuple[Any, Any]:
        """The next two events, which are of these kinds, in any order."""
        found = [self.event(expected) for _ in range(2)]
        by_kind = {event.WhichOneof("event"): event for event in found}
        if by_kind.keys() != {one, other}:
            raise Mismatch(expected, "; ".join(map(_text, found)))
        return getattr(by_kind[one], one), getattr(by_kind[other], other)

    def event(self, expected: str) -> Any:
        """The next event of the channel."""
        found = self.end()
        if found is None or isinstance(found, grpc.RpcError):
            raise Mismatch(expected, _came(found))
        return found

    def end(self) -> Any:
        """What comes next: an event, the error with which the channel ends, or None where it ends without one."""
        return self._came.get()

    def quiet(self, expected: str) -> None:
        """For a while nothing comes."""
        try:
            found = self._came.get(timeout=self._client.setting.quiet)
        except queue.Empty:
            return
        raise Mismatch(expected, _came(found))

    def delivery(self, *ids: str) -> Any:
        """The next delivery, which has these events."""
        given = self.next("delivery", f"a delivery with the events {', '.join(ids)}")
        self.has(given, *ids)
        return given

    def ids(self, given: Any) -> list[str]:
        """The events of a delivery, by the ids that they were given here."""
        return [event.id.removeprefix(f"{self._client.name}-") for event in given.events]

    def has(self, given: Any, *ids: str) -> None:
        """The delivery has these events."""
        found = self.ids(given)
        if found != list(ids):
            raise Mismatch(f"a delivery with the events {', '.join(ids)}", f"one with {', '.join(found) or 'none'}")

    def settled(self, delivery: int) -> Any:
        """The next event is ``settled`` of this delivery, without a problem."""
        return self.accepted(self.next("settled", f"`settled` of delivery {delivery}"), delivery)

    def accepted(self, settled: Any, delivery: int) -> Any:
        """``settled`` is of this delivery, and has no problem."""
        if settled.delivery != delivery or settled.problem.code:
            raise Mismatch(f"`settled` of delivery {delivery} without a problem", _text(settled))
        return settled

    def ends(self, expected: str) -> None:
        """The channel ends without an error."""
        if (found := self.end()) is not None:
            raise Mismatch(expected, _came(found))


def _with_token(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


def _came(found: Any) -> str:
    if found is None:
        return "the channel has ended without an error"
    return _shown(found) if isinstance(found, grpc.RpcError) else _text(found)


def _status_and_code(error: Any) -> tuple[str, str]:
    metadata = dict(error.trailing_metadata() or ())
    return error.code().name, str(metadata.get(_CODE, ""))


def _shown(error: Any) -> str:
    status, code = _status_and_code(error)
    limit = "; --timeout is the limit" if status == "DEADLINE_EXCEEDED" else ""
    return printable(f"{status}, {f'code {code}' if code else 'without a code'}: {error.details()}{limit}")


def _text(message: Any) -> str:
    return printable(" ".join(str(message).split())[:300])


_CONNECTING = "docs/pipelines/gateway.md#connecting"
_ERRORS = "docs/pipelines/gateway.md#errors"
_PUBLISHING = "docs/pipelines/gateway.md#publishing"
_ORDER = "docs/pipelines/gateway.md#the-order-of-messages-of-subscribe-and-work"
CHECKS = CheckTable[CheckingClient]()


@CHECKS.check("describe", _CONNECTING)
def _describe(client: CheckingClient) -> None:
    """Describe returns the schema and the gateways."""
    found = client.call(client.schema.Describe, pb.DescribeRequest(), "the answer of Describe")
    if not found.version or not found.schema or not found.gateways:
        raise Mismatch("the schema, its version, and the addresses of the gateways", _text(found))


@CHECKS.check("no-token", "docs/pipelines/gateway.md#tokens")
def _no_token(client: CheckingClient) -> None:
    """A call without a token, and one with another token, is refused."""
    if not client.setting.token:
        raise NotApplicableError("no token was given")
    calls = (
        (client.schema.Describe, pb.DescribeRequest()),
        (client.streams.Publish, client.request("a")),
        (_first_of(client.streams.PublishMany), client.request("a")),
        (_first_of(client.streams.Subscribe), pb.SubscriberMessage(join=client.join())),
    )
    for token in ("", f"{client.setting.token}-not"):
        for method, request in calls:
            client.refused(method, request, "UNAUTHENTICATED", "token-refused", token=token)


def _first_of(method: Any) -> Any:
    """The first answer of a channel with one request."""
    return lambda request, **given: next(method(iter([request]), **given), None)


@CHECKS.check("publish", _PUBLISHING)
def _publish(client: CheckingClient) -> None:
    """Publish returns the place of each event."""
    found = client.publish("a", "b").places
    if len(found) != 2 or found[0].partition or found[1].offset != found[0].offset + 1:
        raise Mismatch("two places in partition 0, one behind the other", _text(found))


@CHECKS.check("published-again", _ERRORS)
def _published_again(client: CheckingClient) -> None:
    """An event that is published again has the place that it had."""
    (first,) = client.publish("a").places
    again = client.publish("a", "b").places
    if again[0] != first or again[1].offset <= first.offset:
        raise Mismatch(f"the place of the first time for the same event: {_text(first)}", _text(again))


@CHECKS.check("received", _PUBLISHING)
def _received(client: CheckingClient) -> None:
    """Publish with RECEIVED is answered without places, and the event comes."""
    member = client.member()
    found = client.publish("a", durability=pb.RECEIVED)
    if found.places:
        raise Mismatch("no places with RECEIVED", _text(found))
    member.delivery("a")
    member.cancel()


@CHECKS.check("publish-many", _PUBLISHING)
def _publish_many(client: CheckingClient) -> None:
    """PublishMany answers each request with its number, or its problem."""
    requests = [client.request("a"), client.request(), client.request("b"), client.request("c", stream="no/stream")]
    for number, request in enumerate(requests, start=5):
        request.request = number
    expected = "an answer to each of four requests, with its number: 5 and 7 with places, 6 and 8 with problems"
    try:
        answers = client.streams.PublishMany(iter(requests), timeout=client.setting.seconds, metadata=client.metadata)
        found = sorted((answer.request, len(answer.places), answer.problem.code) for answer in answers)
    except grpc.RpcError as error:
        raise Mismatch(expected, _shown(error)) from None
    right = [(5, 1, ""), (6, 0, "request-invalid"), (7, 1, "")]
    # A token may not be allowed to know whether there is a stream.
    if found not in ([*right, (8, 0, "object-unknown")], [*right, (8, 0, "permission-missing")]):
        raise Mismatch(expected, f"(number, places, problem) {', '.join(map(str, found)) or 'no answer'}")


@CHECKS.check("unknown-stream", _ERRORS)
def _unknown_stream(client: CheckingClient) -> None:
    """A stream that is not declared is NOT_FOUND."""
    if client.setting.token:
        raise NotApplicableError("a token may not be allowed to know whether there is a stream")
    client.refused(client.streams.Publish, client.request("a", stream="no/stream"), "NOT_FOUND", "object-unknown")


@CHECKS.check("invalid-events", "docs/pipelines/gateway.md#events")
def _invalid_events(client: CheckingClient) -> None:
    """A request without events, and events without id, source or type, or with wrong attributes, are refused."""
    right = client.event("invalid")
    wrong = [copy.deepcopy(right) for _ in range(5)]
    for event, missing in zip(wrong, ("id", "source", "type"), strict=False):
        event.ClearField(missing)
    wrong[3].attributes["Upper"].ce_string = "x"
    wrong[4].attributes["time"].ce_string = "now"
    for events in ([], *([one] for one in wrong)):
        request = pb.PublishRequest(stream=client.setting.stream, partition=0, events=events)
        client.refused(client.streams.Publish, request, "INVALID_ARGUMENT", "request-invalid")


@CHECKS.check("large-message", _CONNECTING)
def _large_message(client: CheckingClient) -> None:
    """A message of more than 4 MiB is refused."""
    events = [client.event(f"large-{number}", binary_data=bytes(1 << 20)) for number in range(5)]
    request = pb.PublishRequest(stream=client.setting.stream, partition=0, events=events)
    client.refused(client.streams.Publish, request, "INVALID_ARGUMENT", "request-invalid")


@CHECKS.check("join-first", _ORDER)
def _join_first(client: CheckingClient) -> None:
    """A channel whose first message is no `join` is refused."""
    member = CheckingMember(client)
    member.send(ack=pb.Ack(delivery=1))
    expected = "INVALID_ARGUMENT with the code request-invalid, because the first message is no `join`"
    found = member.end()
    if not isinstance(found, grpc.RpcError) or _status_and_code(found) != ("INVALID_ARGUMENT", "request-invalid"):
        raise Mismatch(expected, _came(found))


@CHECKS.check("consume", _ORDER)
def _consume(client: CheckingClient) -> None:
    """Deliveries, acks and their `settled` come in their order, to the end."""
    member = client.member(max_events=2)
    left = dict(zip("abc", client.publish(*"abc").places, strict=True))
    expected = "deliveries of partition 0 with a, b and c in their order, at most 2 in each, and `settled` for each ack"
    taken: list[str] = []
    unsettled: set[int] = set()
    while left or unsettled:
        found = member.event(expected)
        given = found.delivery
        if found.WhichOneof("event") == "settled" and found.settled.delivery in unsettled:
            unsettled.remove(member.accepted(found.settled, found.settled.delivery).delivery)
            continue
        ids = member.ids(given)
        taken += ids
        if not (ids and len(taken) <= 2 and ids == list(left)[: len(ids)] and given.partition == 0):
            raise Mismatch(expected, _text(found))
        if given.first != (first := left[ids[0]].offset):
            raise Mismatch(f"a delivery whose first event, {ids[0]}, has the offset {first}", _text(found))
        for one in ids:
            del left[one]
        if given.more:
            continue
        taken = []
        member.send(ack=pb.Ack(delivery=given.delivery))
        unsettled.add(given.delivery)
        if not left:
            member.close()
    member.ends("the channel ends when the client has closed its side and its acks are answered")


@CHECKS.check("nack", _ORDER)
def _nack(client: CheckingClient) -> None:
    """A delivery that is nacked comes again, under another number."""
    member = client.member()
    client.publish("a")
    given = member.delivery("a")
    member.send(nack=pb.Nack(delivery=given.delivery, delay=1, reason="a check"))
    settled, again = member.both("settled", "delivery", "`settled`, and the same events again")
    member.accepted(settled, given.delivery)
    member.has(again, "a")
    if again.delivery == given.delivery:
        raise Mismatch("another number for the delivery that comes again", _text(again))
    member.send(ack=pb.Ack(delivery=again.delivery))
    member.settled(again.delivery)
    member.cancel()


@CHECKS.check("lost-client", _ORDER)
def _lost_client(client: CheckingClient) -> None:
    """The delivery of a client that is lost is given to another member, and not before."""
    first = client.member()
    client.publish("a")
    first.delivery("a")
    second = client.member()
    second.quiet("nothing for a second member as long as the first one has the delivery")
    first.cancel()
    given = second.delivery("a")
    second.send(ack=pb.Ack(delivery=given.delivery))
    second.settled(given.delivery)
    second.cancel()


@CHECKS.check("ack-of-nothing", _ORDER)
def _ack_without_delivery(client: CheckingClient) -> None:
    """An ack of a delivery that is not open has a `warning`."""
    member = client.member()
    member.send(ack=pb.Ack(delivery=4711))
    warning = member.next("warning", "`warning` for an ack of a delivery that was never given")
    if warning.delivery != 4711:
        raise Mismatch("the number of the delivery in `warning`", _text(warning))
    member.cancel()


@CHECKS.check("transaction", _ORDER)
def _transaction(client: CheckingClient) -> None:
    """The states of a transaction come in their order, `settled` with its places, and its event is in the stream."""
    member = client.member(max_events=1)
    client.publish("a")
    number = member.delivery("a").delivery
    member.send(begin=pb.Begin(delivery=number))
    events = pb.StreamEvents(stream=client.setting.stream, partition=0, events=[client.event("t")])
    member.send(statement=pb.Statement(delivery=number, events=events))
    member.send(ack=pb.Ack(delivery=number))
    states: dict[int, list[str]] = {-1: [], 0: []}
    expected = "PENDING and APPLIED of the begin (-1), PENDING, APPLIED and COMMITTED of the statement (0), `settled`"
    settled = given = None
    while settled is None or given is None:
        found = member.event(expected)
        match found.WhichOneof("event"):
            case "statement":
                states[found.statement.place].append(pb.StatementResult.State.Name(found.statement.state))
            case "settled":
                settled = member.accepted(found.settled, number)
            case "delivery":
                # The event of the transaction is one of this stream, too.
                given = found.delivery
                member.has(given, "t")
            case _:
                raise Mismatch(expected, _text(found))
    if states != {-1: ["PENDING", "APPLIED"], 0: ["PENDING", "APPLIED", "COMMITTED"]}:
        raise Mismatch(expected, f"{states}")
    if len(settled.written) != 1 or len(settled.written[0].places) != 1 or not settled.written[0].places[0].offset:
        raise Mismatch("the place of the transaction's event in `settled`", _text(settled))
    member.cancel()


def plan(setting: CheckedGateway, checks: Sequence[Check[CheckingClient]] = CHECKS) -> CheckPlan:
    """The checks to make, one after the other."""
    return CheckPlan([functools.partial(_checked, setting, check) for check in checks], setting.running, at_once=1)


def _checked(setting: CheckedGateway, check: Check[CheckingClient]) -> CheckResult:
    with CheckingClient(setting) as client, setting.running.until(client.close):
        return run_check(check, client)
