"""The remembered ids of records: the same as a naive model, in few entries, with and without what a process keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.controller.one_key import ORDERS, Key, record, reply
from wallaroo_spark.pipelines.controller.context import CallContext, KeyEntries
from wallaroo_spark.pipelines.controller.controller import KeyController
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.stored import seen_ids
from wallaroo_spark.pipelines.controller.stored.key_state import Head
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache, SeenIds

BATCHES = st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 30), max_size=12)), max_size=20)


def digest(number: int) -> bytes:
    return number.to_bytes(seen_ids.DIGEST_BYTES, "big")


@given(BATCHES, st.integers(1, 12), st.integers(0, 100), st.booleans(), st.sampled_from((1, 4, 1024)))
def test_ids_are_remembered_as_by_a_naive_model(
    batches: list[tuple[int, list[int]]], most: int, window: int, cached: bool, small: int
) -> None:
    head, stored, now = Head(window_millis=window, window_records=most), dict[bytes, bytes](), 1_000
    model: list[tuple[int, int]] = []
    cache = SeenCache() if cached else None
    before = seen_ids.SMALL_CHUNK
    seen_ids.SMALL_CHUNK = small
    try:
        for passed, numbers in batches:
            now += passed
            ids = SeenIds(ORDERS, stored, head, cache)
            for number in numbers:
                ids.forget(now)
                while model and (now - model[0][1] > window or len(model) > most):
                    model.pop(0)
                known = ids.get(digest(number))
                assert (known is not None) == any(one == number for one, _ in model)
                if known is None:
                    head.last += 1
                    ids.add(digest(number), bytes(8), head.last)
                    model.append((number, now))
            for key, value in ids.take_changes().items():
                if value is None:
                    stored.pop(key, None)
                else:
                    stored[key] = value
            remembered = {digest: offset for digest, _, offset in SeenIds(ORDERS, stored, head).all()}
            assert sorted(remembered, key=remembered.__getitem__) == [digest(number) for number, _ in model]
            assert len(stored) == len(head.seen_chunks)
    finally:
        seen_ids.SMALL_CHUNK = before


def test_thousands_of_records_are_one_entry() -> None:
    key = Key()
    key.publish(*(record(number) for number in range(5_000)))

    assert len([name for name in key.stored if name[:1] == b"c"]) == 1


def test_small_batches_share_an_entry() -> None:
    key = Key()
    for number in range(100):
        key.publish(record(number))

    assert len([name for name in key.stored if name[:1] == b"c"]) == 1


def test_kept_ids_of_a_batch_that_was_lost_are_not_used() -> None:
    key, cache = Key(), SeenCache()
    key.publish(record(1))

    def publish(number: int) -> list[i.Instruction]:
        controller = KeyController(CallContext(ORDERS, key.now, dict(key.stored), cache))
        said = controller.handle([e.RecordsPublished(reply(7), (record(number),))])
        controller.take_changes()
        return said

    # The batch with record 2 is lost: its state is not stored.
    lost, again = publish(2), publish(2)

    assert lost == again
    assert KeyEntries(key.stored).head.last == 1


def test_a_process_keeps_a_bounded_number_of_ids() -> None:
    cache = SeenCache(most=25)
    for number in range(10):
        head = Head(window_millis=1_000, window_records=1_000)
        ids = SeenIds(number, {}, head, cache)
        for one in range(10):
            ids.forget(1)
            head.last += 1
            ids.add(digest(one), bytes(8), head.last)
        ids.take_changes()

    assert [number for number in range(10) if number in cache._kept] == [8, 9]
