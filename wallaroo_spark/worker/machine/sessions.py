"""The connections of a worker: how they begin, what they are told, and how they end.

The other parts of the worker's state (:mod:`.pressure.gates`, :mod:`.handshake`, :mod:`.streams`, :mod:`.progress`) are
built on this one. Their instructions are gathered in ``out``.

Source: ``docs/protocol.md#session-states`` and ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from wallaroo_spark.columnar import find_messages
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import Fault, Nack, Restart, WorkerSession, broken, reasons
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.held_stream import Ledger
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connections import BEFORE_OK, Client, Phase
from wallaroo_spark.worker.machine.pressure.flow import FlowControl

LEAVING_SECONDS = 5.0
"""How long a peer has to close after RESTART or ERROR."""
LEAST_EARLY, EARLY_PART = 1 << 20, 16
"""The most bytes that all peers without OK may have sent, in bytes and as a part of the budget."""
ACTIVE_SECONDS = 1.0
"""How long a session counts as active after it has sent something."""


class Sessions:
    """Who is connected, and what all parts of the state share: buffer, claims, counts and instructions.

    ``clients`` are all connections, ``serving`` those that have said a good HELLO and have not ended, and ``streaming``
    those of them that have been told OK. ``senders`` are the streaming ones that have an instance for themselves, by
    its name: sessions in a draft. ``assigned`` are the instances that the registry has as this slot's because of us.
    """

    def __init__(self, options: Options, origin: Origin, cookie: str) -> None:
        self.options = options
        self.slot = origin.slot
        self.buffer = Buffer(options.memory_budget, origin, options.message_ids)
        self.flow = FlowControl.of(options)
        self.clients: dict[int, Client] = {}
        self.serving: set[int] = set()
        self.streaming: dict[int, Client] = {}
        self.senders: dict[str, Client] = {}
        self.assigned: set[str] = set()
        self.claims: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.early = 0
        self.turnover = 0
        self.stopping = ""
        self.out: list[e.Instruction] = []
        self._cookie = cookie.encode("utf-8")
        self._now = 0.0

    def connected(self, event: e.Connected) -> None:
        """A peer has connected; it has the handshake timeout to say HELLO."""
        self._now = event.now
        protocol = WorkerSession(
            version=self.options.version,
            cookie=self._cookie,
            max_frame_bytes=self.options.max_frame_bytes,
            find=find_messages,
        )
        deadline = event.now + self.options.handshake_timeout
        self.clients[event.session] = Client(event.session, event.peer, protocol, deadline, event.names)
        self.heard(self.clients[event.session])
        self.counts["connections"] += 1
        if len(self.clients) > 2 * self.options.max_sessions:
            self.fault(self.clients[event.session], broken(Fault.WORKER_FULL, "too many connections"), at_once=True)

    def disconnected(self, event: e.Disconnected) -> None:
        """The connection is gone; either side may have ended it."""
        client = self.clients.get(event.session)
        if client is None:
            return
        reasons_given = [event.reason] if event.reason else []
        truncated = False
        try:
            client.protocol.receive_end()
        except RemoteProtocolError as error:
            truncated = True
            reasons_given.append(error.message)
            self.counts[f"fault:{error.fields['fault']}"] += 1
        self.log(client, ": ".join(["is gone", *reasons_given]), warning=truncated)
        self._let_go(client)
        del self.clients[event.session]

    def stuck(self, event: e.Stuck) -> None:
        """A peer does not read the bytes that are sent to it."""
        client = self.clients.get(event.session)
        if client is not None:
            reason = f"does not read: {event.queued} bytes wait for it"
            self.fault(client, broken(Fault.PEER_NEVER_READS, reason), at_once=True)

    def give_up(self, sessions: Iterable[int], error: Exception) -> None:
        """An error of this program while these sessions were being served: it ends all of them, and no other.

        Their messages may be lost, so they must send them again; parts of the state that were half changed are put in
        order. An error in this method is for the caller to handle, and then the state may be wrong.
        """
        self.counts["internal-errors"] += 1
        cut_off = list(dict.fromkeys(sessions))
        self._put_in_order(cut_off)
        trace: Exception | None = error
        for session in cut_off:
            client = self.clients.get(session)
            if client is None:
                self.out.append(e.Close(session, at_once=True))
            elif client.phase is not Phase.LEAVING:
                self.log(client, f"is cut off: an error of this program: {error!r}", warning=True, error=trace)
                trace = None
                client.protocol.close()
                self.leave(client, at_once=True)
            elif client.deadline is None:
                self.leave(client, at_once=True)
            else:
                # The error may have come while it was let go.
                self._let_go(client)
        for ledger in [ledger for ledger in self.buffer.ledgers.values() if ledger.owner is None]:
            self.tidy(ledger)

    def _put_in_order(self, sessions: Iterable[int]) -> None:
        """Make the parts of the state agree again after an error between them."""
        clients = self.clients
        self.buffer.unfinished = sum(client.unfinished for client in clients.values())
        self.early = sum(client.early for client in clients.values())
        for ledger in self.buffer.ledgers.values():
            if ledger.owner is not None:
                clients[ledger.owner].streams.add(ledger.key)
        mine = [clients[session] for session in sessions if session in clients]
        owned = {key: None for client in mine for key in client.streams}
        # A stream that a session was about to take over is nobody's yet.
        nobodys = {key: None for key, ledger in self.buffer.ledgers.items() if ledger.owner is None}
        self.buffer.recover([self.buffer.ledgers[key] for key in owned | nobodys if key in self.buffer.ledgers])
        for instruction in self.out:
            if isinstance(instruction, e.ReleaseClaims):
                self.claims.difference_update(instruction.streams)

    def dismiss(self, client: Client, reason: str, count: str) -> None:
        """End a session that kept the protocol but asks for more than there is."""
        self.counts[count] += 1
        self.log(client, f"is sent away: {reason}", warning=True)
        data = client.protocol.fail(reason)
        if data is not None:
            self.send(client, data)
        self.leave(client)

    def tick(self, now: float) -> None:
        """Time has passed; end what has lasted too long."""
        self._now = now
        self.flow.active = sum(self._active(client) for client in self.streaming.values())
        self.flow.tick(now, self.buffer.used, self.buffer.plannable)
        for client in [c for c in self.clients.values() if c.deadline is not None and c.deadline <= now]:
            if client.phase is Phase.LEAVING:
                self.out.append(e.Close(client.session, at_once=True))
                client.deadline = None
            else:
                seconds = self.options.handshake_timeout
                reason = f"no HELLO came within {seconds:g} seconds (handshakeTimeout)"
                self.fault(client, broken(Fault.HANDSHAKE_TIMEOUT, reason))

        self._release_instances()
        if self.options.idle_timeout:
            for client in list(self.streaming.values()):
                if client.heard_at + self.options.idle_timeout <= now and not self._awaits(client):
                    seconds = self.options.idle_timeout
                    self.send_off(client, f"nothing was sent for {seconds:g} seconds (idleTimeout)", told=True)

    def instances(self) -> set[str]:
        """The connector instances that are served, or of which rows are held."""
        return {self.clients[session].instance for session in self.serving} | self.buffer.senders()

    def _release_instances(self) -> None:
        """Give back instances that are gone and of which no rows are held: any worker may have them now."""
        if not self.assigned.issubset(self.clients[session].instance for session in self.serving):
            gone = self.assigned - self.instances()
            if gone:
                self.assigned -= gone
                self.out.append(e.ReleaseInstances(tuple(sorted(gone))))

    def _active(self, client: Client) -> bool:
        """Whether a session has sent something recently, or would if it had credits."""
        return client.heard_at + ACTIVE_SECONDS > self._now or client.protocol.credits.available <= 0

    def weigh(self, client: Client) -> None:
        """Count the received bytes of a session's next frame.

        A peer without OK must not be able to fill the buffer, so the bytes of all such peers are counted separately.
        Raises :class:`RemoteProtocolError` when they are too many.
        """
        pending = client.protocol.pending
        unfinished = pending if client.phase is Phase.STREAMING else 0
        early = pending if client.phase in BEFORE_OK else 0
        self.buffer.unfinished += unfinished - client.unfinished
        self.early += early - client.early
        client.unfinished, client.early = unfinished, early
        most = max(LEAST_EARLY, self.buffer.budget // EARLY_PART)
        if early and self.early > most:
            why = f"peers that have not been told OK have sent {self.early} bytes, and {most} are held at once"
            raise broken(Fault.WORKER_FULL, reasons.later(why))

    def heard(self, client: Client) -> None:
        """A peer has sent bytes."""
        client.heard_at = self._now

    def _awaits(self, client: Client) -> bool:
        """Whether a silent peer has a reason: it is not read, or it waits for an ACK."""
        ledgers = (self.buffer.ledgers.get(key) for key in client.streams)
        return client.paused or any(ledger is not None and not ledger.empty for ledger in ledgers)

    def stop(self, reason: str) -> None:
        """The worker is about to leave; every session is told to connect again."""
        self.stopping = reason
        for client in list(self.clients.values()):
            if client.phase is not Phase.LEAVING:
                self.send_off(client, reason)

    def fault(self, client: Client, error: RemoteProtocolError, *, at_once: bool = False) -> None:
        """A peer broke a rule: send it the reason if possible, close, and count."""
        self.counts[f"fault:{error.fields['fault']}"] += 1
        self.log(client, f"is sent away: {error.message}", warning=True)
        data = client.protocol.fail(error.message)
        if data is not None and not at_once:
            self.send(client, data)
        self.leave(client, at_once=at_once)

    def send_off(self, client: Client, why: str, *, told: bool = False) -> None:
        """Make a connector that did nothing wrong connect again, in the way of its revision.

        ``told`` is for reasons that its operator should read: they go into an ERROR wherever an ERROR does not stop the
        connector.
        """
        revision = client.revision if client.phase is Phase.STREAMING else None
        if revision is None or not revision.has(Restart):
            self._nack(client)
            self.refuse(client, reasons.later(why))
        elif revision.back_after_close and self.options.v3_leave == "close":
            self.log(client, f"must connect again: {why}")
            client.protocol.close()
            self.leave(client)
        elif told and not revision.back_after_close:
            self.refuse(client, reasons.later(why))
        else:
            self.log(client, f"must connect again: {why}")
            self.send(client, client.protocol.restart())
            self.leave(client, wait=True)

    def _nack(self, client: Client) -> None:
        """Name the reference from which each stream is to be sent again, where the revision has NACK."""
        if client.phase is Phase.STREAMING and client.revision.has(Nack):
            for key in sorted(client.streams):
                self.send(client, client.protocol.nack(key.stream_id, self.buffer.reference(key)))

    def refuse(self, client: Client, reason: str) -> None:
        """End a session that did nothing wrong."""
        self.log(client, f"is refused: {reason}")
        data = client.protocol.error(reason)
        if data is not None:
            self.send(client, data)
        self.leave(client)

    def leave(self, client: Client, *, wait: bool = False, at_once: bool = False) -> None:
        """The session is over: close now, or after the peer did (``wait``)."""
        client.phase = Phase.LEAVING
        self._let_go(client)
        client.deadline = self._now + LEAVING_SECONDS
        if client.paused:
            client.paused = False
            self.out.append(e.ResumeReading(client.session))
        if not wait:
            self.out.append(e.Close(client.session, at_once))

    def _let_go(self, client: Client) -> None:
        self.serving.discard(client.session)
        self.streaming.pop(client.session, None)
        if self.senders.get(client.instance) is client:
            del self.senders[client.instance]
        self.buffer.unfinished -= client.unfinished
        self.early -= client.early
        client.unfinished, client.early, client.turn = 0, 0, None
        keys, client.streams = client.streams, set()
        client.open.clear()
        client.asked.clear()
        client.to_ask.clear()
        for key in keys:
            ledger = self.buffer.ledgers.get(key)
            if ledger is not None and ledger.owner == client.session:
                ledger.owner = None
                self.turnover += 1
                self.tidy(ledger)

    def tidy(self, ledger: Ledger) -> None:
        """Forget a stream that no session sends and of which no rows are held; another worker may have it now."""
        if not ledger.empty or ledger.key not in self.buffer.ledgers:
            return
        owner = self.clients.get(ledger.owner) if ledger.owner is not None else None
        if owner is not None and not ledger.ended:
            return
        if owner is not None:
            owner.streams.discard(ledger.key)
        self.buffer.forget(ledger)
        self.turnover += 1
        self.release(ledger.key.stream_id if not ledger.key.scope else None)

    def release(self, stream_id: int | None) -> None:
        """Give a claimed stream id back, unless its stream is in use."""
        if stream_id in self.claims and StreamKey("", stream_id) not in self.buffer.ledgers:
            self.out.append(e.ReleaseClaims((stream_id,)))
            self.claims.discard(stream_id)

    def send(self, client: Client, data: bytes) -> None:
        """Send bytes to a peer."""
        self.out.append(e.Send(client.session, data))

    def log(self, client: Client, text: str, *, warning: bool = False, error: Exception | None = None) -> None:
        """Log a line about a peer."""
        self.out.append(e.Log(client.session, f"{client} {text}", warning, error))
