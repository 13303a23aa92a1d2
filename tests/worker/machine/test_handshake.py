"""From HELLO to OK, or to being told why not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.revisions import drafts, revisions
from tests.worker.bench import COOKIE, Bench, names
from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, REVISIONS, V3, Ack, Error, Hello, Ok, Revision, faults
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.pressure.flow import LARGEST_WINDOW


@revisions
def test_a_connector_is_greeted_with_credits(bench: Bench, revision: Revision) -> None:
    assert bench.join(revision).frames == [Ok(LARGEST_WINDOW)]
    assert bench.state.status()["sessions"] == 1
    assert bench.state.status()["connected"] == ["shop-1"]


@revisions
def test_a_hello_may_come_in_pieces(bench: Bench, revision: Revision) -> None:
    connector = bench.connect(revision)
    hello = revision.encode(Hello("0.0.1", COOKIE.encode(), "", "shop-1"))
    connector.session.hello(version="0.0.1", cookie=b"", program="", instance="")
    for at in range(len(hello) - 1):
        assert connector.send(hello[at : at + 1]) == []

    assert names(connector.send(hello[-1:])) == ["OK"]


@drafts
def test_ok_has_the_committed_references_of_the_instances_streams(bench: Bench, revision: Revision) -> None:
    bench.rewind({StreamKey("shop-1", 7): 40, StreamKey("shop-2", 7): 50, StreamKey("shop-1", 8): "e:0:1:2"})
    connector = bench.join(revision)

    (ok,) = connector.said(Ok)
    assert [(stream.stream_id, stream.ref) for stream in ok.streams] == [(7, 40)]


def test_ok_names_the_streams_that_are_held(bench: Bench) -> None:
    first = bench.join(DRAFT_BE)
    first.open(7, name="orders")
    first.messages(7, [1, 2])
    bench.commit({StreamKey("shop-1", 7): 1})
    (ok,) = bench.join(DRAFT_BE).said(Ok)

    assert [(stream.stream_id, stream.name, stream.ref) for stream in ok.streams] == [(7, "orders", 1)]


def test_ok_names_the_streams_of_which_nothing_is_held_any_more(bench: Bench) -> None:
    first = bench.join(DRAFT_BE)
    first.open(7, name="orders")
    first.messages(7, [1, 2])
    first.leave()
    bench.run_batch()
    (ok,) = bench.join(DRAFT_BE).said(Ok)

    assert [(stream.stream_id, stream.name, stream.ref) for stream in ok.streams] == [(7, "orders", 2)]


def test_ok_has_committed_references_and_no_held_ones(bench: Bench) -> None:
    first = bench.join(DRAFT_BE)
    first.open(7)
    first.messages(7, [1, 2])
    first.leave()

    assert bench.join(DRAFT_BE).said(Ok)[0].streams == ()


@revisions
@pytest.mark.parametrize(
    ("version", "cookie", "fault", "reason"),
    [
        ("0.0.2", COOKIE, "wrong-version", "version '0.0.2' is not spoken here"),
        ("0.0.1", "guess", "wrong-cookie", "the cookie is not the one"),
        ("0.0.1", "", "wrong-cookie", "the cookie is not the one"),
    ],
)
def test_another_version_or_cookie_is_sent_away(
    bench: Bench, revision: Revision, version: str, cookie: str, fault: str, reason: str
) -> None:
    connector = bench.connect(revision)
    answers = connector.hello(version, cookie)

    assert names(answers) == ["ERROR"]
    assert reason in connector.error
    assert COOKIE not in connector.error
    assert connector.closed == e.Close(connector.number)
    assert bench.counts[f"fault:{fault}"] == 1
    assert all(COOKIE not in line and "guess" not in line for line in bench.warnings())


@revisions
def test_another_program_is_sent_away_and_told_which_are_let_in(
    make_bench: Callable[..., Bench], revision: Revision
) -> None:
    bench = make_bench(programs=("orders", "returns"))
    stranger = bench.connect(revision)
    (error,) = stranger.hello(program="invoices")

    assert isinstance(error, Error)
    assert error.reason == "program 'invoices' is not let in; option programs lists orders, returns"
    assert stranger.closed == e.Close(0)
    assert bench.counts["fault:wrong-program"] == 1
    assert names(bench.connect(revision).hello(program="returns")) == ["OK"]


def test_a_peer_that_says_nothing_is_sent_away(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(handshake_timeout=3.0)
    silent, greeted = bench.connect(now=10.0), bench.join()
    bench.do(e.Tick(12.9))
    assert silent.closed is None

    bench.do(e.Tick(13.0))
    assert silent.closed == e.Close(0)
    assert bench.counts["fault:handshake-timeout"] == 1
    assert "no HELLO came within 3 seconds (handshakeTimeout)" in bench.warnings()[0]
    assert greeted.closed is None


def test_a_peer_that_is_within_its_hello_is_told_why(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(handshake_timeout=3.0)
    slow = bench.connect(DRAFT_BE)
    slow.send(b"\x00\x00\x00\x20H\x00")
    bench.do(e.Tick(3.0))
    # The peer's side has not said HELLO, so it does not know what to make of an ERROR; the bytes were sent.
    assert bench.counts["fault:handshake-timeout"] == 1
    assert slow.closed == e.Close(0)


def test_no_hello_is_longer_than_its_fields_can_be(bench: Bench) -> None:
    connector = bench.connect(DRAFT_BE)
    length = 1_000_001
    connector.session.hello(version="", cookie=b"", program="", instance="")
    connector.send(length.to_bytes(4, "big") + b"H" + bytes(260_000))
    assert connector.error == ""

    connector.send(bytes(5_000))
    assert "without a whole HELLO" in connector.error
    assert bench.counts["fault:frame-too-long"] == 1


def test_another_protocol_is_closed_without_an_answer(bench: Bench) -> None:
    connector = bench.connect()

    assert connector.send(b"GET / HTTP/1.1\r\n") == []
    assert connector.closed == e.Close(0)
    assert bench.counts["fault:not-this-protocol"] == 1
    assert connector.send(b"Host: localhost\r\n") == []


def test_before_the_query_s_place_is_known_connectors_wait(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(ready=False)
    early = bench.connect(DRAFT_BE)
    assert early.hello() == []
    assert not bench.state.ready

    bench.rewind({StreamKey("shop-1", 7): 40})
    (ok,) = early.said(Ok)
    assert [(stream.stream_id, stream.ref) for stream in ok.streams] == [(7, 40)]


def test_frames_before_ok_break_the_protocol(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(ready=False)
    hasty = bench.connect(DRAFT_BE)
    hasty.hello()
    hasty.send(b"\x00\x00\x00\x13N" + bytes(18))

    assert "NOTIFY is not allowed in state handshake" in hasty.error
    bench.rewind({})
    assert hasty.said(Ok) == []


@revisions
def test_an_instance_of_another_slot_is_told_where_to_go(bench: Bench, revision: Revision) -> None:
    bench.slot_of["shop-9"] = (1, "there:7101")
    connector = bench.connect(revision, "shop-9")
    connector.hello()

    assert faults.redirect_address(connector.error) == "there:7101"
    assert connector.closed == e.Close(0)


@revisions
def test_an_instance_of_a_slot_that_nobody_serves_shall_come_back(bench: Bench, revision: Revision) -> None:
    bench.slot_of["shop-9"] = (1, None)
    connector = bench.connect(revision, "shop-9")
    connector.hello()

    assert faults.is_later(connector.error)
    assert "slot 1, or messages of it are held there, and that has no worker right now" in connector.error


@revisions
def test_without_a_registry_a_new_connector_shall_come_back(bench: Bench, revision: Revision) -> None:
    bench.registry_answers = False
    connector = bench.connect(revision)
    connector.hello()
    bench.do(e.RegistryFailed(0, "Redis is gone"))

    assert faults.is_later(connector.error)
    assert "Redis is gone" in connector.error
    assert bench.counts["registry-failures"] == 1


def test_an_answer_for_a_peer_that_is_gone_is_passed_over(bench: Bench) -> None:
    bench.registry_answers = False
    gone = bench.connect(DRAFT_BE)
    gone.hello()
    gone.leave()

    assert bench.do(e.Assigned(0, "shop-1", 0, "here:1")) == []
    assert bench.do(e.RegistryFailed(0, "Redis is gone")) == []


def test_an_answer_for_a_peer_that_has_given_up_is_passed_over(bench: Bench) -> None:
    bench.registry_answers = False
    leaving = bench.connect(DRAFT_BE)
    leaving.hello()
    leaving.raw(Error("changed my mind"))

    assert bench.do(e.Assigned(0, "shop-1", 0, "here:1")) == []
    assert bench.do(e.RegistryFailed(0, "Redis is gone")) == []
    assert bench.counts["peer-errors"] == 1


def test_a_full_worker_takes_no_more(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_sessions=2)
    first, _ = bench.join(instance="a"), bench.join(instance="b")
    third = bench.connect(instance="c")
    third.hello()

    assert faults.is_later(third.error)
    assert "has 2 sessions and takes no more (maxSessions)" in third.error
    assert bench.counts["fault:worker-full"] == 1
    first.leave()
    bench.join(instance="c")


def test_connections_that_say_nothing_are_limited_too(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_sessions=2)
    connectors = [bench.connect() for _ in range(5)]

    assert [connector.closed for connector in connectors[:4]] == [None] * 4
    assert connectors[4].closed == e.Close(4, at_once=True)
    assert bench.counts["fault:worker-full"] == 1


@drafts
def test_a_newer_session_of_an_instance_takes_the_place_of_the_older(bench: Bench, revision: Revision) -> None:
    older = bench.join(revision)
    older.open(1)
    older.messages(1, [1, 2])
    newer = bench.join(DRAFT_BE)
    newer.open(1)
    newer.messages(1, [1, 2, 3])

    assert "takes its place" in older.error
    assert older.closed == e.Close(0)
    assert bench.counts["fault:superseded"] == 1
    assert bench.run_batch() == {StreamKey("shop-1", 1): [1, 2, 3]}


@pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE], ids=str)
def test_the_session_that_came_last_stays_whichever_the_registry_knows_first(bench: Bench, revision: Revision) -> None:
    bench.registry_answers = False
    older, newer = bench.connect(revision), bench.connect(revision)
    older.hello()
    newer.hello()
    first, second = bench.held_back
    bench.answer(second)
    bench.answer(first)
    assert "takes its place" in older.error
    assert [type(frame) for frame in newer.frames] == [Ok]
    assert newer.open(7) == []


def test_sessions_of_one_instance_in_v3_and_in_a_draft_live_side_by_side(bench: Bench) -> None:
    shipped, draft = bench.join(V3), bench.join(DRAFT_LE)
    other = bench.join(V3)
    for connector in (shipped, draft):
        connector.open(1)
        connector.messages(1, [1, 2])
    other.open(2)
    other.messages(2, [5])

    assert shipped.closed is draft.closed is other.closed is None
    assert bench.run_batch() == {StreamKey("", 1): [1, 2], StreamKey("shop-1", 1): [1, 2], StreamKey("", 2): [5]}
    newer = bench.join(DRAFT_BE)
    assert shipped.closed is other.closed is newer.closed is None
    assert draft.closed is not None


@revisions
def test_an_over_long_instance_name_is_refused(bench: Bench, revision: Revision) -> None:
    connector = bench.connect(revision, "x" * 256)
    connector.hello()

    assert "has 256 bytes; it has 1 to 255" in connector.error
    assert bench.counts["fault:bad-instance"] == 1


def test_an_instance_that_its_certificate_does_not_name_is_sent_away(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(tls_ca="ca.pem", tls_bind_instances=True)
    stranger = bench.connect(V3, "shop-2", certified=("shop-1", "shop-1.example"))
    (error,) = stranger.hello()

    assert isinstance(error, Error)
    assert error.reason == "instance 'shop-2' is not among the names in its certificate: shop-1, shop-1.example"
    assert bench.state.status()["counts"]["fault:wrong-certificate"] == 1
    assert names(bench.connect(V3, "shop-1", certified=("shop-1",)).hello()) == ["OK"]


def test_a_silent_session_is_asked_to_come_back_unless_it_waits_for_something(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(idle_timeout=10.0)
    idle, waiting = bench.join(DRAFT_BE, "idle"), bench.join(DRAFT_BE, "waiting")
    waiting.open(7)
    waiting.messages(7, [1])
    bench.do(e.Tick(9.0))
    assert idle.said(Error) == []

    bench.do(e.Tick(11.0))
    assert [error.reason for error in idle.said(Error)] == [
        faults.later("nothing was sent for 10 seconds (idleTimeout)")
    ]
    assert waiting.said(Error) == []

    bench.commit({StreamKey("waiting", 7): 1})
    bench.do(e.Tick(12.0))
    assert len(waiting.said(Error)) == 1


def test_a_session_that_sends_now_and_then_is_not_idle(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(idle_timeout=10.0)
    connector = bench.join(DRAFT_BE)
    for moment in (6.0, 12.0, 18.0):
        bench.do(e.Tick(moment))
        connector.open(int(moment))
    bench.do(e.Tick(27.0))
    assert connector.said(Error) == []


@revisions
def test_an_instance_that_is_gone_and_of_which_nothing_is_held_is_given_back(bench: Bench, revision: Revision) -> None:
    connector, other = bench.join(revision), bench.join(revision, "shop-2")
    connector.open(7)
    connector.messages(7, [1, 2])
    other.open(8)
    connector.leave()
    bench.do(e.Tick(1.0))
    assert bench.unassigned == [], "two messages are held"
    assert bench.state.connections.instances() == ["shop-1", "shop-2"]

    bench.run_batch()
    bench.do(e.Tick(2.0))
    assert bench.unassigned == ["shop-1"]
    bench.do(e.Tick(3.0))
    assert bench.unassigned == ["shop-1"]
    other.leave()
    bench.do(e.Tick(4.0))
    assert bench.unassigned == ["shop-1", "shop-2"]


def test_an_instance_is_given_back_though_its_session_was_gone_before_the_registry_answered(bench: Bench) -> None:
    bench.registry_answers = False
    gone = bench.connect(DRAFT_BE)
    gone.hello()
    gone.leave()
    bench.do(e.Tick(1.0))
    assert bench.unassigned == []

    bench.do(e.Assigned(0, "shop-1", 0, "here:1"))
    bench.do(e.Tick(2.0))
    assert bench.unassigned == ["shop-1"]


@pytest.mark.no_cover
def test_an_instance_with_very_many_streams_can_connect(bench: Bench) -> None:
    known = 300_000
    bench.rewind({StreamKey("shop-1", number): 40 + number for number in range(known)})
    connector = bench.connect(DRAFT_BE)
    # The connector's session refuses a frame that is longer than the limit.
    connector.hello()

    (ok,) = connector.said(Ok)
    found = {stream.stream_id: stream.ref for stream in ok.streams}
    assert 50_000 < len(found) < known
    assert sum(ack.credits for ack in connector.said(Ack)) == 0
    for ack in connector.said(Ack):
        found |= dict(ack.refs)
    complete = found == {number: 40 + number for number in range(known)}
    assert complete
    connector.open(known)
    connector.messages(known, [1, 2])
    assert bench.run_batch() == {StreamKey("shop-1", known): [1, 2]}


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=str)
def test_a_session_may_send_any_number_of_streams_one_after_the_other(revision: Revision) -> None:
    bench = Bench()
    connector = bench.join(revision)
    bench.state.connections.by_number[connector.number].protocol.streams._max_streams = 3
    connector.session.streams._max_streams = 3
    for number in range(1, 20):
        connector.open(number)
        connector.messages(number, [1, 2])
        connector.end(number, 2)
        bench.run_batch()
        connector.session.streams.finish(number)

    assert connector.said(Error) == []
    assert len(bench.state.connections.by_number[connector.number].protocol.streams) <= 3
