"""The entries of one kind: each is decoded when it is used first, and encoded when it has changed.

The shell gives the stored entries as a mapping of bytes to bytes, and writes the changes back. So a batch costs what it
touches, and not what is stored.

An access to the state crosses two processes, and costs more than all that is done with a small entry. So entries whose
keys end with consecutive numbers share a *page*, which is one stored entry: their bytes by number. A large one is
stored alone, and its page has no bytes for it. Source: ``docs/pipelines/design.md#the-state-of-a-key``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode

Stored = Mapping[bytes, bytes]
"""The stored entries of a key. Only ``get`` is called for each batch; iteration is for rare events."""
Changes = dict[bytes, bytes | None]
"""The entries that a batch has changed; None for a removed one."""

K = TypeVar("K")
V = TypeVar("V")

_MISSING: Any = object()


class Entries(Generic[K, V]):
    """The entries of one kind, known by the first byte of their keys."""

    def __init__(self, stored: Stored, kind: bytes) -> None:
        self._stored = stored
        self._kind = kind
        self._loaded: dict[K, Any] = {}
        self._changed: dict[K, None] = {}
        self._made: set[K] = set()
        """The entries that were added since the changes were taken; the stored ones do not have them."""

    def get(self, key: K) -> V | None:
        """An entry to read; None without one. It must not be changed."""
        value = self._loaded.get(key, _MISSING)
        if value is _MISSING:
            data = self._read(key)
            value = self._loaded[key] = None if data is None else decode(data)
        found: V | None = value
        return found

    def edit(self, key: K) -> V | None:
        """An entry to change; None without one."""
        value = self.get(key)
        if value is not None:
            self._changed[key] = None
        return value

    def put(self, key: K, value: V) -> None:
        """Add an entry. Only an entry that was read before may be replaced by it."""
        if key not in self._changed and self._loaded.get(key) is None:
            self._made.add(key)
        self._loaded[key] = value
        self._changed[key] = None

    def remove(self, key: K) -> None:
        """Remove an entry, if there is one. An entry that was added since the changes were taken leaves no trace."""
        self._loaded[key] = None
        if key in self._made:
            self._made.remove(key)
            del self._changed[key]
        else:
            self._changed[key] = None

    def all_keys(self) -> Iterator[K]:
        """The keys of all entries, in a fixed order. This reads all stored keys."""
        known = self._stored_keys() | self._loaded.keys()
        yield from sorted((key for key in known if self._loaded.get(key, _MISSING) is not None), key=encode)

    def take_changes(self) -> Changes:
        """The changed entries as bytes; they count as stored from now on."""
        changes: Changes = {}
        for key in self._changed:
            value = self._loaded[key]
            self._write(key, None if value is None else encode(value), changes)
        self._changed.clear()
        self._loaded.clear()
        self._made.clear()
        return changes

    def _read(self, key: K) -> bytes | None:
        return self._stored.get(self._kind + encode(key))

    def _write(self, key: K, data: bytes | None, changes: Changes) -> None:
        changes[self._kind + encode(key)] = data

    def _stored_keys(self) -> set[K]:
        return {decode(key[1:]) for key in self._stored if key[:1] == self._kind}


PAGE_NUMBERS = 32
"""Numbers of a page. A change of one entry writes its whole page, 32 KiB at most."""
LARGE_BYTES = 1024
"""An entry with more bytes is stored alone."""
_ALONE = b""

P = TypeVar("P", bound=tuple[Any, ...])


class PagedEntries(Entries[P, V]):
    """The entries of one kind in pages; ``kind`` is the first byte of entries that are stored alone."""

    def __init__(self, stored: Stored, kind: bytes, page_kind: bytes) -> None:
        super().__init__(stored, kind)
        self._pages: Entries[tuple[Any, ...], dict[int, bytes]] = Entries(stored, page_kind)

    def take_changes(self) -> Changes:
        """The changed entries as bytes; they count as stored from now on."""
        return super().take_changes() | self._pages.take_changes()

    def _read(self, key: P) -> bytes | None:
        data = (self._pages.get(_page_of(key)) or {}).get(key[-1])
        return super()._read(key) if data == _ALONE else data

    def _write(self, key: P, data: bytes | None, changes: Changes) -> None:
        name, number = _page_of(key), key[-1]
        page = self._pages.get(name) or {}
        is_large = data is not None and len(data) > LARGE_BYTES
        if is_large or page.get(number) == _ALONE:
            super()._write(key, data if is_large else None, changes)
        if data is not None:
            self._pages.put(name, dict(sorted({**page, number: _ALONE if is_large else data}.items())))
        elif rest := {other: one for other, one in page.items() if other != number}:
            self._pages.put(name, rest)
        else:
            self._pages.remove(name)

    def _stored_keys(self) -> set[P]:
        keys: set[Any] = {
            (*name[:-1], number) for name in self._pages.all_keys() for number in self._pages.get(name) or ()
        }
        return keys


def _page_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key[:-1], key[-1] // PAGE_NUMBERS)
