"""Sessions of connectors at gateways: the protocol's own client, the real controllers, and no socket."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from tests.gateway.shop import SHOP, TOKENS
from wallaroo_spark.gateway.connectors.decoding import messages_of
from wallaroo_spark.gateway.connectors.door import SMALLEST_WINDOW, ConnectorDoor
from wallaroo_spark.gateway.connectors.session import MOST_UNSTABLE, DoorPhase
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.state.access import AccessRules
from wallaroo_spark.gateway.state.core import GatewayCore
from wallaroo_spark.gateway.state.requests import ToInbox
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.pipelines.controller.controller import handle
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.tokens import create_token
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    V3,
    Ack,
    ConnectorSession,
    Error,
    Flags,
    Frame,
    FrameBuffer,
    Message,
    MessageRun,
    NotifyAck,
    Ok,
    Restart,
    Revision,
    StreamReference,
    encode_message,
    reasons,
)
from wallaroo_spark.testing.memory_application import schema_of

ORDERS = PartitionKey("shop/orders", 0)
EVERY = pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE, V3], ids=lambda one: one.name)


class Shop:
    """The controllers of the shop, and gateways with their doors. Nothing is committed before :meth:`commit`."""

    def __init__(self, schema: str = SHOP, **limits: Any) -> None:
        self.schema = schema_of(schema)
        self.records: dict[PartitionKey, list[CloudEvent]] = defaultdict(list)
        self.entries: dict[PartitionKey, dict[bytes, bytes]] = defaultdict(dict)
        self.inbox: list[ToInbox] = []
        self.limits = GatewayLimits(**limits)
        self.gateways: dict[str, Gateway] = {}
        self.now = 1_000
        view = SchemaView(1, self.schema.objects)
        self.write([(key, e.PartitionDeclared(1, PartitionPlan(()))) for key in view.keys])
        self.commit()

    def gateway(self, name: str = "g0") -> Gateway:
        return self.gateways.setdefault(name, Gateway(self, name))

    def write(self, events: list[ToInbox]) -> None:
        self.inbox += [(key, decode(encode(event))) for key, event in events]

    def commit(self) -> None:
        """One batch with all that waits; its answers go to the gateways."""
        events: dict[PartitionKey, list[e.Event]] = defaultdict(list)
        for key, event in self.inbox:
            events[key].append(event)
        self.inbox = []
        self.now += 1
        for key, some in events.items():
            said, changes = handle(key, self.now, self.entries[key], some)
            for name, value in changes.items():
                self.entries[key].pop(name, None)
                if value is not None:
                    self.entries[key][name] = value
            for one in said:
                match one:
                    case i.AppendRecords():
                        self.records[key] += one.records
                    case i.AnswerRequest() | i.RefuseRequest() | i.WarnClient():
                        gateway = self.gateways.get(one.reply_to.gateway)
                        if gateway is not None:
                            gateway.core.handle(decode(encode(one)))

    def ids(self, key: PartitionKey = ORDERS) -> list[str]:
        return [record.id for record in self.records[key]]


class Gateway:
    """One gateway."""

    def __init__(self, shop: Shop, name: str) -> None:
        view = SchemaView(1, shop.schema.objects)
        self.shop = shop
        self.kept: dict[str, Any] = {}
        self.core = GatewayCore(name, 1, view, shop.limits)
        self.door = ConnectorDoor(
            shop.limits, lambda: self.core, lambda: AccessRules(self.core.schema, self.kept), lambda: 1.0
        )

    def connect(self, revision: Revision = DRAFT_BE, cookie: str = "", instance: str = "till") -> Connector:
        return Connector(self, revision, cookie, instance)


class Connector:
    """A connector: the protocol's own client side."""

    def __init__(self, gateway: Gateway, revision: Revision, cookie: str, instance: str) -> None:
        self.gateway = gateway
        self.session = gateway.door.connect("here:1", lambda: None)
        self.client = ConnectorSession(revision)
        self.revision = revision
        self.send(self.client.hello(version="0.0.1", cookie=cookie.encode(), program="p", instance=instance))

    def send(self, data: bytes) -> None:
        self.gateway.shop.write(self.gateway.door.receive(self.session, data))

    def frames(self) -> list[Frame]:
        """The frames that the connector has got since the last call."""
        self.client.receive(self.session.output())
        found = []
        while (frame := self.client.next_event()) is not None:
            found.append(frame)
        return found

    def begin(self) -> Ok:
        """The OK; the drafts get it with a commit."""
        self.gateway.shop.commit()
        (ok,) = self.frames()
        assert isinstance(ok, Ok)
        return ok

    def open(self, name: str = "shop/orders", stream_id: int = 5) -> int | None:
        """Open a stream. Returns the reference in v3."""
        self.send(self.client.notify(stream_id, name))
        if self.revision is V3:
            self.gateway.shop.commit()
            answers = [one for one in self.frames() if isinstance(one, NotifyAck)]
            assert [one.success for one in answers] == [True]
            return answers[0].ref
        return None

    def messages(self, *ids: int, stream_id: int = 5, payload: bytes | None = None, **fields: Any) -> None:
        """Send a message for each id."""
        data = b""
        for id in ids:
            content = payload or json.dumps({"type": "order.created", "id": str(id), "data": id}).encode()
            data += self.client.message(Message(stream_id, id, content, **fields))
        self.send(data)

    def end(self, last: int, stream_id: int = 5) -> None:
        self.send(self.client.end_of_stream(stream_id, last))

    def acks(self) -> dict[int, int]:
        """The references that were acknowledged since the last call."""
        return {id: ref for frame in self.frames() if isinstance(frame, Ack) for id, ref in frame.refs}

    def error(self) -> str:
        """The reason of the ERROR that has ended the session."""
        *_, last = self.frames()
        assert isinstance(last, Error), last
        assert self.session.phase is DoorPhase.ENDED
        return last.reason


