"""A worker's report to an operator on its sessions, instances and streams, as JSON-ready values.

The answer is bounded: it has sums over everything, and the instances and streams that wait longest for an
acknowledgement or have most held rows. It changes nothing. Ages are in seconds. Its reader is
:mod:`wallaroo_spark.observe.collect`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wallaroo_spark.protocol.reserved import reserved
from wallaroo_spark.references import Reference
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.machine.connection_state import Connection, ConnectionPhase
from wallaroo_spark.worker.machine.connections import RefusedConnection
from wallaroo_spark.worker.machine.state import WorkerState
from wallaroo_spark.worker.reads import ReadRequest

MOST = 1000
"""The most instances, and the most streams, of an answer. They are some 400 KiB of JSON."""
_STATES = {
    ConnectionPhase.PARKED: "waiting",
    ConnectionPhase.ASKING: "waiting",
    ConnectionPhase.AWAITING: "waiting",
    ConnectionPhase.STREAMING: "streaming",
}


class InspectionQuestion(NamedTuple):
    """The part of the state that an operator asks for."""

    most: int
    """The most instances, and the most streams."""
    instance: str = ""
    """The only instance of interest; empty: all."""
    stream: str = ""
    """The name, or the id in decimal digits, of the only stream of interest; empty: all."""


class _Held(NamedTuple):
    """The streams of which rows are held, in columns."""

    streams: list[HeldStream]
    rows: NDArray[np.int64]
    """Number of held rows of each."""
    ages: NDArray[np.float64]
    """Age of the oldest held row of each, in seconds."""


def inspect(state: WorkerState, requests: Iterable[ReadRequest], wanted: InspectionQuestion) -> dict[str, Any]:
    """The sums, and the instances and streams that are wanted, by the names of the records in ``observe.receiver``; on
    the thread of the state."""
    now, wall = time.monotonic(), time.time()
    requests = list(requests)
    held = _held(state, wall)
    connections = state.connections
    most = max(0, min(wanted.most, MOST))
    by_instance = _by_instance(state, held)
    sessions = connections.streaming.values()
    return {
        "connections": len(connections.by_number),
        "waiting": len(connections.serving) - len(connections.streaming),
        "credits": sum(max(0, one.protocol.credits.available) for one in sessions if not one.door),
        "rows": int(held.rows.sum()),
        "rows_in": state.buffer.rows,
        "rows_out": connections.counts["committed"],
        "ack_age": float(held.ages.max()) if len(held.ages) else None,
        "refusals": [_refusal(refused, now) for refused in connections.refusals],
        "read": _read(requests, now),
        "door_ages": _door_ages(by_instance),
        "instance_list": _instances(state, by_instance, wanted, most, now),
        "stream_list": _streams(state, held, requests, wanted, most, wall),
    }


def _held(state: WorkerState, wall: float) -> _Held:
    streams = state.buffer.with_rows()
    rows = np.fromiter((stream.end - stream.start for stream in streams), np.int64, len(streams))
    return _Held(streams, rows, _ages(streams, wall))


def _refusal(refused: RefusedConnection, now: float) -> dict[str, Any]:
    found = refused._asdict()
    return {"age": max(0.0, now - found.pop("at")), **found}


def _read(requests: list[ReadRequest], now: float) -> dict[str, Any] | None:
    """The requests that wait for ranges, or else the last one."""
    waiting = [request for request in requests if not request.ended]
    last = waiting or requests[-1:]
    if not last:
        return None
    done = [request.done_at for request in last]
    return {
        "ranges": sum(len(request.ranges) for request in last),
        "missing": sum(request.missing for request in waiting),
        "age": now - min(request.asked_at for request in last),
        "done_age": None if None in done else now - max(at for at in done if at is not None),
    }


def _ages(streams: list[HeldStream], wall: float) -> NDArray[np.float64]:
    """Seconds since the first held row of each stream arrived; each has one."""
    if not streams:
        return np.zeros(0)
    rows = np.fromiter((stream.rows[0] for stream in streams), np.int64, len(streams))
    return np.maximum(0.0, wall - streams[0].lots.received_at(rows) / 1e6)


class _OfInstance:
    """Sums over the held rows of one instance."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.age: float | None = None


def _sender(state: WorkerState, stream: HeldStream) -> str:
    """The instance that sends a stream, or that has sent its oldest held rows."""
    if stream.key.scope:
        return stream.key.scope
    owner = state.connections.by_number.get(stream.owner) if stream.owner is not None else None
    if owner is not None:
        return owner.instance
    return stream.segments[0].receipt.instance if stream.rows else ""


def _by_instance(state: WorkerState, held: _Held) -> dict[str, _OfInstance]:
    found: dict[str, _OfInstance] = defaultdict(_OfInstance)
    for stream, rows, age in zip(held.streams, held.rows.tolist(), held.ages.tolist(), strict=True):
        one = found[_sender(state, stream)]
        one.rows += rows
        one.bytes += stream.cost
        one.age = age if one.age is None else max(one.age, age)
    return found


def _door_ages(by_instance: Mapping[str, _OfInstance]) -> dict[str, float]:
    """Seconds since the oldest held row of each door's clients arrived."""
    found: dict[str, float] = {}
    for name, one in by_instance.items():
        if one.age is not None and (prefix := reserved(name)):
            door = prefix.removesuffix("/")
            found[door] = max(one.age, found.get(door, 0.0))
    return found


