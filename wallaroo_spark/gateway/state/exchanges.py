"""Exchanges: a copy of each message to one receiver of every group; nothing is kept. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wallaroo_spark.api import cloudevents_pb2 as wire
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.refusals import Refused
from wallaroo_spark.gateway.state.byte_budget import ByteBudget


@dataclass(eq=False)
class ExchangeReceiver:
    """A client that receives the messages of an exchange as a member of a group."""

    exchange: str
    """Path of the exchange."""
    group: str
    """Name of the group."""
    changed: Callable[[], None]
    """Called when a message waits, or the receiver has ended."""
    ended: Refused | None = None
    """Why it ends; None while it lives."""
    waiting: deque[wire.CloudEvent] = field(default_factory=deque)
    """The messages for it."""
    bytes: int = 0
    """Their bytes."""
    budget: ByteBudget | None = None
    """The bytes that wait for all clients, which those of this one are a part of."""

    def take(self) -> wire.CloudEvent | None:
        """The next message; None when there is none."""
        if not self.waiting:
            return None
        event = self.waiting.popleft()
        self.count(-event.ByteSize())
        return event

    def count(self, size: int) -> None:
        """So many more bytes wait."""
        self.bytes += size
        if self.budget is not None:
            self.budget.add(size)

    def end(self, problem: Refused) -> None:
        """End the channel with an error."""
        self.ended = self.ended or problem
        self.changed()


class Exchanges:
    """The receivers of all exchanges that this gateway owns. ``choose`` draws one of some receivers."""

    def __init__(
        self,
        limits: GatewayLimits,
        choose: Callable[[Sequence[ExchangeReceiver]], ExchangeReceiver],
        budget: ByteBudget | None = None,
    ) -> None:
        self._limits = limits
        self._budget = budget or ByteBudget(limits.ephemeral_bytes)
        self._choose = choose
        self._groups: dict[str, dict[str, list[ExchangeReceiver]]] = {}

    @property
    def receivers(self) -> list[ExchangeReceiver]:
        """All receivers."""
        return [one for groups in self._groups.values() for receivers in groups.values() for one in receivers]

    def join(self, exchange: str, group: str, changed: Callable[[], None]) -> ExchangeReceiver:
        """Add a receiver."""
        receiver = ExchangeReceiver(exchange, group, changed, budget=self._budget)
        self._groups.setdefault(exchange, {}).setdefault(group, []).append(receiver)
        return receiver

    def leave(self, receiver: ExchangeReceiver) -> None:
        """Remove a receiver; the messages that wait for it are lost."""
        receiver.waiting.clear()
        receiver.count(-receiver.bytes)
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
            free = [one for one in receivers if one.ended is None and self._has_room(one, size)]
            if free:
                chosen = self._choose(free)
                chosen.waiting.append(event)
                chosen.count(size)
                chosen.changed()
                got += 1
        return got

    def _has_room(self, receiver: ExchangeReceiver, size: int) -> bool:
        limits = self._limits
        if not self._budget.has_room(size):
            return False
        return not receiver.waiting or (
            len(receiver.waiting) < limits.exchange_messages and receiver.bytes + size <= limits.waiting_bytes
        )
