"""All sessions of connectors at a gateway, and the limits that they share. Pure.

Source: ``docs/pipelines/bulk.md#limits``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from wallaroo_spark.errors import one_line
from wallaroo_spark.gateway.connectors.gateway_side import SendingSession
from wallaroo_spark.gateway.connectors.session import DoorPhase, DoorSession
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.refusals import Refused, invalid
from wallaroo_spark.gateway.state.access import PUBLISH, AccessRules
from wallaroo_spark.gateway.state.core import GatewayCore
from wallaroo_spark.gateway.state.requests import RequestsInFlight, ToInbox
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.protocol import Fault, broken, reasons
from wallaroo_spark.protocol.framing import Finder

log = one_line(logging.getLogger("wallaroo_spark.gateway"))

LARGEST_WINDOW = 16_384
"""The largest window of a session, in messages. A choice: half a second of 30,000 messages a second."""
SMALLEST_WINDOW = 64
"""The smallest window of a session. A choice: with fewer, a session would wait for a commit after a few messages."""


class ConnectorDoor:
    """The sessions of connectors at one gateway. For them it is the :class:`.gateway_side.GatewaySide`.

    ``core`` and ``access`` return the gateway's state and its rules, which change; ``now`` is the time in seconds since
    1970 UTC.
    """

    def __init__(
        self,
        limits: GatewayLimits,
        core: Callable[[], GatewayCore],
        access: Callable[[], AccessRules],
        now: Callable[[], float],
        find: Finder | None = None,
    ) -> None:
        self.limits = limits
        self.find = find
        self.held_messages = 0
        """Messages of all sessions that are not committed."""
        self.held_bytes = 0
        """Bytes of their payloads."""
        self._core = core
        self._access = access
        self._now = now
        self._sessions: dict[int, DoorSession] = {}
        self._senders: dict[tuple[str, str], SendingSession] = {}
        self._pending: dict[int, int] = {}
        self._unfinished = 0
        self._last = 0
        self._ended = ""

    def __iter__(self) -> Iterator[DoorSession]:
        return iter([*self._sessions.values()])

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def requests(self) -> RequestsInFlight:
        """The requests of the gateway."""
        return self._core().requests

    @property
    def full(self) -> bool:
        """Whether so much is not committed that no connector is read from."""
        return self.held_bytes >= self.limits.connector_bytes

    def connect(self, peer: str, changed: Callable[[], None]) -> DoorSession:
        """A connector has connected. Its session may have ended at once."""
        self._last += 1
        session = DoorSession(self._last, peer, self, changed)
        if self._ended or len(self._sessions) >= 2 * self.limits.connectors:
            session.fail(reasons.later(self._ended or f"the gateway has {len(self._sessions)} connections"))
        self._sessions[session.number] = session
        return session

    def receive(self, session: DoorSession, data: bytes) -> list[ToInbox]:
        """A connector has sent bytes. Returns events for the inbox."""
        events = session.receive(data)
        self._weigh(session, session.pending)
        if self._unfinished > self.limits.unfinished_bytes and session.pending:
            session.fail(
                reasons.later(
                    f"the connectors of this gateway have sent {self._unfinished} bytes of incomplete frames, and "
                    f"{self.limits.unfinished_bytes} are permitted"
                )
            )
            self._weigh(session, 0)
        return events

    def disconnect(self, session: DoorSession, problem: str = "") -> None:
        """The connection of a session has ended."""
        if session.phase is not DoorPhase.ENDED:
            self.log(session, f"has disconnected{': ' if problem else ''}{problem}")
            session.close()
        del self._sessions[session.number]
        self._weigh(session, 0)
        del self._pending[session.number]
        for name in [name for name, sender in self._senders.items() if sender is session]:
            del self._senders[name]

    def _weigh(self, session: DoorSession, pending: int) -> None:
        self._unfinished += pending - self._pending.get(session.number, 0)
        self._pending[session.number] = pending

    def end(self, reason: str) -> None:
        """The gateway ends: every connector is asked to connect again."""
        self._ended = self._ended or reason
        for session in self:
            session.send_off(reason)

    def check_token(self, token: str) -> None:
        """See :class:`.gateway_side.GatewaySide`."""
        self._access().check_token(token, self._now())

    def check(self, token: str, stream: str) -> None:
        """See :class:`.gateway_side.GatewaySide`."""
        self._access().check(token, PUBLISH, "Stream", stream, self._now())

    def keys(self, token: str) -> Iterable[PartitionKey]:
        """See :class:`.gateway_side.GatewaySide`."""
        permitted: dict[str, bool] = {}
        for key in self._core().schema.keys:
            if key.stream not in permitted:
                permitted[key.stream] = self._permits(token, key.stream)
            if permitted[key.stream]:
                yield key

    def _permits(self, token: str, stream: str) -> bool:
        try:
            self.check(token, stream)
        except Refused:
            return False
        return True

    def require_partition(self, stream: str, partition: int) -> None:
        """See :class:`.gateway_side.GatewaySide`."""
        partitions = self._core().schema.stream(stream).partitions
        if partition >= partitions:
            raise invalid(
                f"stream {stream} has {partitions} partitions, from 0, and the name of the connector stream asks for "
                f"{partition}; write {stream}#0, for example"
            )

    def require_room(self) -> None:
        """See :class:`.gateway_side.GatewaySide`."""
        others = sum(one.phase in (DoorPhase.ASKING, DoorPhase.STREAMING) for one in self._sessions.values())
        if others >= self.limits.connectors:
            why = f"this gateway has {others} sessions of connectors, which is its limit; another gateway may have room"
            raise broken(Fault.WORKER_FULL, reasons.later(why))

    def window(self) -> int:
        """See :class:`.gateway_side.GatewaySide`."""
        share = self.limits.connector_messages // max(1, len(self._sessions))
        return max(SMALLEST_WINDOW, min(LARGEST_WINDOW, share))

    def uncommitted(self, messages: int, size: int) -> None:
        """See :class:`.gateway_side.GatewaySide`."""
        self.held_messages += messages
        self.held_bytes += size

    def opened(self, session: SendingSession, name: str) -> None:
        """See :class:`.gateway_side.GatewaySide`."""
        before = self._senders.get((session.instance, name))
        if before is not None and before is not session:
            before.superseded(session.peer)
        self._senders[session.instance, name] = session

    def log(self, session: SendingSession, text: str, *, warning: bool = False) -> None:
        """See :class:`.gateway_side.GatewaySide`."""
        log.log(logging.WARNING if warning else logging.INFO, "%s %s", session, text)
