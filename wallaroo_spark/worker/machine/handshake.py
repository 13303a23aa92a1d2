"""From HELLO to OK: whether a connector is served, redirected, asked to retry, or refused.

Source: ``docs/protocol.md#session-states``.
"""

from __future__ import annotations

from wallaroo_spark.protocol import Fault, StreamReference, broken, faults
from wallaroo_spark.protocol.reserved import reserved
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import Connection, ConnectionPhase
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.pressure.flow import DOOR_CREDITS
from wallaroo_spark.worker.machine.pressure.gates import Gates

REFERENCES_SECONDS = 10.0
"""The longest wait for the driver to tell the references of an instance, in seconds.

A choice: the driver answers within milliseconds, and sends a notice that failed again after half a second.
"""


class Handshake:
    """Answers HELLOs after asking the registry for their slot.

    A HELLO is parked until a query has started, and then until the driver has told the references of its scope. The
    driver is asked for them after the registry has assigned the instance to this slot. From then on no other worker
    acknowledges anything to the instance, so it is told no reference below one that was acknowledged to it.
    """

    def __init__(self, connections: Connections, gates: Gates) -> None:
        self.ready = False
        self.most: int | None = None
        """The sessions that the worker's process has open files for; None is no limit."""
        self._connections = connections
        self._gates = gates

    def hello(self, connection: Connection) -> None:
        """A valid HELLO has arrived."""
        connections, options = self._connections, self._connections.options
        connections.log(connection, f"says HELLO in {connection.revision.name}")
        connections.expire(connection, None)
        if connection.door:
            self._serve(connection)
            return
        if prefix := reserved(connection.instance):
            why = f"instance names that begin with {prefix!r} belong to the worker's own doors; use another name"
            connections.fault(connection, broken(Fault.BAD_INSTANCE, why))
            return
        if options.tls_bind_instances and connection.instance not in connection.names:
            names = ", ".join(connection.names)
            why = f"instance {connection.instance!r} is not among the names in its certificate: {names}"
            connections.fault(connection, broken(Fault.WRONG_CERTIFICATE, why))
            return
        assert connection.protocol.hello is not None
        program = connection.protocol.hello.program
        if options.programs and program not in options.programs:
            why = f"program {program[:64]!r} is not let in; option programs lists {', '.join(options.programs)}"
            connections.fault(connection, broken(Fault.WRONG_PROGRAM, why))
            return
        self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        connections, options = self._connections, self._connections.options
        serving = len(connections.serving)
        if connections.stopping:
            connections.refuse(connection, faults.later(connections.stopping))
        elif serving >= options.max_sessions:
            why = f"the worker of slot {connections.slot} has {serving} sessions and takes no more (maxSessions)"
            connections.fault(connection, broken(Fault.WORKER_FULL, faults.later(why)))
        elif self.most is not None and serving >= self.most:
            why = (
                f"the worker of slot {connections.slot} has {serving} sessions, and its process has no open files for "
                "more; raise the hard limit of open files there (ulimit -Hn)"
            )
            connections.fault(connection, broken(Fault.WORKER_FULL, faults.later(why)))
        else:
            connections.serving.add(connection.number)
            connection.phase = ConnectionPhase.PARKED
            if self.ready:
                self._ask(connection)

    def begin(self) -> None:
        """A query has started, so that OK can contain its references: continue with the parked connectors."""
        self.ready = True
        for connection in [c for c in self._connections.by_number.values() if c.phase is ConnectionPhase.PARKED]:
            self._ask(connection)

    def told(self) -> None:
        """The driver has told references: continue with the connectors that waited for them."""
        connections = self._connections
        for connection in [c for c in connections.awaiting.values() if connections.following.knows(c.scope)]:
            if connection.phase is ConnectionPhase.AWAITING:
                connections.guarded(connection, self._accept, connection)

    def _ask(self, connection: Connection) -> None:
        connection.phase = ConnectionPhase.ASKING
        self._connections.out.append(e.AskAssignment(connection.number, connection.instance))

    def assigned(self, event: e.Assigned) -> None:
        """The registry has answered with the slot of an instance."""
        connections, connection = self._connections, self._connections.by_number.get(event.connection)
        if event.slot == connections.slot:
            connections.assigned.add(event.instance)
        if connection is None or connection.phase is not ConnectionPhase.ASKING:
            return
        if event.slot == connections.slot:
            self._await_references(connection)
            return
        why = f"instance {connection.instance!r} is connected to slot {event.slot}, or messages of it are held there"
        if event.address is None:
            connections.refuse(connection, faults.later(f"{why}, and that has no worker right now"))
        else:
            connections.refuse(connection, faults.redirect(event.address, why))

    def unanswered(self, event: e.RegistryFailed) -> None:
        """The registry did not answer with the slot of an instance."""
        connection = self._connections.by_number.get(event.connection)
        if connection is not None and connection.phase is ConnectionPhase.ASKING:
            self._connections.refuse(connection, faults.later(f"the registry does not answer: {event.reason}"))

    def _await_references(self, connection: Connection) -> None:
        connections = self._connections
        connections.following.ask(connection.scope)
        if connections.following.knows(connection.scope):
            self._accept(connection)
            return
        connection.phase = ConnectionPhase.AWAITING
        connections.awaiting[connection.number] = connection
        connections.expire(connection, connections.now + REFERENCES_SECONDS)

    def _accept(self, connection: Connection) -> None:
        connections, buffer = self._connections, self._connections.buffer
        connections.awaiting.pop(connection.number, None)
        connections.expire(connection, None)
        by_instance = connection.revision.stream_scope == "instance"
        # A client of a door is not kept out, because its references grow also behind one that is forgotten.
        if by_instance and not connection.door and (leaving := connections.ends.ask_all(connection.instance)):
            why = f"whether {leaving} ended streams of instance {connection.instance!r} are forgotten is being decided"
            connections.refuse(connection, faults.later(why))
            return
        if by_instance:
            if not self._supersede(connection):
                return
            connections.senders[connection.instance] = connection
        connection.phase = ConnectionPhase.STREAMING
        connections.streaming[connection.number] = connection
        connection.holding = 0
        connections.weigh(connection)
        references = []
        for key, reference in buffer.resumable(connection.instance) if by_instance else ():
            references.append(StreamReference(key.stream_id, reference, buffer.name(key)))
        connections.counts["sessions"] += 1
        if connection.door:
            window = DOOR_CREDITS
        else:
            window = connections.flow.window(buffer.used, len(connections.streaming))
            connections.counts["credits"] += window
        connections.send(connection, connection.protocol.ok(window, references))
        self._gates.regulate(connection)

    def _supersede(self, connection: Connection) -> bool:
        """End the older session of an instance, because only one session may send its streams: the newest."""
        other = self._connections.senders.get(connection.instance)
        if other is None:
            return True
        newer, older = (connection, other) if connection.number > other.number else (other, connection)
        why = faults.superseded(connection.instance, newer.peer)
        self._connections.fault(older, broken(Fault.SUPERSEDED, why))
        return newer is connection