@EVERY
def test_messages_are_published_in_order_and_acknowledged_with_their_commit(revision: Revision) -> None:
    shop = Shop()
    connector = shop.gateway().connect(revision)
    assert connector.begin().credits > 1000
    connector.open()
    connector.messages(1, 2, 3)
    connector.messages(10)
    assert connector.acks() == {}

    shop.commit()
    assert connector.acks() == {5: 10}
    assert shop.ids() == ["1", "2", "3", "10"]
    assert shop.records[ORDERS][0] == CloudEvent(
        "1", "till", "order.created", b"1", (("datacontenttype", "application/json"),)
    )


@EVERY
def test_a_connector_that_comes_back_is_told_its_references_and_replays_are_dropped(revision: Revision) -> None:
    shop = Shop()
    first = shop.gateway().connect(revision)
    first.begin()
    first.open()
    first.messages(1, 2, 3)
    shop.commit()
    first.messages(4, 5)
    # The connection is lost, and the messages 4 and 5 are in the inbox.
    first.gateway.door.disconnect(first.session, "cut")

    second = shop.gateway("g1").connect(revision)
    ok = second.begin()
    if revision is V3:
        assert second.open() == 5
    else:
        name = "" if revision is DRAFT_LE else "shop/orders"
        assert ok.streams in ((StreamReference(5, 5, name),), (StreamReference(5, 3, name),))
        second.open()
    second.messages(3, 4, 5, 6)
    shop.commit()
    assert second.acks() == {5: 6}
    assert shop.ids() == ["1", "2", "3", "4", "5", "6"]


@EVERY
def test_the_newest_of_two_sessions_that_send_one_stream_wins(revision: Revision) -> None:
    shop = Shop()
    old, new = shop.gateway("g0").connect(revision), shop.gateway("g1").connect(revision)
    shop.commit()
    assert isinstance(old.frames()[0], Ok)
    assert isinstance(new.frames()[0], Ok)
    old.open()
    new.open()
    old.messages(1, 2)
    new.messages(1)
    shop.commit()
    assert shop.ids() == ["1"]
    assert new.acks() == {5: 1}
    assert reasons.is_superseded(old.error())


