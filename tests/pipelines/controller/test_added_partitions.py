"""Partitions that are added: durable groups begin at their first records, and each event is known wherever it went."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from tests.pipelines.controller.one_key import BEGINNING, LATEST, REPLY, Key, record, reply
from wallaroo_spark.pipelines.controller import partition_log
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan
from wallaroo_spark.pipelines.controller.messages.values import Durability, PartitionKey
from wallaroo_spark.pipelines.schema.cloud_event import PARTITION_KEY, CloudEvent, partition_of

STREAM = "shop/orders"


class Stream:
    """The keys of a stream. The messages between them arrive in order, and as late as a test wants."""

    def __init__(self, partitions: int, window_millis: int = 120_000) -> None:
        self.window = window_millis
        self.version = 0
        self.keys: list[Key] = []
        self.feed: list[tuple[PartitionKey, i.CarryOut]] = []
        self.answers: dict[int, i.AnswerRequest] = {}
        self.refused: dict[int, str] = {}
        self.raise_to(partitions)

    def raise_to(self, partitions: int) -> None:
        """Declare the stream with a number of partitions."""
        self.version += 1
        plan = PartitionPlan((), self.window, partitions=partitions)
        while len(self.keys) < partitions:
            self.keys.append(Key(key=PartitionKey(STREAM, len(self.keys)), declared=False))
        for key in self.keys:
            self.do(key, e.PartitionDeclared(self.version, plan))

    def delete(self) -> None:
        self.version += 1
        for key in self.keys:
            self.do(key, e.PartitionDeclared(self.version, None))

    def do(self, key: Key, *events: e.Event) -> None:
        key.do(*events)
        self.feed += [(key.key, one) for one in key.of(i.CarryOut)]
        for answer in key.of(i.AnswerRequest):
            self.answers[answer.reply_to.request] = answer
        for refusal in key.of(i.RefuseRequest):
            self.refused[refusal.reply_to.request] = refusal.reason

    def carry(self, messages: int | None = None) -> None:
        """Some messages between keys arrive; None: all, until there is none."""
        while self.feed and messages != 0:
            source, one = self.feed.pop(0)
            self.do(self.keys[one.target.partition], e.CarriedIn(source, one.sequence, one.message))
            messages = None if messages is None else messages - 1

    def carry_batch(self) -> None:
        """All messages between keys arrive in one batch."""
        arrived: dict[int, list[e.CarriedIn]] = defaultdict(list)
        for source, one in self.feed:
            arrived[one.target.partition].append(e.CarriedIn(source, one.sequence, one.message))
        self.feed.clear()
        for partition, messages in sorted(arrived.items()):
            self.do(self.keys[partition], *messages)

    def publish(
        self, *events: CloudEvent, request: int, known: int = 0, durability: Durability = Durability.COMMITTED
    ) -> int:
        """Publish as a gateway that knows so many partitions; return the number of requests for keys."""
        known = known or len(self.keys)
        parts: dict[int, list[CloudEvent]] = defaultdict(list)
        for event in events:
            parts[partition_of(event, known)].append(event)
        for number, (partition, some) in enumerate(sorted(parts.items())):
            published = e.RecordsPublished(reply(request + number), tuple(some), durability, known)
            self.do(self.keys[partition], published)
        return len(parts)

    def at(self, now: int) -> None:
        for key in self.keys:
            key.now = now
            self.do(key)

    def places(self, request: int) -> list[tuple[int, int]]:
        """Where the events of a request are."""
        (written,) = self.answers[request].written
        return [*written.places()]

    @property
    def written(self) -> Counter[str]:
        """How often each event is written."""
        return Counter(one.id for key in self.keys for one in key.log)


def events(*numbers: int) -> list[CloudEvent]:
    return [record(number) for number in numbers]


def test_an_event_that_is_published_again_after_partitions_were_added_has_the_place_that_it_had() -> None:
    stream = Stream(2)
    stream.publish(*events(*range(40)), request=10)
    before = {one.id: (key.key.partition, at) for key in stream.keys for at, one in enumerate(key.log, 1)}
    stream.raise_to(3)
    stream.carry()
    parts = stream.publish(*events(*range(40)), request=20)

    assert parts == 3
    assert [*stream.written.values()] == [1] * 40
    found = {place for request in range(20, 23) for place in stream.places(request)}
    assert found == {*before.values()}
    assert not stream.keys[2].log


def test_ids_that_have_moved_twice_are_known() -> None:
    stream = Stream(1)
    stream.publish(*events(*range(40)), request=10)
    for partitions in (2, 3, 5):
        stream.raise_to(partitions)
    stream.carry()
    stream.publish(*events(*range(40)), request=20)
    assert [*stream.written.values()] == [1] * 40


def test_moved_ids_are_forgotten_with_their_window() -> None:
    stream = Stream(1, window_millis=500)
    stream.publish(*events(*range(20)), request=10)
    stream.raise_to(2)
    stream.carry()
    assert stream.keys[1].head.seen_elsewhere
    stream.at(10_000)
    stream.publish(*events(*range(100, 110)), request=20)
    stream.at(20_000)
    stream.publish(*events(*range(110, 120)), request=30)
    assert not stream.keys[1].head.seen_elsewhere
    assert not [name for name in stream.keys[1].stored if name[:1] == b"f"]
    stream.publish(*events(*range(20)), request=40)
    assert stream.written["0"] == 2


def test_many_ids_are_told_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "MOST_IDS", 3)
    stream = Stream(1)
    stream.publish(*events(*range(30)), request=10)
    stream.raise_to(2)
    told = [one.message for _, one in stream.feed if isinstance(one.message, e.IdsMoved)]
    assert {len(one.offsets) for one in told[:-1]} == {3}
    stream.carry()
    stream.publish(*events(*range(30)), request=20)
    assert [*stream.written.values()] == [1] * 30


def test_a_gateway_that_does_not_know_of_added_partitions_writes_where_the_others_look() -> None:
    stream = Stream(2)
    stream.raise_to(3)
    stream.carry()
    stream.publish(*events(*range(30)), request=10, known=2)
    stream.publish(*events(*range(30)), request=20)
    stream.carry()
    assert [*stream.written.values()] == [1] * 30
    for key in stream.keys:
        assert all(partition_of(one, 3) == key.key.partition for one in key.log)
    told = sorted(place for request in (10, 11) for place in stream.places(request))
    assert told == sorted((key.key.partition, at) for key in stream.keys for at in range(1, len(key.log) + 1))


def test_an_event_whose_partition_was_named_stays_there() -> None:
    stream = Stream(1)
    stream.raise_to(2)
    stream.carry()
    stream.do(stream.keys[0], e.RecordsPublished(reply(10), tuple(events(*range(10)))))
    assert len(stream.keys[0].log) == 10
    assert not stream.feed


def test_delayed_events_are_written_once_after_partitions_were_added() -> None:
    stream = Stream(1)
    stream.do(stream.keys[0], e.RecordsDelayed(reply(10), tuple(events(*range(10))), 5_000, partitions=1))
    stream.raise_to(2)
    stream.carry()
    for partition, key in enumerate(stream.keys):
        mine = tuple(one for one in events(*range(10)) if partition_of(one, 2) == partition)
        stream.do(key, e.RecordsDelayed(reply(20 + partition), mine, 5_000, partitions=2))
    stream.at(5_000)
    stream.carry()
    assert [*stream.written.values()] == [1] * 10
    assert not stream.refused


def test_what_was_known_of_a_deleted_stream_does_not_count_for_one_of_its_name() -> None:
    stream = Stream(1)
    stream.do(stream.keys[0], e.GroupJoined(REPLY, "anna", "billing", True, BEGINNING, 1, 1))
    stream.publish(*events(*range(20)), request=10)
    stream.raise_to(2)
    stream.delete()
    stream.raise_to(2)
    stream.carry()
    assert not stream.keys[1].head.groups
    stream.publish(*events(*range(20)), request=20)
    assert [*stream.written.values()] == [2] * 20


def test_a_request_that_was_divided_among_the_partitions_of_a_deleted_stream_is_divided_again() -> None:
    stream = Stream(4)
    stream.delete()
    stream.version += 1
    stream.keys = stream.keys[:2]
    plan = PartitionPlan((), partitions=2)
    for key in stream.keys:
        stream.do(key, e.PartitionDeclared(stream.version, plan))
    late = [one for one in events(*range(30)) if partition_of(one, 4) < 2]
    stream.publish(*late, request=10, known=4)
    stream.publish(*late, request=20)
    stream.carry()
    assert [*stream.written.values()] == [1] * len(late)


def test_a_durable_group_without_a_member_begins_at_the_first_record_of_an_added_partition() -> None:
    stream = Stream(2)
    for partition, key in enumerate(stream.keys):
        stream.do(key, e.GroupJoined(REPLY, f"anna-{partition}", "billing", True, LATEST, 1, 2))
        stream.do(key, e.GroupJoined(REPLY, f"otto-{partition}", "live", False, LATEST, 1, 2))
        stream.do(key, e.MemberLeft(f"anna-{partition}"))
    stream.raise_to(3)
    stream.carry()
    stream.do(stream.keys[2], e.RecordsPublished(reply(10), (record(1), record(2))))
    assert [*stream.keys[2].head.groups] == ["billing"]

    stream.do(stream.keys[2], e.GroupJoined(REPLY, "paul", "other", True, LATEST, 1, 3))
    assert not stream.keys[2].of(i.DeliverRecords)
    stream.do(stream.keys[2], e.GroupJoined(REPLY, "anna", "billing", True, LATEST, 9, 3))
    given = stream.keys[2].one(i.DeliverRecords)
    assert (given.member, given.first, given.last) == ("anna", 1, 2)


def test_a_group_that_is_born_at_a_gateway_without_the_added_partition_begins_there_too() -> None:
    stream = Stream(1)
    stream.raise_to(3)
    stream.carry()
    for member, some in (("anna", 1), ("paul", 0), ("otto", 3)):
        stream.do(stream.keys[0], e.GroupJoined(REPLY, member, f"of-{member}", True, LATEST, 1, some))
    stream.carry()
    assert [[*key.head.groups] for key in stream.keys[1:]] == [["of-anna"]] * 2
    assert stream.keys[1].head.groups["of-anna"].cursor == 0


@pytest.mark.parametrize("seed", range(60))
def test_each_event_is_written_once_in_any_order_of_requests_and_added_partitions(seed: int) -> None:
    dice = random.Random(seed)
    stream, requests = Stream(dice.randint(1, 3)), 100
    keys = [None, "a", "b", "c"]
    known = [
        one if key is None else one._replace(attributes=((PARTITION_KEY, key),))
        for one, key in zip(events(*range(25)), (dice.choice(keys) for _ in range(25)), strict=True)
    ]
    asked: dict[int, list[str]] = {}
    sent, earlier = set[str](), len(stream.keys)
    for _ in range(40):
        for key in stream.keys:
            key.now += dice.choice((0, 10, 300))
        match dice.choice(("publish", "publish", "delay", "carry", "raise")):
            case "raise" if len(stream.keys) < 6 and dice.random() < 0.5:
                earlier = len(stream.keys)
                before = [*stream.feed]
                stream.feed.clear()
                stream.raise_to(earlier + dice.randint(1, 2))
                # As the planner of batches has it: gateways wait until the batch's messages have arrived.
                stream.feed = before + stream.feed
                stream.carry_batch()
            case "carry":
                stream.carry(dice.randint(1, 5))
            case "delay":
                one, partitions = dice.choice(known), dice.choice((earlier, len(stream.keys)))
                due = max(key.now for key in stream.keys) + dice.choice((0, 200, 900))
                key = stream.keys[partition_of(one, partitions)]
                sent.add(one.id)
                stream.do(key, e.RecordsDelayed(reply(1), (one,), due, Durability.RECEIVED, partitions))
            case _:
                some, partitions = dice.sample(known, dice.randint(1, 6)), dice.choice((earlier, len(stream.keys)))
                durability = dice.choice((Durability.COMMITTED, Durability.RECEIVED))
                sent |= {one.id for one in some}
                parts: dict[int, list[str]] = defaultdict(list)
                for one in some:
                    parts[partition_of(one, partitions)].append(one.id)
                if durability is Durability.COMMITTED:
                    asked |= {requests + place: ids for place, (_, ids) in enumerate(sorted(parts.items()))}
                requests += stream.publish(*some, request=requests, known=partitions, durability=durability)
    for _ in range(3):
        stream.carry()
        stream.at(max(key.now for key in stream.keys) + 1_000)
    stream.carry()

    assert stream.written == Counter(sent)
    for request, ids in asked.items():
        assert [stream.keys[partition].log[at - 1].id for partition, at in stream.places(request)] == ids


def test_what_is_due_in_the_batch_that_deletes_its_stream_is_not_written() -> None:
    stream = Stream(1)
    (key,) = stream.keys
    stream.do(key, e.RecordsDelayed(reply(10), (record(1),), 5_000))
    key.now = 5_000
    stream.do(key, e.PartitionDeclared(2, None), e.PartitionDeclared(3, PartitionPlan()))
    assert not key.log
    stream.at(10_000)
    assert not key.log


def test_a_request_of_which_records_are_in_a_deleted_stream_is_refused_by_the_one_declared_anew() -> None:
    stream = Stream(2)
    stream.raise_to(3)
    stream.carry()
    moving = [one for one in events(*range(60)) if partition_of(one, 2) == 0 and partition_of(one, 3) in (0, 2)]
    assert {partition_of(one, 3) for one in moving} == {0, 2}
    stream.publish(*moving, request=10, known=2)
    assert stream.keys[0].log, "some have their places"
    stream.delete()
    stream.raise_to(3)

    stream.carry()

    assert "was deleted, and declared anew, while" in stream.refused[10]
    assert 10 not in stream.answers
    stream.publish(*moving, request=20, known=3)
    assert stream.answers.keys() >= {20, 21}
