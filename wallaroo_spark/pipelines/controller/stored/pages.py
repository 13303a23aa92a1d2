"""Entries whose keys end with a number, many of which are stored together.

An access to the state crosses two processes, and costs more than all that is done with a small entry. So entries of
consecutive numbers share a *page*, which is one stored entry: their bytes by number. A large one is stored alone, and
its page has no bytes for it. Source: ``docs/pipelines/design.md#the-state-of-a-key``.
"""

from __future__ import annotations

from typing import Any, TypeVar

from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.controller.stored.entries_of_kind import Changes, Entries, Stored

PAGE_NUMBERS = 32
"""Numbers of a page. A change of one entry writes its whole page, 32 KiB at most."""
LARGE_BYTES = 1024
"""An entry with more bytes is stored alone."""
_ALONE = b""

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")


class PagedEntries(Entries[K, V]):
    """The entries of one kind in pages; ``kind`` is the first byte of entries that are stored alone."""

    def __init__(self, stored: Stored, kind: bytes, page_kind: bytes) -> None:
        super().__init__(stored, kind)
        self._page_kind = page_kind
        self._pages: dict[tuple[Any, ...], dict[int, bytes]] = {}
        """The pages that were read."""
        self._touched: dict[tuple[Any, ...], None] = {}

    def take_changes(self) -> Changes:
        """The changed entries as bytes; they count as stored from now on."""
        changes = super().take_changes()
        for name in self._touched:
            page = self._pages[name]
            changes[self._page_kind + encode(name)] = encode(dict(sorted(page.items()))) if page else None
        self._touched.clear()
        self._pages.clear()
        return changes

    def _read(self, key: K) -> bytes | None:
        data = self._page(key).get(key[-1])
        return super()._read(key) if data == _ALONE else data

    def _write(self, key: K, data: bytes | None, changes: Changes) -> None:
        number, page = key[-1], self._page(key)
        self._touched[_page_of(key)] = None
        is_large = data is not None and len(data) > LARGE_BYTES
        if is_large or page.get(number) == _ALONE:
            super()._write(key, data if is_large else None, changes)
        if data is None:
            page.pop(number, None)
        else:
            page[number] = _ALONE if is_large else data

    def _stored_keys(self) -> set[K]:
        names = [decode(key[1:]) for key in self._stored if key[:1] == self._page_kind]
        keys: set[Any] = {(*name[:-1], number) for name in {*names, *self._pages} for number in self._load(name)}
        return keys

    def _page(self, key: K) -> dict[int, bytes]:
        return self._load(_page_of(key))

    def _load(self, name: tuple[Any, ...]) -> dict[int, bytes]:
        page = self._pages.get(name)
        if page is None:
            data = self._stored.get(self._page_kind + encode(name))
            page = self._pages[name] = {} if data is None else decode(data)
        return page


def _page_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key[:-1], key[-1] // PAGE_NUMBERS)
