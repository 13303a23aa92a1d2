"""Connectors written by hand from the protocol's page, with sockets and struct alone: every byte both ways."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.revisions import revisions
from tests.waiting import SECONDS, eventually
from tests.worker.peer import Peer
from tests.worker.running import COOKIE, Fleet, Running
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.protocol import V3, Hello, Ok, Revision

CREDITS = 65_536


def short(data: bytes, order: str = ">") -> bytes:
    return struct.pack(order + "H", len(data)) + data


class Wire:
    """A socket, frames and an order of bytes."""

    def __init__(self, address: tuple[str, int], order: str) -> None:
        self.socket = socket.create_connection(address, timeout=SECONDS)
        self.order = order

    def send(self, tag: int | str, body: bytes = b"") -> None:
        number = tag if isinstance(tag, int) else ord(tag)
        self.socket.sendall(struct.pack(self.order + "IB", len(body) + 1, number) + body)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, f"the worker closed after {data!r}"
            data += more
        return data

    def frame(self) -> tuple[int, bytes]:
        (length,) = struct.unpack(self.order + "I", self.exactly(4))
        data = self.exactly(length)
        return data[0], data[1:]

    def expect(self, tag: int | str, body: bytes) -> None:
        number = tag if isinstance(tag, int) else ord(tag)
        assert self.frame() == (number, body)

    def expect_closed(self) -> None:
        assert self.socket.recv(1) == b""

    def hello(self, tag: int | str, instance: bytes, cookie: bytes = COOKIE.encode()) -> None:
        fields = (b"0.0.1", cookie, b"a test", instance)
        self.send(tag, b"".join(short(field, self.order) for field in fields))


@contextmanager
def wire(worker: Running, order: str) -> Iterator[Wire]:
    made = Wire(worker.address, order)
    with made.socket:
        yield made


def wait_for_messages(worker: Running, count: int) -> None:
    eventually(lambda: worker.count("messages") >= count, f"{count} messages have arrived")


class TestDraftLe:
    @staticmethod
    def message(flags: int, stream: int, number: int, payload: bytes = b"", time: int | None = None) -> bytes:
        event_time = b"" if time is None else struct.pack("<Q", time)
        return struct.pack("<HQQ", flags, stream, number) + event_time + payload

    def notify(self, stream: int, name: bytes, ref: int = 0) -> bytes:
        return struct.pack("<Q", stream) + short(name, "<") + struct.pack("<Q", ref)

    def test_a_session_from_hello_to_the_end_of_its_stream(self, worker: Running) -> None:
        with wire(worker, "<") as w:
            w.hello("H", b"shop-1")
            w.expect("O", struct.pack("<I", CREDITS))
            w.send("N", self.notify(7, b"orders"))
            w.send("M", self.message(0, 7, 1, b"one"))
            w.send("M", self.message(16, 7, 2, b"two", time=1_700_000_000_000_000_000))
            rows = worker.rows("shop-1", 7, None, 2)
            assert [(row["message_id"], row["value"], row["stream"]) for row in rows] == [
                (1, b"one", "orders"),
                (2, b"two", "orders"),
            ]
            assert rows[1]["event_time"].timestamp() == 1_700_000_000

            worker.commit({"shop-1": {"7": 2}})
            w.expect("A", struct.pack("<IQQ", 0, 7, 2))
            w.send("M", self.message(2 | 4, 7, 2))
            w.expect("A", struct.pack("<IQQ", 0, 7, 2))

    def test_ok_says_where_to_go_on(self, worker: Running) -> None:
        worker.rewind({"shop-1": {"7": 40}})
        with wire(worker, "<") as w:
            w.hello("H", b"shop-1")
            w.expect("O", struct.pack("<IQQ", CREDITS, 7, 40))

    def test_a_stream_is_rewound_by_a_nack(self, worker: Running) -> None:
        with wire(worker, "<") as w:
            w.hello("H", b"shop-1")
            w.frame()
            w.send("N", self.notify(7, b"orders"))
            for number in (1, 2, 3):
                w.send("M", self.message(0, 7, number, b"first"))
            wait_for_messages(worker, 3)
            worker.commit({"shop-1": {"7": 2}})
            w.expect("A", struct.pack("<IQQ", 0, 7, 2))
            worker.rewind({"shop-1": {"7": 1}})
            w.expect("!", struct.pack("<IQQ", 0, 7, 1))

            w.send("M", self.message(0, 7, 4, b"ignored"))
            w.send("N", self.notify(7, b"orders", 1))
            for number in (2, 3):
                w.send("M", self.message(0, 7, number, b"again"))
            assert [row["value"] for row in worker.rows("shop-1", 7, 1, 3)] == [b"again", b"again"]

    def test_the_worker_s_leaving_is_a_nack_for_each_stream(self, worker: Running) -> None:
        with wire(worker, "<") as w:
            w.hello("H", b"shop-1")
            w.frame()
            w.send("N", self.notify(7, b"orders"))
            w.send("M", self.message(0, 7, 1, b"one"))
            w.send("M", self.message(0, 7, 2, b"two"))
            wait_for_messages(worker, 2)
            worker.commit({"shop-1": {"7": 1}})
            w.expect("A", struct.pack("<IQQ", 0, 7, 1))
            worker.client.stop("a test")
            w.expect("!", struct.pack("<IQQ", 0, 7, 1))
            tag, body = w.frame()
            assert chr(tag) == "E"
            assert body[2:].startswith(b"try again later: ")
            w.expect_closed()

    def test_an_instance_of_another_slot_is_told_where_to_go(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet(workers=2)
        here, there = fleet.start(0), fleet.start(1)
        fleet.registry.assign("shop-1", 1, 2)
        with wire(here, "<") as w:
            w.hello("H", b"shop-1")
            tag, body = w.frame()
            assert chr(tag) == "E"
            assert body[2:].startswith(f"redirect to {there.lease.connect}: ".encode())
            w.expect_closed()
        with wire(there, "<") as w:
            w.hello("H", b"shop-1")
            w.expect("O", struct.pack("<I", CREDITS))


class TestDraftBe:
    @staticmethod
    def notify(stream: int, name: bytes, ref: int = 0) -> bytes:
        return struct.pack(">Q", stream) + short(name) + struct.pack(">Q", ref)

    def test_a_session_from_hello_to_the_end_of_its_stream(self, worker: Running) -> None:
        with wire(worker, ">") as w:
            w.hello("H", b"shop-1")
            w.expect("O", struct.pack(">I", CREDITS))
            w.send("N", self.notify(7, b"orders"))
            w.send("M", struct.pack(">HQQ", 0, 7, 1) + b"one")
            w.send("M", struct.pack(">HQQQ", 16 | 32, 7, 2, 5_000) + short(b"key") + b"two")
            rows = worker.rows("shop-1", 7, None, 2)
            assert [(row["message_id"], row["key"], row["value"]) for row in rows] == [
                (1, None, b"one"),
                (2, b"key", b"two"),
            ]

            worker.commit({"shop-1": {"7": 2}})
            w.expect("A", struct.pack(">IIQQ", 0, 1, 7, 2))
            w.send("M", struct.pack(">HQQ", 2 | 4, 7, 2))
            w.expect("A", struct.pack(">IIQQ", 0, 1, 7, 2))

    def test_ok_says_where_to_go_on(self, worker: Running) -> None:
        worker.rewind({"shop-1": {"7": 40}})
        with wire(worker, ">") as w:
            w.hello("H", b"shop-1")
            w.expect("O", struct.pack(">IQ", CREDITS, 7) + short(b"") + struct.pack(">Q", 40))

    def test_ephemeral_messages_have_no_id(self, worker: Running) -> None:
        with wire(worker, ">") as w:
            w.hello("H", b"shop-1")
            w.frame()
            w.send("N", self.notify(7, b"clicks"))
            w.send("M", struct.pack(">HQ", 1, 7) + b"one")
            w.send("M", struct.pack(">HQ", 1, 7) + b"two")
            wait_for_messages(worker, 2)
            (end,) = worker.client.plan(PlanQuestion()).ends["shop-1"].values()
            rows = worker.rows("shop-1", 7, None, end)
            assert [(row["message_id"], row["value"]) for row in rows] == [(None, b"one"), (None, b"two")]

    def test_a_session_is_rewound_by_a_restart(self, worker: Running) -> None:
        with wire(worker, ">") as w:
            w.hello("H", b"shop-1")
            w.frame()
            w.send("N", self.notify(7, b"orders"))
            for number in (1, 2, 3):
                w.send("M", struct.pack(">HQQ", 0, 7, number) + b"first")
            wait_for_messages(worker, 3)
            worker.commit({"shop-1": {"7": 2}})
            w.frame()
            worker.rewind({"shop-1": {"7": 1}})
            w.expect("!", b"")
        with wire(worker, ">") as w:
            w.hello("H", b"shop-1")
            # The worker has forgotten the name when it had released the instance meanwhile.
            named = [struct.pack(">IQ", CREDITS, 7) + short(name) + struct.pack(">Q", 1) for name in (b"orders", b"")]
            assert w.frame() in [(ord("O"), body) for body in named]
            w.send("N", self.notify(7, b"orders", 1))
            for number in (2, 3):
                w.send("M", struct.pack(">HQQ", 0, 7, number) + b"again")
            assert [row["value"] for row in worker.rows("shop-1", 7, 1, 3)] == [b"again", b"again"]


NOTHING = 2**64 - 1


class TestV3:
    @staticmethod
    def notify(stream: int, name: bytes = b"orders", ref: int = 0) -> bytes:
        return struct.pack(">Q", stream) + short(name) + struct.pack(">Q", ref)

    @staticmethod
    def message(stream: int, number: int, payload: bytes, time: int = 0, key: bytes = b"") -> bytes:
        return struct.pack(">QQq", stream, number, time) + short(key) + payload

    @pytest.mark.parametrize("last", [b"", struct.pack(">Q", 2)])
    def test_a_session_from_hello_to_the_end_of_its_stream(self, worker: Running, last: bytes) -> None:
        with wire(worker, ">") as w:
            w.hello(0, b"shop-1")
            w.expect(1, struct.pack(">I", CREDITS))
            w.send(3, self.notify(7))
            w.expect(4, struct.pack(">BQQ", 1, 7, NOTHING))
            w.send(5, self.message(7, 1, b"one"))
            w.send(5, self.message(7, 2, b"two", time=5_000, key=b"key"))
            rows = worker.rows("", 7, None, 2)
            assert [(row["message_id"], row["key"], row["value"], row["instance"]) for row in rows] == [
                (1, None, b"one", "shop-1"),
                (2, b"key", b"two", "shop-1"),
            ]

            w.send(8, struct.pack(">Q", 7) + last)
            eventually(lambda: worker.client.available(-1, 0)["connectors"][0]["open"] == 0)
            worker.commit({"": {"7": 2}})
            w.expect(6, struct.pack(">IIQQ", 0, 1, 7, 2))

    def test_the_end_of_a_stream_of_which_all_is_committed_is_answered_at_once(self, worker: Running) -> None:
        worker.rewind({"": {"7": 40}})
        with wire(worker, ">") as w:
            w.hello(0, b"shop-1")
            w.frame()
            w.send(3, self.notify(7))
            w.expect(4, struct.pack(">BQQ", 1, 7, 40))
            w.send(8, struct.pack(">QQ", 7, 40))
            w.expect(6, struct.pack(">IIQQ", 0, 1, 7, 40))

    def test_a_stream_that_is_open_elsewhere_is_refused(self, worker: Running) -> None:
        with wire(worker, ">") as one, wire(worker, ">") as two:
            for w, name in ((one, b"one"), (two, b"two")):
                w.hello(0, name)
                w.frame()
            one.send(3, self.notify(7))
            one.expect(4, struct.pack(">BQQ", 1, 7, NOTHING))
            two.send(3, self.notify(7))
            two.expect(4, struct.pack(">BQQ", 0, 7, NOTHING))

    def test_a_stream_belongs_to_the_whole_source_whichever_worker_has_it(
        self, make_fleet: Callable[..., Fleet]
    ) -> None:
        fleet = make_fleet(workers=2)
        workers = [fleet.start(0), fleet.start(1)]
        for slot, name in enumerate(("zero", "one")):
            fleet.registry.assign(name, slot, 2)
        with wire(workers[0], ">") as zero, wire(workers[1], ">") as one:
            zero.hello(0, b"zero")
            zero.frame()
            zero.send(3, self.notify(7))
            zero.expect(4, struct.pack(">BQQ", 1, 7, NOTHING))
            one.hello(0, b"one")
            one.frame()
            one.send(3, self.notify(7))
            one.expect(4, struct.pack(">BQQ", 0, 7, NOTHING))

            zero.send(8, struct.pack(">Q", 7))

            def granted() -> bool:
                one.send(3, self.notify(7))
                return one.frame() == (4, struct.pack(">BQQ", 1, 7, NOTHING))

            eventually(granted, "the stream is free once it has ended and nothing of it is held")

    def test_an_instance_of_another_slot_is_told_by_an_error(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet(workers=2)
        here, there = fleet.start(0), fleet.start(1)
        fleet.registry.assign("shop-1", 1, 2)
        with wire(here, ">") as w:
            w.hello(0, b"shop-1")
            tag, body = w.frame()
            assert tag == 2
            assert body[2:].startswith(f"redirect to {there.lease.connect}: ".encode())
            w.expect_closed()

    def test_a_session_is_rewound_by_a_plain_close(self, worker: Running) -> None:
        with wire(worker, ">") as w:
            w.hello(0, b"shop-1")
            w.frame()
            w.send(3, self.notify(7))
            w.frame()
            w.send(5, self.message(7, 1, b"one"))
            wait_for_messages(worker, 1)
            worker.commit({"": {"7": 1}})
            w.frame()
            worker.rewind({})
            w.expect_closed()

    def test_the_worker_s_leaving_is_a_plain_close_too(self, worker: Running) -> None:
        with wire(worker, ">") as w:
            w.hello(0, b"shop-1")
            w.frame()
            worker.client.stop("a test")
            w.expect_closed()
        worker.ended()

    def test_where_the_option_asks_for_it_it_is_a_restart(self, make_fleet: Callable[..., Fleet]) -> None:
        worker = make_fleet(v3_leave="restart").start()
        with wire(worker, ">") as w:
            w.hello(0, b"shop-1")
            w.frame()
            worker.client.stop("a test")
            w.expect(7, struct.pack(">I", 0))
        worker.ended()


class TestOneAddress:
    """A connector that knows the address of one worker alone is served there, unless another holds messages of it."""

    @staticmethod
    def says(worker: Running, revision: Revision, instance: bytes = b"shop-1") -> bytes:
        """The answer to HELLO: OK, or the reason of an ERROR."""
        with wire(worker, revision.byte_order) as w:
            w.hello(revision.by_frame[Hello].tag, instance)
            answer, body = w.frame()
            return b"OK" if answer == revision.by_frame[Ok].tag else body[2:]

    @revisions
    def test_it_gets_in_where_it_knocks(self, make_fleet: Callable[..., Fleet], revision: Revision) -> None:
        fleet = make_fleet(workers=2)
        workers = fleet.start(0), fleet.start(1)
        for worker, instance in [(workers[0], b"a"), (workers[0], b"b"), (workers[1], b"c"), (workers[0], b"d")]:
            assert self.says(worker, revision, instance) == b"OK"

    @revisions
    def test_it_is_taken_over_once_nothing_of_it_is_held_elsewhere(
        self, make_fleet: Callable[..., Fleet], revision: Revision
    ) -> None:
        fleet = make_fleet(workers=2)
        here, there = fleet.start(0), fleet.start(1)
        peer = Peer(there, revision, "shop-1").hello().open(7).message(7, 1)
        wait_for_messages(there, 1)
        redirected = f"redirect to {there.lease.connect}: instance 'shop-1' is connected to slot 1".encode()
        assert self.says(here, revision).startswith(redirected)

        peer.socket.close()
        eventually(lambda: there.client.status()["sessions"] == 0)
        assert self.says(here, revision).startswith(redirected)

        there.commit({"" if revision is V3 else "shop-1": {"7": 1}})
        eventually(lambda: self.says(here, revision) == b"OK", "nothing is held elsewhere")

    def test_it_is_taken_over_when_the_worker_that_served_it_has_left(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet(workers=2)
        here, there = fleet.start(0), fleet.start(1)
        Peer(there, V3, "shop-1").hello().open(7).message(7, 1)
        wait_for_messages(there, 1)
        there.client.stop("a test")
        there.ended()
        assert self.says(here, V3) == b"OK"


class TestHints:
    """The errors for an author who reads the drafts literally."""

    def test_a_message_that_lacks_the_stream_id(self, worker: Running) -> None:
        with wire(worker, ">") as w:
            w.hello("H", b"shop-1")
            w.frame()
            w.send("N", TestDraftBe.notify(7, b"orders"))
            w.send("M", struct.pack(">HQ", 0, 1) + b"eight by")
            tag, body = w.frame()
            assert chr(tag) == "E"
            assert body[2:].startswith(b"MESSAGE for stream 1, which was never announced: send NOTIFY for it first; ")
            assert b"then the stream id (u64), then the message id, in the byte order of HELLO's length" in body

    def test_a_boundary_with_a_field_too_many(self, worker: Running) -> None:
        with wire(worker, ">") as w:
            w.hello("H", b"shop-1")
            w.frame()
            w.send("N", TestDraftBe.notify(7, b"orders"))
            w.send("M", struct.pack(">HQQ", 2, 7, 1) + b"\0")
            tag, body = w.frame()
            assert chr(tag) == "E"
            assert body[2:].startswith(b"a BOUNDARY message has 1 bytes behind its fields, where no payload may be; ")
