"""A running gateway: the pure state, the inbox, and tasks that follow commits, the schema and the tokens.

Source: ``docs/pipelines/gateway.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.errors import CheckpointError, PipelineError, one_line
from wallaroo_spark.event_loop import BackgroundTasks
from wallaroo_spark.gateway.cloud_events import to_wire
from wallaroo_spark.gateway.files import ApplicationFiles, FileCalls
from wallaroo_spark.gateway.inbox_queue import InboxQueue
from wallaroo_spark.gateway.limits import ByteBudget, GatewayLimits, Refused, busy, ends
from wallaroo_spark.gateway.server.peers import Peers, moving
from wallaroo_spark.gateway.state.core import GatewayCore
from wallaroo_spark.gateway.state.endpoints import Endpoints
from wallaroo_spark.gateway.state.exchanges import Exchanges, ExchangeTimes
from wallaroo_spark.gateway.state.figures import GatewayFigures
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.gateway.tokens import AccessRules
from wallaroo_spark.pipelines.controller.messages.instructions import DeliverInputs, DeliverRecords

log = one_line("wallaroo_spark.gateway")

FOLLOW_SECONDS = 1.0
"""Seconds between two looks at the schema and the tokens. A choice: it is the delay of a revocation, below a lease."""
RULES_SECONDS = 10.0
"""How long the schema and the tokens may be unreadable. A choice: as long as a lease, which a revocation may take."""
GENERATION_SECONDS = 5.0
"""Seconds between two looks for a newer generation. It costs a listing, and a lease is longer."""


@dataclass(eq=False)
class Gateway:
    """One gateway in one generation. ``failed`` is called with the error that ends it."""

    name: str
    files: ApplicationFiles
    limits: GatewayLimits
    failed: Callable[[BaseException], None]
    peers: Peers
    addresses: Callable[[], list[str]] = list
    """The addresses of the live gateways."""
    clock: Callable[[], float] = time.time
    """The time of schedules, in seconds since 1970 UTC."""

    def __post_init__(self) -> None:
        limits = self.limits
        self.calls = FileCalls(limits.file_seconds)
        """Makes the calls to the files."""
        self.figures = GatewayFigures()
        self.queue = InboxQueue(self.files, limits, self.calls.call, self.figures.counts)
        self.access = AccessRules()
        self.core = GatewayCore(self.name, 0, SchemaView(), limits)
        ephemeral = ByteBudget(limits.ephemeral_bytes)
        self.exchanges = Exchanges(limits, random.choice, ephemeral)
        self.endpoints = Endpoints(limits, ephemeral)
        self.rules_changed: dict[object, Callable[[], None]] = {}
        """Called when permissions may have changed: one entry for each open channel."""
        self._tasks = BackgroundTasks(self._ended)
        self._position: int | None = None

    async def start(self) -> None:
        """Begin a new generation, and follow the files."""
        generation = await self.calls.call(self.files.open)
        # Batches that were committed before the first event of this generation have nothing for it.
        self._position = await self.calls.call(self.files.committed)
        stored = await self.calls.call(self.files.schema, 0)
        schema = SchemaView.of(stored) if stored is not None else SchemaView()
        self.core = GatewayCore(self.name, generation, schema, self.limits)
        self.access = AccessRules(schema.tokens, await self.calls.call(self.files.tokens))
        self._tasks.start(self.queue.run())
        self.queue.add(self.core.started())
        await self.queue.durable()
        for follow in (self._follow_commits, self._follow_rules, self._follow_schedules, self._follow_generation):
            self._tasks.start(follow())
        log.info("gateway %s begins generation %d with version %d of the schema", self.name, generation, schema.version)

    def end(self, reason: str) -> None:
        """End every call and channel with ``UNAVAILABLE``."""
        self.core.end(reason)
        self.queue.end(ends(reason))
        for receiver in self.exchanges.receivers:
            receiver.end(ends(reason))
        for consumer in self.endpoints.consumers:
            self.endpoints.retire(consumer, ends(reason))

    async def close(self) -> None:
        """End the tasks."""
        self._tasks.cancel()
        await self._tasks.wait(10.0)
        await self.peers.close()

    def peers_changed(self) -> None:
        """A gateway has come or gone: receivers and consumers of objects that have moved connect again."""
        for receiver in self.exchanges.receivers:
            if not self.peers.owns("Exchange", receiver.exchange):
                receiver.end(moving("exchange", receiver.exchange))
        for consumer in self.endpoints.consumers:
            if not self.peers.owns("Endpoint", consumer.endpoint):
                self.endpoints.retire(consumer, moving("endpoint", consumer.endpoint))

    @property
    def members(self) -> int:
        """Number of open channels: of members, receivers and consumers."""
        return len(self.core.members) + len(self.exchanges.receivers) + len(self.endpoints.consumers)

    def require_place(self) -> None:
        """Raise :class:`Refused` when the gateway has as many members as it may have."""
        if self.members >= self.limits.members:
            raise busy(f"this gateway has {self.members} members, which is its limit; try another gateway")

    def check(self, token: str, access: str, kind: str, path: str) -> None:
        """Raise :class:`Refused` unless the bearer of a token has this access to an object."""
        with self._counted_refusals():
            self.access.check(token, access, kind, path, time.time())

    def check_token(self, token: str) -> None:
        """Raise :class:`Refused` unless a token is valid."""
        with self._counted_refusals():
            self.access.check_token(token, time.time())

    @contextlib.contextmanager
    def _counted_refusals(self) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            self.figures.token(str(refused), time.monotonic())
            raise

    def report(self) -> dict[str, Any]:
        """The figures of this moment for the driver, as JSON-ready values; the fields of ``GatewayStatus``."""
        core, figures, now = self.core, self.figures, time.monotonic()
        return {
            "generation": core.requests.generation,
            "members": self.members,
            "requests": len(core.calls),
            "oldest_request": figures.oldest_call(now),
            "deliveries": sum(member.open_deliveries for member in core.members.values()),
            "queued": len(self.queue),
            "refused_age": figures.refused_age(now),
            "refused_reason": figures.refused_reason,
            "open_stages": figures.oldest_deliveries(core.members.values(), now),
            "counts": dict(figures.counts),
        }

    def _ended(self, error: BaseException | None) -> None:
        if error is not None:
            self.end("it has failed, and is started again")
            self.failed(error)

    async def _follow_commits(self) -> None:
        while True:
            newest = await self.calls.call(self.files.committed)
            if newest is not None and newest != self._position:
                await self._take_batches(newest)
                continue
            # In a thread: on a hung mount, a look at a folder blocks.
            await self.calls.call(self.files.await_commit)

    async def _take_batches(self, newest: int) -> None:
        for batch in range(-1 if self._position is None else self._position, newest):
            for instruction, records in await self.calls.call(self.files.messages, batch + 1):
                self.figures.counts["deliveries"] += isinstance(instruction, DeliverRecords | DeliverInputs)
                self.core.handle(instruction, records)
            self._position = batch + 1
        if self.queue.asks_what_is_read:
            self.queue.read_to(await self.calls.call(self.files.read_to, newest))

    async def _follow_schedules(self) -> None:
        """Send the messages of schedules to the exchanges that this gateway owns, and end the rests of consumers."""
        times = ExchangeTimes(round(self.clock() * 1000))
        problems: tuple[str, ...] = ()
        while True:
            self.endpoints.rested()
            for path, event in times.due(self.core.schema, round(self.clock() * 1000)):
                if self.peers.owns("Exchange", path):
                    groups = self.exchanges.send(path, to_wire(event))
                    log.debug("%s %s was sent to %d groups of exchange %s", event.source, event.id, groups, path)
            for problem in times.problems:
                if problem not in problems:
                    log.error("gateway %s: %s; everything else goes on", self.name, problem)
            problems = times.problems
            following = times.next()
            wait = FOLLOW_SECONDS if following is None else following / 1000 - self.clock()
            await asyncio.sleep(min(FOLLOW_SECONDS, max(0.0, wait)))

    async def _follow_rules(self) -> None:
        """Follow the schema and the tokens. They must be readable: with rules that are not known nobody is let in."""
        failing: float | None = None
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                await self.take_rules()
                failing = None
            except CheckpointError as error:
                failing = failing or time.monotonic()
                if time.monotonic() - failing > RULES_SECONDS:
                    raise
                log.warning("gateway %s cannot read its rules, and tries again: %s", self.name, error)

    async def take_rules(self) -> None:
        """Look at the schema and the tokens now."""
        stored = await self.calls.call(self.files.schema, self.core.schema.version)
        schema = self.core.schema if stored is None else SchemaView.of(stored)
        kept = await self.calls.call(self.files.tokens) if schema.tokens else {}
        self.access = AccessRules(schema.tokens, kept)
        if stored is not None:
            self.queue.add(self.core.schema_changed(schema))
        for changed in list(self.rules_changed.values()):
            changed()

    async def _follow_generation(self) -> None:
        """End when another process has taken this gateway's place, or the inbox is lost; without a write nothing else
        would show it."""
        while True:
            await asyncio.sleep(GENERATION_SECONDS)
            try:
                superseded = await self.calls.call(self.files.superseded)
            except CheckpointError as error:
                if error.code == "inbox-lost":
                    raise
                continue
            if superseded:
                raise PipelineError(
                    f"gateway {self.name}: another process has begun a newer generation than "
                    f"{self.core.requests.generation}; this one ends",
                    code="inbox-superseded",
                )
