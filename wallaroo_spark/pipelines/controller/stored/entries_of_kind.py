"""The entries of one kind: each is decoded when it is used first, and encoded when it has changed.

The shell gives the stored entries as a mapping of bytes to bytes, and writes the changes back. So a batch costs what it
touches, and not what is stored.
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
        stored = self._stored_keys()
        absent = {key for key, value in self._loaded.items() if value is None}
        present = {key for key, value in self._loaded.items() if value is not None}
        yield from sorted((stored - absent) | present, key=encode)

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
