"""The server's machine: answers, their order, codes, time-outs and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.kafka.batches import batch
from tests.doors.kafka.worlds import World, body_of, codes, produce, request
from wallaroo_spark.codes import ENTRIES
from wallaroo_spark.doors.client import stream_id
from wallaroo_spark.doors.kafka.apis import REFUSALS, SERVED, Api, Code
from wallaroo_spark.doors.kafka.positions import fence
from wallaroo_spark.doors.kafka.server import IDLE_SECONDS, UNFINISHED_SECONDS
from wallaroo_spark.references import StreamKey


def _connected(**settings: Any) -> World:
    world = World(**settings)
    world.connect()
    return world


def _codes(world: World, version: int = 9) -> dict[int, list[int]]:
    return {correlation: [code for *_, code in codes(data, version)] for correlation, data in world.answers()}


def test_a_batch_is_answered_when_it_is_committed() -> None:
    world = _connected()
    records = batch([b"a", b"b"], producer=7, epoch=0, sequence=0)
    world.receive(produce(1, ("orders", 3, records)))
    assert world.answers() == []
    assert world.sent == [("kafka/billing/0", "orders/3/7", 2, records)]
    world.commit()
    assert _codes(world) == {1: [Code.NONE]}


def test_answers_have_the_order_of_their_requests() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch())))
    world.receive(
        request(Api.METADATA, 9, 2, topics=[], create=True, with_cluster_operations=False, with_topic_operations=False)
    )
    assert world.answers() == []
    world.commit()
    assert [correlation for correlation, _ in world.answers()] == [1, 2]


def test_requests_are_read_whole_byte_by_byte_and_together() -> None:
    data = request(Api.API_VERSIONS, 3, 1, software="java", software_version="4") + produce(2, ("orders", 0, batch()))
    found = []
    for size in (len(data), 1, 7):
        world = _connected()
        for at in range(0, len(data), size):
            world.receive(data[at : at + size])
        world.commit()
        found.append(world.answers())
    assert found[0] == found[1] == found[2]
    assert [correlation for correlation, _ in found[0]] == [1, 2]


@pytest.mark.parametrize("version", range(5))
def test_clients_are_told_the_versions(version: int) -> None:
    world = _connected()
    world.receive(request(Api.API_VERSIONS, version, 1, software="java", software_version="4"))
    ((_, data),) = world.answers()
    found = body_of(Api.API_VERSIONS, version, data)
    assert {one["key"]: (one["oldest"], one["newest"]) for one in found["apis"]} == {
        0: (0, 9), 1: (4, 12), 2: (1, 7), 3: (1, 9), 10: (0, 4), 17: (0, 1), 18: (0, 4), 22: (0, 4), 36: (0, 2)
    }  # fmt: skip


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest_form() -> None:
    world = _connected()
    head = (18).to_bytes(2, "big") + (9).to_bytes(2, "big") + (5).to_bytes(4, "big") + b"\xff\xff"
    world.receive((len(head) + 3).to_bytes(4, "big") + head + b"any")
    ((correlation, data),) = world.answers()
    found = body_of(Api.API_VERSIONS, 0, data)
    assert (correlation, found["error"]) == (5, Code.UNSUPPORTED_VERSION)
    assert {"key": 18, "oldest": 0, "newest": 4} in found["apis"]
    assert not world.closed


@pytest.mark.parametrize("version", range(1, 10))
def test_metadata_shows_each_slot_as_several_nodes(version: int) -> None:
    world = _connected(slots=2, nodes=2)
    flags: dict[str, Any] = {"create": True, "with_cluster_operations": False, "with_topic_operations": False}
    world.receive(request(Api.METADATA, version, 1, topics=[{"name": "orders"}, {"name": "a b"}], **flags))
    ((_, data),) = world.answers()
    found = body_of(Api.METADATA, version, data)
    assert [(node["id"], node["host"], node["port"]) for node in found["nodes"]] == [
        (0, "host-0", 9092), (1, "host-0", 9093), (2, "host-1", 9094), (3, "host-1", 9095)
    ]  # fmt: skip
    orders, wrong = found["topics"]
    assert [(one["index"], one["leader"]) for one in orders["partitions"]] == [
        (0, 0), (1, 2), (2, 1), (3, 3), (4, 0), (5, 2), (6, 1), (7, 3)
    ]  # fmt: skip
    assert (wrong["error"], wrong["partitions"]) == (Code.INVALID_TOPIC, [])


def test_all_topics_are_those_that_were_seen() -> None:
    world = _connected()
    flags: dict[str, Any] = {"create": True, "with_cluster_operations": False, "with_topic_operations": False}
    world.receive(produce(1, ("orders", 0, batch())))
    world.commit()
    world.answers()
    world.receive(request(Api.METADATA, 9, 2, topics=None, **flags))
    world.receive(request(Api.METADATA, 9, 3, topics=[], **flags))
    found = [body_of(Api.METADATA, 9, data)["topics"] for _, data in world.answers()]
    assert [[topic["name"] for topic in topics] for topics in found] == [["orders"], []]


def test_the_partitions_of_a_slot_without_a_worker_have_no_leader() -> None:
    world = _connected(slots=2)
    world.server.hosts = {0: "host-0"}
    world.receive(request(Api.METADATA, 1, 1, topics=[{"name": "orders"}]))
    ((_, data),) = world.answers()
    (topic,) = body_of(Api.METADATA, 1, data)["topics"]
    assert [(one["error"], one["leader"]) for one in topic["partitions"]] == [
        (Code.NONE, 0),
        (Code.LEADER_NOT_AVAILABLE, -1),
    ] * 4


def test_a_partition_of_another_slot_is_refused() -> None:
    world = _connected(slots=2)
    world.receive(produce(1, ("orders", 1, batch()), ("orders", 8, batch()), ("orders", -1, batch())))
    assert _codes(world) == {
        1: [Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_OR_PARTITION]
    }


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, Code.INVALID_RECORD),
        (b"", Code.INVALID_RECORD),
        (b"x" * 60, Code.INVALID_RECORD),
        (batch([b"x" * (1 << 20)]), Code.MESSAGE_TOO_LARGE),
        (batch(base_offset=5), Code.INVALID_RECORD),
        (batch() + batch(), Code.INVALID_RECORD),
        (batch()[:-1], Code.INVALID_RECORD),
        (batch(magic=1), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch(checksum=1), Code.CORRUPT_MESSAGE),
        (batch(attributes=0x20), Code.INVALID_RECORD),
        (batch(attributes=0x10, producer=1, epoch=0, sequence=0), Code.UNSUPPORTED_VERSION),
        (batch(attributes=5), Code.UNSUPPORTED_COMPRESSION),
        (batch(last_delta=3), Code.INVALID_RECORD),
        (batch(count=0), Code.INVALID_RECORD),
        (batch(count=-1), Code.INVALID_RECORD),
        (batch(producer=1, epoch=-1, sequence=0), Code.INVALID_RECORD),
        (batch(producer=1, epoch=0, sequence=-1), Code.INVALID_RECORD),
    ],
)
def test_a_batch_that_is_not_sound_is_refused(records: bytes | None, code: Code) -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, records)))
    assert _codes(world) == {1: [code]}
    assert world.sent == []


def test_zstd_is_refused_in_versions_that_do_not_have_it() -> None:
    for version, code in ((6, Code.UNSUPPORTED_COMPRESSION), (7, None)):
        world = _connected()
        world.receive(produce(1, ("orders", 0, batch(codec=4)), version=version))
        assert _codes(world, version) == ({} if code is None else {1: [code]})


def test_a_request_answers_each_partition_with_its_own_code() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch()), ("orders", 1, batch(checksum=1)), ("a b", 0, batch())))
    assert world.answers() == []
    world.commit()
    assert _codes(world) == {1: [Code.NONE, Code.CORRUPT_MESSAGE, Code.INVALID_TOPIC]}


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_of_another_number_are_refused(acks: int) -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch()), acks=acks))
    assert _codes(world) == {1: [Code.INVALID_REQUIRED_ACKS]}


def test_acks_1_is_answered_when_committed_as_all_is() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch()), acks=1))
    assert world.answers() == []
    world.commit()
    assert _codes(world) == {1: [Code.NONE]}


def test_acks_0_is_never_answered_and_an_error_closes_the_connection() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch()), acks=0))
    world.commit()
    assert world.answers() == []
    assert len(world.sent) == 1
    world.receive(produce(2, ("orders", 0, batch(checksum=1)), acks=0))
    assert world.answers() == []
    assert world.closed


def test_transactions_are_refused_for_good() -> None:
    world = _connected()
    world.receive(request(Api.INIT_PRODUCER_ID, 4, 1, transactional_id="t", timeout=1000, producer=-1, epoch=-1))
    world.receive(produce(2, ("orders", 0, batch()), transactional_id="t"))
    world.receive(request(Api.FIND_COORDINATOR, 4, 3, kind=1, keys=["t"]))
    world.receive(request(Api.FIND_COORDINATOR, 0, 4, key="t"))
    first, second, third, fourth = (data for _, data in world.answers())
    assert body_of(Api.INIT_PRODUCER_ID, 4, first)["error"] == Code.UNSUPPORTED_VERSION
    assert codes(second) == [("orders", 0, Code.UNSUPPORTED_VERSION)]
    assert body_of(Api.FIND_COORDINATOR, 4, third)["coordinators"][0]["error"] == 53
    assert body_of(Api.FIND_COORDINATOR, 0, fourth)["error"] == 53


def test_each_producer_gets_an_id_of_its_own() -> None:
    world = _connected()
    for version in range(5):
        world.receive(
            request(Api.INIT_PRODUCER_ID, version, version, transactional_id=None, timeout=1, producer=-1, epoch=-1)
        )
    found = [body_of(Api.INIT_PRODUCER_ID, version, data) for version, data in world.answers()]
    assert [(one["error"], one["producer"], one["epoch"]) for one in found] == [(0, 1000 + n, 0) for n in range(5)]


def test_a_consumer_is_told_that_the_server_is_for_producers() -> None:
    world = _connected()
    part = {
        "index": 4,
        "leader_epoch": -1,
        "offset": 0,
        "last_epoch": -1,
        "log_start_offset": -1,
        "max_bytes": 1,
        "timestamp": -1,
    }
    topics = [{"name": "orders", "partitions": [part]}]
    fields: dict[str, Any] = {"replica": -1, "max_wait": 1, "min_bytes": 1, "max_bytes": 1, "isolation": 0}
    fields["session"] = 0
    for version in range(4, 13):
        world.receive(
            request(Api.FETCH, version, version, topics=topics, session_epoch=-1, forgotten=[], rack="", **fields)
        )
    for version, data in world.answers():
        ((code, index),) = [
            (part["error"], part["index"])
            for topic in body_of(Api.FETCH, version, data)["topics"]
            for part in topic["partitions"]
        ]
        assert (code, index) == (Code.TOPIC_AUTHORIZATION_FAILED, 4)
    for version in range(1, 8):
        world.receive(request(Api.LIST_OFFSETS, version, version, replica=-1, isolation=0, topics=topics))
    for version, data in world.answers():
        assert body_of(Api.LIST_OFFSETS, version, data)["topics"][0]["partitions"][0]["error"] == 29


def test_a_repeated_batch_is_answered_when_the_first_one_is_committed_and_sent_once() -> None:
    world = _connected()
    records = batch([b"a", b"b"], producer=7, epoch=0, sequence=0)
    world.receive(produce(1, ("orders", 0, records)))
    world.server.disconnected(1)
    world.connect(2)
    world.receive(produce(2, ("orders", 0, records)), 2)
    assert world.answers(2) == []
    assert len(world.sent) == 1
    world.commit()
    assert [codes(data) for _, data in world.answers(2)] == [[("orders", 0, Code.NONE)]]
    world.receive(produce(3, ("orders", 0, records)), 2)
    assert [codes(data) for _, data in world.answers(2)] == [[("orders", 0, Code.NONE)]]
    assert len(world.sent) == 1


def test_a_committed_batch_is_recognised_by_another_worker() -> None:
    world = _connected()
    records = batch([b"a", b"b"], producer=7, epoch=0, sequence=0)
    world.receive(produce(1, ("orders", 0, records)))
    world.commit()
    other = World()
    other.committed = world.committed
    other.connect()
    other.receive(produce(1, ("orders", 0, records)))
    assert _codes(other) == {1: [Code.NONE]}
    other.receive(produce(2, ("orders", 0, batch(producer=7, epoch=0, sequence=2))))
    assert [stream for _, stream, _, _ in other.sent] == ["orders/0/7"]


def test_a_gap_and_an_old_epoch_are_refused() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch([b"a"] * 5, producer=7, epoch=1, sequence=0))))
    world.commit()
    world.answers()
    world.receive(produce(2, ("orders", 0, batch(producer=7, epoch=1, sequence=6))))
    world.receive(produce(3, ("orders", 0, batch(producer=7, epoch=0, sequence=5))))
    world.receive(produce(4, ("orders", 0, batch([b"a"] * 3, producer=7, epoch=1, sequence=4))))
    world.receive(produce(5, ("orders", 0, batch(producer=7, epoch=2, sequence=5))))
    assert _codes(world) == {2: [45], 3: [47], 4: [45], 5: [45]}
    world.receive(produce(6, ("orders", 0, batch(producer=7, epoch=2, sequence=0))))
    world.commit()
    assert _codes(world) == {6: [Code.NONE]}


def test_producers_without_an_id_are_numbered_by_time() -> None:
    world = _connected()
    for number in range(3):
        world.receive(produce(number, ("orders", 0, batch([b"a", b"b"]))))
    references = [reference for _, _, reference, _ in world.sent]
    assert references == [100_000_000_001, 100_000_000_003, 100_000_000_005]
    assert {stream for _, stream, _, _ in world.sent} == {"orders/0/-"}


def test_a_request_is_answered_before_its_own_time_out_and_its_repetition_is_recognised() -> None:
    world = _connected()
    records = batch(producer=7, epoch=0, sequence=0)
    world.receive(produce(1, ("orders", 0, records), timeout=10_000))
    world.tick(7.9)
    assert world.answers() == []
    world.tick(0.2)
    assert _codes(world) == {1: [Code.REQUEST_TIMED_OUT]}
    world.receive(produce(2, ("orders", 0, records), timeout=10_000))
    world.commit()
    assert _codes(world) == {2: [Code.NONE]}
    assert len(world.sent) == 1


def test_requests_under_way_make_room_for_those_that_a_batch_waits_for() -> None:
    world = _connected()
    records = batch(producer=7, epoch=0, sequence=0)
    world.receive(produce(1, ("orders", 0, records)))
    world.tick(1)
    assert world.answers() == []
    world.lacks = 1.0
    world.receive(produce(2, ("orders", 1, records)))
    world.tick(0.1)
    assert _codes(world) == {1: [Code.REQUEST_TIMED_OUT]}
    world.tick(0.5)
    assert _codes(world) == {2: [Code.REQUEST_TIMED_OUT]}
    world.receive(produce(3, ("orders", 0, records)))
    world.lacks = 0.0
    world.commit()
    assert _codes(world) == {3: [Code.NONE]}


def test_several_requests_of_an_idempotent_producer_make_room_at_once_and_others_after_a_while() -> None:
    world = _connected()
    world.lacks = 1.0
    world.tick(0.1)
    records = batch(producer=7, epoch=0, sequence=0)
    world.receive(produce(1, ("orders", 1, records)))
    assert _codes(world) == {}
    world.receive(produce(2, ("orders", 2, records)))
    assert _codes(world) == {1: [Code.REQUEST_TIMED_OUT], 2: [Code.REQUEST_TIMED_OUT]}
    for partition in (3, 4):
        world.receive(produce(partition, ("orders", partition, batch())))
    assert _codes(world) == {}
    world.tick(0.6)
    assert _codes(world) == {3: [Code.REQUEST_TIMED_OUT], 4: [Code.REQUEST_TIMED_OUT]}


def test_requests_of_other_clients_need_not_make_room() -> None:
    world = _connected()
    world.connect(2)
    records = batch(producer=7, epoch=0, sequence=0)
    world.receive(produce(1, ("orders", 0, records), client="billing"))
    world.receive(produce(2, ("orders", 1, records), client="shipping"), 2)
    world.lacks, world.lacking = 1.0, "kafka/shipping/0"
    world.tick(1)
    assert _codes(world) == {}
    found = [(correlation, [code for *_, code in codes(data, 9)]) for correlation, data in world.answers(2)]
    assert found == [(2, [Code.REQUEST_TIMED_OUT])]


def test_a_client_that_has_lost_another_slot_is_told_of_its_nodes_while_a_batch_waits_for_it() -> None:
    """aiokafka asks for Metadata on a connection that it sends on, and sends to the other slot when it is answered."""
    world = _connected(slots=2)
    flags: dict[str, Any] = {"create": True, "with_cluster_operations": False, "with_topic_operations": False}
    world.receive(produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=0))))
    world.lacks, world.lacking = 1.0, "kafka/billing/1"
    world.tick(1)
    assert world.answers() == []
    world.receive(request(Api.METADATA, 9, 2, topics=[{"name": "orders"}], **flags))
    assert world.answers() == []
    world.tick(0.1)
    (first, data), (second, _) = world.answers()
    assert (first, second) == (1, 2)
    assert [code for *_, code in codes(data, 9)] == [Code.REQUEST_TIMED_OUT]


def test_metadata_is_answered_behind_requests_under_way_while_no_batch_waits_for_its_client() -> None:
    world = _connected(slots=2)
    flags: dict[str, Any] = {"create": True, "with_cluster_operations": False, "with_topic_operations": False}
    world.receive(produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=0))))
    world.receive(request(Api.METADATA, 9, 2, topics=[{"name": "orders"}], **flags))
    world.lacks, world.lacking = 1.0, "kafka/shipping/1"
    world.tick(1)
    assert world.answers() == []
    world.commit()
    assert [correlation for correlation, _ in world.answers()] == [1, 2]


def test_a_connection_whose_records_are_lost_is_closed_so_that_its_client_sends_again() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=0))))
    world.receive(request(Api.API_VERSIONS, 0, 2))
    world.clients["kafka/billing/0"].end("the query went back")
    assert world.answers() == []
    assert world.closed == {1: "the query went back"}


def test_a_batch_that_was_given_up_is_never_answered_as_accepted() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=0))))
    world.commit()
    world.answers()
    stream = world.clients["kafka/billing/0"].streams["orders/0/7"]
    stream.close_range(5)
    stream.close_range(fence(5))
    old = batch([b"a"] * 4, producer=7, epoch=0, sequence=1)
    world.receive(produce(2, ("orders", 0, old)))
    world.commit()
    other = World()
    other.committed = world.committed
    other.connect()
    other.receive(produce(2, ("orders", 0, old)))
    for one in (world, other):
        assert _codes(one) == {2: [Code.UNKNOWN_PRODUCER_ID]}
        one.receive(produce(3, ("orders", 0, batch([b"a"] * 4, producer=7, epoch=1, sequence=0))))
        one.commit()
        assert _codes(one) == {3: [Code.NONE]}


@pytest.mark.parametrize("committed", [None, 1, 5])
def test_a_range_that_is_recorded_as_given_up_is_behind_a_producer_of_its_epoch(committed: int | None) -> None:
    world = _connected()
    if committed is not None:
        world.committed["orders/0/7"] = committed
    world.ranges_given_up[StreamKey("kafka/billing/0", stream_id("orders/0/7"))] = (1, 5)
    world.receive(produce(1, ("orders", 0, batch([b"a"] * 4, producer=7, epoch=0, sequence=1))))
    assert _codes(world) == {1: [Code.UNKNOWN_PRODUCER_ID]}
    world.receive(produce(2, ("orders", 0, batch([b"a"] * 4, producer=7, epoch=1, sequence=0))))
    world.commit()
    assert _codes(world) == {2: [Code.NONE]}
    world.receive(produce(3, ("orders", 0, batch(producer=7, epoch=1, sequence=4))))
    world.commit()
    assert _codes(world) == {3: [Code.NONE]}


def test_a_session_that_ends_while_bytes_are_counted_loses_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _connected()
    client = world.client("kafka/billing/0")
    world.receive(produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=0))))
    monkeypatch.setattr(client, "hold", lambda change: client.end("an error") if change > 50 else None)
    world.receive(produce(2, ("orders", 0, batch(producer=7, epoch=0, sequence=1))))
    assert (world.answers(), world.closed, len(world.sent)) == ([], {1: "an error"}, 1)


def test_a_batch_of_spark_has_one_record_batch_of_a_numbered_stream() -> None:
    world = _connected()
    batches = [batch([b"%d" % number], producer=7, epoch=0, sequence=number) for number in range(3)]
    for number, records in enumerate(batches):
        world.receive(produce(number, ("orders", 0, records)))
    client = world.clients["kafka/billing/0"]
    assert client.held == len(batches[1]) + len(batches[2])
    for number in range(3):
        assert [records for *_, records in world.sent] == batches[: number + 1]
        world.commit()
        assert [correlation for correlation, _ in world.answers()] == [number]
    assert client.held == 0


def test_the_next_record_batch_follows_once_a_batch_of_spark_reads_the_one_before_it() -> None:
    world = _connected()
    batches = [batch([b"%d" % number], producer=7, epoch=0, sequence=number) for number in range(3)]
    for number, records in enumerate(batches):
        world.receive(produce(number, ("orders", 0, records)))
    (stream,) = world.clients["kafka/billing/0"].streams.values()
    first = stream.last
    for _ in range(2):
        # A task that runs again reads the same.
        stream.planned(first)
        assert [records for *_, records in world.sent] == batches[:2]
    stream.commit(first)
    assert [records for *_, records in world.sent] == batches[:2]
    assert [correlation for correlation, _ in world.answers()] == [0]
    stream.planned(stream.last)
    assert [records for *_, records in world.sent] == batches
    world.commit()
    assert [correlation for correlation, _ in world.answers()] == [1, 2]
    assert world.clients["kafka/billing/0"].held == 0


def test_batches_that_wait_for_those_before_them_are_recognised_when_they_come_again() -> None:
    world = _connected()
    batches = [batch([b"%d" % number], producer=7, epoch=0, sequence=number) for number in range(3)]
    for number, records in enumerate(batches):
        world.receive(produce(number, ("orders", 0, records)))
    world.server.disconnected(1)
    world.connect(2)
    for number, records in enumerate(batches):
        world.receive(produce(number, ("orders", 0, records)), 2)
    for _ in range(3):
        world.commit()
    assert [records for *_, records in world.sent] == batches
    assert [codes(data)[0][2] for _, data in world.answers(2)] == [Code.NONE] * 3


def test_batches_that_wait_for_a_lost_one_are_lost_with_it() -> None:
    world = _connected()
    for number in range(3):
        world.receive(produce(number, ("orders", 0, batch(producer=7, epoch=0, sequence=number))))
    client = world.clients["kafka/billing/0"]
    client.end("the query went back")
    assert (world.answers(), world.closed, client.held) == ([], {1: "the query went back"}, 0)
    world.connect(2)
    world.receive(produce(9, ("orders", 0, batch(producer=7, epoch=0, sequence=0))), 2)
    world.commit()
    assert [codes(data) for _, data in world.answers(2)] == [[("orders", 0, Code.NONE)]]


def test_a_request_waits_until_its_clients_session_is_open() -> None:
    world = _connected(opens=False)
    world.receive(produce(1, ("orders", 0, batch())) + request(Api.API_VERSIONS, 0, 2))
    assert world.reading == {1: False}
    world.tick(1)
    world.clients["kafka/billing/0"].opening.keep()
    assert world.reading == {1: True}
    world.commit()
    assert [correlation for correlation, _ in world.answers()] == [1, 2]


def test_a_connection_whose_session_does_not_open_is_closed_so_that_no_later_batch_is_taken_for_the_first() -> None:
    world = _connected(opens=False)
    first, second = (produce(n, ("orders", 0, batch(producer=7, epoch=0, sequence=n))) for n in (0, 1))
    world.receive(first)
    world.receive(second)
    world.opens = True
    world.clients["kafka/billing/0"].end("the registry does not answer")
    assert (world.answers(), world.closed, world.sent) == ([], {1: "the registry does not answer"}, [])
    world.connect(2)
    world.receive(first + second, 2)
    world.commit()
    world.commit()
    assert [codes(data) for _, data in world.answers(2)] == [[("orders", 0, Code.NONE)]] * 2
    assert len(world.sent) == 2


def test_a_connection_ends_with_its_session_when_a_batch_of_it_was_answered_as_too_late() -> None:
    world = _connected()
    first, second = (produce(n, ("orders", 0, batch(producer=7, epoch=0, sequence=n))) for n in (0, 1))
    world.receive(first)
    world.tick(25)
    assert _codes(world) == {0: [Code.REQUEST_TIMED_OUT]}
    world.clients["kafka/billing/0"].end("the query went back")
    sent = list(world.sent)
    world.receive(second)
    assert (world.answers(), world.closed, world.sent) == ([], {1: "the query went back"}, sent)


def test_a_connection_stays_when_its_session_has_ended_because_nothing_was_asked_of_it() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=0))))
    world.commit()
    world.clients["kafka/billing/0"].end("nothing was asked of it")
    world.receive(produce(2, ("orders", 0, batch(producer=7, epoch=0, sequence=1))))
    world.commit()
    assert [codes(data) for _, data in world.answers()] == [[("orders", 0, Code.NONE)]] * 2


def test_a_full_worker_does_not_read_on() -> None:
    world = _connected()
    world.room = False
    world.receive(produce(1, ("orders", 0, batch())))
    assert (world.sent, world.reading) == ([], {1: False})
    world.room = True
    world.tick(0.25)
    assert len(world.sent) == 1
    assert world.reading == {1: True}


def test_a_client_that_another_slot_waits_for_need_not_wait_for_memory() -> None:
    world = _connected(slots=2)
    flags: dict[str, Any] = {"create": True, "with_cluster_operations": False, "with_topic_operations": False}
    world.room = False
    first = produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=0)), ("orders", 2, batch()))
    world.receive(first + request(Api.METADATA, 9, 2, topics=[{"name": "orders"}], **flags))
    world.lacks, world.lacking = 1.0, "kafka/billing/1"
    world.tick(0.25)
    (number, data), (asked, _) = world.answers()
    assert (number, codes(data, 9), asked) == (1, [("orders", p, Code.REQUEST_TIMED_OUT) for p in (0, 2)], 2)
    assert (world.sent, world.reading) == ([], {1: True})
    world.lacks = 0.0
    world.tick(0.25)
    world.receive(first)
    assert (world.answers(), world.sent) == ([], [])


def test_unfinished_requests_count_as_memory() -> None:
    world = _connected()
    data = produce(2, ("orders", 0, batch([b"x" * 100_000])))
    world.receive(produce(1, ("orders", 0, batch())) + data[:50_000])
    client = world.clients["kafka/billing/0"]
    assert client.held == 50_000
    world.receive(data[50_000:])
    assert client.held == 0
    world.receive(data[:50_000])
    world.server.disconnected(1)
    assert client.held == 0


def test_a_client_without_the_password_can_only_authenticate_itself() -> None:
    world = _connected(secret="s3cret")
    world.receive(request(Api.API_VERSIONS, 3, 1, software="java", software_version="4"))
    world.receive(request(Api.SASL_HANDSHAKE, 1, 2, mechanism="SCRAM-SHA-256"))
    world.receive(request(Api.SASL_HANDSHAKE, 1, 3, mechanism="PLAIN"))
    world.receive(request(Api.SASL_AUTHENTICATE, 2, 4, token=b"\0billing\0wrong"))
    world.receive(request(Api.SASL_AUTHENTICATE, 2, 5, token=b"\0billing\0s3cret"))
    world.receive(request(Api.METADATA, 1, 6, topics=[]))
    _, scram, plain, wrong, right, metadata = (data for _, data in world.answers())
    assert body_of(Api.SASL_HANDSHAKE, 1, scram) == {"error": 33, "mechanisms": ["PLAIN"]}
    assert body_of(Api.SASL_HANDSHAKE, 1, plain)["error"] == 0
    assert body_of(Api.SASL_AUTHENTICATE, 2, wrong)["error"] == Code.SASL_AUTHENTICATION_FAILED
    assert body_of(Api.SASL_AUTHENTICATE, 2, right)["error"] == 0
    assert body_of(Api.METADATA, 1, metadata)["nodes"]


def test_a_request_before_authentication_closes_the_connection() -> None:
    for data in (request(Api.METADATA, 1, 1, topics=[]), produce(1, ("orders", 0, batch()))):
        world = _connected(secret="s3cret")
        world.receive(data)
        assert (world.answers(), len(world.closed), world.sent) == ([], 1, [])


def test_the_oldest_handshake_is_followed_by_a_bare_token() -> None:
    world = _connected(secret="s3cret")
    world.receive(request(Api.SASL_HANDSHAKE, 0, 1, mechanism="PLAIN"))
    token = b"\0billing\0s3cret"
    world.receive(len(token).to_bytes(4, "big") + token)
    assert world.out.pop(1).endswith(bytes(4))
    world.receive(request(Api.METADATA, 1, 2, topics=[]))
    assert world.answers()
    world.connect(2)
    world.receive(request(Api.SASL_HANDSHAKE, 0, 1, mechanism="PLAIN"), 2)
    world.receive(b"\0\0\0\x05wrong", 2)
    assert 2 in world.closed


def test_a_named_client_authenticates_itself_with_its_own_token_until_that_is_removed(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    billing, shop = b"b" * 20, b"s" * 20
    tokens.write_bytes(b"billing " + billing + b"\nshop " + shop)
    world = _connected(secret="s3cret", tokens=str(tokens))
    given = (b"\0shop\0" + billing, b"\0billing\0s3cret", billing, b"\0billing\0" + billing)
    for number, token in enumerate(given):
        world.receive(request(Api.SASL_AUTHENTICATE, 2, number, token=token))
    assert [body_of(Api.SASL_AUTHENTICATE, 2, data)["error"] for _, data in world.answers()] == [58, 58, 58, 0]
    world.receive(produce(5, ("orders", 0, batch())))
    assert world.counts["door-requests:billing"] == 1
    world.tick(1)
    assert world.closed == {}

    tokens.write_bytes(b"shop " + shop)
    world.server.settings.senders.tick(world.now)
    world.tick(1)

    assert "'billing' is not valid any more" in world.closed[1]


def test_records_of_a_topic_that_is_answered_when_received_are_answered_before_their_commit() -> None:
    world = _connected(received=("logs.*",))
    numbered = [batch([b"x"], producer=7, epoch=0, sequence=at) for at in (0, 5)]
    world.receive(produce(1, ("logs.web", 0, numbered[0]), ("orders", 0, numbered[0])))
    # Behind a death of its worker a producer goes on with its numbers.
    world.receive(produce(2, ("logs.web", 0, numbered[1])))
    assert world.answers() == []
    world.commit()
    assert [codes(data) for _, data in world.answers()] == [
        [("logs.web", 0, 0), ("orders", 0, 0)],
        [("logs.web", 0, 0)],
    ]
    world.receive(produce(3, ("logs.web", 0, batch())))
    assert [codes(data) for _, data in world.answers()] == [[("logs.web", 0, 0)]]
    assert [stream for _, stream, _, _ in world.sent] == ["logs.web/0/-", "orders/0/7", "logs.web/0/-", "logs.web/0/-"]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02\0\0",
        b"\x00\x00\x00\x0a\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff",
        request(Api.METADATA, 1, 1, topics=[{"name": "t"}] * 1001),
        b"\0\0\0\x0a\x00\x32\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\x0a\0\0\0\2\0\0\0\1\xff\xff",
        b"\0\0\0\x0a\0\0\0\x0a\0\0\0\1\xff\xff",
    ],
)
def test_what_is_no_request_closes_the_connection(data: bytes) -> None:
    world = _connected()
    world.receive(data)
    assert list(world.closed) == [1]
    world.receive(data)


def test_an_unfinished_request_and_an_idle_connection_end() -> None:
    world = _connected()
    world.receive(b"\0\0\0\x10")
    world.tick(UNFINISHED_SECONDS + 1)
    assert list(world.closed) == [1]
    world.connect(2)
    world.tick(IDLE_SECONDS - 1)
    assert list(world.closed) == [1]
    world.tick(2)
    assert list(world.closed) == [1, 2]


def test_the_tables_of_the_page_have_the_served_versions() -> None:
    assert {api.name for api in SERVED} == {api.name for api in Api}


def test_every_code_of_a_refusal_is_explained() -> None:
    assert set(REFUSALS.values()) <= ENTRIES.keys()


def test_refusals_are_told_with_their_code_peer_and_client() -> None:
    world = _connected()
    world.receive(produce(1, ("orders", 0, batch(records=bytes(2 << 20)))))
    world.receive(produce(2, ("orders", 0, batch()), acks=2))

    ((_, _, _, reason), _) = world.refused
    assert [told[:3] for told in world.refused] == [
        ("kafka-message-too-large", "peer-1", "kafka/billing/0"),
        ("kafka-invalid-required-acks", "peer-1", "kafka/billing/0"),
    ]
    assert "kafka.maxBatch" in reason


@pytest.mark.parametrize(("data", "what"), [(b"\x16\x03\x01\x02\x00", "TLS"), (b"GET / HTTP/1.1\r\n", "HTTP")])
def test_another_protocol_at_the_port_is_named(data: bytes, what: str) -> None:
    world = _connected()
    world.receive(data)

    ((code, _, _, reason),) = world.refused
    assert code == "kafka-malformed"
    assert reason == world.closed[1]
    assert f"this is {what}" in reason


def test_a_client_that_is_led_to_the_wrong_worker_again_and_again_is_recognised() -> None:
    world = _connected(slots=2)
    for number in range(12):
        world.receive(produce(number, ("orders", 1, batch())))
        world.tick(0.5)
    assert [code for code, *_ in world.refused] == (["kafka-not-leader-or-follower"] * 10 + ["kafka-wrong-node"] * 2)
    world.refused.clear()

    # One batch that it has for this worker shows that its connection leads to the right place.
    world.receive(produce(20, ("orders", 0, batch())))
    world.receive(produce(21, ("orders", 1, batch())))
    assert [code for code, *_ in world.refused] == ["kafka-not-leader-or-follower"]


def test_waiting_requests_are_counted_by_client_over_its_connections() -> None:
    world = _connected()
    world.connect(2)
    world.receive(produce(1, ("orders", 0, batch()), ("orders", 1, batch())))
    world.receive(produce(1, ("orders", 2, batch())), 2)
    world.receive(produce(2, ("orders", 3, batch()), client="shop"), 2)

    assert world.server.requests == {"kafka/shop/0": 2, "kafka/billing/0": 1}
    world.commit()
    assert world.server.requests == {}


class TestProducersThatAreForgotten:
    """The server's part: it opens no stream that may be forgotten, and knows no producer for ever."""

    def test_a_session_begins_anew_after_a_while_and_goes_on_behind_what_is_committed(self) -> None:
        world = _connected(session_seconds=5.0)
        first, second = (batch(producer=7, epoch=0, sequence=sequence) for sequence in (0, 1))
        world.receive(produce(1, ("orders", 0, first)))
        old = world.clients["kafka/billing/0"]
        world.tick(6.0)
        # Clients need not be quiet for it: what comes now waits until all before it is committed.
        world.receive(produce(2, ("orders", 0, second)))
        assert (len(world.sent), world.reading[1]) == (1, False)
        world.commit()
        world.tick(0.1)
        assert old.ended
        assert world.clients["kafka/billing/0"] is not old
        assert (len(world.sent), world.reading[1]) == (2, True)
        world.commit()
        assert _codes(world) == {1: [Code.NONE], 2: [Code.NONE]}
        assert world.refused == []

    def test_a_batch_waits_while_it_is_not_known_whether_its_producer_is_forgotten(self) -> None:
        world = _connected()
        leaving = world.client("kafka/billing/0").leaving
        leaving.add("orders/1/7")
        records = [(partition, batch(producer=7, epoch=0, sequence=0)) for partition in (0, 1)]
        world.receive(produce(1, *(("orders", partition, one) for partition, one in records)))
        world.receive(produce(2, ("orders", 2, batch())))
        world.tick(1.0)
        assert world.sent == []
        leaving.clear()
        world.tick(1.0)
        world.commit()
        assert _codes(world) == {1: [Code.NONE] * 2, 2: [Code.NONE]}
        assert [stream for _, stream, _, _ in world.sent] == ["orders/0/7", "orders/1/7", "orders/2/-"]
        assert world.counts["door-requests"] == 2

    def test_a_producer_that_was_forgotten_goes_on_with_its_own_sequence(self) -> None:
        world = _connected()
        request = produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=41)), timeout=10_000)
        world.receive(request)
        world.tick(24.9)
        world.receive(request)
        assert (_codes(world), world.sent) == ({1: [Code.REQUEST_TIMED_OUT]}, [])
        world.tick(0.2)
        world.receive(request)
        world.commit()
        assert _codes(world) == {1: [Code.NONE]}
        assert world.sent[-1][2] == 42

    def test_a_later_batch_is_not_the_first_one_while_those_before_it_are_under_way_to_a_lost_machine(self) -> None:
        world = _connected()
        first, second = (produce(n, ("orders", 0, batch(producer=7, epoch=0, sequence=n))) for n in (0, 1))
        world.receive(second)
        assert _codes(world) == {1: [Code.REQUEST_TIMED_OUT]}
        world.connect(2)
        world.receive(first, 2)
        world.receive(second)
        world.commit()
        world.commit()
        assert _codes(world) == {1: [Code.NONE]}
        assert [codes(data) for _, data in world.answers(2)] == [[("orders", 0, Code.NONE)]]
        assert len(world.sent) == 2

    def test_nor_is_one_that_went_on_behind_what_was_given_up_told_of_a_gap(self) -> None:
        world = _connected()
        world.ranges_given_up[StreamKey("kafka/billing/0", stream_id("orders/0/7"))] = (0, 5)
        world.receive(produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=5))))
        forgotten = produce(2, ("orders", 0, batch(producer=7, epoch=1, sequence=8)))
        world.receive(forgotten)
        world.tick(70)
        world.answers()
        world.receive(produce(1, ("orders", 0, batch(producer=7, epoch=0, sequence=5))))
        world.receive(forgotten)
        world.commit()
        assert _codes(world) == {1: [Code.UNKNOWN_PRODUCER_ID], 2: [Code.NONE]}
