"""Bulk decoding says what decoding one by one says, for every revision and any mixture."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.columnar.oracle import EARLIEST, LATEST, batch_rows, check, stored_part, stored_rows
from tests.protocol.strategies import DRAFT_FLAGS, frame, message_tag, messages, run_of, steady
from tests.revisions import revisions
from wallaroo_spark.columnar import ROW_OVERHEAD, STORED_SCHEMA, RunRows, StreamRows, by_stream, decode_run, decode_runs
from wallaroo_spark.columnar.decode import LARGE
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    REVISIONS,
    V3,
    Fault,
    Flags,
    Message,
    MessageRun,
    Notify,
    Revision,
)
from wallaroo_spark.protocol.frames import structs

units = st.sampled_from(("ns", "us", "ms", "s"))


def encoded(revision: Revision, *given: Message) -> MessageRun:
    return run_of(revision, [revision.encode(message) for message in given])


@revisions
@steady
@given(data=st.data(), unit=units)
def test_any_mixture_decodes_as_one_by_one(revision: Revision, data: st.DataObject, unit: str) -> None:
    drawn = data.draw(st.lists(messages(revision), max_size=30))
    before = b"".join(
        data.draw(st.lists(st.builds(lambda name: revision.encode(Notify(1, name)), st.text(max_size=9))))
    )
    run = run_of(revision, [revision.encode(message) for message in drawn], before)
    check(decode_run(run, event_time_unit=unit), run, unit)


@pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE], ids=repr)
@steady
@given(data=st.data())
def test_messages_with_the_same_flags_decode_as_one_by_one(revision: Revision, data: st.DataObject) -> None:
    flag = data.draw(st.sampled_from((Flags.NONE, *DRAFT_FLAGS)))
    drawn = data.draw(st.lists(messages(revision, st.just(flag)), min_size=1, max_size=20))
    same = [message for message in drawn if message.flags == drawn[0].flags]
    run = encoded(revision, *same)
    check(decode_run(run, event_time_unit="ns"), run, "ns")


@revisions
@steady
@given(data=st.data())
def test_decoding_stops_where_one_by_one_stops_whatever_the_bodies_hold(
    revision: Revision, data: st.DataObject
) -> None:
    sound = messages(revision).map(lambda message: revision.encode(message)[5:])
    cut = st.tuples(sound, st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]])
    extended = st.tuples(sound, st.binary(min_size=1, max_size=4)).map(b"".join)
    changed = st.tuples(sound, st.integers(0, 27), st.integers(0, 255)).map(_with_byte)
    bodies = data.draw(st.lists(sound | cut | extended | changed | st.binary(max_size=40), min_size=1, max_size=12))
    run = run_of(revision, [frame(revision, message_tag(revision), body) for body in bodies])
    check(decode_run(run, event_time_unit="ns"), run, "ns")


def _with_byte(drawn: tuple[bytes, int, int]) -> bytes:
    body, at, value = drawn
    return body[:at] + bytes((value,)) + body[at + 1 :]


@steady
@given(data=st.data())
def test_many_runs_decode_together_as_one_by_one(data: st.DataObject) -> None:
    given_runs = []
    for _ in range(data.draw(st.integers(1, 5))):
        revision = data.draw(st.sampled_from(tuple(REVISIONS.values())))
        bodies = [revision.encode(m)[5:] for m in data.draw(st.lists(messages(revision), min_size=1, max_size=6))]
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            bodies.append(data.draw(st.binary(max_size=30)))
        given_runs.append(run_of(revision, [frame(revision, message_tag(revision), body) for body in bodies]))
    seen: dict[int, RunRows] = {}
    for indices, decoded in decode_runs(given_runs, event_time_unit="ns"):
        assert decoded.error is None or len(indices) == 1
        seen.update(zip(indices, by_stream(decoded), strict=True))
    assert sorted(seen) == list(range(len(given_runs)))
    for index, run in enumerate(given_runs):
        alone = decode_run(run, event_time_unit="ns")
        (wanted,) = by_stream(alone)
        found = seen[index]
        assert (found.count, found.spans) == (wanted.count, wanted.spans)
        for part, other in zip(found.parts, wanted.parts, strict=True):
            assert (part.stream_id, part.size, part.rising) == (other.stream_id, other.size, other.rising)
            assert batch_rows(stored_part(part)) == batch_rows(stored_part(other))
            for mine, theirs in zip(arrays(part), arrays(other), strict=True):
                assert mine.tolist() == theirs.tolist()


def arrays(part: StreamRows) -> tuple[NDArray[Any], ...]:
    return part.message_ids, part.flags, part.sizes


def test_runs_that_are_too_much_for_one_pass_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [encoded(DRAFT_BE, Message(1, number, b"x" * 50)) for number in range(1, 6)]
    monkeypatch.setattr("wallaroo_spark.columnar.decode.TOGETHER", 2 * runs[0].size)
    found = [
        (indices, decoded.fields.message_ids.tolist()) for indices, decoded in decode_runs(runs, event_time_unit="ns")
    ]
    assert found == [([0, 1], [1, 2]), ([2, 3], [3, 4]), ([4], [5])]


@revisions
def test_a_fault_in_each_position_leaves_the_messages_before_it(revision: Revision) -> None:
    good = revision.encode(Message(1, 2, b"payload"))
    short = frame(revision, message_tag(revision), b"")
    for position in range(5):
        decoded = decode_run(run_of(revision, [good] * position + [short] + [good] * 2), event_time_unit="ns")
        assert decoded.count == decoded.columns().num_rows == len(decoded.sizes) == position
        assert decoded.error is not None
        assert decoded.error.fields["fault"] is Fault.TRUNCATED_FRAME


@pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE], ids=repr)
def test_the_earliest_of_several_faults_is_the_one_that_counts(revision: Revision) -> None:
    flags = structs(revision.byte_order).u16
    good = revision.encode(Message(1, 2, b"x"))[5:]
    reserved = flags.pack(1 << 14) + good[2:]
    boundary = flags.pack(Flags.BOUNDARY) + good[2:]
    wanted = {b"": Fault.TRUNCATED_FRAME, reserved: Fault.RESERVED_FLAG, boundary: Fault.BOUNDARY_PAYLOAD}
    for bodies in ([boundary, reserved, b""], [reserved, b"", boundary], [b"", boundary, reserved]):
        run = run_of(revision, [frame(revision, message_tag(revision), body) for body in (good, *bodies)])
        decoded = decode_run(run, event_time_unit="ns")
        assert decoded.count == 1
        assert decoded.error is not None
        assert decoded.error.fields["fault"] is wanted[bodies[0]]


def test_a_draft_be_ephemeral_message_has_no_id_and_a_draft_le_one_keeps_its_id() -> None:
    ephemeral = Message(1, 9, b"x", Flags.EPHEMERAL)
    assert decode_run(encoded(DRAFT_BE, ephemeral), event_time_unit="ns").columns()["message_id"].to_pylist() == [None]
    assert decode_run(encoded(DRAFT_LE, ephemeral), event_time_unit="ns").columns()["message_id"].to_pylist() == [9]


def test_an_empty_key_is_a_key_in_the_drafts_and_none_in_v3() -> None:
    message = Message(1, 9, b"x", key=b"")
    assert decode_run(encoded(DRAFT_BE, message), event_time_unit="ns").columns()["key"].to_pylist() == [b""]
    assert decode_run(encoded(V3, message), event_time_unit="ns").columns()["key"].to_pylist() == [None]


def test_event_time_zero_is_a_time_in_the_drafts_and_none_in_v3() -> None:
    message = Message(1, 9, b"x", event_time=0)
    for revision, wanted in ((DRAFT_LE, 0), (DRAFT_BE, 0), (V3, None)):
        decoded = decode_run(encoded(revision, message), event_time_unit="ns")
        assert stored_rows(decoded)[0]["event_time"] == wanted


def test_a_boundary_has_a_null_value_and_an_empty_payload_does_not() -> None:
    run = encoded(DRAFT_BE, Message(1, 1, b""), Message(1, 2, None, Flags.BOUNDARY))
    assert decode_run(run, event_time_unit="ns").columns()["value"].to_pylist() == [b"", None]


@pytest.mark.parametrize(
    ("unit", "sent", "kept"),
    [
        ("ns", 1_999, 1),
        ("ns", 2**64 - 1, -1),
        ("ns", 2**63, -(2**63) // 1_000),
        ("us", LATEST, LATEST),
        ("us", LATEST + 1, None),
        ("us", EARLIEST + 2**64, EARLIEST),
        ("us", EARLIEST - 1 + 2**64, None),
        ("ms", LATEST // 1_000, LATEST // 1_000 * 1_000),
        ("ms", LATEST // 1_000 + 1, None),
        ("ms", EARLIEST // 1_000 + 2**64, EARLIEST),
        ("s", EARLIEST // 1_000_000 + 2**64, EARLIEST),
        ("s", EARLIEST // 1_000_000 - 1 + 2**64, None),
        ("s", LATEST // 1_000_000 + 1, None),
        ("s", 2**63 - 1, None),
        ("s", 2**63, None),
    ],
)
def test_event_times_become_microseconds_or_null_where_spark_cannot_hold_them(
    unit: str, sent: int, kept: int | None
) -> None:
    run = encoded(DRAFT_BE, Message(1, 1, b"", event_time=sent), Message(1, 2, b"", event_time=7_000))
    factor = {"ns": 1 / 1_000, "us": 1, "ms": 1_000, "s": 1_000_000}[unit]
    decoded = decode_run(run, event_time_unit=unit)
    assert [row["event_time"] for row in stored_rows(decoded)] == [kept, int(7_000 * factor)]


@revisions
def test_a_run_of_no_messages_is_an_empty_batch(revision: Revision) -> None:
    for run in (MessageRun(revision, b"", [], 0), encoded(revision, Message(1, 1, b"x")).head(0)):
        decoded = decode_run(run, event_time_unit="ns")
        assert decoded.columns().schema == STORED_SCHEMA
        assert (decoded.count, decoded.columns().num_rows, decoded.error) == (0, 0, None)
        assert [(rows.count, rows.spans, rows.parts) for rows in by_stream(decoded)] == [(0, [], [])]


@revisions
def test_a_message_of_four_mebibytes_decodes_whole(revision: Revision) -> None:
    payload = bytes(range(256)) * (4 << 12)
    decoded = decode_run(encoded(revision, Message(1, 1, b"a"), Message(1, 2, payload)), event_time_unit="ns")
    assert decoded.columns()["value"].to_pylist() == [b"a", payload]
    assert decoded.sizes.tolist() == [1 + ROW_OVERHEAD, len(payload) + ROW_OVERHEAD]


@revisions
@pytest.mark.parametrize("streams", [1, 3])
def test_kept_columns_do_not_hold_the_buffer_of_a_run(revision: Revision, streams: int) -> None:
    key = None if revision is DRAFT_LE else b"key"
    given = (Message(number % streams, number, b"payload", key=key, event_time=5) for number in range(1, 9))
    run = encoded(revision, *given)
    before = sys.getrefcount(run.data)
    (rows,) = by_stream(decode_run(run, event_time_unit="ns"))
    after = sys.getrefcount(run.data)
    assert after == before
    lot = rows.parts[0].lot
    assert lot.stored.get_total_buffer_size() < len(run.data)
    whole = np.frombuffer(run.data, dtype=np.uint8)
    for array in (lot.message_ids, lot.flags, lot.sizes):
        assert not np.shares_memory(array, whole)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("least", [0, 100], ids=["of any size", "of one size"])
def test_many_payloads_come_out_as_they_went_in(least: int, streams: int) -> None:
    chance = random.Random(least)
    sent = [
        Message(number % streams + 1, number, chance.randbytes(chance.randint(least, 100)))
        for number in range(3 * LARGE // 100)
    ]
    (rows,) = by_stream(decode_run(encoded(DRAFT_BE, *sent), event_time_unit="ns"))

    found = {part.stream_id: stored_part(part).column("value").to_pylist() for part in rows.parts}
    assert found == {
        stream_id: [message.payload for message in sent if message.stream_id == stream_id]
        for stream_id in range(1, streams + 1)
    }
    assert sum(len(message.payload or b"") for message in sent) > LARGE


def test_a_run_beyond_32_bit_offsets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wallaroo_spark.columnar.decode._OFFSET_MAX", 10)
    run = encoded(DRAFT_BE, Message(1, 1, b"x"))
    with pytest.raises(AssertionError, match="32-bit"):
        decode_run(run, event_time_unit="ns")


def test_a_fault_that_only_the_columns_see_is_a_defect_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(DRAFT_BE, [frame(DRAFT_BE, message_tag(DRAFT_BE), b"")])
    monkeypatch.setattr(Revision, "decode", lambda *_: None)
    with pytest.raises(AssertionError, match="message 0 of a run"):
        decode_run(run, event_time_unit="ns")
