"""The invariants of a worker's state and of its buffer, which tests of the worker and simulated histories check."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise

import numpy as np

from wallaroo_spark.protocol import Flags
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.buffer import STREAM_OVERHEAD, Buffer
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.buffer.segments import HeldLot, Lots, Segment
from wallaroo_spark.worker.machine.connection_state import BEFORE_OK, ConnectionPhase
from wallaroo_spark.worker.machine.pressure.flow import Pressure
from wallaroo_spark.worker.machine.state import WorkerState

_SERVING = (
    ConnectionPhase.PARKED,
    ConnectionPhase.ASKING,
    ConnectionPhase.AWAITING,
    ConnectionPhase.STREAMING,
)


def validate_worker(state: WorkerState) -> None:
    """Check a worker's state between two events."""
    tables, buffer = state.connections, state.buffer
    validate_buffer(buffer)
    connections, claims = tables.by_number, tables.claims
    for connection in connections.values():
        streaming = connection.phase is ConnectionPhase.STREAMING
        assert streaming == (connection.number in tables.streaming), connection
        assert streaming or not (connection.streams or connection.open or connection.asked), connection
        assert (connection.number in tables.serving) == (connection.phase in _SERVING), connection
        assert connection.open <= connection.streams, connection
        assert not connection.to_ask, connection
        unfinished = connection.protocol.pending + connection.holding
        assert connection.unfinished == (unfinished if streaming else 0), connection
        holds = streaming if connection.door else connection.phase in BEFORE_OK
        assert holds or not connection.holding, connection
        for key in connection.streams:
            assert buffer.streams[key].owner == connection.number, (connection, key)
        assert (connection.deadline is not None) == (connection.number in tables.expiring), connection
        assert connection.paused == (connection.number in tables.paused), connection
        assert not connection.paused or state.flow.pressure(buffer.used) is not Pressure.NONE, connection
        waits = connection.phase is ConnectionPhase.AWAITING
        assert waits == (connection.number in tables.awaiting), connection
        assert not waits or not tables.following.knows(connection.scope), connection
        assert not streaming or connection.scope in tables.following, connection
    assert all(key.scope in tables.following for key in (*buffer.streams, *buffer.committed)), buffer.committed
    for known in (tables.expiring, tables.recent, tables.paused):
        assert known.keys() <= connections.keys(), known
    assert tables.denied.keys() <= tables.streaming.keys()
    assert tables.unheard <= connections.keys()
    assert buffer.unfinished == sum(connection.unfinished for connection in connections.values())
    assert tables.early == sum(connection.early for connection in connections.values())
    for instance, connection in tables.senders.items():
        assert connection.number in tables.streaming, connection
        assert connection.instance == instance, connection
    for stream in buffer.streams.values():
        assert stream.owner is None or stream.key in connections[stream.owner].streams, stream
        assert not stream.empty or (stream.owner is not None and not stream.ended), stream
        assert stream.key.scope or stream.key.stream_id in claims, stream
    assert {StreamKey("", stream_id) for stream_id in claims} <= buffer.streams.keys(), claims


def validate_buffer(buffer: Buffer) -> None:
    """Check a buffer, all of its streams and all of its lots."""
    for key, stream in buffer.streams.items():
        assert stream.key == key
        assert stream.committed == buffer.committed.get(key), (stream, buffer.committed.get(key))
        validate_stream(stream)
        assert stream.empty or buffer._filled.get(key) is stream, stream
        assert buffer._by_scope[key.scope][key.stream_id] is stream
    assert sum(len(streams) for streams in buffer._by_scope.values()) == len(buffer.streams)
    _validate_lots(buffer._lots, chain.from_iterable(stream.rows for stream in buffer.streams.values()))
    overhead = sum(STREAM_OVERHEAD + len(stream.name) for stream in buffer.streams.values())
    assert buffer.overhead == overhead, buffer.overhead
    assert sum(len(keys) for keys in buffer._scopes.values()) == len(buffer.committed)


def validate_stream(stream: HeldStream) -> None:
    """Check the held rows of one stream."""
    segments, at = stream.segments, stream.start
    for segment in segments:
        assert segment.first == at, (stream, segment.first, at)
        at = segment.end
    assert at == stream.end, (stream, at)
    assert stream.size == sum(segment.size for segment in segments), stream
    assert stream.start <= stream._stable_end <= stream.end, stream
    if stream.increasing and not stream.ephemeral and segments:
        ids = np.concatenate([segment.ids for segment in segments])
        stable = np.concatenate([segment.flags & Flags.UNSTABLE_REFERENCE == 0 for segment in segments])
        assert bool(np.all((ids[1:] > ids[:-1]) | ((ids[1:] == ids[:-1]) & ~stable[:-1]))), stream
        assert stream._committed_id is None or int(ids[0]) > stream._committed_id, stream


def _validate_lots(lots: Lots, rows: Iterable[int]) -> None:
    """Check the lots, with the rows that all streams have."""
    mine = list(rows)
    assert len(set(mine)) == len(mine) == len(lots.table), (len(mine), len(lots.table))
    by_lot: dict[int, list[int]] = {}
    for row in mine:
        by_lot.setdefault(int(lots.table.serial[row]), []).append(row)
    assert by_lot.keys() == lots._held.keys(), (by_lot.keys(), lots._held.keys())
    for serial, of_lot in by_lot.items():
        _validate_lot(lots, lots._held[serial], of_lot)
    assert lots.used == sum(held.cost for held in lots._held.values()), lots.used


def _validate_lot(lots: Lots, held: HeldLot, rows: list[int]) -> None:
    """Check a lot, with the rows of all its segments."""
    segments = [Segment(lots, row) for row in rows]
    assert held.size == int(held.lot.sizes.sum()), held.size
    assert held.count == len(segments), (held.count, len(segments))
    assert held.live == sum(segment.size for segment in segments), held.live
    edges = sorted((segment.low, segment.high) for segment in segments)
    assert all(before[1] <= after[0] for before, after in pairwise(edges)), edges
    for segment in segments:
        assert segment.held is held
        assert 0 <= int(lots.table.receipt[segment.row]) < len(held.receipts), segment
        assert segment.size == int(segment.sizes.sum()), segment
        ids = int(lots.table.first_id[segment.row]), segment.last_id
        assert ids == (int(segment.ids[0]), int(segment.ids[-1])), segment
