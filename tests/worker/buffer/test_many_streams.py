"""Many streams at once: the code that works on columns agrees with a simple model, after any history."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.bench import NOON, Bench, Connector
from wallaroo_spark.inner.rows import Unpacker
from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, Flags, Message
from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.worker.buffer.delivery import gather
from wallaroo_spark.worker.buffer.segment_table import SegmentTable
from wallaroo_spark.worker.machine import events as e

pytestmark = pytest.mark.no_cover

STREAMS = range(1, 6)
SENDERS = ("a", "b")

sent = st.tuples(
    st.just("send"),
    st.lists(
        st.tuples(
            st.sampled_from(SENDERS), st.sampled_from(STREAMS), st.integers(1, 3), st.sampled_from((False, False, True))
        ),
        min_size=1,
        max_size=8,
    ),
)
steps = st.lists(
    st.one_of(
        sent,
        sent,
        sent,
        st.tuples(st.just("batch"), st.sampled_from((None, 3, 8, 12))),
        st.tuples(st.just("again"), st.sampled_from(SENDERS)),
        st.tuples(st.just("merge"), st.none()),
    ),
    max_size=30,
)


class Model:
    """The sent messages of each stream, as (id, whether a batch may end behind it), and the delivered position."""

    def __init__(self) -> None:
        self.sent: dict[StreamKey, list[tuple[int, bool]]] = {}
        self.delivered: dict[StreamKey, list[int]] = {}

    def stable(self, key: StreamKey) -> list[int]:
        """The ids up to the last one behind which a batch may end."""
        rows = self.sent.get(key, [])
        last = max((at for at, (_, stable) in enumerate(rows) if stable), default=-1)
        return [number for number, _ in rows[: last + 1]]


def read(bench: Bench, ends: Mapping[StreamKey, Reference]) -> dict[StreamKey, list[int]]:
    """The rows of a batch as a task gets them, all ranges in one request."""
    keys = list(ends)
    ranges = {index: PlannedRange(key, bench.offsets.get(key), ends[key]) for index, key in enumerate(keys)}
    found = bench.state.buffer.find_all(ranges)
    assert set(found) == set(ranges)
    unpacker, rows, done = Unpacker(boundaries=True), {key: list[int]() for key in keys}, set()
    for stored, text in gather(found):
        batch, marks = unpacker.unpack(stored, text)
        batch.validate(full=True)
        for row in batch.to_pylist():
            assert row["received_at"].timestamp() * 1e6 == NOON
            assert row["stream"] == f"stream {row['stream_id']}"
            rows[StreamKey(row["instance"], row["stream_id"])].append(row["message_id"])
        for index, reference, last in marks:
            assert reference == rows[keys[index]][-1]
            done |= {index} if last else set()
    assert done == set(ranges)
    return rows


def check_extents(bench: Bench, model: Model) -> None:
    """What a batch may take behind any start, of all streams at once, is what each stream alone says."""
    buffer = bench.state.buffer
    streams = buffer.with_rows()
    for shift in range(5):
        starts: dict[StreamKey, Reference | None] = {}
        for stream in streams:
            ids = [number for number, _ in model.sent[stream.key]]
            at = len(model.delivered.get(stream.key, ())) + shift - 1
            starts[stream.key] = ids[min(at, len(ids) - 1)] if at >= 0 else None
        alone = {stream.key: stream.extent(starts[stream.key], None, None) for stream in streams}
        found, rows, size = buffer.extents(streams, starts, None, None)
        assert found == {key: extent for key, extent in alone.items() if extent is not None}
        assert (rows, size) == (sum(one.rows for one in found.values()), sum(one.bytes for one in found.values()))


@settings(max_examples=60, deadline=None)
@given(steps)
def test_rows_of_many_streams_are_delivered_once_and_in_order(steps: list[tuple[str, object]]) -> None:
    bench, model = Bench(), Model()
    connectors: dict[str, Connector] = {}

    def join(name: str) -> None:
        connectors[name] = bench.join(DRAFT_BE, name)
        for stream_id in STREAMS:
            connectors[name].open(stream_id, name=f"stream {stream_id}")

    for name in SENDERS:
        join(name)
    for step, value in steps:
        check_extents(bench, model)
        if step == "send":
            assert isinstance(value, list)
            data: dict[int, bytes] = {}
            for name, stream_id, count, unstable in value:
                rows = model.sent.setdefault(StreamKey(name, stream_id), [])
                for number in range(count):
                    stable = not unstable or number == count - 1
                    message_id = rows[-1][0] + 1 if rows else 1
                    rows.append((message_id, stable))
                    flags = Flags.NONE if stable else Flags.UNSTABLE_REFERENCE
                    connector = connectors[name]
                    data[connector.number] = data.get(connector.number, b"") + connector.message(
                        stream_id, message_id, flags
                    )
            bench.do(e.Received(tuple(data.items()), NOON))
        elif step == "batch":
            assert value is None or isinstance(value, int)
            ends = bench.plan(value)
            for key, ids in read(bench, ends).items():
                model.delivered.setdefault(key, []).extend(ids)
            bench.commit(ends)
            if value is None:
                for key in model.sent:
                    assert model.delivered.get(key, []) == model.stable(key), key
        elif step == "again":
            # A new session repeats all its messages; the messages that were accepted before are recognised.
            assert isinstance(value, str)
            connectors[value].leave()
            join(value)
            connector = connectors[value]
            for key, rows in model.sent.items():
                if key.scope == value:
                    for message_id, stable in rows:
                        flags = Flags.NONE if stable else Flags.UNSTABLE_REFERENCE
                        connector.send(connector.message(key.stream_id, message_id, flags))
        else:
            bench.state.buffer.merge()
            bench.validate()
    for key, ids in model.delivered.items():
        assert ids == [number for number, _ in model.sent[key]][: len(ids)]
    assert not any(connector.error for connector in connectors.values())


def test_one_stream_that_repeats_does_not_hold_back_the_others_of_its_session(bench: Bench) -> None:
    before = bench.join(DRAFT_BE, "a")
    before.open(1)
    before.messages(1, [1, 2])
    before.leave()
    connector = bench.join(DRAFT_BE, "a")
    for stream_id in STREAMS:
        connector.open(stream_id)
    frames = [connector.message(stream_id, message_id) for message_id in (1, 2, 3) for stream_id in STREAMS]
    connector.send(*frames)
    assert bench.counts["replayed"] == 2
    assert bench.run_batch() == {StreamKey("a", stream_id): [1, 2, 3] for stream_id in STREAMS}


def test_a_stream_that_is_not_open_ends_its_session_and_no_row_of_the_run_is_lost_before_it(bench: Bench) -> None:
    connector = bench.join(DRAFT_LE, "a")
    connector.open(1)
    connector.send(connector.message(1, 1), DRAFT_LE.encode(Message(9, 1, b"x")), connector.message(1, 2))
    assert "never announced" in connector.error
    assert bench.run_batch() == {StreamKey("a", 1): [1]}


@pytest.mark.parametrize("count", [1, 5_000])
def test_a_table_gives_rows_out_once_and_its_memory_back(count: int) -> None:
    table = SegmentTable()
    rows = table.take(count)
    table.serial[rows] = 1
    assert len(set(rows.tolist())) == len(table) == count
    more = table.take(10)
    table.serial[more] = 2
    assert not set(rows.tolist()) & set(more.tolist())
    assert {serial: len(of) for serial, of in table.of_lots([1, 2, 3]).items()} == {1: count, 2: 10, 3: 0}
    table.give_back(rows)
    table.give_back(more)
    assert len(table) == 0
    assert table.capacity <= 1024


@pytest.mark.parametrize("stays", [0, 700])
def test_a_table_gives_spare_rows_back_while_a_few_are_in_use(stays: int) -> None:
    table = SegmentTable()
    rows = table.take(50_000)
    table.serial[rows], table.first[rows] = 1, rows
    kept = rows[[stays, stays + 7]]
    for lot in np.array_split(np.setdiff1d(rows, kept), 20):
        table.give_back(lot)
    assert (len(table), table.capacity) == (2, 1024)
    assert table.first[kept].tolist() == kept.tolist()
    more = table.take(3_000)
    assert not set(more.tolist()) & set(kept.tolist())
    assert len(set(more.tolist())) == 3_000


def test_a_row_in_use_at_the_end_of_a_table_keeps_its_number() -> None:
    table = SegmentTable()
    rows = table.take(50_000)
    table.serial[rows] = 1
    last = rows[-1:]
    table.give_back(rows[:-1])
    assert (len(table), table.serial[last].tolist()) == (1, [1])
    table.give_back(last)
    assert table.capacity == 1024
