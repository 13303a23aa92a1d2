"""A worker's state as a pure machine: events in, instructions out; no socket, Redis, thread or clock.

``handle`` takes an event of :mod:`.events` and returns instructions that the shell carries out in their order. Bad
input from one session ends that session and touches nothing of another.
Source: ``design.md``, rules 1 to 7; ``protocol.md``, sections Session states, Rewinding and the rulings on references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from wallaroo_spark.columnar import by_stream, decode_run
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import (
    EosReceived,
    ErrorReceived,
    Fault,
    HelloReceived,
    MessageRun,
    MessagesReceived,
    Nack,
    Notify,
    NotifyReceived,
    Restart,
    StreamReference,
    StreamState,
    WorkerEvent,
    WorkerSession,
    broken,
    reasons,
)
from wallaroo_spark.worker import events as e
from wallaroo_spark.worker.buffer import Buffer
from wallaroo_spark.worker.connection import Client, Phase
from wallaroo_spark.worker.flow import FlowControl
from wallaroo_spark.worker.ledger import Ledger, Origin, StreamKey

LEAVING_SECONDS = 5.0
"""How long a peer has to close after RESTART or ERROR."""


class WorkerState:
    """All that a worker knows. ``cookie`` is the secret itself, not where it is kept."""

    def __init__(self, options: Options, origin: Origin, cookie: str) -> None:
        self.options = options
        self.slot = origin.slot
        self.buffer = Buffer(options.memory_budget, origin, options.message_ids)
        self.flow = FlowControl(options.memory_budget)
        self.clients: dict[int, Client] = {}
        self.claims: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.epoch = 0
        self.batch = -1
        self.ready = False
        self.stopping = ""
        self._cookie = cookie.encode("utf-8")
        self._wanted: frozenset[StreamKey] = frozenset()
        self._now = 0.0
        self._out: list[e.Instruction] = []

    def handle(self, event: e.Event) -> list[e.Instruction]:
        """Take in one event; what is to be done, in order."""
        match event:
            case e.Received():
                self._received(event)
            case e.Connected():
                self._connected(event)
            case e.Disconnected():
                self._disconnected(event)
            case e.Assigned():
                self._assigned(event)
            case e.Claimed():
                self._claimed(event)
            case e.RegistryFailed():
                self._registry_failed(event)
            case e.Committed():
                self._committed(event)
            case e.Rewound():
                self._rewound(event)
            case e.Wanted():
                self._wanted = event.streams
                self._regulate_all()
            case e.Stuck():
                self._stuck(event)
            case e.Tick():
                self._tick(event.now)
            case e.Stopping():
                self._stop(event.reason)
        out, self._out = self._out, []
        return out

    def _connected(self, event: e.Connected) -> None:
        self._now = event.now
        protocol = WorkerSession(
            version=self.options.version, cookie=self._cookie, max_frame_bytes=self.options.max_frame_bytes
        )
        deadline = event.now + self.options.handshake_timeout
        self.clients[event.session] = Client(event.session, event.peer, protocol, deadline)
        self.counts["connections"] += 1
        if len(self.clients) > 2 * self.options.max_sessions:
            self._fault(self.clients[event.session], broken(Fault.WORKER_FULL, "too many connections"), at_once=True)

    def _received(self, event: e.Received) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        self.counts["bytes"] += len(event.data)
        client.last_at = event.received_at
        try:
            client.protocol.receive(event.data)
            while (found := client.protocol.next_event()) is not None:
                self._found(client, found, event.received_at)
        except RemoteProtocolError as error:
            self._fault(client, error)
            return
        if client.to_ask:
            self._out.append(e.AskClaims(client.session, tuple(client.to_ask)))
            client.to_ask.clear()
        self._acknowledge(client)
        self._regulate(client)

    def _found(self, client: Client, found: WorkerEvent, received_at: int) -> None:
        match found:
            case MessagesReceived():
                self._messages(client, found.run, received_at)
            case HelloReceived():
                self._hello(client)
            case NotifyReceived():
                self._notify(client, found)
            case EosReceived():
                self._end(client, self.buffer.ledgers[client.key(found.stream_id)])
            case ErrorReceived():
                self.counts["peer-errors"] += 1
                self._log(client, f"gave up: {found.reason}", Fault.PEER_ERROR)
                self._leave(client)

    def _messages(self, client: Client, run: MessageRun, received_at: int) -> None:
        decoded = decode_run(run, event_time_unit=self.options.event_time_unit)
        admission = client.protocol.admit(decoded.spans, decoded.count, decoded.error)
        parts = by_stream(decoded, end=admission.end, ignored=admission.ignored)
        pairs = [(self.buffer.ledgers[client.key(part.stream_id)], part) for part in parts]
        accepted = self.buffer.append(pairs, received_at, client.instance)
        self.flow.observe(decoded.count, int(decoded.sizes.sum()))
        self.counts["messages"] += accepted
        self.counts["replayed"] += sum(len(part.message_ids) for part in parts) - accepted
        for span in decoded.spans:
            if span.eos is not None and span.eos < admission.end and span.stream_id not in admission.ignored:
                self._end(client, self.buffer.ledgers[client.key(span.stream_id)])
        if accepted:
            self._out.append(e.WakeReaders())
        if admission.error is not None:
            raise admission.error

    def _end(self, client: Client, ledger: Ledger) -> None:
        """A stream has ended; when all of it is committed already, say so once more: the connector waits for it."""
        self.buffer.end(ledger)
        self._out.append(e.WakeReaders())
        reference = self.buffer.reference(ledger.key)
        if ledger.empty and reference is not None:
            self._acknowledge(client, [(ledger.key.stream_id, reference)])

    def _hello(self, client: Client) -> None:
        self._log(client, f"says HELLO in {client.revision.name}")
        client.deadline = None
        serving = sum(c.phase in (Phase.PARKED, Phase.ASKING, Phase.STREAMING) for c in self.clients.values())
        if self.stopping:
            self._refuse(client, reasons.later(self.stopping))
        elif serving >= self.options.max_sessions:
            why = f"the worker of slot {self.slot} has {serving} sessions and takes no more (maxSessions)"
            self._fault(client, broken(Fault.WORKER_FULL, reasons.later(why)))
        elif self.ready:
            self._ask_assignment(client)
        else:
            client.phase = Phase.PARKED

    def _ask_assignment(self, client: Client) -> None:
        client.phase = Phase.ASKING
        self._out.append(e.AskAssignment(client.session, client.instance))

    def _assigned(self, event: e.Assigned) -> None:
        client = self.clients.get(event.session)
        if client is None or client.phase is not Phase.ASKING:
            return
        if event.slot == self.slot:
            self._accept(client)
            return
        why = f"instance {client.instance!r} belongs to slot {event.slot}"
        if event.address is None:
            self._refuse(client, reasons.later(f"{why}, which has no worker right now"))
        elif client.revision.restart_names_worker:
            self._log(client, f"goes to {event.address}: {why}")
            self._send(client, client.protocol.restart(event.address))
            self._leave(client, wait=True)
        else:
            self._refuse(client, reasons.redirect(event.address, why))

    def _accept(self, client: Client) -> None:
        by_instance = client.revision.stream_scope == "instance"
        if by_instance:
            for other in [c for c in self._streaming() if c.instance == client.instance and c is not client]:
                if other.revision.stream_scope == "instance":
                    why = f"a newer session of instance {client.instance!r}, from {client.peer}, takes its place"
                    self._fault(other, broken(Fault.SUPERSEDED, why))
        client.phase = Phase.STREAMING
        references = []
        for key, reference in self.buffer.resumable(client.instance) if by_instance else ():
            ledger = self.buffer.ledgers.get(key)
            references.append(StreamReference(key.stream_id, reference, ledger.name if ledger else ""))
        window = self.flow.window(self.buffer.used, len(self._streaming()))
        self._send(client, client.protocol.ok(window, references))
        self._regulate(client)

    def _notify(self, client: Client, event: NotifyReceived) -> None:
        notify, key = event.notify, client.key(event.notify.stream_id)
        if client.revision.stream_scope == "instance":
            self._open(client, notify)
        elif event.already_open or self._taken(client, key):
            self._send(client, client.protocol.notify_ack(notify.stream_id, self.buffer.reference(key), success=False))
        elif notify.stream_id in self.claims:
            self._open_claimed(client, notify)
        else:
            client.asked[notify.stream_id] = notify
            client.to_ask.append(notify.stream_id)

    def _taken(self, client: Client, key: StreamKey) -> bool:
        """Whether another session here has the stream, or what it sent is still needed by it."""
        if any(key.stream_id in other.asked for other in self.clients.values() if other is not client):
            return True
        ledger = self.buffer.ledgers.get(key)
        if ledger is None or ledger.owner in (None, client.session):
            return False
        owner = self.clients[ledger.owner] if ledger.owner is not None else client
        return not ledger.empty or owner.protocol.streams.get(key.stream_id).state is not StreamState.CLOSED

    def _claimed(self, event: e.Claimed) -> None:
        self.claims |= event.granted
        client = self.clients.get(event.session)
        for stream_id in event.asked:
            notify = client.asked.pop(stream_id, None) if client else None
            if client is None or notify is None:
                self._release(stream_id)
            elif stream_id in event.granted:
                self._open_claimed(client, notify)
            else:
                reference = self.buffer.reference(client.key(stream_id))
                self._send(client, client.protocol.notify_ack(stream_id, reference, success=False))
        if client:
            self._acknowledge(client)

    def _open_claimed(self, client: Client, notify: Notify) -> None:
        self._open(client, notify)
        reference = self.buffer.reference(client.key(notify.stream_id))
        self._send(client, client.protocol.notify_ack(notify.stream_id, reference, success=True))

    def _open(self, client: Client, notify: Notify) -> None:
        ledger = self.buffer.open(client.key(notify.stream_id), notify.name, notify.ref)
        ledger.owner = client.session
        client.streams.add(ledger.key)
        self._regulate(client)

    def _registry_failed(self, event: e.RegistryFailed) -> None:
        client = self.clients.get(event.session)
        self.counts["registry-failures"] += 1
        if client is None:
            return
        if not event.streams:
            self._refuse(client, reasons.later(f"the registry does not answer: {event.reason}"))
            return
        self._log(client, f"streams {list(event.streams)} are refused: the registry does not answer: {event.reason}")
        self._claimed(e.Claimed(event.session, event.streams, frozenset()))

    def _committed(self, event: e.Committed) -> None:
        if event.epoch != self.epoch or event.batch <= self.batch:
            self.counts["stale-commits"] += 1
            return
        self.batch = event.batch
        self._moved(self.buffer.commit(event.references))

    def _rewound(self, event: e.Rewound) -> None:
        if event.epoch < self.epoch or (event.epoch == self.epoch and event.batch < self.batch):
            self.counts["stale-commits"] += 1
            return
        before = {ledger.key: ledger.committed for ledger in self.buffer.ledgers.values()}
        rewound = self.buffer.rewind(event.references)
        self.epoch, self.batch, self.ready = event.epoch, event.batch, True
        self._ask_again(rewound)
        behind = {ledger.key for ledger in rewound}
        ledgers = [ledger for ledger in self.buffer.ledgers.values() if ledger.key not in behind]
        self._moved([ledger for ledger in ledgers if ledger.committed != before[ledger.key]])
        for client in [c for c in self.clients.values() if c.phase is Phase.PARKED]:
            self._ask_assignment(client)

    def _ask_again(self, ledgers: Iterable[Ledger]) -> None:
        """Make the senders of these go back: NACK where the revision has it, else RESTART of their session."""
        restarted = set()
        for ledger in ledgers:
            client = self.clients.get(ledger.owner) if ledger.owner is not None else None
            if client is None or client.phase is not Phase.STREAMING:
                continue
            stream_id, reference = ledger.key.stream_id, self.buffer.reference(ledger.key)
            if client.revision.has(Nack):
                self._log(client, f"must send stream {stream_id} again behind {reference}")
                self._send(client, client.protocol.nack(stream_id, reference))
            elif client.session not in restarted:
                restarted.add(client.session)
                self._log(client, "must connect again: the query went back")
                self._send(client, client.protocol.restart())
                self._leave(client, wait=True)

    def _moved(self, ledgers: Iterable[Ledger]) -> None:
        """Tell the senders what is committed, forget what nobody needs, and let more in."""
        references: dict[int, list[tuple[int, int]]] = {}
        for ledger in ledgers:
            reference = self.buffer.reference(ledger.key)
            if ledger.owner is not None and reference is not None:
                references.setdefault(ledger.owner, []).append((ledger.key.stream_id, reference))
            elif ledger.owner is None:
                self._tidy(ledger)
        for client in self._streaming():
            self._acknowledge(client, references.get(client.session, ()))
        self._regulate_all()
        self._out.append(e.WakeReaders())

    def _acknowledge(self, client: Client, references: Iterable[tuple[int, int]] = ()) -> None:
        """One ACK with these committed references and the credits that are due; none when there is neither."""
        if client.phase is not Phase.STREAMING:
            return
        pairs = tuple(references)
        credits = self.flow.top_up(
            client.protocol.credits.available, self.buffer.used, len(self._streaming()), needed=self._needed(client)
        )
        if pairs or credits:
            self._send(client, client.protocol.ack(credits, pairs))

    def _streaming(self) -> list[Client]:
        return [client for client in self.clients.values() if client.phase is Phase.STREAMING]

    def _needed(self, client: Client) -> bool:
        """Whether a waiting read may need this session; one that has opened no stream yet may."""
        return not client.streams or not self._wanted.isdisjoint(client.streams)

    def _regulate(self, client: Client) -> None:
        streaming = client.phase is Phase.STREAMING
        paused = not self.flow.may_read(self.buffer.used, streaming=streaming, needed=self._needed(client))
        if paused != client.paused:
            client.paused = paused
            self._out.append(e.PauseReading(client.session) if paused else e.ResumeReading(client.session))
            if not paused:
                self._acknowledge(client)

    def _regulate_all(self) -> None:
        for client in self.clients.values():
            self._regulate(client)

    def _stuck(self, event: e.Stuck) -> None:
        client = self.clients.get(event.session)
        if client is not None:
            reason = f"does not read: {event.queued} bytes wait for it"
            self._fault(client, broken(Fault.PEER_NEVER_READS, reason), at_once=True)

    def _tick(self, now: float) -> None:
        self._now = now
        for client in [c for c in self.clients.values() if c.deadline is not None and c.deadline <= now]:
            if client.phase is Phase.LEAVING:
                self._out.append(e.Close(client.session, at_once=True))
                client.deadline = None
            else:
                seconds = self.options.handshake_timeout
                reason = f"no HELLO came within {seconds:g} seconds (handshakeTimeout)"
                self._fault(client, broken(Fault.HANDSHAKE_TIMEOUT, reason))

    def _stop(self, reason: str) -> None:
        self.stopping = reason
        for client in list(self.clients.values()):
            if client.phase is Phase.STREAMING and client.revision.has(Restart):
                self._send(client, client.protocol.restart())
                self._leave(client, wait=True)
            elif client.phase is not Phase.LEAVING:
                self._refuse(client, reasons.later(reason))

    def _disconnected(self, event: e.Disconnected) -> None:
        client = self.clients.get(event.session)
        if client is None:
            return
        reason = event.reason
        try:
            client.protocol.receive_end()
        except RemoteProtocolError as error:
            reason = reason or error.message
            self.counts[f"fault:{Fault.TRUNCATED_FRAME}"] += 1
        self._log(client, f"is gone{': ' + reason if reason else ''}")
        self._let_go(client)
        del self.clients[event.session]
        self._regulate_all()

    def _fault(self, client: Client, error: RemoteProtocolError, *, at_once: bool = False) -> None:
        """A peer broke a rule: tell it why where it can be told, close, and count."""
        fault = error.fields["fault"]
        self.counts[f"fault:{fault}"] += 1
        self._log(client, f"is sent away: {error.message}", fault)
        data = client.protocol.fail(error.message)
        if data is not None and not at_once:
            self._send(client, data)
        self._leave(client, at_once=at_once)

    def _refuse(self, client: Client, reason: str) -> None:
        """End a session that did nothing wrong."""
        self._log(client, f"is refused: {reason}")
        data = client.protocol.error(reason)
        if data is not None:
            self._send(client, data)
        self._leave(client)

    def _leave(self, client: Client, *, wait: bool = False, at_once: bool = False) -> None:
        """The session is over: close now, or after the peer did (``wait``)."""
        self._let_go(client)
        client.phase = Phase.LEAVING
        client.deadline = self._now + LEAVING_SECONDS
        if client.paused:
            client.paused = False
            self._out.append(e.ResumeReading(client.session))
        if not wait:
            self._out.append(e.Close(client.session, at_once))

    def _let_go(self, client: Client) -> None:
        keys, client.streams = client.streams, set()
        client.asked.clear()
        for key in keys:
            ledger = self.buffer.ledgers.get(key)
            if ledger is not None and ledger.owner == client.session:
                ledger.owner = None
                self._tidy(ledger)

    def _tidy(self, ledger: Ledger) -> None:
        """Forget a stream that nobody sends and of which nothing is held; another worker may have it now."""
        if ledger.owner is None and ledger.empty and ledger.key in self.buffer.ledgers:
            self.buffer.forget(ledger)
            self._release(ledger.key.stream_id if not ledger.key.scope else None)

    def _release(self, stream_id: int | None) -> None:
        if stream_id in self.claims and StreamKey("", stream_id) not in self.buffer.ledgers:
            self.claims.discard(stream_id)
            self._out.append(e.ReleaseClaims((stream_id,)))

    def _send(self, client: Client, data: bytes) -> None:
        self._out.append(e.Send(client.session, data))

    def _log(self, client: Client, text: str, fault: Fault | None = None) -> None:
        self._out.append(e.Log(client.session, f"{client} {text}", fault))

    def instances(self) -> list[str]:
        """The connector instances that are connected, or of which something is held."""
        names = {client.instance for client in self._streaming()}
        return sorted(names | {key.scope for key in self.buffer.ledgers if key.scope})

    def activity(self) -> list[dict[str, Any]]:
        """Each connected instance: when it last sent anything (µs since 1970 UTC), and how many streams it has open."""
        return [
            {
                "instance": client.instance,
                "last_at": client.last_at,
                "open": sum(not self.buffer.ledgers[key].ended for key in client.streams),
                "streams": len(client.streams),
            }
            for client in self._streaming()
        ]

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as JSON-ready values; bytes and counts."""
        return {
            "slot": self.slot,
            "ready": self.ready,
            "epoch": self.epoch,
            "batch": self.batch,
            "sessions": len(self._streaming()),
            "instances": self.instances(),
            "streams": len(self.buffer.ledgers),
            "buffered_bytes": self.buffer.used,
            "budget_bytes": self.buffer.budget,
            "pressure": self.flow.pressure(self.buffer.used).name.lower(),
            "counts": dict(self.counts),
        }

    def validate(self) -> None:
        """Check what must always hold; every test fixture ends with it."""
        self.buffer.validate()
        for client in self.clients.values():
            assert client.phase is not Phase.LEAVING or not client.streams, client
            for key in client.streams:
                assert self.buffer.ledgers[key].owner == client.session, (client, key)
        for ledger in self.buffer.ledgers.values():
            assert ledger.owner is None or ledger.key in self.clients[ledger.owner].streams, ledger
            assert ledger.owner is not None or not ledger.empty, ledger
            assert ledger.key.scope or ledger.key.stream_id in self.claims, ledger
