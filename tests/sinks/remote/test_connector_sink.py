"""Rows to a connector sink over real sockets: both sides, and failures of either side."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pems import Pems
from tests.sinks.server.serving import ServingSink, shown
from tests.sinks.two_phase.memory import partition_rows, pieces
from tests.waiting import SECONDS
from wallaroo_spark.errors import ConfigurationError, SinkError, TransportError
from wallaroo_spark.protocol import V3, Error, FrameBuffer, Hello, Message, Notify, NotifyAck, Ok, RawFrame
from wallaroo_spark.protocol.sinks.messages import (
    ListUncommitted,
    Phase1,
    Range,
    Reply,
    ReplyUncommitted,
    encode_control,
)
from wallaroo_spark.sinks import Prepared, Transaction, connector
from wallaroo_spark.sinks.connector_sink import ConnectorSink
from wallaroo_spark.sinks.coordinator import Coordinator, Vote, vote
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.sinks.server.output_directory import HIDDEN
from wallaroo_spark.sinks.settings import ConnectionSettings
from wallaroo_spark.sinks.sink_client import SinkClient
from wallaroo_spark.transport import connect, parse_address, server_context


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServingSink]:
    with ServingSink(tmp_path / "out") as serving:
        yield serving


def sink_to(*addresses: str, **settings: Any) -> ConnectorSink:
    """A sink whose log of decisions has four outputs, and not where they end."""
    settings = {"give_up_after": 1.0, "start": "sink", **settings}
    sink = ConnectorSink(",".join(addresses), name="orders", checkpoint="", **settings)
    sink.remember({"ends": {str(partition): {} for partition in range(4)}})
    return sink


def prepared(sink: ConnectorSink, batch: int = 0, partition: int = 0, rows: list[str] | None = None) -> Prepared:
    rows = partition_rows(batch, partition) if rows is None else rows
    return sink.prepare(Transaction.new(sink.name, batch, partition), pieces(rows))


def lines(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def test_rows_are_shown_once_they_are_committed(server: ServingSink) -> None:
    sink = sink_to(server.address)
    both = [prepared(sink, partition=0), prepared(sink, partition=1)]

    assert server.shown() == {}
    assert sorted(sink.recover(), key=lambda one: one.partition) == [one.transaction for one in both]
    for _ in range(2):
        sink.commit(0, both)
        assert server.shown() == {f"orders-{p}": lines(*partition_rows(0, p)) for p in (0, 1)}
    assert sink.recover() == []

    sink.commit(1, [prepared(sink, batch=1)])
    assert server.shown()["orders-0"] == lines(*partition_rows(0, 0), *partition_rows(1, 0))


def test_aborted_rows_are_never_visible(server: ServingSink) -> None:
    sink = sink_to(server.address)
    one = prepared(sink)
    for _ in range(2):
        sink.abort([one.transaction, Transaction.new("orders", 0, 7)])

    assert sink.recover() == []
    assert server.shown() == {}
    with pytest.raises(SinkError, match="and has only 0: it no longer knows the transaction; restore the sink's data"):
        sink.commit(0, [one])


def test_a_transaction_of_one_sink_does_not_belong_to_another(server: ServingSink) -> None:
    prepared(sink_to(server.address))
    other = ConnectorSink(server.address, name="order", checkpoint="")
    other.remember({"ends": {"0": {}}})

    assert other.recover() == []
    assert len(sink_to(server.address).recover()) == 1


def test_partitions_are_spread_over_the_addresses(server: ServingSink, tmp_path: Path) -> None:
    with ServingSink(tmp_path / "second") as second:
        sink = sink_to(server.address, second.address)
        three = [prepared(sink, partition=partition) for partition in range(3)]
        assert len(sink.recover()) == 3
        sink.commit(0, three)
        assert sorted(server.shown()) == ["orders-0", "orders-2"]
        assert sorted(second.shown()) == ["orders-1"]
        prepared(sink, 1, 0), prepared(sink, 1, 1)
        sink.abort(sink.recover())
        assert sink.recover() == []


def test_a_decided_batch_is_told_where_it_was_prepared(server: ServingSink, tmp_path: Path) -> None:
    with ServingSink(tmp_path / "second") as second:
        one = prepared(sink_to(server.address, second.address))
        sink_to(second.address, server.address).commit(0, [one])
    assert list(server.shown()) == ["orders-0"]


def test_a_partition_without_rows_asks_nobody() -> None:
    sink = sink_to("127.0.0.1:1")

    nothing = prepared(sink, rows=[])
    assert nothing == Prepared(nothing.transaction, 0)
    sink.commit(0, [nothing])


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_string(), pa.dictionary(pa.int16(), pa.string())])
@pytest.mark.parametrize("delimiter", [b"\n", b"", b"\r\n"])
def test_rows_of_any_type_of_text_keep_their_bytes(server: ServingSink, kind: pa.DataType, delimiter: bytes) -> None:
    sink = sink_to(server.address, delimiter=delimiter)
    rows = [f"zeile ä {number}" * (number % 7) for number in range(5000)]
    column = pa.array(rows, pa.string()).cast(kind)
    transaction = Transaction.new("orders", 0, 3)
    one = sink.prepare(transaction, iter([pa.RecordBatch.from_arrays([column], ["value"])]))

    wanted = b"".join(row.encode() + delimiter for row in rows)
    assert one.rows == 5000
    assert one.detail == {"address": server.address, "worker": "orders-3", "start": 0, "end": len(wanted)}
    sink.commit(0, [one])
    assert server.shown() == {"orders-3": wanted}


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        (pa.RecordBatch.from_pydict({"v": ["x"]}), "column value is missing, and the rows have v; name the column"),
        (pa.RecordBatch.from_pydict({"value": ["x", None]}), "column value has nulls"),
        (pa.RecordBatch.from_pydict({"value": [{"a": 1}]}), "column value of type struct.* cannot be written"),
        (
            pa.RecordBatch.from_pydict({"value": ["x" * 5000]}),
            "a row of 5001 bytes .* at most 4096",
        ),
    ],
)
def test_rows_that_cannot_be_sent_are_a_vote_to_abort(server: ServingSink, batch: pa.RecordBatch, match: str) -> None:
    sink = sink_to(server.address, max_frame_bytes=4096)

    with pytest.raises(SinkError, match=match):
        sink.prepare(Transaction.new("orders", 0, 0), iter([batch]))
    assert sink.recover() == []


def test_a_sink_that_votes_no_aborts_the_batch_everywhere(server: ServingSink, tmp_path: Path) -> None:
    with ServingSink(tmp_path / "second") as second:
        sink = sink_to(server.address, second.address)
        coordinator = Coordinator(sink, DecisionLog(str(tmp_path / "checkpoint"), sink.name))

        def run(batch: int) -> list[Vote]:
            return [vote(sink, batch, one, pieces(partition_rows(batch, one))) for one in range(4)]

        coordinator.deliver(0, run)
        before = {**server.shown(), **second.shown()}
        # Somebody else's bytes: this output cannot be appended to.
        (second.to / "orders-3.out").write_bytes(b"not ours")
        with pytest.raises(SinkError, match=r"of partition 3: sink 127.0.0.1:\d+ votes to abort; its log"):
            coordinator.deliver(1, run)
        (second.to / "orders-3.out").write_bytes(before["orders-3"])

        assert {**server.shown(), **second.shown()} == before
        assert sink.recover() == []
        coordinator.deliver(1, run)
        both = {**server.shown(), **second.shown()}
    wanted = {f"orders-{one}": lines(*partition_rows(0, one), *partition_rows(1, one)) for one in range(4)}
    assert both == wanted


def driver(server: ServingSink, checkpoint: Path, keep: int = 100, **settings: Any) -> Callable[[int], None]:
    """Delivers batches of one partition, each with a driver that was just started."""

    def deliver(batch: int) -> None:
        sink = ConnectorSink(server.address, name="orders", checkpoint="", give_up_after=1.0, **settings)
        log = DecisionLog(str(checkpoint), sink.name, keep)
        Coordinator(sink, log).deliver(batch, lambda n: [vote(sink, n, 0, pieces(partition_rows(n, 0)))])

    return deliver


def test_a_new_log_does_not_go_on_in_the_output_of_another_unless_it_is_told_to(
    server: ServingSink, tmp_path: Path
) -> None:
    driver(server, tmp_path / "first")(0)
    before = server.shown()

    with pytest.raises(
        SinkError,
        match=r"log has 0 bytes of orders-0 as committed, and the sink says 18: .* or start=\"sink\" to continue",
    ):
        driver(server, tmp_path / "second")(0)
    assert server.shown() == before
    for batch in range(2):
        driver(server, tmp_path / "second", start="sink")(batch)
    assert server.shown() == {"orders-0": before["orders-0"] * 2 + lines(*partition_rows(1, 0))}


def test_a_sink_that_moved_is_told_where_its_output_ends(server: ServingSink, tmp_path: Path) -> None:
    deliver = driver(server, tmp_path / "checkpoint")
    deliver(0)
    server.address = f"localhost:{server.port}"
    deliver(1)
    deliver(2)

    assert server.shown() == {"orders-0": lines(*(row for batch in range(3) for row in partition_rows(batch, 0)))}


def test_a_copy_of_a_task_does_not_abort_the_transaction_of_the_other(server: ServingSink) -> None:
    """With speculation either may be the one that counts."""
    sink = sink_to(server.address)
    sink.begin(0, 1, alone=False)
    one = prepared(sink)

    with pytest.raises(TransportError, match="is prepared by another run of this task, which may be the one"):
        prepared(sink)
    assert sink.recover() == [one.transaction]
    sink.begin(0, 1, alone=True)
    again = prepared(sink)
    assert sink.recover() == [again.transaction]


def test_a_sink_that_keeps_another_session_of_the_worker_is_asked_again(server: ServingSink) -> None:
    """Some refuse the second session, rather than end the first; that of a task that died is soon over."""
    asked = []

    async def run() -> tuple[str, ...]:
        async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.read(1))
            if len(asked) == 1:
                writer.write(V3.encode(Error("worker orders-0: already active")))
            else:
                writer.write(V3.encode(Ok(2)) + V3.encode(NotifyAck(True, 1, 0)))
                reply = encode_control(ReplyUncommitted(1, ("t",)))
                writer.write(V3.encode(Message(0, 0, reply, event_time=0, key=b"")))
            await writer.drain()
            await reader.read()
            writer.close()

        listener = await asyncio.start_server(busy, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        found = await sink_to(f"127.0.0.1:{port}", give_up_after=SECONDS)._uncommitted(0)
        listener.close()
        return found

    assert asyncio.run(run()) == ("t",)
    assert len(asked) == 2


def test_a_sink_that_stops_reading_is_given_up() -> None:
    async def run() -> None:
        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
            writer.write(V3.encode(Ok(2)) + V3.encode(NotifyAck(True, 1, 0)))
            reply = encode_control(ReplyUncommitted(1))
            writer.write(V3.encode(Message(0, 0, reply, event_time=0, key=b"")))
            await asyncio.sleep(SECONDS)

        listener = await asyncio.start_server(deaf, "127.0.0.1", 0)
        address = listener.sockets[0].getsockname()[:2]
        client = await SinkClient.open(address, "orders-0", ConnectionSettings(answer_timeout=0.5))

        async def send_forever() -> None:
            async with client, asyncio.timeout(SECONDS):
                while True:
                    await client.send([b"x" * 100_000])

        with pytest.raises(TransportError, match=r"has read nothing of orders-0 for 0\.5 s; see whether it runs"):
            await send_forever()
        listener.close()

    asyncio.run(run())


def test_a_worker_that_reads_nothing_is_sent_away(tmp_path: Path) -> None:
    """The decision waits for the sink, but not forever."""
    with ServingSink(tmp_path, write_timeout=0.2) as server, socket.create_connection(("127.0.0.1", server.port)) as s:
        s.settimeout(SECONDS)
        question = V3.encode(Message(0, 0, encode_control(ListUncommitted(1)), event_time=0, key=b""))

        def ask_and_ask() -> None:
            for _ in range(2000):
                s.sendall(question * 2000)

        s.sendall(HELLO + V3.encode(Notify(1, "s")))
        with pytest.raises(ConnectionError):
            ask_and_ask()


def test_a_sink_that_is_away_is_waited_for_and_then_named(tmp_path: Path) -> None:
    with ServingSink(tmp_path) as server:
        address = server.address
    sink = sink_to(address, give_up_after=0.2)

    for act in (sink.recover, lambda: prepared(sink)):
        with pytest.raises(SinkError, match=rf"could not be reached for 0\.2 s: cannot connect to {address}"):
            act()


def test_a_sink_that_returns_is_told_the_earlier_decision(tmp_path: Path) -> None:
    with ServingSink(tmp_path) as server:
        sink = sink_to(server.address, give_up_after=SECONDS)
        one = prepared(sink)
        port = server.port
    with ServingSink(tmp_path, port) as server:
        assert sink.recover() == [one.transaction]
        sink.commit(0, [one])
        assert server.shown() == {"orders-0": lines(*partition_rows(0, 0))}


def test_a_new_session_of_a_worker_ends_the_old_one_and_its_rows(server: ServingSink) -> None:
    async def run() -> None:
        address = parse_address(server.address)
        async with await SinkClient.open(address, "orders-0", ConnectionSettings()) as old:
            await old.send([b"of the old\n"])
            async with await SinkClient.open(address, "orders-0", ConnectionSettings()) as new:
                assert new.reference == 0
                await new.send([b"of the new\n"])
                assert await new.vote("orders/0/0/a") == (True, (1, 0, 11))
            with pytest.raises(TransportError):
                await old.vote("orders/0/0/b")

    asyncio.run(run())
    assert [one.attempt for one in sink_to(server.address).recover()] == ["a"]
    assert len(list((server.to / HIDDEN).glob("*.part"))) == 1


@pytest.mark.parametrize(
    "ranges",
    [(), ((1, 0, 4),), ((1, 1, 5),), ((2, 0, 5),), ((1, 0, 5), (1, 0, 5))],
    ids=lambda ranges: str(list(ranges)),
)
def test_a_vote_on_other_rows_than_the_arrived_ones_is_a_no(
    server: ServingSink, ranges: tuple[tuple[int, int, int], ...]
) -> None:
    async def run() -> None:
        async with await SinkClient.open(parse_address(server.address), "orders-0", ConnectionSettings()) as client:
            await client.send([b"four\n"])
            phase1 = Phase1("t", tuple(Range(*one) for one in ranges))
            client._stream.write(client._session.control(phase1))
            assert await client._answer(Reply) == Reply("t", False)
            assert await client.uncommitted() == ()

    asyncio.run(run())
    assert list((server.to / HIDDEN).glob("*.part")) == []


def test_a_transaction_is_decided_on_another_connection(server: ServingSink) -> None:
    one = prepared(sink_to(server.address))

    async def run() -> None:
        async with await SinkClient.open(parse_address(server.address), "orders-0", ConnectionSettings()) as client:
            client.decide(one.transaction.id, True)
            assert await client.uncommitted() == ()

    asyncio.run(run())
    assert server.shown() == {"orders-0": lines(*partition_rows(0, 0))}


def test_several_transactions_follow_one_another_on_a_session(server: ServingSink) -> None:
    async def run() -> None:
        async with await SinkClient.open(parse_address(server.address), "orders-0", ConnectionSettings()) as client:
            for number in range(4):
                await client.send([b"%d\n" % number])
                assert (await client.vote(f"t{number}"))[0]
                client.decide(f"t{number}", number % 2 == 0)
            assert await client.uncommitted() == ()
            await client.notify()
            assert client.reference == 4

    asyncio.run(run())
    assert server.shown() == {"orders-0": b"0\n2\n"}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"version": "9"}, "refuses orders-0: version '9' is not spoken here"),
        ({"cookie": "wrong"}, "refuses orders-0: the cookie is not the one"),
    ],
)
def test_a_greeting_that_the_sink_does_not_take_is_passed_on(
    server: ServingSink, settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(SinkError, match=match):
        sink_to(server.address, **settings).recover()


def test_a_cookie_is_looked_up_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINK_COOKIE", "sesame")
    with ServingSink(tmp_path, cookie="sesame") as server:
        sink = sink_to(server.address, cookie="env:SINK_COOKIE")
        assert b"sesame" not in pickle.dumps(sink)
        assert "sesame" not in repr(sink)
        assert pickle.loads(pickle.dumps(sink)).recover() == []


def test_over_tls_the_sink_is_verified(tmp_path: Path, pems: Pems) -> None:
    tls = server_context(pems.server, pems.server_key)
    with ServingSink(tmp_path, tls=tls) as server:
        address = f"localhost:{server.port}"
        assert sink_to(address, ca=pems.ca).recover() == []
        with pytest.raises(SinkError, match="TLS failed"):
            sink_to(address, tls=True, give_up_after=0.1).recover()


async def _exchange(address: str, data: bytes) -> list[Any]:
    """The server's answer to these bytes, up to its close."""
    stream = await connect(*parse_address(address), timeout=SECONDS)
    stream.write(data)
    buffer = FrameBuffer(1 << 20)
    async with asyncio.timeout(SECONDS):
        try:
            while piece := await stream.read():
                buffer.feed(piece)
        except TransportError:
            pass
    await stream.close()
    frames = []
    while isinstance(raw := buffer.next(V3, -1), RawFrame):
        frames.append(V3.decode(raw.tag, raw.body))
    return frames


