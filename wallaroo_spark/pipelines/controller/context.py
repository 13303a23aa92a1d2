"""One call of the controller: its key, its time, the entries, and the instructions so far."""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Hashable, Mapping

from wallaroo_spark.pipelines.controller.messages import instructions
from wallaroo_spark.pipelines.controller.messages.events import Carried
from wallaroo_spark.pipelines.controller.messages.values import Delivery, PartitionKey, ReplyTo, StatementId
from wallaroo_spark.pipelines.controller.stored import key_state
from wallaroo_spark.pipelines.controller.stored.entries import Changes, Entries, PagedEntries, Stored
from wallaroo_spark.pipelines.controller.stored.key_state import OpenDelivery
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


NONE_ASIDE: Mapping[tuple[str, int], str] = {}


class CallContext:
    """The parts of a controller share this object during one call.

    ``now`` is the time of the batch in milliseconds since 1970 UTC; it does not decrease.
    """

    def __init__(
        self,
        key: PartitionKey,
        now: int,
        stored: Stored,
        cache: SeenCache | None = None,
        set_aside: Mapping[tuple[str, int], str] = NONE_ASIDE,
    ) -> None:
        self.key = key
        self.now = now
        self.set_aside = set_aside
        """Instances that an operator has set aside, by pipeline and number, with their reasons."""
        self.entries = KeyEntries(stored, key, cache)
        self.head = self.entries.head
        self.out: list[instructions.Instruction] = []
        self.fresh_from = self.head.last + 1
        """Offset of the first record that this call appends."""
        self.fresh: list[CloudEvent] = []
        """The records that this call appends."""

    def emit(self, instruction: instructions.Instruction) -> None:
        """Add an instruction."""
        self.out.append(instruction)

    def answer(self, reply_to: ReplyTo | None, written: tuple[instructions.Written, ...] = ()) -> None:
        """A request has succeeded."""
        if reply_to is not None:
            self.out.append(instructions.AnswerRequest(reply_to, written))

    def refuse(self, reply_to: ReplyTo | None, reason: str) -> None:
        """A request has failed."""
        if reply_to is not None:
            self.out.append(instructions.RefuseRequest(reply_to, reason))

    def warn(self, reply_to: ReplyTo | None, text: str) -> None:
        """A message was dropped."""
        if reply_to is not None:
            self.out.append(instructions.WarnClient(reply_to, text))

    def carry(self, target: PartitionKey, message: Carried) -> None:
        """Carry a message to another key, or to this one."""
        sequence = self.head.sent.get(target, 0) + 1
        self.head.sent[target] = sequence
        self.out.append(instructions.CarryOut(target, sequence, message))

    def due_in(self, timeout: int) -> int:
        """When the time of a delivery is over that begins now; 0: it has no limit."""
        due = self.now + timeout if timeout else 0
        self.expect(due)
        return due

    def expect(self, due: int) -> None:
        """The time of a delivery is over at ``due``; 0: it has no limit."""
        if due and (self.head.deadline is None or due < self.head.deadline):
            self.head.deadline = due

    def delay(self, delivery: Delivery, found: OpenDelivery, millis: int) -> None:
        """A delivery is due again after some time."""
        found.due = self.now + millis
        insort(self.head.delayed, (found.due, delivery))

    def no_stream(self) -> str:
        """Why nothing can be done with this partition while its stream is not declared."""
        return f"there is no stream {self.key.stream} with a partition {self.key.partition}"

    def number_delivery(self) -> int:
        """A number that no other delivery of this key has."""
        self.head.deliveries += 1
        return self.head.deliveries

    def draw(self, members: list[str], number: int) -> str:
        """A random one of the members, the same when the batch runs again."""
        seed = f"{self.key} {number}".encode()
        return members[int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big") % len(members)]