def test_a_newer_session_at_the_same_gateway_ends_the_older_one_at_once() -> None:
    shop = Shop()
    old, new = shop.gateway().connect(), shop.gateway().connect()
    shop.commit()
    old.frames()
    new.frames()
    old.open()
    old.messages(1)
    new.open()
    new.messages(1)
    assert reasons.is_superseded(old.error())
    shop.commit()
    assert new.acks() == {5: 1}


@EVERY
def test_the_end_of_a_stream_is_acknowledged_and_the_stream_can_be_opened_again(revision: Revision) -> None:
    shop = Shop()
    connector = shop.gateway().connect(revision)
    connector.begin()
    connector.open()
    connector.messages(1)
    connector.end(1)
    shop.commit()
    assert connector.acks() == {5: 1}
    connector.open()
    connector.messages(2)
    shop.commit()
    assert connector.acks() == {5: 2}
    connector.end(2)
    shop.commit()
    assert connector.acks() == {5: 2}
    assert shop.ids() == ["1", "2"]


def test_a_stream_that_is_opened_again_before_its_end_is_committed_goes_on() -> None:
    shop = Shop()
    connector = shop.gateway().connect()
    connector.begin()
    connector.open()
    connector.messages(1)
    connector.end(1)
    connector.open()
    connector.messages(2)
    shop.commit()
    assert connector.acks() == {5: 2}
    connector.messages(3)
    shop.commit()
    assert connector.acks() == {5: 3}


def test_names_give_partitions_and_producers_are_streams_of_their_own() -> None:
    shop = Shop()
    connector = shop.gateway().connect()
    connector.begin()
    connector.open("shop/orders#1:a", 1)
    connector.open("shop/orders#1:b", 2)
    connector.messages(7, stream_id=1)
    connector.messages(3, stream_id=2)
    shop.commit()
    assert connector.acks() == {1: 7, 2: 3}
    assert shop.ids(PartitionKey("shop/orders", 1)) == ["7", "3"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("orders", "NAMESPACE/STREAM"),
        ("shop/nothing", "there is no Stream 'shop/nothing'"),
        ("shop/orders#2", "has 2 partitions, from 0, and the name of the connector stream asks for 2"),
    ],
)
def test_a_name_that_leads_nowhere_ends_the_session_with_the_reason(name: str, reason: str) -> None:
    connector = Shop().gateway().connect()
    connector.begin()
    connector.open(name)
    assert reason in connector.error()


def test_a_message_that_is_no_event_ends_its_session_and_no_other() -> None:
    shop = Shop()
    bad, good = shop.gateway().connect(), shop.gateway().connect(instance="other")
    shop.commit()
    bad.frames()
    good.frames()
    bad.open()
    good.open()
    data = b"".join(
        bad.client.message(Message(5, id, payload))
        for id, payload in ((1, b'{"type": "t", "id": "a"}'), (2, b"not an event"), (3, b'{"type": "t"}'))
    )
    bad.send(data)
    good.messages(9)
    assert "message 2 of shop/orders is no CloudEvent in JSON" in bad.error()
    shop.commit()
    assert shop.ids() == ["a", "9"]
    assert good.acks() == {5: 9}


def test_two_streams_of_a_session_cannot_have_one_name() -> None:
    connector = Shop().gateway().connect()
    connector.begin()
    connector.open(stream_id=1)
    connector.open(stream_id=2)
    assert "shop/orders is open already in this session, as stream 1" in connector.error()


def test_a_stream_that_is_open_is_refused_in_v3() -> None:
    shop = Shop()
    connector = shop.gateway().connect(V3)
    connector.begin()
    connector.open()
    connector.messages(4)
    connector.send(connector.client.notify(5, "shop/orders"))
    (answer,) = (one for one in connector.frames() if isinstance(one, NotifyAck))
    assert not answer.success
    shop.commit()
    assert connector.acks() == {5: 4}


def test_ephemeral_messages_are_refused() -> None:
    connector = Shop().gateway().connect()
    connector.begin()
    connector.open()
    connector.send(encode_message(DRAFT_BE, Message(5, None, b"{}", Flags.EPHEMERAL)))
    assert "send them without EPHEMERAL" in connector.error()


