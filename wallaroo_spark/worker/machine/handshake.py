"""From HELLO to OK: whether a connector is served here, elsewhere, later or not at all.

Source: ``docs/protocol.md#session-states``.
"""

from __future__ import annotations

from wallaroo_spark.protocol import Fault, StreamReference, broken, reasons
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connections import Client, Phase
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.sessions import Sessions


class Handshake:
    """Takes HELLOs, asks the registry to which slot they belong, and answers; parks them until the query's references
    are known.
    """

    def __init__(self, sessions: Sessions, gates: Gates) -> None:
        self.ready = False
        self._sessions = sessions
        self._gates = gates

    def hello(self, client: Client) -> None:
        """A valid HELLO has arrived."""
        sessions, options = self._sessions, self._sessions.options
        sessions.log(client, f"says HELLO in {client.revision.name}")
        client.deadline = None
        if options.tls_bind_instances and client.instance not in client.names:
            why = f"instance {client.instance!r} is not among the names in its certificate: {', '.join(client.names)}"
            sessions.fault(client, broken(Fault.WRONG_CERTIFICATE, why))
            return
        assert client.protocol.hello is not None
        program = client.protocol.hello.program
        if options.programs and program not in options.programs:
            why = f"program {program[:64]!r} is not let in; option programs lists {', '.join(options.programs)}"
            sessions.fault(client, broken(Fault.WRONG_PROGRAM, why))
            return
        serving = len(sessions.serving)
        if sessions.stopping:
            sessions.refuse(client, reasons.later(sessions.stopping))
        elif serving >= options.max_sessions:
            why = f"the worker of slot {sessions.slot} has {serving} sessions and takes no more (maxSessions)"
            sessions.fault(client, broken(Fault.WORKER_FULL, reasons.later(why)))
        else:
            sessions.serving.add(client.session)
            client.phase = Phase.PARKED
            if self.ready:
                self._ask(client)

    def begin(self) -> None:
        """The query's references are known: OK can name them, so the parked connectors may go on."""
        self.ready = True
        for client in [c for c in self._sessions.clients.values() if c.phase is Phase.PARKED]:
            self._ask(client)

    def _ask(self, client: Client) -> None:
        client.phase = Phase.ASKING
        self._sessions.out.append(e.AskAssignment(client.session, client.instance))

    def assigned(self, event: e.Assigned) -> None:
        """The registry says which slot an instance belongs to."""
        sessions, client = self._sessions, self._sessions.clients.get(event.session)
        if event.slot == sessions.slot:
            sessions.assigned.add(event.instance)
        if client is None or client.phase is not Phase.ASKING:
            return
        if event.slot == sessions.slot:
            self._accept(client)
            return
        why = f"instance {client.instance!r} is connected to slot {event.slot}, or messages of it are held there"
        if event.address is None:
            sessions.refuse(client, reasons.later(f"{why}, and that has no worker right now"))
        else:
            sessions.refuse(client, reasons.redirect(event.address, why))

    def unanswered(self, event: e.RegistryFailed) -> None:
        """The registry could not say which slot an instance belongs to."""
        client = self._sessions.clients.get(event.session)
        if client is not None and client.phase is Phase.ASKING:
            self._sessions.refuse(client, reasons.later(f"the registry does not answer: {event.reason}"))

    def _accept(self, client: Client) -> None:
        sessions, buffer = self._sessions, self._sessions.buffer
        by_instance = client.revision.stream_scope == "instance"
        if by_instance and not self._supersede(client):
            return
        if by_instance:
            sessions.senders[client.instance] = client
        client.phase = Phase.STREAMING
        sessions.streaming[client.session] = client
        sessions.weigh(client)
        references = []
        for key, reference in buffer.resumable(client.instance) if by_instance else ():
            references.append(StreamReference(key.stream_id, reference, buffer.name(key)))
        window = sessions.flow.window(buffer.used, len(sessions.streaming))
        sessions.send(client, client.protocol.ok(window, references))
        self._gates.regulate(client)

    def _supersede(self, client: Client) -> bool:
        """An instance's streams have one sender: the session that came last, whichever the registry knows first."""
        other = self._sessions.senders.get(client.instance)
        if other is None:
            return True
        newer, older = (client, other) if client.session > other.session else (other, client)
        why = reasons.superseded(client.instance, newer.peer)
        self._sessions.fault(older, broken(Fault.SUPERSEDED, why))
        return newer is client