HELLO = V3.encode(Hello("0.0.1", b"", "test", "w-0"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not the start of a HELLO"),
        (V3.encode(Hello("0.0.1", b"", "test", "../w")), "use 1 to 128 of the characters"),
        (HELLO + V3.encode(Notify(1, "s")) + V3.encode(Message(1, 0, b"x")) * 2, "the offset in front of the row"),
        (HELLO + V3.encode(Notify(0, "s")), "a sink accepts NOTIFY of stream 1 only"),
        (HELLO + b"\xff\xff\xff\xff\x05", "at most 4194304 are accepted"),
        (V3.encode(Notify(1, "s")), "not the start of a HELLO"),
    ],
)
def test_a_peer_that_breaks_the_protocol_harms_nobody_else(server: ServingSink, data: bytes, reason: str) -> None:
    sink = sink_to(server.address)
    one = prepared(sink)

    answer = asyncio.run(_exchange(server.address, data))

    assert isinstance(answer[-1], Error)
    assert reason in answer[-1].reason
    sink.commit(0, [one])
    assert list(server.shown()) == ["orders-0"]


def test_a_peer_that_sends_nothing_is_closed(tmp_path: Path) -> None:
    with ServingSink(tmp_path, handshake_timeout=0.05) as server:
        [answer] = asyncio.run(_exchange(server.address, b""))
    assert answer == Error("no HELLO came within 0.05 s")


