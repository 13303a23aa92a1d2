"""The entries of a key's state: each is decoded when it is used first, and encoded when it has changed.

The shell gives the stored entries as a mapping of bytes to bytes, and writes the changes back. So a batch costs what it
touches, and not what is stored.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, Delivery, PartitionKey, StatementId
from wallaroo_spark.pipelines.controller.stored.changes import Changes as Changes
from wallaroo_spark.pipelines.controller.stored.changes import Stored as Stored
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.controller.stored.key_state import (
    ConnectorStream,
    DeliveryTransaction,
    Head,
    Instance,
)
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache, SeenIds

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
            data = self._stored.get(self._kind + encode(key))
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
        stored = {decode(key[1:]) for key in self._stored if key[:1] == self._kind}
        absent = {key for key, value in self._loaded.items() if value is None}
        present = {key for key, value in self._loaded.items() if value is not None}
        yield from sorted((stored - absent) | present, key=encode)

    def take_changes(self) -> Changes:
        """The changed entries as bytes; they count as stored from now on."""
        changes: Changes = {}
        for key in self._changed:
            value = self._loaded[key]
            changes[self._kind + encode(key)] = None if value is None else encode(value)
        self._changed.clear()
        self._loaded.clear()
        self._made.clear()
        return changes


class KeyEntries:
    """All entries of a key."""

    def __init__(self, stored: Stored, key: Hashable = None, cache: SeenCache | None = None) -> None:
        self._heads: Entries[int, Head] = Entries(stored, b"h")
        self.instances: Entries[tuple[str, int], Instance] = Entries(stored, b"i")
        """Pipeline and number → active instance."""
        self.waiting: Entries[tuple[str, str, int], int] = Entries(stored, b"w")
        """Pipeline, stage and place in its queue → instance."""
        self.transactions: Entries[Delivery, DeliveryTransaction] = Entries(stored, b"t")
        """Delivery → its transaction."""
        self.staged: Entries[tuple[PartitionKey, StatementId], tuple[CloudEvent, ...]] = Entries(stored, b"s")
        """Driver and statement → its records."""
        self.delayed: Entries[int, tuple[CloudEvent, ...]] = Entries(stored, b"l")
        """Number → records that are appended at a later time."""
        self.connectors: Entries[tuple[str, str], ConnectorStream] = Entries(stored, b"k")
        """Instance and name → connector stream."""
        self.connector_names: Entries[str, tuple[str, ...]] = Entries(stored, b"n")
        """Instance → names of its connector streams."""
        self.ended_connectors: Entries[int, tuple[tuple[str, str], ...]] = Entries(stored, b"e")
        """Day since 1970 → the connector streams that ended on it."""
        self._kinds: tuple[Entries[Any, Any], ...] = (
            self.instances,
            self.waiting,
            self.transactions,
            self.staged,
            self.delayed,
            self.connectors,
            self.connector_names,
            self.ended_connectors,
        )
        self.head = self._heads.get(0) or Head()
        self.seen = SeenIds(key, stored, self.head, cache)
        """The ids of the records within the window of idempotence."""

    def take_changes(self) -> Changes:
        """The changes of this batch; the head is always one of them."""
        changes = self.seen.take_changes()
        self._heads.put(0, self.head)
        changes.update(self._heads.take_changes())
        for kind in self._kinds:
            changes.update(kind.take_changes())
        return changes
