"""Open channels of clients. That of a member has a task that reads from the client and one that writes to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.errors import one_line
from wallaroo_spark.gateway.limits import Refused, try_again
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.state.members import JoinedMember, RecordsToGive, group_messages

log = one_line("wallaroo_spark.gateway")
_FIRST_ROWS = 16
"""The records of a delivery that are read first, when their size is not known. Events have 3 MiB at most."""
_READ_PARTS = 4
"""The messages of ``part_bytes`` of which records are read at once."""


class Service:
    """A service of the gRPC interface, for one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway


@asynccontextmanager
async def open_channel(
    gateway: Gateway,
    served: object,
    check: Callable[[], object],
    end: Callable[[Refused], None],
    leave: Callable[[], object],
) -> AsyncIterator[list[asyncio.Future[Any]]]:
    """Serve a client until the block ends: ``end`` is called when it has lost its right, ``leave`` at the end.

    ``check`` raises :class:`Refused` when it has. The block's tasks, which it adds to the list, are cancelled at the
    end.
    """
    tasks: list[asyncio.Future[Any]] = []

    def rules_changed() -> None:
        try:
            check()
        except Refused as problem:
            end(problem)

    gateway.rules_changed[served] = rules_changed
    try:
        yield tasks
    finally:
        # Before anything is awaited: a client that goes while its channel ends cancels this task at any await.
        del gateway.rules_changed[served]
        leave()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(eq=False)
class MemberChannel:
    """Serves one member until its client or the gateway ends. ``check`` raises Refused when it has lost its right."""

    gateway: Gateway
    context: Any
    check: Callable[[], None]
    may_publish: Callable[[str], None]
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _taken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _member: JoinedMember | None = field(default=None, init=False)

    async def serve(self, join: pb.JoinGroup | pb.JoinStage, messages: AsyncIterator[Any]) -> None:
        """Join, and serve. Raises :class:`Refused` when the channel ends with an error."""
        gateway = self.gateway
        member, events = gateway.core.join(join, self._changed)
        self._member = member
        gateway.queue.add(events)

        def leave() -> None:
            gateway.queue.add(gateway.core.leave(member))

        async with open_channel(gateway, self, self.check, member.end, leave) as tasks:
            # A write that is cancelled must not have it under way: then gRPC cannot send the status of the end.
            await self.context.send_initial_metadata(())
            reading = asyncio.ensure_future(self._read(member, messages))
            tasks += [asyncio.ensure_future(self._write(member)), asyncio.ensure_future(self._ended.wait()), reading]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and reading.exception() is None:
                # The client sends nothing more, and may still read the answers to its acks.
                await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if member.ended is not None:
                raise member.ended

    def _changed(self) -> None:
        self._wake.set()
        if self._member is not None and self._member.ended is not None:
            self._ended.set()

    async def _read(self, member: JoinedMember, messages: AsyncIterator[Any]) -> None:
        gateway = self.gateway
        async for message in messages:
            if reason := member.nack_reason(message):
                log.info("%s", reason)
            gateway.queue.add(member.client(message, gateway.core.schema, self.may_publish))
            while member.full:
                self._taken.clear()
                await self._taken.wait()
            await gateway.queue.room()
        member.finish()
        self._wake.set()

    async def _write(self, member: JoinedMember) -> None:
        finished = False
        while not finished:
            self._wake.clear()
            given = member.take(time.monotonic())
            self.gateway.queue.add(member.take_events())
            self._taken.set()
            if isinstance(given, RecordsToGive):
                await self._give(member, given)
            elif given is not None:
                await self.context.write(given)
            elif member.finished:
                finished = True
            else:
                await self._wake.wait()

    async def _give(self, member: JoinedMember, given: RecordsToGive) -> None:
        limits, asked = self.gateway.limits, given.delivery
        if given.records is not None:
            for message in group_messages(given, asked.first, given.records, limits):
                await self.context.write(message)
            return
        # A delivery may have gigabytes, so it is read in parts; the next part is read when the client has taken one.
        at, rows, sent = asked.first, _FIRST_ROWS, False
        while at <= asked.last:
            last = min(at + rows - 1, asked.last)
            first, records = await self.gateway.calls.read(
                self.gateway.files.read, member.joining.stream, given.partition, at, last
            )
            if sent and (first > at or not records):
                raise _expired(member, given)
            if records or last == asked.last:
                part = given if not sent else replace(given, delivery=asked._replace(first=first, missed=0))
                for message in group_messages(part, first, records, limits, more=last < asked.last):
                    await self.context.write(message)
                sent = True
            if records:
                size = sum(record.size for record in records) / len(records)
                rows = max(1, min(limits.records, int(_READ_PARTS * limits.part_bytes / size)))
            at = last + 1


def _expired(member: JoinedMember, given: RecordsToGive) -> Refused:
    text = f"retention has removed records of delivery {given.number} of {member.joining.stream} while it was sent"
    return try_again(f"{text}; join again")
