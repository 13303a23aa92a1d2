"""The records of a partition: offsets without holes, and each event once within a window.

Source: ``docs/pipelines/design.md#records``.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Sequence

from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.messages.events import RecordsDelayed, RecordsExpired, RecordsPublished
from wallaroo_spark.pipelines.controller.messages.instructions import AppendRecords, ForgetRecords, Written
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, DelayedRecords, Durability
from wallaroo_spark.pipelines.controller.stored.seen_ids import DIGEST_BYTES

LONGEST_WAIT = 30 * 24 * 3600 * 1000
"""The most milliseconds by which records are delayed. A choice: 30 days."""
MOST_DELAYED = 10_000
"""The most delayed requests of a partition. A choice: their names are a part of the head, which each batch writes."""


class PartitionLog:
    """Gives offsets to records."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._waiting: int | None = None
        """Number of delayed requests, once it is counted."""

    def problem(self, records: Sequence[CloudEvent]) -> str:
        """Why records cannot be appended to this partition, with the way out; empty when they can."""
        return records_problem(records) if self._context.head.declared else self.no_stream()

    def no_stream(self) -> str:
        """Why nothing can be appended while the stream is not declared."""
        return f"there is no stream {self._context.key.stream} with a partition {self._context.key.partition}"

    def published(self, event: RecordsPublished) -> None:
        """A client publishes records."""
        if problem := self.problem(event.records):
            self._context.refuse(event.reply_to, problem)
            return
        offsets = self.append(event.records)
        if event.durability is Durability.COMMITTED:
            self._context.answer(event.reply_to, (Written(self._context.key, offsets),))

    def delayed(self, event: RecordsDelayed) -> None:
        """A client publishes records that are appended later."""
        context, head, now = self._context, self._context.head, self._context.now
        problem = self.problem(event.records)
        if not problem and event.due > now + LONGEST_WAIT:
            problem = f"records are delayed by {LONGEST_WAIT // 86_400_000} days at most; publish them later"
        if self._waiting is None:
            self._waiting = sum(isinstance(one, DelayedRecords) for _, one in head.delayed)
        if not problem and self._waiting >= MOST_DELAYED:
            problem = f"{self._waiting} delayed requests wait in {context.key}, which is the limit; publish again later"
        if problem:
            context.refuse(event.reply_to, problem)
            return
        if event.due <= now:
            self.append(event.records)
        else:
            delayed = DelayedRecords(number=context.number_delivery())
            context.entries.delayed.put(delayed.number, event.records)
            insort(head.delayed, (event.due, delayed))
            self._waiting += 1
        if event.durability is Durability.COMMITTED:
            context.answer(event.reply_to)

    def due(self, delayed: DelayedRecords) -> None:
        """The time of delayed records has come."""
        records = self._context.entries.delayed.get(delayed.number)
        assert records is not None, delayed
        self._context.entries.delayed.remove(delayed.number)
        self._waiting = None
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
            self._context.say(ForgetRecords(head.first))

    def forget_delayed(self) -> None:
        """The stream is deleted, and the delayed records with it."""
        head, entries = self._context.head, self._context.entries.delayed
        for _, one in head.delayed:
            if isinstance(one, DelayedRecords):
                entries.remove(one.number)
        head.delayed = [(due, one) for due, one in head.delayed if not isinstance(one, DelayedRecords)]
        self._waiting = None

    def append(self, records: Sequence[CloudEvent]) -> tuple[int, ...]:
        """Append records and return their offsets; a record that is remembered is not written again."""
        context, head, seen = self._context, self._context.head, self._context.entries.seen
        seen.forget(context.now)
        first, new, offsets = head.last + 1, [], []
        for record in records:
            digest = event_digest(record)
            offset = seen.get(digest)
            if offset is None:
                head.last = offset = head.last + 1
                new.append(record)
                seen.add(digest, offset)
            offsets.append(offset)
        if new:
            context.fresh += new
            context.say(AppendRecords(first, tuple(new)))
        return tuple(offsets)

    def expired(self, event: RecordsExpired) -> None:
        """Retention has removed records."""
        head = self._context.head
        head.first = max(head.first, min(event.first, head.last + 1))


def records_problem(records: Sequence[CloudEvent]) -> str:
    """Why records are not valid, with the way out; empty when they are."""
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
