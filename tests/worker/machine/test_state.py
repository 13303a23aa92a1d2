"""The worker's state as a whole: messages in, rows out, and one session's faults are no other's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.revisions import drafts, revisions
from tests.worker.bench import NOON, Bench, Connector, names
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    V3,
    Ack,
    EosMessage,
    Error,
    Flags,
    Hello,
    Message,
    Ok,
    Revision,
)
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.segments import LOT_OVERHEAD, SEGMENT_OVERHEAD
from wallaroo_spark.worker.machine import events as e

KEY = StreamKey("shop-1", 7)


def key(revision: Revision, instance: str = "shop-1", stream_id: int = 7) -> StreamKey:
    return StreamKey(instance if revision.stream_scope == "instance" else "", stream_id)


class TestMessages:
    @revisions
    def test_messages_become_rows(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7, name="orders")
        connector.messages(7, [1, 2, 3])
        (found,) = bench.find(bench.plan()).values()

        assert found is not None
        assert found.name == "orders"
        ((part, reference),) = found.slices
        assert reference == 3
        assert part.receipt == ("shop-1", NOON)
        assert part.stored["value"].to_pylist() == [b"x" * 10] * 3
        assert bench.counts["messages"] == 3

    @revisions
    def test_several_streams_of_one_read_are_told_apart(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.open(8)
        connector.send(
            connector.message(7, 1), connector.message(8, 5), connector.message(7, 2), connector.message(8, 6)
        )

        assert bench.run_batch() == {key(revision): [1, 2], key(revision, stream_id=8): [5, 6]}

    @revisions
    def test_replays_are_counted_and_dropped(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [1, 2, 3])
        connector.leave()
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [2, 3, 4])

        assert bench.counts["replayed"] == 2
        assert bench.run_batch() == {key(revision): [1, 2, 3, 4]}

    @drafts
    def test_ids_that_go_down_in_a_session_are_an_error_and_not_acknowledged(
        self, bench: Bench, revision: Revision
    ) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.send(*(connector.message(7, number) for number in (30, 10, 20)))

        assert "stream 7: message 10 was sent behind message 30" in connector.error
        assert ("messageIds=opaque" in connector.error) is (revision is not V3)
        assert bench.counts["fault:ids-not-increasing"] == 1

    @drafts
    def test_ids_after_a_notify_may_decrease_until_all_replays_have_arrived(
        self, bench: Bench, revision: Revision
    ) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [1, 2, 3])
        connector.leave()
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [2, 1, 3, 4])
        assert connector.error == ""
        connector.messages(7, [3])

        assert "message 3 was sent behind message 4" in connector.error
        assert bench.run_batch() == {key(revision): [1, 2, 3, 4]}

    @drafts
    def test_several_unstable_messages_with_one_id_are_several_messages(self, bench: Bench, revision: Revision) -> None:
        unstable, boundary = Flags.UNSTABLE_REFERENCE, Flags.BOUNDARY
        for committed in ([1, 5, 5, 5, 5], [6]):
            connector = bench.join(revision)
            connector.open(7)
            connector.send(
                connector.message(7, 1),
                *(connector.message(7, 5, unstable) for _ in range(3)),
                connector.message(7, 5, boundary),
                connector.message(7, 6),
                connector.message(7, 6, boundary | Flags.EOS),
            )
            assert connector.error == ""
            if committed == [6]:
                break
            assert bench.run_batch(rows=5) == {KEY: committed}
            connector.leave()
        assert bench.run_batch() == {KEY: [6]}

    @drafts
    def test_a_stable_id_may_not_be_repeated(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [5, 5])

        assert "message 5 was sent behind message 5" in connector.error

    @drafts
    def test_the_end_of_a_stream_may_come_with_its_last_message(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.send(connector.message(7, 1), connector.message(7, 2, Flags.EOS))

        assert bench.state.activity()[0]["open"] == 0
        assert bench.run_batch() == {KEY: [1, 2]}

    def test_the_end_of_a_stream_may_come_without_an_id(self, bench: Bench) -> None:
        connector = bench.join(V3)
        connector.open(7)
        connector.messages(7, [1])
        connector.raw(EosMessage(7))

        assert bench.state.activity()[0]["open"] == 0

    @drafts
    def test_ephemeral_messages_are_delivered_and_never_acknowledged(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [5, 5, 5], Flags.EPHEMERAL)

        assert bench.plan() == {KEY: "e:0:7:3"}
        assert len(bench.run_batch()[KEY]) == 3
        assert all(ack.refs == () for ack in connector.said(Ack))
        connector.leave()
        assert bench.join(revision).said(Ok)[0].streams == ()

    def test_an_ephemeral_stream_that_comes_back_goes_on(self, bench: Bench) -> None:
        for _ in range(3):
            connector = bench.join(DRAFT_BE)
            connector.open(7)
            connector.messages(7, [None, None], Flags.EPHEMERAL)
            assert len(bench.run_batch()[KEY]) == 2
            connector.leave()
            assert bench.state.status()["streams"] == 0

    def test_a_stream_that_changes_its_kind_while_rows_are_held_is_refused(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.open(7)
        connector.send(connector.message(7, None, Flags.EPHEMERAL | Flags.EOS))
        connector.open(7)
        connector.messages(7, [1])

        assert "others follow EPHEMERAL messages that are not committed yet" in connector.error
        assert bench.counts["fault:mixed-ephemeral"] == 1
        assert len(bench.run_batch()[KEY]) == 1

    @drafts
    def test_opaque_ids_are_delivered_in_the_order_of_their_coming(self, revision: Revision) -> None:
        bench = Bench(message_ids="opaque")
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [9, 2, 7])
        connector.end(7, 7)

        assert bench.run_batch() == {KEY: [9, 2, 7]}
        assert [pair for ack in connector.said(Ack) for pair in ack.refs] == [(7, 7)]
        bench.validate()

    def test_opaque_ids_must_be_replayed_in_order(self) -> None:
        bench = Bench(message_ids="opaque")
        first = bench.join(DRAFT_BE)
        first.open(7)
        first.messages(7, [9, 2, 7])
        first.leave()
        second = bench.join(DRAFT_BE)
        second.open(7)
        second.messages(7, [2])

        assert "opaque ids must be replayed in order" in second.error
        assert bench.counts["fault:replay-differs"] == 1

    def test_in_v3_ids_increase_whatever_the_option_says(self) -> None:
        bench = Bench(message_ids="opaque")
        connector = bench.join(V3)
        connector.open(7)
        connector.messages(7, [5, 6])
        connector.messages(7, [2, 7])

        assert connector.error == ""
        assert bench.run_batch() == {StreamKey("", 7): [5, 6, 7]}

    def test_in_v3_a_connector_may_go_back_without_a_notify(self, bench: Bench) -> None:
        connector = bench.join(V3)
        connector.open(7)
        connector.messages(7, [5, 6, 7])
        connector.messages(7, [6, 7, 8])

        assert connector.error == ""
        assert bench.counts["replayed"] == 2
        assert bench.run_batch() == {StreamKey("", 7): [5, 6, 7, 8]}

    def test_unstable_references_are_not_acknowledged(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.open(7)
        connector.messages(7, [1, 2])
        connector.messages(7, [3], Flags.UNSTABLE_REFERENCE)
        assert bench.run_batch() == {KEY: [1, 2]}

        connector.messages(7, [4], Flags.BOUNDARY)
        assert bench.run_batch() == {KEY: [3, 4]}


def malformed(revision: Revision, tag: str | int, body: bytes) -> bytes:
    number = tag if isinstance(tag, int) else ord(tag)
    order = "little" if revision is DRAFT_LE else "big"
    return (len(body) + 1).to_bytes(4, order) + bytes([number]) + body  # type: ignore[arg-type]  # a literal


BAD: dict[str, tuple[Callable[[Connector], bytes], str]] = {
    "an unknown tag": (lambda c: malformed(c.revision, 250, b""), "unknown-tag"),
    "a second HELLO": (lambda c: c.revision.encode(Hello("0.0.1", b"", "", "x")), "wrong-state"),
    "a frame of the other side": (lambda c: c.revision.encode(Ok(5)), "wrong-side"),
    "a length bomb": (lambda c: b"\x7f\xff\xff\x7f", "frame-too-long"),
    "a length of zero": (lambda c: bytes(8), "empty-frame"),
    "a truncated frame": (lambda c: malformed(c.revision, 3 if c.revision is V3 else "N", b"\0\0"), "truncated-frame"),
    "an over-long frame": (
        lambda c: malformed(c.revision, 3 if c.revision is V3 else "N", bytes(30)),
        "overlong-frame",
    ),
    "invalid UTF-8 in a name": (
        lambda c: malformed(
            c.revision,
            3 if c.revision is V3 else "N",
            bytes(8) + (b"\2\0" if c.revision is DRAFT_LE else b"\0\2") + b"\xff\xfe" + bytes(8),
        ),
        "invalid-text",
    ),
    "a message before NOTIFY": (lambda c: c.revision.encode(Message(99, 1, b"x")), "stream-not-open"),
}


@revisions
@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_its_session_and_no_other(bench: Bench, revision: Revision, name: str) -> None:
    bad, good = bench.join(revision, "bad"), bench.join(revision, "good")
    bad.open(8)
    good.open(7)
    make, fault = BAD[name]
    bad.send(bad.message(8, 1), make(bad), b"and whatever follows")
    good.messages(7, [1, 2])

    assert names(bad.frames)[-1] == "ERROR"
    assert bad.closed == e.Close(bad.number)
    assert bench.counts[f"fault:{fault}"] == 1
    assert "connector" in bench.warnings()[0] or "bad at" in bench.warnings()[0]
    assert good.error == ""
    assert bench.run_batch() == {key(revision, "bad", 8): [1], key(revision, "good"): [1, 2]}
    assert bad.send(b"more") == []


@drafts
@pytest.mark.parametrize(
    ("flags", "payload", "fault"), [(0x4000, b"x", "reserved-flag"), (Flags.BOUNDARY, b"x", "boundary-payload")]
)
def test_bad_flags_end_their_session(bench: Bench, revision: Revision, flags: int, payload: bytes, fault: str) -> None:
    bad = bench.join(revision)
    bad.open(7)
    order: Any = "little" if revision is DRAFT_LE else "big"
    body = int(flags).to_bytes(2, order) + (7).to_bytes(8, order) + (2).to_bytes(8, order) + payload
    bad.send(bad.message(7, 1), malformed(revision, "M", body))

    assert names(bad.frames)[-1] == "ERROR"
    assert bench.counts[f"fault:{fault}"] == 1
    assert bench.run_batch() == {KEY: [1]}


@revisions
def test_a_message_after_the_end_of_its_stream_ends_its_session(bench: Bench, revision: Revision) -> None:
    bad = bench.join(revision)
    bad.open(7)
    bad.messages(7, [1])
    bad.end(7, 1)
    bad.raw(Message(7, 2, b"x"))

    assert "stream 7" in bad.error
    assert bench.counts["fault:stream-not-open"] == 1


class TestComingAndGoing:
    def test_a_connector_that_gives_up_says_why(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.raw(Error("out of disk"))

        assert connector.closed == e.Close(0)
        assert bench.counts["peer-errors"] == 1
        assert "gave up: out of disk" in bench.logged[-1].text
        assert bench.warnings() == []

    def test_a_connection_that_ends_within_a_frame_is_counted(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.send(b"\x00\x00\x00\x20N")
        connector.leave()

        assert bench.counts["fault:truncated-frame"] == 1
        assert "the connection ended within a frame" in bench.warnings()[0]

    def test_a_cut_is_logged_with_its_reason(self, bench: Bench) -> None:
        bench.join(DRAFT_BE).leave("the cable was pulled")

        assert "has disconnected: the cable was pulled" in bench.logged[-1].text
        assert bench.warnings() == []

    def test_a_peer_that_does_not_read_is_cut_off_without_an_answer(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        frames = len(connector.frames)
        bench.do(e.Stuck(0, 5_000_000))

        assert connector.frames[frames:] == []
        assert connector.closed == e.Close(0, at_once=True)
        assert bench.counts["fault:peer-never-reads"] == 1
        assert "5000000 bytes wait for it" in bench.warnings()[0]

    def test_events_of_a_session_that_is_gone_change_nothing(self, bench: Bench) -> None:
        bench.join(DRAFT_BE).leave()

        assert bench.do(e.Disconnected(0)) == []
        assert bench.do(e.Received(((0, b"late"),), NOON)) == []
        assert bench.do(e.Stuck(0, 1)) == []

    @revisions
    def test_an_error_of_ours_costs_its_session_and_no_other(self, bench: Bench, revision: Revision) -> None:
        unlucky, other = bench.join(revision, "unlucky"), bench.join(revision, "other")
        unlucky.open(8)
        unlucky.messages(8, [1])
        other.open(7)
        with mock.patch.object(bench.state.connections, "stuck", side_effect=MemoryError):
            bench.do(e.Stuck(unlucky.number, 1))

        assert unlucky.closed == e.Close(unlucky.number, at_once=True)
        assert bench.counts["internal-errors"] == 1
        unlucky.leave()
        other.messages(7, [1])
        assert bench.run_batch() == {key(revision, "unlucky", 8): [1], key(revision, "other"): [1]}

    def test_an_error_of_ours_for_a_session_that_is_gone_is_counted(self, bench: Bench) -> None:
        bench.join(DRAFT_BE).leave()
        with mock.patch.object(bench.state.connections, "stuck", side_effect=MemoryError):
            bench.do(e.Stuck(0, 1))

        assert bench.counts["internal-errors"] == 1


class TestStatus:
    def test_activity_shows_the_busy_workers(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.open(7)
        connector.open(8)
        connector.messages(7, [1])
        connector.end(7, 1)
        bench.connect()

        assert bench.state.activity() == [{"instance": "shop-1", "last_at": NOON, "open": 1, "streams": 2}]

    def test_instances_are_those_connected_and_those_of_which_something_is_held(self, bench: Bench) -> None:
        gone = bench.join(DRAFT_BE, "gone")
        gone.open(7)
        gone.messages(7, [1])
        gone.leave()
        bench.join(V3, "here")

        assert bench.state.connections.instances() == ["gone", "here"]

    def test_status_has_the_facts_for_an_operator(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.open(7)
        connector.messages(7, [1])
        status = bench.state.status()

        assert {name: status[name] for name in ("slot", "ready", "epoch", "batch", "sessions", "streams")} == {
            "slot": 0,
            "ready": True,
            "epoch": 1,
            "batch": -1,
            "sessions": 1,
            "streams": 1,
        }
        assert (status["memory_used"], status["memory_budget"], status["pressure"]) == (
            LOT_OVERHEAD + SEGMENT_OVERHEAD + 74,
            256 << 20,
            "none",
        )

    def test_ten_thousand_streams_are_no_more_work_to_report_than_one(
        self, make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = make_bench()
        connector = bench.join(DRAFT_BE)
        monkeypatch.setattr(bench, "validate", lambda: None)
        connector.send(*(connector.session.notify(number, "") for number in range(10_000)))
        looked_up: list[object] = []

        class Watched(dict[StreamKey, Any]):
            def __getitem__(self, item: StreamKey) -> Any:
                looked_up.append(item)
                return super().__getitem__(item)

        monkeypatch.setattr(bench.state.buffer, "streams", Watched(bench.state.buffer.streams))

        assert bench.state.activity() == [{"instance": "shop-1", "last_at": NOON, "open": 10_000, "streams": 10_000}]
        assert bench.state.status()["streams"] == 10_000
        assert looked_up == []

    def test_waiting_reads_are_woken_by_every_change(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.open(7)
        woken = bench.woken
        connector.messages(7, [1])
        assert bench.woken == woken + 1

        connector.messages(7, [1])
        bench.do(e.Tick(1.0))
        assert bench.woken == woken + 1
