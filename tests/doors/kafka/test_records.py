"""Record batches as columns: every codec, every size, what lies about itself, and bytes at random."""

from __future__ import annotations

import gzip
import random
from typing import Any

import pyarrow as pa
import pytest

from tests.doors.kafka.batches import batch, record, varint
from wallaroo_spark.columnar import ROW_SCHEMA
from wallaroo_spark.doors.kafka import records as records_module
from wallaroo_spark.doors.kafka.record_batch import HEAD_BYTES
from wallaroo_spark.doors.kafka.records import RecordColumns, Unreadable, read_batches, read_records
from wallaroo_spark.doors.kafka.rows import expand

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
@pytest.mark.parametrize("size", [0, 1, 100, 20_000])
def test_values_come_back_with_every_codec(codec: int, size: int) -> None:
    values = [bytes([number % 251]) * size for number in range(100)]
    found = read_records(batch(values, codec=codec))
    assert found.value.to_pylist() == values
    assert found.key.null_count == 100
    assert found.times.tolist() == [1_700_000_000_000 + number for number in range(100)]


def test_snappy_without_blocks_is_read_as_librdkafka_sends_it() -> None:
    records = b"".join(record(number, b"key", b"value") for number in range(10))
    data = pa.compress(records, codec="snappy", asbytes=True)
    found = read_records(batch([None] * 10, attributes=2, records=data))
    assert found.value.to_pylist() == [b"value"] * 10


def test_records_of_all_sizes_keep_key_value_time_and_headers() -> None:
    chance = random.Random(7)
    kept: list[tuple[Any, ...]] = []
    for number in range(500):
        key = None if chance.random() < 0.3 else chance.randbytes(chance.choice([0, 1, 63, 64, 200]))
        value = None if chance.random() < 0.1 else chance.randbytes(chance.choice([0, 5, 50, 100, 100, 9000]))
        headers = [(b"h", b"1"), (b"h", None)] if number % 7 == 0 else []
        kept.append((number, key, value, headers, chance.randrange(-1000, 100_000)))
    found = read_records(batch([None] * 500, records=b"".join(record(*one) for one in kept)), headers=True)
    assert found.key.to_pylist() == [key for _, key, *_ in kept]
    assert found.value.to_pylist() == [value for _, _, value, *_ in kept]
    assert found.times.tolist() == [1_700_000_000_000 + time for *_, time in kept]
    assert found.headers is not None
    assert found.headers.to_pylist() == [
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}] if headers else None for _, _, _, headers, _ in kept
    ]


def test_the_time_of_appending_holds_for_all_records() -> None:
    found = read_records(batch([b"a", b"b"], attributes=0x08))
    assert found.times.tolist() == [1_700_000_000_001] * 2


def test_many_batches_are_read_together_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [batch([b"%d-%d" % (number, n) for n in range(number + 1)], codec=number % 5) for number in range(50)]
    for together in (records_module.TOGETHER, 100, 1):
        monkeypatch.setattr(records_module, "TOGETHER", together)
        values: list[Any] = []
        indexes: list[int] = []
        for chosen, found in read_batches(batches):
            assert isinstance(found, RecordColumns)
            assert len(found.counts) == len(chosen)
            indexes += chosen
            values += found.value.to_pylist()
        assert indexes == list(range(50))
        assert values == [b"%d-%d" % (number, n) for number in range(50) for n in range(number + 1)]


def test_an_unreadable_batch_does_not_harm_the_others() -> None:
    batches = [batch([b"a"]), batch([b"b"], records=b"\x05"), batch([b"c"], codec=1), batch(records=b"", attributes=1)]
    found = list(read_batches(batches))
    good = [value for _, one in found if isinstance(one, RecordColumns) for value in one.value.to_pylist()]
    bad = [index for chosen, one in found if isinstance(one, Unreadable) for index in chosen]
    assert (good, bad) == ([b"a", b"c"], [1, 3])


LIES = {
    "more are counted than are there": batch(records=record(0, None, b"x"), count=2),
    "fewer are counted than are there": batch(records=record(0, None, b"x") + record(1, None, b"y"), count=1),
    "the number of a record": batch(records=record(1, None, b"x")),
    "a negative length": batch(records=varint(-5)),
    "a length beyond the end": batch(records=varint(100)),
    "a number without an end": batch(records=b"\xff\xff\xff\xff\xff\xff"),
    "a key beyond the end": batch(records=varint(6) + b"\0\0\0" + varint(50) + varint(0) + varint(0)),
    "a header without its bytes": batch(records=varint(6) + b"\0\0\0" + varint(-1) + varint(-1) + varint(1)),
    "a negative count of headers": batch(records=varint(6) + b"\0\0\0" + varint(-1) + varint(-1) + varint(-1)),
    "bytes behind a record": batch(records=varint(7) + b"\0\0\0" + varint(-1) + varint(-1) + varint(0) + b"x"),
    "no gzip": batch(records=b"x", attributes=1),
    "gzip that ends early": batch(records=gzip.compress(record(0, None, b"x"), mtime=0)[:-9], attributes=1),
    "no snappy": batch(records=b"\xff\xff\xff\xff\x0fx", attributes=2),
    "a block of snappy beyond the end": batch(records=b"\x82SNAPPY\x00" + bytes(8) + b"\x7f\xff\xff\xff", attributes=2),
    "snappy that ends early": batch(records=b"\x82SNAPPY\x00" + bytes(8) + b"\0\0", attributes=2),
    "no lz4": batch(records=b"x" * 20, attributes=3),
    "no zstd": batch(records=b"x" * 20, attributes=4),
}  # fmt: skip


