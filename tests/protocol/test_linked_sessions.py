"""A connector and a worker joined by two byte streams, driven through random legal histories with random splits.

Two races that the protocol itself leaves open are kept out, because they rightly end a session: a NACK that crosses the
NOTIFY of a stream ended before, and the end of a v3 stream whose needless second NOTIFY is not answered yet.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.protocol.pairs import COOKIE, VERSION, admit, connector_events
from tests.protocol.strategies import steady
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    V3,
    ConnectorSession,
    Flags,
    Hello,
    Message,
    MessageRun,
    Nack,
    Notify,
    NotifyAck,
    NotifyReceived,
    Restart,
    Revision,
    SessionState,
    StreamEvent,
    StreamState,
    WorkerEvent,
    WorkerSession,
)

pytestmark = pytest.mark.no_cover

STREAMS = (1, 2, 3)
EPHEMERAL_STREAM = 1
EVERYTHING = 1 << 20
splits = st.just(EVERYTHING) | st.integers(1, 60)


class LinkedSessions(RuleBasedStateMachine):
    """``up`` is on its way to the worker, ``down`` to the connector."""

    revision: ClassVar[Revision]

    def __init__(self) -> None:
        super().__init__()
        self.connector = ConnectorSession(self.revision)
        self.worker = WorkerSession(version=VERSION, cookie=COOKIE)
        self.up = bytearray(self.connector.hello(version=VERSION, cookie=COOKIE, program="program", instance="shop-1"))
        self.down = bytearray()
        self.sent: list[bytes] = []
        self.arrived: list[bytes] = []
        self.ignored: set[int] = set()
        self.nacked: set[int] = set()
        self.notified = 0
        self.unanswered: Counter[int] = Counter()
        self.reopening: Counter[int] = Counter()
        self.nacks_coming: Counter[int] = Counter()

    @initialize(size=splits)
    def shake_hands(self, size: int) -> None:
        while self.up or self.down:
            self.carry_up(size, True)
            self.carry_down(size)
        assert self.connector.state is self.worker.state is SessionState.STREAMING

    def to_notify(self) -> list[int]:
        """Streams that the connector may notify now."""
        states = {stream_id: self.connector.streams.get(stream_id).state for stream_id in STREAMS}
        return [
            stream_id
            for stream_id, state in states.items()
            if StreamEvent.NOTIFY in self.revision.streams[state]
            and not (state is StreamState.CLOSED and self.nacks_coming[stream_id])
        ]

    def to_send(self) -> list[int]:
        """Streams that the connector may send a message of now."""
        return [n for n in STREAMS if self.connector.is_open(n)] if self.connector.credits.available > 0 else []

    def to_end(self) -> list[int]:
        """Streams that the connector may end now; a closing boundary is not ephemeral, so EPHEMERAL ones never."""
        payable = self.connector.credits.available > 0 or not self.connector.end_costs_credit
        able = [n for n in STREAMS if self.connector.is_open(n) and n != EPHEMERAL_STREAM]
        return [n for n in able if self.revision is not V3 or not self.unanswered[n]] if payable else []

    def to_rewind(self) -> list[int]:
        """Streams that the worker may NACK now."""
        states = {n: self.worker.streams.get(n).state for n in STREAMS if not self.reopening[n]}
        return [n for n, state in states.items() if StreamEvent.NACK in self.revision.streams[state]]

    @precondition(lambda self: self.to_notify())
    @rule(data=st.data())
    def notify(self, data: st.DataObject) -> None:
        stream_id = data.draw(st.sampled_from(self.to_notify()))
        if self.connector.streams.get(stream_id).state is StreamState.CLOSED:
            self.reopening[stream_id] += 1
        self.up += self.connector.notify(stream_id, f"stream-{stream_id}")
        self.unanswered[stream_id] += 1
        self.notified += 1

    @precondition(lambda self: self.to_send())
    @rule(data=st.data(), count=st.integers(1, 5), last=st.integers(0, 3))
    def send(self, data: st.DataObject, count: int, last: int) -> None:
        """Messages as far as there are credits; in the drafts the last one may end the stream."""
        stream_id = data.draw(st.sampled_from(self.to_send()))
        while count and stream_id in self.to_send():
            count -= 1
            flags = Flags.EOS if not last and not count else Flags.NONE
            if stream_id == EPHEMERAL_STREAM:
                flags |= Flags.EPHEMERAL
            payload = b"%d of stream %d" % (len(self.sent), stream_id)
            message = Message(stream_id, len(self.sent), payload, Flags.NONE if self.revision is V3 else flags)
            self.up += self.connector.message(message)
            self.sent.append(payload)

    @precondition(lambda self: self.to_end())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.up += self.connector.end_of_stream(data.draw(st.sampled_from(self.to_end())), len(self.sent))
        if self.connector.end_costs_credit:
            self.sent.append(b"")

    @rule(credits=st.integers(0, 9), references=st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(0, 99))))
    def acknowledge(self, credits: int, references: list[tuple[int, int]]) -> None:
        self.down += self.worker.ack(credits, references)

    @precondition(lambda self: self.to_rewind())
    @rule(data=st.data(), credits=st.integers(0, 3))
    def rewind(self, data: st.DataObject, credits: int) -> None:
        stream_id = data.draw(st.sampled_from(self.to_rewind()))
        self.down += self.worker.nack(stream_id, 3, credits)
        self.nacks_coming[stream_id] += 1
        self.nacked.add(stream_id)

    @precondition(lambda self: self.up)
    @rule(size=splits, accept=st.booleans())
    def carry_up(self, size: int, accept: bool) -> None:
        """Some bytes reach the worker."""
        self.worker.receive(bytes(self.up[:size]))
        del self.up[:size]
        while (event := self.worker.next_event()) is not None:
            self.worker_hears(event, accept)

    def worker_hears(self, event: WorkerEvent, accept: bool) -> None:
        match event:
            case Hello():
                self.down += self.worker.ok(10)
            case NotifyReceived(notify, already_open):
                self.reopening[notify.stream_id] = 0
                if self.revision.has(NotifyAck):
                    success = accept and not already_open
                    self.down += self.worker.notify_ack(notify.stream_id, None, success=success)
            case MessageRun() as run:
                admission = admit(self.worker, event)
                assert (admission.error, admission.end) == (None, run.count)
                self.ignored |= admission.ignored
                self.arrived += [message.payload or b"" for message in run.messages()]

    @precondition(lambda self: self.down)
    @rule(size=splits)
    def carry_down(self, size: int) -> None:
        """Some bytes reach the connector."""
        self.connector.receive(bytes(self.down[:size]))
        del self.down[:size]
        for frame in connector_events(self.connector):
            if isinstance(frame, NotifyAck):
                self.unanswered[frame.stream_id] -= 1
            elif isinstance(frame, Nack):
                self.nacks_coming[frame.stream_id] -= 1

    @rule()
    def fall_quiet(self) -> None:
        """Everything arrives, and both ends agree."""
        while self.up or self.down:
            self.carry_up(EVERYTHING, True)
            self.carry_down(EVERYTHING)
        ours, theirs = self.connector.credits, self.worker.credits
        assert (ours.available, ours.granted, ours.spent) == (theirs.available, theirs.granted, theirs.spent)
        assert self.arrived == self.sent
        assert [(s.stream_id, s.state, s.resets) for s in self.connector.streams] == [
            (s.stream_id, s.state, s.resets) for s in self.worker.streams
        ]

    @invariant()
    def credits_add_up(self) -> None:
        for window in (self.connector.credits, self.worker.credits):
            assert window.available == window.granted - window.spent
            assert window.available >= -self.notified
            # Only NOTIFYs can be spent beyond the granted credits.
            assert window.spent - self.notified <= window.granted
        assert self.worker.credits.spent <= self.connector.credits.spent
        assert self.connector.credits.granted <= self.worker.credits.granted

    @invariant()
    def messages_arrive_in_order(self) -> None:
        assert self.arrived == self.sent[: len(self.arrived)]
        assert self.ignored <= self.nacked

    def teardown(self) -> None:
        self.fall_quiet()
        if self.revision.has(Restart):
            self.down += self.worker.restart()
            self.up += self.revision.encode(Notify(9, "on its way"))
            self.fall_quiet()
            assert self.connector.state is self.worker.state is SessionState.RESTARTING


class LinkedDraftLe(LinkedSessions):
    revision = DRAFT_LE


class LinkedDraftBe(LinkedSessions):
    revision = DRAFT_BE


class LinkedV3(LinkedSessions):
    revision = V3


TestDraftLe = LinkedDraftLe.TestCase
TestDraftBe = LinkedDraftBe.TestCase
TestV3 = LinkedV3.TestCase
TestDraftLe.settings = TestDraftBe.settings = TestV3.settings = settings(
    steady, max_examples=50, stateful_step_count=60
)
