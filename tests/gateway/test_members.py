"""One member without sockets: numbering, concurrency over partitions, acks and answers, transactions, limits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.gateway.memory import schema_of
from tests.gateway.shop import SHOP, event, join, work
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api.limits import GROUP_EVENTS
from wallaroo_spark.gateway.limits import GatewayLimits, Refused
from wallaroo_spark.gateway.state.calls import ToInbox
from wallaroo_spark.gateway.state.core import GatewayCore
from wallaroo_spark.gateway.state.members import JoinedMember, RecordsToGive, group_messages
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery, PartitionKey, ReplyTo, StageDelivery
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload

SCHEMA = SchemaView(1, schema_of(SHOP).objects)
EVENT = CloudEvent("a", "s", "t", b"data")


class Channel:
    """A member of a gateway, and a client that calls its state directly."""

    def __init__(self, first: Any, **limits: int) -> None:
        self.limits = dataclasses.replace(GatewayLimits(), **limits)
        self.core = GatewayCore("g0", 3, SCHEMA, self.limits)
        made = self.core.join(first.join, lambda: None)
        self.member: JoinedMember = made[0]
        self.joins: list[ToInbox] = made[1]

    def joined(self) -> Channel:
        """All partitions accept the member."""
        for one in self.joins:
            self.core.handle(i.AnswerRequest(reply_of([one])))
        assert self.take().WhichOneof("event") == "joined"
        return self

    def take(self, now: float = 0.0) -> Any:
        return self.member.take(now)

    def taken(self) -> list[Any]:
        """Everything that waits for the client."""
        return [*iter(self.member.take, None)]

    def send(self, **message: Any) -> list[ToInbox]:
        made: Any = (
            pb.WorkerMessage if self.member.joining.__class__.__name__ == "StageJoining" else pb.SubscriberMessage
        )
        return self.member.client(made(**message), SCHEMA, lambda path: None)

    def deliver(self, partition: int, number: int, *records: CloudEvent, first: int = 1) -> None:
        name = self.member.name_at(partition)
        last = first + max(1, len(records)) - 1
        given = i.DeliverRecords(name, GroupDelivery("readers", number), first, last)
        self.core.handle(given, records or None)

    def give_inputs(self, number: int, data: bytes = b"") -> None:
        delivery = StageDelivery("shop/fulfil", 1, "ship", number)
        self.core.handle(i.DeliverInputs(self.member.name_at(0), delivery, EVENT, (("charge", Payload(data)),)))


def group(**fields: Any) -> Channel:
    return Channel(join(**fields)).joined()


def reply_of(events: list[ToInbox]) -> ReplyTo:
    """The request of the only event."""
    ((_, event),) = events
    reply: ReplyTo = event.reply_to  # type: ignore[union-attr,assignment]  # an event of a client has one
    return reply


def kinds(sent: list[Any]) -> list[str]:
    return [one.WhichOneof("event") if not isinstance(one, RecordsToGive) else "records" for one in sent]


def test_a_member_joins_every_partition_under_a_name_of_its_own_and_is_told_when_all_have_it() -> None:
    channel = Channel(join(max_events=5))
    assert [key for key, _ in channel.joins] == [PartitionKey("shop/orders", 0), PartitionKey("shop/orders", 1)]
    joins = [event for _, event in channel.joins if isinstance(event, e.GroupJoined)]
    assert [one.member for one in joins] == ["g0.3.1.0", "g0.3.1.1"]
    assert {one.max_records for one in joins} == {5}
    channel.core.handle(i.AnswerRequest(joins[1].reply_to))
    channel.deliver(1, 1, EVENT)
    assert channel.take() is None
    channel.core.handle(i.AnswerRequest(joins[0].reply_to))
    assert kinds(channel.taken()) == ["joined", "records"]


def test_one_refusal_of_a_join_ends_the_channel_and_it_leaves_every_partition() -> None:
    channel = Channel(join())
    channel.core.handle(i.RefuseRequest(reply_of(channel.joins[:1]), "no"))
    assert channel.member.ended is not None
    assert channel.member.ended.code == "join-refused"
    assert channel.core.leave(channel.member) == [(PartitionKey("shop/orders", 1), e.MemberLeft("g0.3.1.1"))]


def test_deliveries_of_all_partitions_are_numbered_and_wait_for_a_free_place() -> None:
    channel = group(concurrency=1)
    channel.deliver(1, 7, EVENT)
    channel.deliver(0, 7, EVENT)
    (first,) = channel.taken()
    assert (first.number, first.partition, first.records) == (1, 1, (EVENT,))
    acked = channel.send(ack=pb.Ack(delivery=1))
    reply = reply_of(acked)
    assert acked == [
        (PartitionKey("shop/orders", 1), e.DeliveryAcked(reply, "g0.3.1.1", GroupDelivery("readers", 7))),
    ]
    (second,) = channel.taken()
    assert (second.number, second.partition) == (2, 0)
    channel.core.handle(i.AnswerRequest(reply))
    assert channel.taken() == [pb.SubscriberEvent(settled=pb.Settled(delivery=1))]


def test_each_ack_has_one_settled_also_when_the_controller_drops_it() -> None:
    channel = group(concurrency=2)
    channel.deliver(0, 1, EVENT)
    channel.deliver(1, 1, EVENT)
    channel.taken()
    replies = [reply_of(channel.send(ack=pb.Ack(delivery=1))), reply_of(channel.send(nack=pb.Nack(delivery=2)))]
    # While the ack is on its way, the controller withdraws the delivery.
    channel.core.handle(i.WithdrawDelivery("g0.3.1.0", GroupDelivery("readers", 1), "cancelled"))
    assert channel.taken() == []
    channel.core.handle(i.WarnClient(replies[0], "late"))
    channel.core.handle(i.RefuseRequest(replies[1], "no"))
    assert [(one.settled.delivery, one.settled.problem.code) for one in channel.taken()] == [
        (1, "delivery-not-open"),
        (2, "ack-refused"),
    ]
    assert channel.send(ack=pb.Ack(delivery=1)) == []
    assert kinds(channel.taken()) == ["warning"]


def test_a_withdrawn_delivery_frees_its_place_and_one_that_waits_is_not_given() -> None:
    channel = group(concurrency=1)
    for number in (1, 2, 3):
        channel.deliver(0, number, EVENT)
    assert kinds(channel.taken()) == ["records"]
    channel.core.handle(i.WithdrawDelivery("g0.3.1.0", GroupDelivery("readers", 2), "gone"))
    channel.core.handle(i.WithdrawDelivery("g0.3.1.0", GroupDelivery("readers", 1), "gone"))
    sent = channel.taken()
    assert kinds(sent) == ["withdrawn", "records"]
    assert sent[1].number == 3


def test_a_client_that_does_not_read_has_no_events_in_memory() -> None:
    channel = Channel(join(concurrency=1), waiting_bytes=2000).joined()
    big = EVENT._replace(data=bytes(1500))
    for number in range(1, 4):
        channel.deliver(0, number, big, first=number)
    given = []
    for number in (1, 2, 3):
        given += channel.taken()
        channel.send(ack=pb.Ack(delivery=number))
    assert [one.records is None for one in given] == [False, True, True]
    assert [(one.delivery.first, one.delivery.last) for one in given] == [(1, 1), (2, 2), (3, 3)]


def test_a_worker_of_a_stage_that_does_not_read_is_sent_away() -> None:
    channel = Channel(work("ship"), waiting_bytes=1000).joined()
    channel.give_inputs(1, bytes(5000))
    assert kinds(channel.taken()) == ["delivery"]
    channel.give_inputs(2, bytes(900))
    channel.give_inputs(3, bytes(900))
    assert channel.member.ended is not None
    assert channel.member.ended.code == "gateway-busy"


def test_an_ack_of_a_stage_has_its_output_and_its_events_by_partition() -> None:
    channel = Channel(work("ship")).joined()
    channel.give_inputs(1, b"paid")
    (given,) = channel.taken()
    assert given.delivery.outputs["charge"].data == b"paid"
    outputs = [pb.StreamEvents(stream="orders", events=[event(str(one)) for one in range(8)])]
    ((_, acked),) = channel.send(ack=pb.Ack(delivery=1, output=pb.Payload(data=b"o"), stream_outputs=outputs))
    assert isinstance(acked, e.DeliveryAcked)
    assert acked.output == Payload(b"o")
    assert {one.target for one in acked.stream_outputs} == {
        PartitionKey("shop/orders", 0),
        PartitionKey("shop/orders", 1),
    }
    assert sum(len(one.records) for one in acked.stream_outputs) == 8


def test_a_nack_has_its_reason_for_the_controller_and_for_the_log() -> None:
    channel = Channel(work("ship")).joined()
    channel.give_inputs(1)
    channel.taken()
    message = pb.WorkerMessage(nack=pb.Nack(delivery=1, delay=5, reason="no stock\n" + "!" * 2000))
    logged = channel.member.nack_reason(message)
    ((_, nacked),) = channel.send(nack=message.nack)
    assert isinstance(nacked, e.DeliveryNacked)
    assert (nacked.delay, nacked.reason) == (5, "no stock\\n" + "!" * 990)
    assert logged.endswith(nacked.reason)
    assert "ship" in logged
    assert not channel.member.nack_reason(message), "it is not open any more"


def test_an_ack_that_is_not_valid_becomes_a_nack_with_its_reason() -> None:
    channel = Channel(work("ship")).joined()
    channel.give_inputs(1)
    channel.taken()
    bad = pb.StreamEvents(stream="shipments", events=[event("")])
    nacked = channel.send(ack=pb.Ack(delivery=1, stream_outputs=[bad]))
    assert isinstance(nacked[0][1], e.DeliveryNacked)
    assert nacked[0][1].reason
    channel.core.handle(i.AnswerRequest(reply_of(nacked)))
    (settled,) = channel.taken()
    assert settled.settled.problem.code == "request-invalid"


def test_a_statement_of_several_partitions_is_applied_when_all_have_it() -> None:
    channel = group()
    channel.deliver(0, 1, EVENT)
    channel.taken()
    statement = pb.Statement(
        delivery=1, events=pb.StreamEvents(stream="shop/orders", events=[event(str(one)) for one in range(8)])
    )
    assert channel.send(statement=statement) == []
    assert kinds(channel.taken()) == ["warning"]
    channel.core.handle(i.AnswerRequest(reply_of(channel.send(begin=pb.Begin(delivery=1)))))
    assert channel.send(begin=pb.Begin(delivery=1)) == []
    pending, applied, warning = channel.taken()
    assert (pending.statement.state, applied.statement.state) == (
        pb.StatementResult.PENDING,
        pb.StatementResult.APPLIED,
    )
    assert warning.HasField("warning")
    added = channel.send(statement=statement)
    assert [event.target.partition for _, event in added if isinstance(event, e.StatementAdded)] == [0, 1]
    states = pb.StatementResult
    assert [one.statement.state for one in channel.taken()] == [states.PENDING]
    channel.core.handle(i.AnswerRequest(reply_of(added[:1])))
    assert channel.taken() == []
    channel.core.handle(i.AnswerRequest(reply_of(added[1:])))
    assert [one.statement.state for one in channel.taken()] == [states.APPLIED]
    reply = reply_of(channel.send(ack=pb.Ack(delivery=1)))
    parts = [event for _, event in added if isinstance(event, e.StatementAdded)]
    offsets = [tuple(range(10 * place, 10 * place + len(part.records))) for place, part in enumerate(parts, 1)]
    written = tuple(i.Written(part.target, found) for part, found in zip(parts, offsets, strict=True))
    channel.core.handle(i.AnswerRequest(reply, written))
    committed, settled = channel.taken()
    assert committed.statement.state == states.COMMITTED
    places = settled.settled.written[0].places
    by_id = {
        one.id: (part.target.partition, offset)
        for part, found in zip(parts, offsets, strict=True)
        for one, offset in zip(part.records, found, strict=True)
    }
    assert [(place.partition, place.offset) for place in places] == [by_id[str(one)] for one in range(8)]


def test_a_statement_that_its_target_refuses_withdraws_the_delivery() -> None:
    channel = group()
    channel.deliver(0, 1, EVENT)
    channel.taken()
    channel.core.handle(i.AnswerRequest(reply_of(channel.send(begin=pb.Begin(delivery=1)))))
    events = pb.StreamEvents(stream="shop/shipments", events=[event("x")])
    reply = reply_of(channel.send(statement=pb.Statement(delivery=1, events=events)))
    channel.taken()
    channel.core.handle(i.RefuseRequest(reply, "no such stream"))
    rejected, withdrawn = channel.taken()
    assert rejected.statement.state == pb.StatementResult.REJECTED
    assert "no such stream" in withdrawn.withdrawn.reason


def test_a_partition_that_is_added_is_joined_from_its_beginning() -> None:
    channel = Channel(join(start=pb.StartPoint(location=pb.StartPoint.LATEST))).joined()
    changed = SchemaView(2, schema_of(SHOP.replace("partitions: 2", "partitions: 3"), 2).objects)
    ((key, added),) = channel.core.schema_changed(changed)
    assert isinstance(added, e.GroupJoined)
    assert (key.partition, added.start.location) == (2, "beginning")
    assert channel.core.schema_changed(changed) == []
    only = Channel(join(partitions=[1])).joined()
    assert only.core.schema_changed(changed) == []


def test_a_member_that_names_partitions_joins_only_those() -> None:
    assert [key.partition for key, _ in Channel(join(partitions=[1])).joins] == [1]
    with pytest.raises(Refused, match="partition"):
        Channel(join(partitions=[2]))


def test_answers_to_an_earlier_generation_and_to_members_that_are_gone_are_dropped() -> None:
    channel = group()
    channel.core.handle(i.AnswerRequest(ReplyTo("g0", 2, 1)))
    channel.core.handle(i.DeliverRecords("g0.2.1.0", GroupDelivery("readers", 1), 1, 1), (EVENT,))
    channel.core.handle(i.DeliverRecords("g0.3.9.0", GroupDelivery("readers", 1), 1, 1), (EVENT,))
    assert channel.taken() == []
    channel.core.leave(channel.member)
    channel.deliver(0, 1, EVENT)
    assert channel.taken() == []


@pytest.mark.parametrize("message", [{}, {"join": join().join}])
def test_a_message_that_is_none_and_a_second_join_end_the_channel(message: Any) -> None:
    with pytest.raises(Refused):
        group().send(**message)


def test_parts_of_a_delivery_have_their_own_first_offsets_and_missed_is_told_once() -> None:
    instruction = i.DeliverRecords("g1.3.1.1", GroupDelivery("billing", 9), first=10, last=14, missed=2)
    given = RecordsToGive(4, 1, instruction, None)
    limits = GatewayLimits(part_bytes=1)
    sent = [one.delivery for one in group_messages(given, 12, [EVENT, EVENT, EVENT], limits)]
    assert [(one.first, one.more, one.missed) for one in sent] == [(12, True, 4), (13, True, 0), (14, False, 0)]
    (nothing,) = group_messages(given, 20, [], limits)
    assert (nothing.delivery.missed, nothing.delivery.more) == (7, False)


def test_the_statements_of_a_transaction_have_a_limit_in_bytes_in_which_everything_counts() -> None:
    channel = Channel(join(), transaction_bytes=10_000).joined()
    channel.deliver(0, 1, EVENT)
    channel.taken()
    channel.send(begin=pb.Begin(delivery=1))
    channel.taken()

    def statement() -> list[ToInbox]:
        large = event("a", note="x" * 4_000)
        return channel.send(
            statement=pb.Statement(delivery=1, events=pb.StreamEvents(stream="shop/orders", events=[large]))
        )

    for _ in range(2):
        assert isinstance(statement()[0][1], e.StatementAdded)
    ((_, nacked),) = statement()
    assert isinstance(nacked, e.DeliveryNacked)
    rejected = channel.taken()[-1].statement
    assert rejected.state == pb.StatementResult.REJECTED
    assert "10000 are permitted" in rejected.reason


def test_the_begin_of_a_transaction_is_pending_and_applied_before_its_statements() -> None:
    channel = group()
    channel.deliver(0, 1, EVENT)
    channel.taken()
    begun = channel.send(begin=pb.Begin(delivery=1))
    events = pb.StreamEvents(stream="shop/orders", events=[event("a")])
    added = channel.send(statement=pb.Statement(delivery=1, events=events))
    channel.core.handle(i.AnswerRequest(reply_of(begun)))
    channel.core.handle(i.AnswerRequest(reply_of(added)))
    states = pb.StatementResult
    assert [(one.statement.place, one.statement.state) for one in channel.taken()] == [
        (-1, states.PENDING),
        (0, states.PENDING),
        (-1, states.APPLIED),
        (0, states.APPLIED),
    ]


def test_a_message_about_a_delivery_that_is_not_open_says_which_kind_it_is() -> None:
    channel = group(concurrency=1)
    for number in (1, 2):
        channel.deliver(0, number, EVENT)
    channel.taken()
    channel.send(ack=pb.Ack(delivery=1))
    for number in (0, 1, 3):
        channel.send(ack=pb.Ack(delivery=number))
    texts = [
        one.warning.text for one in channel.taken() if not isinstance(one, RecordsToGive) and one.HasField("warning")
    ]
    assert [text.partition(": ")[2].partition(";")[0] for text in texts] == [
        "it was never given on this channel",
        "it was acked or nacked already",
        "it was never given on this channel",
    ]


def test_an_ack_that_crosses_its_withdrawal_has_a_warning_and_no_settled() -> None:
    channel = group()
    channel.deliver(0, 1, EVENT)
    channel.taken()
    channel.core.handle(i.WithdrawDelivery("g0.3.1.0", GroupDelivery("readers", 1), "gone"))
    channel.send(ack=pb.Ack(delivery=1))
    assert kinds(channel.taken()) == ["withdrawn", "warning"]


def test_the_next_delivery_may_come_before_the_settled_of_the_one_before() -> None:
    channel = group(concurrency=1)
    for number in (1, 2):
        channel.deliver(0, number, EVENT)
    assert [one.number for one in channel.taken()] == [1]
    reply = reply_of(channel.send(ack=pb.Ack(delivery=1)))
    assert [one.number for one in channel.taken()] == [2]
    channel.core.handle(i.AnswerRequest(reply))
    assert kinds(channel.taken()) == ["settled"]


def taken_away(channel: Channel, number: int, reason: str = "too late") -> None:
    delivery = StageDelivery("shop/fulfil", 1, "ship", number)
    channel.core.handle(i.WithdrawDelivery(channel.member.name_at(0), delivery, reason, True))


def test_a_delivery_that_is_taken_away_keeps_its_place_until_the_client_settles_it() -> None:
    channel = Channel(work("ship")).joined()
    channel.give_inputs(1)
    assert kinds(channel.taken()) == ["delivery"]
    taken_away(channel, 1)
    channel.give_inputs(2)
    (withdrawn,) = channel.taken()
    assert (withdrawn.withdrawn.delivery, withdrawn.withdrawn.taken_away) == (1, True)

    late = channel.send(ack=pb.Ack(delivery=1))
    assert isinstance(late[0][1], e.DeliveryNacked), "the controller is told that the place is free"
    assert kinds(channel.taken()) == ["delivery"]
    channel.core.handle(i.WarnClient(reply_of(late), "taken away"))
    (settled,) = channel.taken()
    assert (settled.settled.problem.code, settled.settled.problem.text) == ("delivery-not-open", "taken away")


def extended_one(event: e.Event) -> int:
    assert isinstance(event, e.DeliveryExtended)
    return event.delivery.number


def test_time_does_not_pass_for_a_delivery_that_waits_at_a_member_that_works() -> None:
    channel = Channel(work("ship")).joined()
    for number in (1, 2, 3):
        delivery = StageDelivery("shop/fulfil", number, "ship", number)
        channel.core.handle(i.DeliverInputs(channel.member.name_at(0), delivery, EVENT, (), 8_000))
    assert channel.take(100.0).delivery.timeout == 8_000
    extended = channel.send(extend=pb.Extend(delivery=1))
    assert [extended_one(event) for _, event in extended] == [1, 2, 3]
    channel.member.take_events()

    channel.send(ack=pb.Ack(delivery=1))
    assert channel.take(101.0).delivery.delivery == 2
    assert [extended_one(event) for _, event in channel.member.take_events()] == [2], "its time begins now"
    channel.send(ack=pb.Ack(delivery=2))
    channel.give_inputs(4)
    channel.member.take(109.0)
    assert [extended_one(event) for _, event in channel.member.take_events()] == [3]


def test_a_delivery_that_waits_for_a_hundredth_of_its_time_costs_no_event() -> None:
    channel = Channel(work("ship")).joined()
    channel.member.take(100.0)
    for number in (1, 2, 3):
        delivery = StageDelivery("shop/fulfil", number, "ship", number)
        channel.core.handle(i.DeliverInputs(channel.member.name_at(0), delivery, EVENT, (), 600_000))
    for number, at in ((1, 100.0), (2, 105.9), (3, 106.0)):
        assert channel.take(at).delivery.delivery == number
        channel.send(ack=pb.Ack(delivery=number))
    assert [extended_one(event) for _, event in channel.member.take_events()] == [3]


def test_a_delivery_whose_time_is_over_while_it_waits_is_given_back_when_its_member_works_again() -> None:
    channel = Channel(work("ship")).joined()
    channel.give_inputs(1)
    channel.give_inputs(2)
    channel.taken()
    taken_away(channel, 2)
    assert not channel.taken()
    channel.send(ack=pb.Ack(delivery=1))
    assert not channel.taken()
    ((_, given_back),) = channel.member.take_events()
    assert isinstance(given_back, e.DeliveryNacked)
    assert given_back.delivery.number == 2


def test_a_raw_client_that_asks_for_nothing_has_many_events_and_deliveries_at_once() -> None:
    (_, joined), *_ = Channel(join()).joins
    assert isinstance(joined, e.GroupJoined)
    assert joined.max_records == GROUP_EVENTS
    assert Channel(work("ship", 0)).member.joining.concurrency == 100


def test_a_change_of_a_group_asks_each_partition_once_however_often_it_is_named() -> None:
    core = GatewayCore("g0", 3, SCHEMA, GatewayLimits())
    request = pb.ChangeGroupRequest(stream="shop/orders", group="g", partitions=[1, 0] * 100_000)

    _, events = core.change_group(request, lambda: None)
    assert [key.partition for key, _ in events] == [0, 1]
    request.partitions.append(7)
    with pytest.raises(Refused, match="has 2 partitions, from 0, and 7 is asked for"):
        core.change_group(request, lambda: None)
