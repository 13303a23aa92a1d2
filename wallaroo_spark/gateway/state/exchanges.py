"""Exchanges: a copy of each message to one receiver of every group, and the times of schedules that send to them. Pure.

Nothing is kept. Source: ``docs/pipelines/schema.md#schedules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from wallaroo_spark.api import cloudevents_pb2 as wire
from wallaroo_spark.gateway.limits import ByteBudget, GatewayLimits, Refused, WaitingMessages
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.cron import newest_time, next_time, zone_problem
from wallaroo_spark.pipelines.schema.declarations import ScheduleDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey


@dataclass(eq=False)
class ExchangeReceiver:
    """A client that receives the messages of an exchange as a member of a group."""

    exchange: str
    """Path of the exchange."""
    group: str
    changed: Callable[[], None]
    """Called when a message waits, or the receiver has ended."""
    waiting: WaitingMessages[wire.CloudEvent]
    """The messages for it."""
    ended: Refused | None = None
    """Why it ends; None while it lives."""

    def end(self, problem: Refused) -> None:
        """End the channel with an error."""
        self.ended = self.ended or problem
        self.changed()


@dataclass(eq=False, repr=False)
class Exchanges:
    """The receivers of all exchanges that this gateway owns. ``choose`` draws one of some receivers."""

    limits: GatewayLimits
    choose: Callable[[Sequence[ExchangeReceiver]], ExchangeReceiver]
    budget: ByteBudget
    _groups: dict[str, dict[str, list[ExchangeReceiver]]] = field(default_factory=dict, init=False)

    @property
    def receivers(self) -> list[ExchangeReceiver]:
        """All receivers."""
        return [one for groups in self._groups.values() for receivers in groups.values() for one in receivers]

    def join(self, exchange: str, group: str, changed: Callable[[], None]) -> ExchangeReceiver:
        """Add a receiver."""
        receiver = ExchangeReceiver(exchange, group, changed, WaitingMessages(self.budget))
        self._groups.setdefault(exchange, {}).setdefault(group, []).append(receiver)
        return receiver

    def leave(self, receiver: ExchangeReceiver) -> None:
        """Remove a receiver; the messages that wait for it are lost."""
        receiver.waiting.clear()
        groups = self._groups[receiver.exchange]
        groups[receiver.group].remove(receiver)
        if not groups[receiver.group]:
            del groups[receiver.group]
        if not groups:
            del self._groups[receiver.exchange]

    def send(self, exchange: str, event: wire.CloudEvent) -> int:
        """Give a copy to one receiver of each group that has room; return the number of groups that got one."""
        got, size = 0, event.ByteSize()
        for receivers in self._groups.get(exchange, {}).values():
            room = size, self.limits.exchange_messages, self.limits.waiting_bytes
            free = [one for one in receivers if one.ended is None and one.waiting.has_room(*room)]
            if free:
                chosen = self.choose(free)
                chosen.waiting.add(event)
                chosen.changed()
                got += 1
        return got


@dataclass
class _Upcoming:
    """A schedule, and its next time."""

    schedule: ScheduleDeclaration
    next: int | None
    """The next time, in milliseconds since 1970 UTC; None: there is none within nine years."""

    @property
    def times(self) -> tuple[str, str]:
        """The five fields, and their time zone."""
        return self.schedule.cron, self.schedule.time_zone


class ExchangeTimes:
    """The schedules of exchanges, as a gateway that began at ``began`` sees them.

    Times are milliseconds since 1970 UTC. A time that has passed before the gateway began, or before the schedule or
    its times were applied, does not count. Every gateway counts the times of all schedules, so the next owner of an
    exchange goes on where the last one has gone. A schedule whose time zone this machine does not know has no times; it
    is in :attr:`problems`.
    """

    def __init__(self, began: int) -> None:
        self.problems: tuple[str, ...] = ()
        """A sentence for each schedule that this machine cannot follow."""
        self._began = began
        self._version = 0
        self._schedules: dict[ObjectKey, _Upcoming] = {}

    def due(self, schema: SchemaView, now: int) -> Iterator[tuple[str, CloudEvent]]:
        """The exchange and the event of each schedule whose time has come; of several times only the newest counts."""
        self._follow(schema)
        for one in self._schedules.values():
            if one.next is None or now < one.next:
                continue
            at = newest_time(*one.times, one.next - 1, now)
            one.next = next_time(*one.times, now)
            if at is not None:
                yield one.schedule.target_key.path, one.schedule.occurrence(at)

    def next(self) -> int | None:
        """The earliest time to come; None without one."""
        return min((one.next for one in self._schedules.values() if one.next is not None), default=None)

    def _follow(self, schema: SchemaView) -> None:
        if schema.version == self._version:
            return
        schedules = {
            key: one for key, one in schema.objects.items() if isinstance(one, ScheduleDeclaration) and one.exchange
        }
        unknown = {key: problem for key, one in schedules.items() if (problem := zone_problem(one.time_zone))}
        self.problems = tuple(f"schedule {key.path}: {problem}" for key, problem in sorted(unknown.items()))
        since, before = max(self._began, schema.applied_at), self._schedules
        self._version, self._schedules = schema.version, {}
        for key in (key for key in schedules if key not in unknown):
            found, old = _Upcoming(schedules[key], None), before.get(key)
            found.next = old.next if old is not None and old.times == found.times else next_time(*found.times, since)
            self._schedules[key] = found