@pytest.mark.parametrize("wrong", LIES.values(), ids=LIES)
def test_a_batch_that_lies_is_unreadable(wrong: bytes) -> None:
    with pytest.raises(Unreadable):
        read_records(wrong, headers=True)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_is_not_expanded(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "MOST_BYTES", 1 << 20)
    bomb = batch([b"\0" * (2 << 20)], codec=codec)
    with pytest.raises(Unreadable, match="become more than"):
        read_records(bomb)


def test_changed_bytes_are_unreadable_or_read_and_nothing_else() -> None:
    chance = random.Random(3)
    sound = b"".join(record(n, b"k" * (n % 3), b"v" * n, [(b"h", b"1")] * (n % 2)) for n in range(40))
    for codec in CODECS.values():
        data = bytearray(batch([None] * 40, records=sound, codec=codec))
        for _ in range(400):
            changed = data.copy()
            for _ in range(chance.randrange(1, 4)):
                changed[chance.randrange(HEAD_BYTES, len(changed))] = chance.randrange(256)
            try:
                found = read_records(bytes(changed), headers=True)
            except Unreadable:
                continue
            found.value.validate(full=True)
            found.key.validate(full=True)
            assert len(found.value) == 40


def _rows(*packed: tuple[str, str, int, bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "instance": instance,
                "stream": stream,
                "stream_id": 77,
                "message_id": reference,
                "value": value,
                "flags": 0,
                "received_at": 1_000_000,
            }
            for instance, stream, reference, value in packed
        ],
        schema=ROW_SCHEMA,
    )


def test_a_batch_becomes_the_rows_of_its_records() -> None:
    rows = _rows(
        ("shop-1", "own", 5, b"own"),
        ("kafka/billing/1", "orders/3/7", 12, batch([b"a", b"b"])),
        ("kafka/a/b/0", "other/4/-", 20, batch([b"c"], codec=1)),
        ("kafka/billing/1", "orders/3/7", 13, None),
    )
    found = pa.Table.from_batches(expand(rows, headers=False, corrupt=False)).to_pylist()
    assert [(r["instance"], r["stream"], r["stream_id"], r["message_id"], r["value"]) for r in found] == [
        ("shop-1", "own", 77, 5, b"own"),
        ("kafka/billing/1", "orders/3/7", 77, 13, None),
        ("kafka/billing", "orders", 3, 11, b"a"),
        ("kafka/billing", "orders", 3, 12, b"b"),
        ("kafka/a/b", "other", 4, 20, b"c"),
    ]
    assert {r["received_at"].timestamp() for r in found} == {1}
    assert found[2]["event_time"].timestamp() == 1_700_000_000


def test_rows_without_batches_pass_unchanged() -> None:
    rows = _rows(("shop-1", "own", 5, b"own"))
    assert list(expand(rows, headers=False, corrupt=False)) == [rows]
    (found,) = expand(rows, headers=True, corrupt=True)
    assert found.schema.names[-2:] == ["headers", "error_bytes"]


def test_an_unreadable_batch_is_logged_and_with_the_option_a_row(caplog: pytest.LogCaptureFixture) -> None:
    wrong = batch(records=b"\x05")
    rows = _rows(("kafka/billing/1", "orders/3/7", 12, wrong), ("kafka/billing/1", "orders/3/7", 13, batch([b"a"])))
    (left,) = expand(rows, headers=False, corrupt=False)
    assert left["value"].to_pylist() == [b"a"]
    assert "kafka client kafka/billing for topic orders, partition 3 is left out" in caplog.text
    found = pa.Table.from_batches(expand(rows, headers=True, corrupt=True)).to_pylist()
    assert [(r["stream"], r["stream_id"], r["message_id"], r["value"], r["error_bytes"]) for r in found] == [
        ("orders", 3, 12, None, wrong),
        ("orders", 3, 13, b"a", None),
    ]


def test_times_that_spark_does_not_have_are_null() -> None:
    for time in (-1, 1 << 60):
        data = batch([b"a"], base_time=time)
        (found,) = expand(_rows(("kafka/x/0", "t/0/-", 1, data)), headers=False, corrupt=False)
        assert found["event_time"].to_pylist() == [None]
