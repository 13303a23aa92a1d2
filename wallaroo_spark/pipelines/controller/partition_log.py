"""The records of a partition: offsets without holes, and each event once within a window.

Source: ``docs/pipelines/design.md#records``.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Sequence

from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.messages import events, values
from wallaroo_spark.pipelines.controller.messages.instructions import ForgetRecords, Written
from wallaroo_spark.pipelines.controller.stored.seen_ids import DIGEST_BYTES
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, partition_hash, partition_of, partition_of_hash

LONGEST_WAIT = 30 * 24 * 3600 * 1000
"""The most milliseconds by which records are delayed. A choice: 30 days."""
DUE_BYTES = 32 << 20
"""Bytes of delayed records, and of statements, from which a batch appends no more of them. A task has some hundred MiB,
and what was published for the same moment, as by a program that sends reports at midnight, or what many transactions
have staged that are acked together, may have gigabytes."""
MOST_IDS = 50_000
"""The most ids in a message to another partition. Such a message has some 1 MB."""
MOST_DELAYED = 10_000
"""The most delayed requests of a partition. A choice: their names are a part of the head, which each batch writes."""


class PartitionLog:
    """Gives offsets to records."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._waiting: int | None = None
        """Number of delayed requests, once it is counted."""
        self._due_bytes = 0
        """Bytes of the delayed and staged records that this batch has appended."""
        self._moved: list[events.RecordsMoved] = []
        """Records of other partitions that are not placed yet."""
        self._raised = False
        """Whether partitions were added in this batch."""

    def problem(self, records: Sequence[CloudEvent]) -> str:
        """Why records cannot be appended to this partition, with the remedy; empty when they can."""
        return records_problem(records) if self._context.head.declared else self._context.no_stream()

    def published(self, event: events.RecordsPublished) -> None:
        """A client publishes records."""
        if problem := self.problem(event.records):
            self._context.refuse(event.reply_to, problem)
            return
        if self._is_outdated(event.partitions):
            self._divide_again(event.reply_to, event.records, event.durability)
            return
        written = self.append(event.records)
        if event.durability is values.Durability.COMMITTED:
            self._context.answer(event.reply_to, (written,))

    def delayed(self, event: events.RecordsDelayed) -> None:
        """A client publishes records that are appended later."""
        context, head, now = self._context, self._context.head, self._context.now
        problem = self.problem(event.records)
        if not problem and event.due > now + LONGEST_WAIT:
            problem = f"records are delayed by {LONGEST_WAIT // 86_400_000} days at most; publish them later"
        if self._waiting is None:
            self._waiting = sum(isinstance(one, values.DelayedRecords) for _, one in head.delayed)
        if not problem and self._waiting >= MOST_DELAYED:
            problem = f"{self._waiting} delayed requests wait in {context.key}, which is the limit; publish again later"
        if problem:
            context.refuse(event.reply_to, problem)
            return
        if event.due <= now:
            self._append_due(event.partitions, event.records)
        else:
            delayed = values.DelayedRecords(number=context.number_delivery())
            context.entries.delayed.put(delayed.number, (event.partitions, event.records))
            insort(head.delayed, (event.due, delayed))
            self._waiting += 1
        if event.durability is values.Durability.COMMITTED:
            context.answer(event.reply_to)

    @property
    def has_room(self) -> bool:
        """Whether this batch appends more records that were stored before."""
        return self._due_bytes < DUE_BYTES

    def count(self, records: Sequence[CloudEvent]) -> None:
        """This batch appends records that were stored before."""
        self._due_bytes += sum(record.size for record in records)

    def due(self, delayed: values.DelayedRecords) -> bool:
        """The time of delayed records has come. Returns whether they are appended; otherwise a later batch has to."""
        if not self.has_room:
            return False
        found = self._context.entries.delayed.get(delayed.number)
        assert found is not None, delayed
        self._context.entries.delayed.remove(delayed.number)
        self._waiting = None
        partitions, records = found
        self.count(records)
        self._append_due(partitions, records)
        return True

    def moved(self, message: events.RecordsMoved) -> None:
        """Records come from a partition to which they belonged before partitions were added.

        They are placed behind the other messages of the batch, among which are the ids that other partitions have.
        """
        self._moved.append(message)

    def place_moved(self) -> None:
        """Place the records that have come so far."""
        moved, self._moved = self._moved, []
        for message in moved:
            self._place(message)

    def _place(self, message: events.RecordsMoved) -> None:
        context, head, here = self._context, self._context.head, self._context.key.partition
        if not head.declared:
            if message.durability is values.Durability.COMMITTED:
                context.refuse(message.reply_to, context.no_stream())
            return
        if message.version < head.born and any(message.places) and message.durability is values.Durability.COMMITTED:
            # Some records have places in the stream that was deleted; an answer would name records that are gone.
            deleted = f"stream {context.key.stream} was deleted, and declared anew, while the records were written"
            context.refuse(message.reply_to, f"{deleted}; publish all of them again")
            return
        records, places = [*message.records], [*message.places]
        homes = [-1 if record is None else partition_of(record, head.partitions[-1]) for record in records]
        # A message that was sent before partitions were added may come before the ids that were sent then.
        informed = message.version >= head.raised and not self._raised
        mine = [place for place, home in enumerate(homes) if home == here and informed]
        written = self.append([record for place in mine if (record := records[place]) is not None])
        for place, where in zip(mine, written.places(), strict=True):
            records[place], places[place], homes[place] = None, where, -1
        following = next((home for home in homes if home >= 0), None)
        if following is not None:
            moved = message._replace(records=tuple(records), places=tuple(places), version=head.raised)
            context.carry(values.PartitionKey(context.key.stream, following), moved)
        elif message.durability is values.Durability.COMMITTED:
            found = [where for where in places if where is not None]
            context.answer(message.reply_to, (self._written(found),))

    def announce_ids(self) -> None:
        """Partitions are added: the others hear of the remembered records that are published to them from now on.

        They are those that were divided by one of the earlier numbers of partitions, and belong to another now.
        """
        self._raised = True
        context, (*earlier, partitions) = self._context, self._context.head.partitions
        here, found = context.key.partition, dict[int, list[tuple[bytes, int]]]()
        context.entries.seen.forget(context.now)
        for digest, hashed, offset in context.entries.seen.all():
            home = partition_of_hash(hashed, partitions)
            if home != here and any(partition_of_hash(hashed, number) == here for number in earlier):
                found.setdefault(home, []).append((digest, offset))
        for home, ids in sorted(found.items()):
            for begin in range(0, len(ids), MOST_IDS):
                some = ids[begin : begin + MOST_IDS]
                digests, offsets = b"".join(digest for digest, _ in some), tuple(offset for _, offset in some)
                moved = events.IdsMoved(context.head.version, digests, offsets)
                context.carry(values.PartitionKey(context.key.stream, home), moved)

    def ids_moved(self, partition: int, message: events.IdsMoved) -> None:
        """Another partition has these records; published again, they come to this one."""
        seen = self._context.entries.seen
        seen.forget(self._context.now)
        seen.add_elsewhere(partition, message.digests, message.offsets)

    def _is_outdated(self, partitions: int) -> bool:
        """Whether a request was divided among another number of partitions than there is; 0: it was not divided.

        It was a greater one when the stream was deleted meanwhile, and declared anew with fewer partitions.
        """
        return partitions not in (0, self._context.head.partitions[-1])

    def _divide_again(
        self, reply_to: values.ReplyTo | None, records: Sequence[CloudEvent], durability: values.Durability
    ) -> None:
        places = (None,) * len(records)
        self.moved(events.RecordsMoved(reply_to, tuple(records), places, durability, self._context.head.raised))

    def _append_due(self, partitions: int, records: Sequence[CloudEvent]) -> None:
        """Append delayed records, whose publisher is answered without offsets."""
        if self._is_outdated(partitions):
            self._divide_again(None, records, values.Durability.RECEIVED)
        else:
            self.append(records)

    def forget_records(self) -> None:
        """The records so far are those of a deleted stream. A stream of the same name gets the next offsets.

        Called when the stream is deleted, and again when one of its name is declared: messages that were on their way
        may have appended records in between.
        """
        head = self._context.head
        self._context.entries.seen.clear()
        if head.first <= head.last:
            head.first = head.last + 1
            self._context.emit(ForgetRecords(head.first))

    def forget_delayed(self) -> None:
        """The stream is deleted, and the delayed records with it."""
        head, entries = self._context.head, self._context.entries.delayed
        for _, one in head.delayed:
            if isinstance(one, values.DelayedRecords):
                entries.remove(one.number)
        head.delayed = [(due, one) for due, one in head.delayed if not isinstance(one, values.DelayedRecords)]
        self._waiting = None

    def append(self, records: Sequence[CloudEvent]) -> Written:
        """Append records and return their places; a record that is remembered is not written again."""
        context, head, seen = self._context, self._context.head, self._context.entries.seen
        seen.forget(context.now)
        here, places = context.key.partition, list[tuple[int, int]]()
        for record in records:
            digest = event_digest(record)
            offset = seen.get(digest)
            elsewhere = seen.elsewhere(digest) if offset is None else None
            if offset is None and elsewhere is None:
                head.last = offset = head.last + 1
                context.fresh.append(record)
                seen.add(digest, partition_hash(record), offset)
            places.append(elsewhere or (here, offset or 0))
        return self._written(places)

    def _written(self, places: Sequence[tuple[int, int]]) -> Written:
        key = self._context.key
        partitions = tuple(partition for partition, _ in places)
        here = all(partition == key.partition for partition in partitions)
        return Written(key, tuple(offset for _, offset in places), partitions=() if here else partitions)

    def expired(self, event: events.RecordsExpired) -> None:
        """Retention has removed records."""
        head = self._context.head
        head.first = max(head.first, min(event.first, head.last + 1))


def records_problem(records: Sequence[CloudEvent]) -> str:
    """Why records are not valid, with the remedy; empty when they are."""
    if not records:
        return "the batch is empty; publish at least one record"
    for place, record in enumerate(records):
        missing = [name for name in ("id", "source", "type") if not getattr(record, name)]
        if missing:
            return f"record {place} has no {missing[0]}; CloudEvents 1.0 requires id, source and type"
    return ""


def event_digest(record: CloudEvent) -> bytes:
    """A digest of an event's source and id, which together are its identity."""
    source, name = record.source.encode(), record.id.encode()
    return hashlib.blake2b(len(source).to_bytes(4, "big") + source + name, digest_size=DIGEST_BYTES).digest()