def test_a_boundary_moves_the_reference_and_has_no_record() -> None:
    shop = Shop()
    connector = shop.gateway().connect()
    connector.begin()
    connector.open()
    connector.messages(1)
    connector.send(connector.client.message(Message(5, 8, None, Flags.BOUNDARY)))
    shop.commit()
    assert connector.acks() == {5: 8}
    assert shop.ids() == ["1"]


def test_messages_that_cannot_be_resumed_from_wait_for_one_that_can() -> None:
    shop = Shop()
    connector = shop.gateway().connect()
    connector.begin()
    connector.open()
    connector.messages(1)
    connector.messages(2, 3, flags=Flags.UNSTABLE_REFERENCE)
    shop.commit()
    assert connector.acks() == {5: 1}
    assert shop.ids() == ["1"]
    connector.messages(4)
    shop.commit()
    assert connector.acks() == {5: 4}
    assert shop.ids() == ["1", "2", "3", "4"]


def test_too_many_messages_that_cannot_be_resumed_from_end_the_session() -> None:
    connector = Shop().gateway().connect()
    connector.begin()
    connector.open()
    for begin in range(0, MOST_UNSTABLE + 1000, 1000):
        if connector.session.phase is not DoorPhase.ENDED:
            connector.messages(*range(begin, begin + 1000), flags=Flags.UNSTABLE_REFERENCE)
            if begin < MOST_UNSTABLE:
                connector.frames()
    assert "cannot be resumed from" in connector.error()


def test_a_connector_gets_no_more_credits_than_its_window_before_the_commit() -> None:
    shop = Shop(connector_messages=SMALLEST_WINDOW)
    connector = shop.gateway().connect()
    window = connector.begin().credits
    assert window == SMALLEST_WINDOW
    connector.open()
    sent = 0
    while connector.client.credits.available > 0:
        sent += 1
        connector.messages(sent)
        connector.frames()
    assert sent <= window
    shop.commit()
    connector.frames()
    assert connector.client.credits.available == window
    assert shop.gateway().door.held_messages == 0


def test_replays_give_their_credits_back() -> None:
    shop = Shop(connector_messages=SMALLEST_WINDOW)
    connector = shop.gateway().connect()
    connector.begin()
    connector.open()
    connector.messages(9)
    shop.commit()
    for _ in range(5 * SMALLEST_WINDOW):
        connector.messages(9)
        connector.frames()
    assert connector.client.credits.available > 0


def test_uncommitted_messages_of_a_lost_session_count_until_their_commit() -> None:
    shop = Shop(connector_bytes=1)
    connector = shop.gateway().connect()
    connector.begin()
    connector.open()
    connector.messages(1)
    door = connector.gateway.door
    door.disconnect(connector.session)
    assert door.full
    shop.commit()
    assert not door.full
    assert len(door) == 0


def test_a_declared_token_closes_the_door_to_those_without_one() -> None:
    shop = Shop(SHOP + TOKENS)
    gateway = shop.gateway()
    tokens = {one.name: one for one in gateway.core.schema.tokens.values()}
    seller, kept = create_token(tokens["seller"], 0.0)
    gateway.kept[kept.id] = kept
    worker, other = create_token(tokens["worker"], 0.0)
    gateway.kept[other.id] = other

    assert "the cookie is no token that is accepted here" in gateway.connect().error()
    assert "the cookie is no token" in gateway.connect(cookie="wst_guess").error()
    without = gateway.connect(cookie=worker)
    without.begin()
    without.open()
    assert "does not permit to publish with Stream shop/orders" in without.error()

    connector = gateway.connect(cookie=seller)
    connector.begin()
    connector.open()
    connector.messages(1)
    shop.commit()
    assert connector.acks() == {5: 1}
    gateway.kept.clear()
    connector.session.rules_changed()
    assert "the cookie is no longer accepted" in connector.error()

    gateway.kept[kept.id] = kept
    elsewhere = gateway.connect(cookie=seller)
    elsewhere.begin()
    elsewhere.open("shop/shipments")
    assert "does not permit to publish with Stream shop/shipments" in elsewhere.error()