def test_a_sink_that_is_full_takes_no_more_sessions(tmp_path: Path) -> None:
    with ServingSink(tmp_path, max_sessions=1) as server:

        async def run() -> None:
            async with await SinkClient.open(parse_address(server.address), "w-0", ConnectionSettings()):
                with pytest.raises(TransportError):
                    await SinkClient.open(parse_address(server.address), "w-1", ConnectionSettings())

        asyncio.run(run())


def test_a_sink_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        address = listener.sockets[0].getsockname()[:2]
        with pytest.raises(TransportError, match=r"did not answer orders within 0\.05 s; see whether it runs"):
            await SinkClient.open(address, "orders", ConnectionSettings(answer_timeout=0.05))
        listener.close()

    asyncio.run(run())


def test_a_writer_is_made_of_settings_alone(tmp_path: Path) -> None:
    writer = connector("a:1,b:2", checkpoint=str(tmp_path), name="orders", cookie="env:X", give_up_after=3)
    copy = pickle.loads(pickle.dumps(writer))

    assert isinstance(copy.sink, ConnectorSink)
    assert isinstance(writer.sink, ConnectorSink)
    assert copy.sink.settings == writer.sink.settings
    assert copy.sink.addresses == (("a", 1), ("b", 2))
    assert copy.sink.settings.cookie == "env:X"
    assert "checkpoint=" in repr(writer)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (lambda path: connector("a:1", checkpoint=path, name="a/b"), "a sink is named 'a/b'"),
        (lambda path: connector("a:1", checkpoint=path, name="orders-7"), "as a partition of another would be"),
        (lambda path: connector("a", checkpoint=path, name="orders"), "has no port"),
        (lambda path: connector("a:1", checkpoint=path, name="orders", encode="xml"), "one of value, json"),
        (lambda path: connector("a:1", checkpoint=path, name="orders", start="now"), "one of log, sink"),
        (lambda path: connector("a:1", checkpoint="", name="orders"), "has no location"),
    ],
)
def test_invalid_settings_are_refused_at_once(tmp_path: Path, act: Callable[[str], Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        act(str(tmp_path))


def test_it_works_where_an_event_loop_runs(server: ServingSink) -> None:
    sink = sink_to(server.address)

    async def notebook() -> None:
        one = prepared(sink)
        sink.commit(0, [one])
        with pytest.raises(SinkError):
            sink_to("127.0.0.1:1", give_up_after=0.01).recover()

    asyncio.run(notebook())
    assert shown(server.to) == {"orders-0": lines(*partition_rows(0, 0))}
