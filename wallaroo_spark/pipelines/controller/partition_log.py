"""The records of a partition: offsets without holes, and each event once within a window.

Source: ``docs/pipelines/design.md#records``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.messages.events import RecordsExpired, RecordsPublished
from wallaroo_spark.pipelines.controller.messages.instructions import AppendRecords, Written
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent, Durability
from wallaroo_spark.pipelines.controller.stored.seen_ids import DIGEST_BYTES


class PartitionLog:
    """Gives offsets to records."""

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def problem(self, records: Sequence[CloudEvent]) -> str:
        """Why records cannot be appended to this partition, with the way out; empty when they can."""
        if not self._context.head.declared:
            return f"there is no stream {self._context.key.stream} with a partition {self._context.key.partition}"
        return records_problem(records)

    def published(self, event: RecordsPublished) -> None:
        """A client publishes records."""
        if problem := self.problem(event.records):
            self._context.refuse(event.reply_to, problem)
            return
        offsets = self.append(event.records)
        if event.durability is Durability.COMMITTED:
            self._context.answer(event.reply_to, (Written(self._context.key, offsets),))

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
                seen.add(digest, offset, context.now)
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