def test_only_partitions_that_a_token_permits_are_asked_for_references() -> None:
    shop = Shop(SHOP + TOKENS)
    gateway = shop.gateway()
    seller, kept = create_token(gateway.core.schema.tokens["seller"], 0.0)
    gateway.kept[kept.id] = kept
    gateway.connect(cookie=seller)
    assert [key for key, _ in shop.inbox] == [ORDERS, PartitionKey("shop/orders", 1)]


def test_connectors_are_asked_to_come_back_when_the_gateway_ends() -> None:
    shop = Shop()
    gateway = shop.gateway()
    be, le, v3 = gateway.connect(DRAFT_BE), gateway.connect(DRAFT_LE, instance="le"), gateway.connect(V3, instance="3")
    shop.commit()
    for connector in (be, le, v3):
        assert isinstance(connector.frames()[0], Ok)
    gateway.door.end("it is told to")
    assert be.frames() == [Restart()]
    assert reasons.is_later(le.error())
    assert v3.frames() == []
    assert v3.session.phase is DoorPhase.ENDED
    late = gateway.door.connect("here:2", lambda: None)
    assert late.phase is DoorPhase.ENDED


def test_a_gateway_takes_as_many_sessions_as_it_may() -> None:
    shop = Shop(connectors=1)
    gateway = shop.gateway()
    first, second = gateway.connect(), gateway.connect(instance="other")
    reason = second.error()
    assert reasons.is_later(reason)
    assert "its limit" in reason
    first.begin()


def test_incomplete_frames_are_bounded() -> None:
    shop = Shop(unfinished_bytes=1000)
    connector = shop.gateway().connect()
    connector.begin()
    connector.open()
    whole = connector.client.message(Message(5, 1, b"x" * 5000))
    connector.send(whole[:3000])
    assert reasons.is_later(connector.error())


def test_bytes_that_are_no_hello_end_the_connection() -> None:
    gateway = Shop().gateway()
    session = gateway.door.connect("here:1", lambda: None)
    gateway.door.receive(session, b"GET / HTTP/1.1\r\n\r\n")
    assert session.phase is DoorPhase.ENDED
    assert session.output() == b""


@EVERY
def test_bytes_that_come_one_by_one_mean_the_same(revision: Revision) -> None:
    shop = Shop()
    connector = shop.gateway().connect(revision)
    connector.begin()
    connector.open()
    data = b"".join(
        connector.client.message(Message(5, id, json.dumps({"type": "t", "id": str(id)}).encode())) for id in (1, 2, 3)
    )
    for byte in data:
        connector.send(bytes([byte]))
    shop.commit()
    assert connector.acks() == {5: 3}
    assert shop.ids() == ["1", "2", "3"]


@EVERY
def test_messages_are_decoded_as_the_protocol_decodes_them(revision: Revision) -> None:
    frames = [
        Message(5, 1, b"payload"),
        Message(6, 2, b""),
        Message(5, 3, b"with a time", event_time=77),
    ]
    if revision is not DRAFT_LE:
        frames.append(Message(5, 4, b"with a key", key=b"key"))
    if revision is not V3:
        frames += [Message(5, 5, None, Flags.BOUNDARY), Message(5, 6, b"last", Flags.EOS | Flags.UNSTABLE_REFERENCE)]
    data = b"".join(encode_message(revision, frame) for frame in frames)
    run = FrameBuffer(1 << 20)
    run.feed(data)
    found = run.next(revision, revision.by_frame[Message].tag)
    assert isinstance(found, MessageRun)

    messages, error = messages_of(found)
    assert error is None
    assert messages == [(one.stream_id, int(one.flags), one.message_id, one.payload) for one in found.messages()]

    cut = MessageRun(revision, data, [*found.starts[:1], len(data)], len(data))
    messages, error = messages_of(cut)
    assert error is not None
