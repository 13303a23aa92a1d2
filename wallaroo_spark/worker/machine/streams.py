"""Opens streams: by NOTIFY alone where an id belongs to its instance, with a claim where it belongs to the whole
source.

Source: ``docs/protocol.md#stream-states``.
"""

from __future__ import annotations

from wallaroo_spark.protocol import Notify, NotifyReceived, StreamState
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import Connection
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.resend import Resend


class Streams:
    """Answers NOTIFY, and asks the registry to claim stream ids that this slot has not claimed yet."""

    def __init__(self, connections: Connections, gates: Gates, resend: Resend) -> None:
        self._connections = connections
        self._gates = gates
        self._resend = resend
        self._asked: dict[int, int] = {}

    def notify(self, connection: Connection, event: NotifyReceived) -> None:
        """A NOTIFY has arrived."""
        notify, key = event.notify, connection.key(event.notify.stream_id)
        if connection.revision.stream_scope == "instance":
            self._open(connection, notify)
            self._bring_up_to_date(connection, notify)
        elif event.already_open or self._taken(connection, key):
            self._answer(connection, notify.stream_id, success=False)
        elif notify.stream_id in self._connections.claims:
            self._open_claimed(connection, notify)
        else:
            connection.asked[notify.stream_id] = notify
            connection.to_ask.append(notify.stream_id)

    def ask(self, connection: Connection) -> None:
        """Ask the registry to claim all stream ids of one read at once."""
        if connection.to_ask:
            self._connections.out.append(e.AskClaims(connection.number, tuple(connection.to_ask)))
            self._asked.update(dict.fromkeys(connection.to_ask, connection.number))
            connection.to_ask.clear()

    def _taken(self, connection: Connection, key: StreamKey) -> bool:
        """Whether another session of this worker sends the stream, or still needs its rows."""
        connections = self._connections.by_number
        asking = connections.get(self._asked.get(key.stream_id, connection.number))
        if asking is not None and asking is not connection and key.stream_id in asking.asked:
            return True
        stream = self._connections.buffer.streams.get(key)
        if stream is None or stream.owner in (None, connection.number):
            return False
        owner = connections[stream.owner] if stream.owner is not None else connection
        return not stream.empty or owner.protocol.streams.get(key.stream_id).state is not StreamState.CLOSED

    def claimed(self, event: e.Claimed) -> None:
        """The registry has answered which ids this slot has claimed."""
        connections = self._connections
        connections.claims |= event.granted
        connection = connections.by_number.get(event.connection)
        for stream_id in event.asked:
            if self._asked.get(stream_id) == event.connection:
                del self._asked[stream_id]
            notify = connection.asked.pop(stream_id, None) if connection else None
            if connection is None or notify is None:
                connections.release(stream_id)
            elif stream_id in event.granted:
                connections.guarded(connection, self._open_claimed, connection, notify)
                # Unless the stream is open now.
                connections.release(stream_id)
            else:
                self._answer(connection, stream_id, success=False)
        if connection:
            self._gates.acknowledge(connection)

    def unanswered(self, event: e.RegistryFailed) -> None:
        """The registry did not answer, so these ids are refused."""
        connection = self._connections.by_number.get(event.connection)
        if connection is not None:
            text = f"streams {list(event.streams)} are refused: the registry does not answer: {event.reason}"
            self._connections.log(connection, text, warning=True)
        self.claimed(e.Claimed(event.connection, event.streams, frozenset()))

    def lost(self, event: e.ClaimsLost) -> None:
        """Another slot has claimed these ids: their held rows are resent to that slot."""
        connections = self._connections
        keys = [StreamKey("", stream_id) for stream_id in event.streams & connections.claims]
        connections.claims -= event.streams
        streams = [connections.buffer.streams[key] for key in keys if key in connections.buffer.streams]
        self._resend.send_again(
            (stream.key for stream in streams if stream.owner is not None), "another slot has the stream"
        )
        for stream in streams:
            connections.buffer.drop(stream)
            connections.tidy(stream)

    def _bring_up_to_date(self, connection: Connection, notify: Notify) -> None:
        """Acknowledge the commits between OK and NOTIFY, because no later commit acknowledges them."""
        key = connection.key(notify.stream_id)
        if self._connections.buffer.reference(key) not in (None, notify.ref):
            self._gates.acknowledge_streams(connection, [key])

    def _open_claimed(self, connection: Connection, notify: Notify) -> None:
        key = connection.key(notify.stream_id)
        if key not in self._connections.buffer.streams and self._connections.ends.ask(key):
            # Whether its reference counts is known after the next batch or two; the connector asks again.
            data = connection.protocol.notify_ack(notify.stream_id, None, success=False)
            self._connections.send(connection, data)
            self._connections.release(notify.stream_id)
            return
        self._open(connection, notify)
        self._answer(connection, notify.stream_id, success=True)

    def _open(self, connection: Connection, notify: Notify) -> None:
        stream = self._connections.buffer.open(connection.key(notify.stream_id), notify.name, notify.ref)
        self._connections.ends.opened(stream.key)
        before = self._connections.by_number.get(stream.owner) if stream.owner is not None else None
        if before is not None:
            before.streams.discard(stream.key)
        stream.owner = connection.number
        self._connections.turnover += 1
        connection.streams.add(stream.key)
        connection.open.add(stream.key)
        self._gates.regulate(connection)

    def _answer(self, connection: Connection, stream_id: int, *, success: bool) -> None:
        reference = self._connections.buffer.reference(connection.key(stream_id))
        self._connections.send(connection, connection.protocol.notify_ack(stream_id, reference, success=success))
