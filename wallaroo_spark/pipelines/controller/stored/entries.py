"""All entries of a key's state, by kind."""

from __future__ import annotations

from collections.abc import Hashable

from wallaroo_spark.pipelines.controller.messages.values import Delivery, PartitionKey, StatementId
from wallaroo_spark.pipelines.controller.stored import key_state
from wallaroo_spark.pipelines.controller.stored.entries_of_kind import Changes, Entries, PagedEntries, Stored
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache, SeenIds
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent


class KeyEntries:
    """All entries of a key."""

    def __init__(self, stored: Stored, key: Hashable = None, cache: SeenCache | None = None) -> None:
        self._heads: Entries[int, key_state.Head] = Entries(stored, b"h")
        self.instances: PagedEntries[tuple[str, int], key_state.Instance] = PagedEntries(stored, b"i", b"I")
        """Pipeline and number → active instance."""
        self.waiting: PagedEntries[tuple[str, str, int], int] = PagedEntries(stored, b"w", b"W")
        """Pipeline, stage and place in its queue → instance."""
        self.transactions: Entries[Delivery, key_state.DeliveryTransaction] = Entries(stored, b"t")
        """Delivery → its transaction."""
        self.staged: Entries[tuple[PartitionKey, StatementId], tuple[CloudEvent, ...]] = Entries(stored, b"s")
        """Driver and statement → its records; none once their stream is deleted."""
        self.delayed: Entries[int, tuple[int, tuple[CloudEvent, ...]]] = Entries(stored, b"l")
        """Number → records that are appended at a later time, with the ``partitions`` of their request."""
        self.head = self._heads.get(0) or key_state.Head()
        self.seen = SeenIds(key, stored, self.head, cache)
        """The ids of the records within the window of idempotence."""

    def take_changes(self) -> Changes:
        """The changes of this batch; the head is always one of them."""
        changes = self.seen.take_changes()
        self._heads.put(0, self.head)
        for kind in vars(self).values():
            if isinstance(kind, Entries):
                changes |= kind.take_changes()
        return changes
