"""The counters of a worker from which metrics are made."""

from __future__ import annotations

import pytest

from tests.worker.bench import NOON, Ack, Bench, Ok
from wallaroo_spark.protocol import V3, Flags, Revision
from wallaroo_spark.protocol.revisions import DRAFT_LE, REVISIONS
from wallaroo_spark.references import Reference, StreamKey
from wallaroo_spark.worker.machine import events as e

SECOND = 1_000_000


def commit(bench: Bench, references: dict[StreamKey, Reference], seconds: float) -> None:
    """Spark has committed, so many seconds after the rows arrived."""
    bench.batch += 1
    bench.do(e.Committed(bench.epoch, bench.batch, references, seconds, NOON + int(seconds * SECOND)))


def key(revision: Revision, stream: int = 7) -> StreamKey:
    return StreamKey("shop-1" if revision.stream_scope == "instance" else "", stream)


def ages(bench: Bench) -> dict[str, int]:
    return {name: count for name, count in bench.counts.items() if name.startswith("ack-age:")}


@pytest.mark.parametrize("revision", [*REVISIONS.values()], ids=[*REVISIONS])
def test_each_committed_row_counts_in_the_bucket_of_its_age(revision: Revision) -> None:
    bench = Bench()
    shop = bench.join(revision, "shop-1")
    shop.open(7)
    shop.messages(7, range(1, 11))

    commit(bench, {key(revision): 4}, 0.3)
    commit(bench, {key(revision): 10}, 7.0)

    assert ages(bench) == {"ack-age:0.5": 4, "ack-age:10": 6}
    assert bench.counts["ack-age-us"] == 4 * 300_000 + 6 * 7 * SECOND
    assert bench.counts["committed"] == 10
    assert bench.counts["commits"] == 2


def test_rows_of_lots_that_were_joined_keep_their_ages() -> None:
    bench = Bench()
    revision = DRAFT_LE
    shop, other = bench.join(revision, "shop-1"), bench.join(revision, "shop-2")
    shop.open(7)
    other.open(8)
    shop.messages(7, [1])
    bench.do(e.Received(((other.number, other.message(8, 1)),), NOON + 2 * SECOND))
    bench.state.buffer.merge()

    mine: dict[StreamKey, Reference] = {
        key(revision): 1,
        StreamKey("shop-2" if revision.stream_scope == "instance" else "", 8): 1,
    }
    commit(bench, mine, 4.0)

    assert ages(bench) == {"ack-age:2": 1, "ack-age:5": 1}


def test_dropped_rows_do_not_count_as_committed() -> None:
    bench = Bench()
    revision = DRAFT_LE
    shop = bench.join(revision, "shop-1")
    shop.open(7)
    shop.messages(7, range(1, 4))
    bench.state.buffer.drop(bench.state.buffer.streams[key(revision)])

    commit(bench, {key(revision): 3}, 1.0)

    assert bench.counts.get("committed", 0) == 0
    assert ages(bench) == {}


def test_a_refused_handshake_counts_by_its_reason_and_a_later_fault_does_not() -> None:
    bench = Bench()
    bench.connect(V3, "shop-1").hello(cookie="wrong")
    bench.slot_of["shop-2"] = (1, "elsewhere:7101")
    bench.connect(V3, "shop-2").hello()
    bench.slot_of["shop-3"] = (1, None)
    bench.connect(V3, "shop-3").hello()
    served = bench.join(V3, "shop-4")
    served.open(7)
    served.messages(7, [1], Flags.NONE)
    served.send(b"\0\0\0\0")

    refused = {name: count for name, count in bench.counts.items() if name.startswith("refused:")}
    assert refused == {"refused:wrong-cookie": 1, "refused:redirected": 1, "refused:try-later": 1}
    assert bench.counts["fault:empty-frame"] == 1
    assert bench.counts["sessions"] == 1


def test_granted_credits_and_pauses_are_counted() -> None:
    bench = Bench(memory_budget=1 << 20)
    shop = bench.join(V3, "shop-1")
    shop.open(7)

    shop.messages(7, range(1, 11), size=120 << 10)

    acks = shop.said(Ack)
    assert bench.counts["credits"] == shop.said(Ok)[0].credits + sum(ack.credits for ack in acks)
    assert bench.counts.get("acks", 0) == len(acks)
    assert bench.counts["paused:hard"] == 1
