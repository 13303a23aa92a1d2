"""Entries in pages: the same as entries that are stored alone, with fewer accesses to the state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.controller.stored.entries import (
    LARGE_BYTES,
    PAGE_NUMBERS,
    Changes,
    Entries,
    PagedEntries,
)
from wallaroo_spark.pipelines.controller.stored.key_state import Instance
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent

NAMES = ("first", "second")
KEYS = st.tuples(st.sampled_from(NAMES), st.integers(0, 3 * PAGE_NUMBERS))
SIZES = st.sampled_from((1, 100, LARGE_BYTES, 2 * LARGE_BYTES))
STEPS = st.lists(st.tuples(KEYS, SIZES | st.none()), max_size=12)


def instance(size: int) -> Instance:
    return Instance(1, 5, CloudEvent("id", "source", "type", b"x" * size))


def write(stored: dict[bytes, bytes], changes: Changes) -> None:
    for key, data in changes.items():
        if data is None:
            stored.pop(key, None)
        else:
            stored[key] = data


@given(st.lists(STEPS, max_size=6))
def test_pages_have_the_entries_that_are_stored_alone(batches: list[list[tuple[tuple[str, int], int | None]]]) -> None:
    """Entries are added, replaced and removed in several batches, small and large ones."""
    alone_stored: dict[bytes, bytes] = {}
    paged_stored: dict[bytes, bytes] = {}
    for batch in batches:
        alone: Entries[tuple[str, int], Instance] = Entries(alone_stored, b"i")
        paged: PagedEntries[tuple[str, int], Instance] = PagedEntries(paged_stored, b"i", b"I")
        for key, size in batch:
            for entries in (alone, paged):
                before = entries.edit(key)
                if size is None:
                    entries.remove(key)
                elif before is None:
                    entries.put(key, instance(size))
                else:
                    before.root = instance(size).root
        assert [*paged.all_keys()] == [*alone.all_keys()]
        write(alone_stored, alone.take_changes())
        write(paged_stored, paged.take_changes())

    fresh: PagedEntries[tuple[str, int], Instance] = PagedEntries(paged_stored, b"i", b"I")
    assert {key: encode(fresh.get(key)) for key in fresh.all_keys()} == {
        decode(name[1:]): data for name, data in alone_stored.items()
    }
    large = sum(len(data) > LARGE_BYTES for data in alone_stored.values())
    pages = {(name, number // PAGE_NUMBERS) for name, number in fresh.all_keys()}
    assert len(paged_stored) == large + len(pages)
