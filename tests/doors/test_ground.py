"""The ground of doors: sessions of their clients on a worker's machine, and answers from the commit log."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.doors.ground_bench import GroundBench, key, messages
from tests.worker.bench import ids_of
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import REVISIONS, Flags, Revision
from wallaroo_spark.protocol.reserved import DOORS
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e


@pytest.fixture
def bench() -> GroundBench:
    return GroundBench()


def test_a_ticket_is_kept_when_the_commit_log_has_its_reference(bench: GroundBench) -> None:
    ticket = bench.stream().send(messages("one", "two"), 41)
    bench.settle()
    assert ticket.kept is None

    assert bench.bench.run_batch() == {key(): [41, 42]}

    assert ticket.kept is True
    assert ticket.reference == 42


def test_a_batch_has_all_messages_of_a_request_or_none(bench: GroundBench) -> None:
    stream = bench.stream()
    stream.send(messages("one", "two", "three"), 1)
    stream.send(messages("four"), 4)
    bench.settle()

    assert bench.bench.run_batch(rows=1) == {key(): [1, 2, 3]}
    assert bench.bench.run_batch(rows=1) == {key(): [4]}


def test_all_messages_of_a_token_have_it_as_their_id(bench: GroundBench) -> None:
    stream = bench.stream()
    stream.send(messages("one", "two"), 7, step=0)
    stream.send(messages("three"), 9, step=0)
    bench.settle()

    assert bench.bench.run_batch() == {key(): [7, 7, 9]}


def test_a_token_that_was_accepted_is_known_and_a_later_one_is_not(bench: GroundBench) -> None:
    stream = bench.stream()
    stream.send(messages("one"), 7, step=0)
    bench.settle()

    assert stream.knows(7) is True
    assert stream.knows(8) is False
    assert stream.knows(6) is None


def test_a_new_worker_knows_the_committed_token(bench: GroundBench) -> None:
    bench.bench.rewind({key(): 7})

    client = bench.client()

    assert client.committed("orders") == 7
    stream = bench.stream()
    assert stream.knows(7) is True
    assert stream.knows(3) is True
    assert stream.wait(7).kept is True
    assert stream.knows(8) is False


def test_messages_that_an_earlier_session_has_sent_are_not_taken_twice(bench: GroundBench) -> None:
    lost = bench.stream().send(messages("one", "two"), 7, step=0)
    bench.settle()
    bench.client().end("a test")
    bench.settle()
    assert lost.kept is False

    again = bench.stream().send(messages("one", "two"), 7, step=0)
    bench.settle()

    assert bench.bench.run_batch() == {key(): [7, 7]}
    assert again.kept is True


def test_numbers_of_a_worker_increase_though_the_clock_goes_back(bench: GroundBench) -> None:
    stream = bench.stream("http/worker-0")
    stream.send(messages("one", "two"), stream.next_reference(1000))
    stream.send(messages("three"), stream.next_reference(500))
    bench.settle()

    assert bench.bench.run_batch() == {key("http/worker-0"): [1000, 1001, 1002]}


def test_a_stream_is_told_of_the_batches_that_read_it(bench: GroundBench) -> None:
    stream, told = bench.stream(), list[int]()
    stream.planned = told.append

    bench.ground.planned([PlannedRange(key(), 0, 41), PlannedRange(key("http/other"), 0, 7)])

    assert told == [41]


def test_a_number_of_an_ended_session_is_not_used_for_another_message(bench: GroundBench) -> None:
    stream = bench.stream("http/worker-0")
    stream.send(messages("one", "two"), stream.next_reference(1000))
    bench.settle()
    bench.client("http/worker-0").end("a test")
    bench.settle()

    again = bench.stream("http/worker-0")
    again.send(messages("three"), again.next_reference(1000))
    bench.settle()

    assert bench.bench.run_batch() == {key("http/worker-0"): [1000, 1001, 1002]}


def test_a_token_below_one_of_an_ended_session_is_not_confirmed(bench: GroundBench) -> None:
    bench.stream().send(messages("one"), 7, step=0)
    bench.settle()
    bench.client().end("a test")
    bench.settle()

    again = bench.stream()

    assert again.knows(6) is None
    assert again.knows(7) is False
    assert again.knows(8) is False


def test_a_query_that_goes_back_ends_the_session(bench: GroundBench) -> None:
    stream = bench.stream()
    stream.send(messages("one"), 1)
    bench.settle()
    bench.bench.run_batch()
    ticket = stream.send(messages("two"), 2)
    bench.settle()

    bench.bench.rewind({})
    bench.settle()

    assert ticket.kept is False
    assert "sent again" in ticket.reason
    assert not bench.ground.clients


def test_a_worker_that_leaves_ends_the_sessions(bench: GroundBench) -> None:
    ticket = bench.stream().send(messages("one"), 1)
    bench.settle()

    bench.bench.do(e.Stopping("a test"))
    bench.settle()

    assert ticket.kept is False
    assert not bench.bench.state.connections.by_number


def test_an_instance_of_another_worker_is_told_by_the_registry(bench: GroundBench) -> None:
    bench.bench.slot_of["http/shop-1"] = (3, "there:7100")

    client = bench.ground.client("http/shop-1")
    bench.settle()

    assert client.opening.kept is False
    assert "slot 3" in client.ended


def test_bytes_that_a_door_holds_count_as_used_memory(bench: GroundBench) -> None:
    client, buffer = bench.client(), bench.bench.state.buffer

    client.hold(1000)
    assert buffer.unfinished == 1000
    client.hold(-400)
    assert buffer.unfinished == 600
    client.end("a test")
    bench.settle()
    assert buffer.unfinished == 0


def test_a_full_worker_eases_no_new_request_and_lets_none_grow() -> None:
    bench = GroundBench(memory_budget=1 << 20)
    client = bench.client()
    assert bench.eases()

    client.hold(800 << 10)
    assert not bench.eases()
    assert bench.grows()
    client.hold(300 << 10)
    assert not bench.grows()


def test_a_request_that_is_cut_within_leaves_nothing(bench: GroundBench) -> None:
    stream = bench.stream()
    stream.send(messages("one"), 1)
    bench.settle()
    # The worker ends the session between two parts of a request.
    stream._encode(messages("two", "three"), 0, 1, 2, 1, Flags.UNSTABLE_REFERENCE)
    bench.settle()
    bench.client().end("a test")
    bench.settle()

    again = bench.stream().send(messages("four"), 5)
    bench.settle()

    assert bench.bench.run_batch() == {key(): [1, 5]}
    assert again.kept is True


def test_a_session_that_nobody_uses_ends_and_leaves_its_instance(bench: GroundBench) -> None:
    bench.stream().send(messages("one"), 1)
    bench.settle()
    bench.tick(100.0)
    assert bench.ground.clients, "a request waits"
    bench.bench.run_batch()

    bench.tick(200.0)
    bench.tick(201.0)

    assert not bench.ground.clients
    assert bench.bench.unassigned == ["http/shop-1"]


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=lambda one: one.name)
@pytest.mark.parametrize("prefix", DOORS)
def test_a_connector_with_a_name_of_a_door_is_refused(bench: GroundBench, revision: Revision, prefix: str) -> None:
    connector = bench.bench.connect(revision, f"{prefix}shop-1")

    connector.hello()

    assert "belong to the worker's own doors" in connector.error


class TestRangesThatNobodySendsAgain:
    """A worker has died with planned rows; here is the next one of the slot."""

    PLANNED = PlannedRange(key(), 40, 42)

    @pytest.fixture
    def next_worker(self, bench: GroundBench) -> GroundBench:
        bench.bench.rewind({key(): 40}, batch=3)
        bench.want(self.PLANNED)
        bench.tick(0.0)
        return bench

    def rows(self, bench: GroundBench, planned: PlannedRange) -> list[int | None] | None:
        found = bench.bench.state.buffer.find(planned)
        return None if found is None else ids_of(found)

    def test_are_given_up_once_the_client_has_not_come_back_in_time(self, next_worker: GroundBench) -> None:
        next_worker.tick(9.9)
        assert self.rows(next_worker, self.PLANNED) is None
        assert not next_worker.counted

        next_worker.tick(10.0)
        next_worker.tick(11.0)

        # A BOUNDARY, which is no row unless includeBoundaries asks for it.
        assert self.rows(next_worker, self.PLANNED) == [42]
        assert next_worker.counted == {"dropped-unanswered": 1}
        assert "has not come back" in next_worker.logged[0]

    def test_are_filled_by_a_client_that_comes_back(self, next_worker: GroundBench) -> None:
        stream = next_worker.stream()
        stream.send(messages("one"), 41, step=0)
        stream.send(messages("two"), 42, step=0)
        next_worker.settle()

        next_worker.tick(20.0)

        assert self.rows(next_worker, self.PLANNED) == [41, 42]
        assert not next_worker.counted

    def test_have_what_has_come_of_them(self, next_worker: GroundBench) -> None:
        next_worker.stream().send(messages("one"), 41, step=0)
        next_worker.settle()

        next_worker.tick(20.0)
        next_worker.tick(21.0)

        assert self.rows(next_worker, self.PLANNED) == [41, 42]
        assert next_worker.counted == {"dropped-unanswered": 1}
        assert next_worker.ground.given_up(key()) == (41, 42)

    def test_are_given_up_when_that_is_recorded_and_not_before(self, next_worker: GroundBench) -> None:
        next_worker.bench.records = False
        for now in range(10, 15):
            next_worker.tick(float(now))
        assert (self.rows(next_worker, self.PLANNED), next_worker.counted) == (None, {})
        following = next_worker.bench.state.connections.following
        assert following.answer(0, everything=False).give_up == (self.PLANNED,)

        following.recorded([self.PLANNED])
        next_worker.tick(20.0)
        assert self.rows(next_worker, self.PLANNED) == [42]
        assert next_worker.counted == {"dropped-unanswered": 1}

    def test_are_asked_for_again_when_more_of_them_has_come(self, next_worker: GroundBench) -> None:
        next_worker.bench.records = False
        next_worker.tick(10.0)
        # The stream has no name yet, so its session begins again.
        assert next_worker.client().stream("orders") is None
        next_worker.settle()
        next_worker.stream().send(messages("one"), 41, step=0)
        next_worker.settle()
        next_worker.tick(11.0)
        following = next_worker.bench.state.connections.following
        assert following.answer(0, everything=False).give_up == (self.PLANNED._replace(start=41),)

    def test_are_given_up_once(self, next_worker: GroundBench) -> None:
        for now in range(10, 20):
            next_worker.tick(float(now))

        assert next_worker.counted == {"dropped-unanswered": 1}

    def test_are_not_given_up_when_no_read_waits_any_more(self, next_worker: GroundBench) -> None:
        next_worker.tick(9.0)
        next_worker.want()
        next_worker.tick(9.5)
        next_worker.want(self.PLANNED)

        next_worker.tick(11.0)

        assert not next_worker.counted

    def test_wait_while_another_worker_has_the_instance(self, next_worker: GroundBench) -> None:
        next_worker.bench.slot_of[key().scope] = (1, "there:7100")
        next_worker.tick(10.0)
        assert not next_worker.counted

        del next_worker.bench.slot_of[key().scope]
        next_worker.tick(10.5)
        assert not next_worker.counted, "the registry is asked once a second"
        next_worker.tick(11.0)
        next_worker.tick(12.0)

        assert next_worker.counted == {"dropped-unanswered": 1}

    def test_of_messages_that_a_worker_of_the_slot_numbered_are_given_up_at_once(self, bench: GroundBench) -> None:
        own = key("http/worker-0")
        bench.bench.rewind({own: 40}, batch=3)
        bench.want(PlannedRange(own, 40, 42))

        bench.tick(1.0)

        assert bench.counted == {"dropped-unanswered": 1}

    def test_of_a_connector_are_never_given_up(self, bench: GroundBench) -> None:
        mine = StreamKey("shop-1", 7)
        planned = PlannedRange(mine, 40, 42)
        ephemeral = PlannedRange(key(), None, "e:0:1:7")
        bench.bench.rewind({mine: 40}, batch=3)
        bench.want(planned, ephemeral, PlannedRange(StreamKey("", 7), 40, 42))

        bench.tick(0.0)
        bench.tick(1000.0)

        assert not bench.counted
        assert self.rows(bench, planned) is None

    def test_are_given_up_before_a_read_that_is_less_patient_fails(self) -> None:
        bench = GroundBench(replay_timeout=4.0)
        bench.bench.rewind({key(): 40}, batch=3)
        bench.want(self.PLANNED)

        bench.tick(0.0)
        bench.tick(2.0)
        bench.tick(3.0)

        assert bench.counted == {"dropped-unanswered": 1}

    def test_a_stream_without_a_name_begins_again_when_it_is_named(self, next_worker: GroundBench) -> None:
        next_worker.tick(10.0)
        next_worker.tick(11.0)
        client = next_worker.client()

        assert client.stream("orders") is None
        next_worker.settle()
        stream = next_worker.stream()

        assert stream.name == "orders"
        ticket = stream.send(messages("three"), 43, step=0)
        next_worker.settle()
        assert self.rows(next_worker, self.PLANNED) == [42]
        next_worker.bench.commit({key(): 42})
        assert next_worker.bench.run_batch() == {key(): [43]}
        assert ticket.kept is True


def test_the_session_of_a_door_has_no_limits_of_connectors() -> None:
    bench = GroundBench(programs=("shop",), tls_bind_instances=True, tls_ca="x", tls_certificate="x", tls_key="x")

    assert bench.client().opening.kept is True


def test_many_messages_of_one_request_arrive_in_pieces_and_as_one() -> None:
    bench = GroundBench()
    count = 40_000
    stream = bench.stream()

    ticket = stream.send(messages(*("x" for _ in range(count))), 1)
    bench.settle()

    assert bench.bench.run_batch(rows=10) == {key(): list(range(1, count + 1))}
    assert ticket.kept is True


def test_a_door_needs_ids_that_increase() -> None:
    with pytest.raises(ConfigurationError, match="needs messageIds=increasing"):
        Options(http_port=0, message_ids="opaque")


def test_a_worker_without_doors_imports_no_server() -> None:
    code = (
        "import sys, wallaroo_spark.worker.service; "
        "print([name for name in sys.modules if 'httptools' in name or 'doors.http' in name])"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.strip() == "[]"


class TestStreamsThatAreForgotten:
    """While the driver decides whether a stream is forgotten, its client is let in, and does not open it."""

    INSTANCE, STREAM = "kafka/billing/0", "orders/0/7"

    def tell(self, bench: GroundBench, *leaving: StreamKey, forgotten: bool = False) -> None:
        """A commit notice in which nothing else has changed."""
        worker = bench.bench
        worker.batch += 1
        changes = {key(self.INSTANCE, self.STREAM): None} if forgotten else {}
        named = ("a group" if leaving else "", frozenset(leaving))
        worker.do(e.Committed(worker.epoch, worker.batch, changes, None, None, named))

    def wanted(self, bench: GroundBench) -> tuple[StreamKey, ...]:
        """What the worker tells the next plan."""
        return tuple(PlanAnswer.decode(bench.bench.state.offer(PlanQuestion()).encode()).wanted)

    @pytest.mark.parametrize("forgotten", [False, True])
    def test_a_stream_is_opened_once_that_is_decided(self, forgotten: bool) -> None:
        bench, mine = GroundBench(kafka_port=9092), key(self.INSTANCE, self.STREAM)
        bench.bench.rewind({mine: 5}, 5)
        self.tell(bench, mine)
        client = bench.client(self.INSTANCE)
        assert self.wanted(bench) == ()
        other = client.stream("orders/1/8")
        assert other is not None
        assert client.leaves(self.STREAM)
        assert self.wanted(bench) == (mine,)

        self.tell(bench, forgotten=forgotten)

        assert not client.leaves(self.STREAM)
        stream = client.stream(self.STREAM)
        assert stream is not None
        assert stream.committed == (None if forgotten else 5)


def test_a_session_without_requests_does_not_forget_what_an_earlier_one_had_accepted(bench: GroundBench) -> None:
    bench.stream().send(messages("one"), 41)
    bench.settle()
    for _ in range(2):
        bench.client().end("the messages must be sent again")
        bench.settle()
    assert bench.stream().next_reference(7) == 42
    bench.bench.run_batch()
    bench.client().end("it was idle")
    bench.settle()
    assert bench.ground._accepted == {}


def test_a_session_before_the_first_tick_is_as_young_as_the_others() -> None:
    bench = GroundBench(now=50_000.0)
    client = bench.client()
    assert client.began_at == 50_000.0
    bench.tick(50_001.0)
    assert not client.ended