def _instances(
    state: WorkerState, by_instance: dict[str, _OfInstance], wanted: InspectionQuestion, most: int, now: float
) -> list[dict[str, Any]]:
    numbers = state.connections.by_number
    sessions = [numbers[number] for number in state.connections.serving]
    connected = {one.instance for one in sessions}
    gone = [name for name in by_instance if name not in connected]
    if wanted.instance:
        sessions = [one for one in sessions if one.instance == wanted.instance]
        gone = [name for name in gone if name == wanted.instance]
    nothing = _OfInstance()

    def urgency(name: str, heard_at: float) -> tuple[float, int, float]:
        one = by_instance.get(name, nothing)
        return (-1.0 if one.age is None else one.age, one.rows, now - heard_at)

    order: list[tuple[tuple[float, int, float], str, Connection | None]] = [
        *((urgency(one.instance, one.heard_at), one.instance, one) for one in sessions),
        *((urgency(name, now), name, None) for name in gone),
    ]
    order.sort(key=lambda row: row[0], reverse=True)
    return [_instance(name, session, by_instance.get(name, nothing), now) for _, name, session in order[:most]]


def _instance(name: str, session: Connection | None, sums: _OfInstance, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "state": "gone", "rows": sums.rows, "bytes": sums.bytes, "ack_age": sums.age}
    if session is None:
        return found
    credits, hello = session.protocol.credits, session.protocol.hello
    return {
        **found,
        "state": _STATES.get(session.phase, "waiting"),
        "age": max(0.0, now - session.connected_at),
        "revision": session.revision.name,
        "program": hello.program[:100] if hello else "",
        "peer": session.peer,
        "credits": credits.available,
        "granted": credits.granted,
        "frames": credits.spent,
        "paused": session.paused,
        "last_frame_age": max(0.0, now - session.heard_at),
        "streams": len(session.streams),
        "open_streams": len(session.open),
        "rows_in": credits.spent,
        "rows_out": max(0, credits.spent - sums.rows),
    }


def _streams(
    state: WorkerState, held: _Held, requests: list[ReadRequest], wanted: InspectionQuestion, most: int, wall: float
) -> list[dict[str, Any]]:
    if wanted.instance or wanted.stream:
        chosen = [one for one in state.buffer.streams.values() if _is_wanted(state, one, wanted)]
        chosen.sort(key=lambda one: one.end - one.start, reverse=True)
    else:
        chosen = _worst(held, most)
        some = {stream.key for stream in chosen}
        # Streams without held rows fill the rest.
        for key, stream in state.buffer.streams.items():
            if len(chosen) >= most:
                break
            if key not in some:
                chosen.append(stream)
    chosen = chosen[:most]
    keys = {stream.key for stream in chosen}
    planned = {one.key: one.end for request in requests for one in list(request.ranges.values()) if one.key in keys}
    filled = [stream for stream in chosen if not stream.empty]
    ages = dict(zip((stream.key for stream in filled), _ages(filled, wall).tolist(), strict=True))
    return [_stream(state, stream, planned.get(stream.key), ages.get(stream.key)) for stream in chosen]


def _is_wanted(state: WorkerState, stream: HeldStream, wanted: InspectionQuestion) -> bool:
    if wanted.stream and wanted.stream not in (stream.name, str(stream.key.stream_id)):
        return False
    return not wanted.instance or _sender(state, stream) == wanted.instance


def _worst(held: _Held, most: int) -> list[HeldStream]:
    """The streams whose oldest row is oldest, and those with most rows: half of the places for each."""
    if len(held.streams) <= most:
        places = np.lexsort((-held.rows, -held.ages)).tolist()
    else:
        oldest = np.argsort(-held.ages, kind="stable")[: most - most // 2].tolist()
        longest = np.argsort(-held.rows, kind="stable")[:most].tolist()
        places = list(dict.fromkeys([*oldest, *longest]))[:most]
    return [held.streams[place] for place in places]


def _stream(state: WorkerState, stream: HeldStream, planned: Reference | None, age: float | None) -> dict[str, Any]:
    behind = stream.position_after(planned) if planned is not None else None
    begin = stream.start if behind is None else max(stream.start, behind)
    received = stream.reference_at(stream.end) if not stream.empty else stream.committed
    return {
        "instance": _sender(state, stream),
        "scope": stream.key.scope,
        "stream_id": str(stream.key.stream_id),
        "name": stream.name,
        "state": _state(stream),
        "received": _text(received),
        "planned": _text(planned),
        "committed": _text(stream.committed),
        "rows": stream.end - stream.start,
        "bytes": stream.cost,
        "lag_rows": stream.end - begin,
        "ack_age": age,
        "rows_in": stream.end - stream.first,
        "rows_out": stream.start - stream.first,
        "ephemeral": bool(stream.ephemeral),
    }


def _state(stream: HeldStream) -> str:
    if stream.broken_off:
        return "resending"
    if stream.ended:
        return "ended"
    return "left" if stream.owner is None else "open"


def _text(reference: Reference | None) -> str | None:
    return None if reference is None else str(reference)
