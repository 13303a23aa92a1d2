"""Connector streams: messages that connectors send to this partition, each applied once by its reference.

A connector stream belongs to a connector's instance and has a name. Its *reference* is the id of the last message that
is applied. Messages at or below it are dropped, so a connector may send again after any failure. Each opening of a
connector stream replaces the one before: messages of a replaced opening are dropped and not answered as applied.
Source: ``docs/pipelines/design.md#connector-streams``.
"""

from __future__ import annotations

from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.messages.events import ConnectorAsked, ConnectorOpened, MessagesSent
from wallaroo_spark.pipelines.controller.messages.instructions import ConnectorPosition
from wallaroo_spark.pipelines.controller.messages.values import ReplyTo
from wallaroo_spark.pipelines.controller.partition_log import PartitionLog, records_problem
from wallaroo_spark.pipelines.controller.stored.key_state import ConnectorStream

MOST_STREAMS = 10_000
"""The most connector streams that a partition remembers. A choice: some 2 MB of state."""
KEPT_DAYS = 30
"""Days for which an ended connector stream is remembered at least. A choice: longer than an outage or a holiday."""
_DAY = 24 * 3600 * 1000


class ConnectorStreams:
    """The connector streams of a partition."""

    def __init__(self, context: CallContext, log: PartitionLog) -> None:
        self._context = context
        self._log = log
        self._entries = context.entries

    def asked(self, event: ConnectorAsked) -> None:
        """A gateway asks for the positions of an instance's streams."""
        names = self._entries.connector_names.get(event.instance) or ()
        found = []
        for name in names:
            stream = self._entries.connectors.get((event.instance, name))
            assert stream is not None, (event.instance, name)
            found.append(ConnectorPosition(name, stream.stream_id, stream.reference))
        self._context.answer(event.reply_to, positions=tuple(found))

    def opened(self, event: ConnectorOpened) -> None:
        """A session opens a connector stream; an older session of it can apply no more messages."""
        context, head = self._context, self._context.head
        if not head.declared:
            context.refuse(event.reply_to, self._log.no_stream())
            return
        self._forget_ended()
        key = event.instance, event.name
        stream = self._entries.connectors.edit(key)
        if stream is None:
            if head.connector_streams >= MOST_STREAMS:
                context.refuse(
                    event.reply_to,
                    f"{context.key} remembers {head.connector_streams} connector streams, which is the limit; use "
                    f"fewer names, or end streams that are complete: they are forgotten after {KEPT_DAYS} days",
                )
                return
            stream = ConnectorStream(event.stream_id, event.reply_to)
            self._entries.connectors.put(key, stream)
            names = self._entries.connector_names.get(event.instance) or ()
            self._entries.connector_names.put(event.instance, (*names, event.name))
            head.connector_streams += 1
        stream.stream_id, stream.opening, stream.ended_at = event.stream_id, event.reply_to, None
        position = ConnectorPosition(event.name, stream.stream_id, stream.reference)
        context.answer(event.reply_to, positions=(position,))

    def sent(self, event: MessagesSent) -> None:
        """Messages of a connector stream have come."""
        context, reply = self._context, event.reply_to
        key = event.instance, event.name
        stream = self._entries.connectors.get(key)
        if stream is None or stream.opening != ReplyTo(reply.gateway, reply.generation, event.opening):
            context.warn(reply, f"a newer session has opened {event.name} of {event.instance!r}; messages are dropped")
            return
        problem = "" if context.head.declared else self._log.no_stream()
        if not problem and event.records:
            problem = records_problem(event.records)
        if problem:
            context.refuse(reply, problem)
            return
        stream = self._entries.connectors.edit(key)
        assert stream is not None
        last = -1 if stream.reference is None else stream.reference
        new = [record for id, record in zip(event.ids, event.records, strict=True) if id > last]
        if new:
            self._log.append(new)
        if event.last is not None:
            stream.reference = max(last, event.last)
        if event.ended:
            self._end(key, stream)
        context.answer(reply)

    def _end(self, key: tuple[str, str], stream: ConnectorStream) -> None:
        context, ended = self._context, self._entries.ended_connectors
        stream.ended_at = context.now
        day = context.now // _DAY
        keys = ended.get(day) or ()
        if key not in keys:
            ended.put(day, (*keys, key))
        if day not in context.head.connector_days:
            context.head.connector_days.append(day)

    def _forget_ended(self) -> None:
        """Forget the streams that ended long ago and were not opened since."""
        head, entries, today = self._context.head, self._entries, self._context.now // _DAY
        while head.connector_days and head.connector_days[0] < today - KEPT_DAYS:
            day = head.connector_days.pop(0)
            for key in entries.ended_connectors.get(day) or ():
                stream = entries.connectors.get(key)
                if stream is None or stream.ended_at is None or stream.ended_at // _DAY != day:
                    continue
                instance, name = key
                entries.connectors.remove(key)
                names = tuple(one for one in entries.connector_names.get(instance) or () if one != name)
                if names:
                    entries.connector_names.put(instance, names)
                else:
                    entries.connector_names.remove(instance)
                head.connector_streams -= 1
            entries.ended_connectors.remove(day)
