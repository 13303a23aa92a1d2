"""The doors of a worker: the product's ground, tokens and Kafka server on simulated connections.

It follows ``wallaroo_spark/worker/doors.py``, and the HTTP door from a complete request to its answer, which awaits in
``wallaroo_spark/doors/http/requests.py``. A request and an answer of the HTTP door are JSON here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from proving.simulator.engine.core import Promise, Simulation, Steps
from proving.simulator.engine.flight import InnerPort
from proving.simulator.engine.network import End
from proving.simulator.parts.surroundings import HTTP_PORT, Surroundings
from wallaroo_spark.doors.client import DoorClient, Messages
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.doors.http import tokens
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.doors.http.requests import DOOR, OPEN_SECONDS
from wallaroo_spark.doors.kafka import PREFIX
from wallaroo_spark.doors.kafka.batches import ServerSettings
from wallaroo_spark.doors.kafka.door import layout_of, session_seconds
from wallaroo_spark.doors.kafka.positions import fence
from wallaroo_spark.doors.kafka.server import KafkaServer
from wallaroo_spark.doors.tickets import Ticket
from wallaroo_spark.errors import RegistryError
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.transport import parse_address
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.pressure.flow import Pressure
from wallaroo_spark.worker.machine.state import WorkerState

HOSTS_SECONDS = 1.0
"""Between two looks at which slots are served where."""
NOON_SECONDS = 1_700_000_000
BODY_SECONDS = 0.2
"""The longest time for which a body comes."""


class DoorEnd:
    """The session of a door's client, as the worker's shell sees a connection."""

    def __init__(self, client: DoorClient) -> None:
        self.client = client

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return bool(self.client.ended)

    def write(self, data: bytes) -> None:
        """The worker sends frames."""
        self.client.write(data)

    def close(self) -> None:
        """The worker closes the connection."""
        self.client.abort()

    abort = close


class DoorShell(InnerPort):
    """A worker's shell, as its doors use it."""

    world: Surroundings
    sim: Simulation
    slot: int
    options: Options
    address: str
    stopping: bool

    def enter(self, client: DoorClient) -> int:
        """Register the session of a door's client as a peer; returns its number."""
        raise NotImplementedError

    def gather(self, session: int, data: bytes) -> None:
        """A door's client has sent bytes."""
        raise NotImplementedError

    def depart(self, session: int) -> None:
        """The session of a door's client has ended."""
        raise NotImplementedError


class Doors:
    """The doors of one worker. It is the ground's ``Host``, and the Kafka server's ``Link``."""

    def __init__(self, worker: DoorShell, state: WorkerState) -> None:
        self.worker = worker
        self.world, self.sim = worker.world, worker.sim
        self._state = state
        options = worker.options
        self.ground = Ground(
            self, options, self.world.cookie, worker.slot, lambda text: self.sim.log(worker.name, text), self.sim.now
        )
        self.ground.fences[PREFIX] = fence
        settings = ServerSettings(
            worker.slot,
            layout_of(options),
            options.kafka_max_batch,
            "sim",
            session_seconds=session_seconds(options),
        )
        make_id = partial(self.sim.random.getrandbits, 63)
        self.kafka = KafkaServer(settings, self.ground, self, make_id, self.eases, self.count, self.refuse)
        self._host = parse_address(worker.address)[0]
        self.kafka.hosts = {worker.slot: self._host}
        # The clocks of machines differ.
        self._skew = self.sim.random.uniform(-5.0, 5.0)
        self._connecting: set[int] = set()
        self._ends: dict[int, End] = {}
        self._bodies: dict[int, bytearray] = {}
        self._places = [f"{self._host}:{HTTP_PORT + worker.slot}"]
        self.world.network.listeners[self._places[0]] = (worker, self._accept_http)
        for port in settings.layout.ports(worker.slot):
            self._places.append(f"{self._host}:{port}")
            self.world.network.listeners[self._places[-1]] = (worker, self._accept_kafka)
        self.sim.spawn(worker, self._look())

    def close(self) -> None:
        """Listen no more, and end all connections."""
        for place in self._places:
            self.world.network.listeners.pop(place, None)
        for end in list(self._ends.values()):
            end.abort()

    def tick(self) -> None:
        """Time has passed."""
        self.ground.tick(self.sim.now)
        self.kafka.tick(self.sim.now, self._time_ns())

    def left_over(self) -> Iterator[str]:
        """What is still there; nothing may be, when all clients have their answers and have been away for a while."""
        ground, kafka, worker = self.ground, self.kafka, self.worker
        for client in ground.clients.values():
            yield f"{worker.name} has a session of {client.instance}, held {client.held}, waits {client.waits}"
        for name in (*ground._accepted, *ground._giving_up):
            if not str(name).endswith(ground._own):
                yield f"{worker.name} remembers {name}"
        if ground._unanswered:
            yield f"{worker.name} waits for ranges: {ground._unanswered._since}"
        # A silent connection may be there for ten minutes.
        held = [one for one in kafka._connections.values() if one.pending or one.opening or one.held]
        if held or kafka._batches._queues:
            yield f"{worker.name} has requests of Kafka's clients: {held}, {kafka._batches._queues}"
        for connection in self._state.connections.by_number.values():
            if connection.door:
                yield f"{worker.name} has {connection}"

    def _time_ns(self) -> int:
        return round((NOON_SECONDS + self._skew + self.sim.now) * 1e9)

    def _look(self) -> Steps:
        """Look at which slots are served where."""
        while True:
            try:
                leases = yield self.world.registry.ask(lambda r: r.leases())
            except RegistryError:
                pass
            else:
                hosts = {slot: parse_address(one.connect)[0] for slot, one in leases.items() if one.connect}
                self.kafka.hosts = {**hosts, self.worker.slot: self._host}
            yield HOSTS_SECONDS

    # As the host of the ground.

    def connect(self, client: DoorClient) -> int:
        """Begin a session."""
        number = self.worker.enter(client)
        self._connecting.add(number)
        self._soon(lambda: self._connected(number, client))
        return number

    def _connected(self, number: int, client: DoorClient) -> None:
        self._connecting.discard(number)
        self.worker.handle(e.Connected(number, client.peer, self.sim.now, door=True))

    def receive(self, number: int, data: bytes) -> None:
        """Pass bytes to the machine."""
        if number in self._connecting:
            self._soon(lambda: self.worker.gather(number, data))
        else:
            self.worker.gather(number, data)

    def hold(self, number: int, size: int) -> None:
        """Count the bytes of incomplete requests."""
        self.worker.handle(e.Holding(number, size))

    def disconnect(self, number: int) -> None:
        """End a session."""
        self._soon(lambda: self.worker.depart(number))

    def reference(self, key: StreamKey) -> int | None:
        """The committed reference of a stream."""
        return self._state.buffer.reference(key)

    def leaves(self, key: StreamKey) -> bool:
        """Whether a stream is about to be forgotten."""
        return self._state.connections.ends.ask(key)

    def holds(self, key: StreamKey) -> bool:
        """Whether there are rows of a stream."""
        stream = self._state.buffer.streams.get(key)
        return stream is not None and not stream.empty

    def give_up(self, planned: PlannedRange) -> None:
        """Have the driver record that a range was given up."""
        self.worker.handle(e.GiveUp(planned))

    def given_up(self, key: StreamKey) -> PlannedRange | None:
        """What the driver has recorded."""
        return self._state.connections.following.given_up.get(key)

    def count(self, name: str, more: int) -> None:
        """Add to a count."""
        self._state.connections.counts[name] += more
        if name == "dropped-unanswered":
            self.sim.history.counts["given_up"] += more

    def refuse(self, code: str, peer: str, instance: str, reason: str) -> None:
        """Write a refusal to the history."""
        self.sim.log(self.worker.name, f"refuses {instance} at {peer}: {code}: {reason}")

    def note(self, code: str, instance: str, reason: str) -> None:
        """Write an event to the history."""
        if code == "door-given-up":
            self.worker.world.judge.gave_up(instance)
        self.sim.log(self.worker.name, f"{instance}: {code}: {reason}")

    def eases(self) -> bool:
        """Whether there is memory for a new request."""
        return self._pressure() is Pressure.NONE

    def grows(self) -> bool:
        """Whether there is memory for more of a request."""
        return self._pressure() is not Pressure.HARD

    def _pressure(self) -> Pressure:
        return self._state.flow.pressure(self._state.buffer.used)

    def _soon(self, work: Callable[[], None]) -> None:
        self.sim.after(0.0, self.worker, work)

    # The connections.

    def _accept_kafka(self, end: End) -> None:
        self._ends[end.number] = end
        end.taker = _KafkaSide(self)
        self.kafka.connected(end.number, f"a client:{end.number}")

    def _accept_http(self, end: End) -> None:
        self._ends[end.number] = end
        self._bodies[end.number] = bytearray()
        end.taker = _HttpSide(self)

    def gone(self, end: End) -> None:
        """A connection has ended."""
        self._ends.pop(end.number, None)

    def send(self, connection: int, data: bytes) -> None:
        """Write to a client of Kafka."""
        if (end := self._ends.get(connection)) is not None:
            end.write(data)

    def close_connection(self, connection: int, reason: str) -> None:
        """Close the connection of a client of Kafka."""
        if (end := self._ends.get(connection)) is not None:
            end.close()
            self._soon(lambda: _KafkaSide(self).gone(end, reason))

    def read_on(self, connection: int, reading: bool) -> None:
        """Requests that are not read yet arrive a little later; nothing depends on it."""

    # The HTTP door.

    def requested(self, end: End, data: bytes) -> None:
        """A client of the HTTP door has sent bytes."""
        body = self._bodies[end.number]
        body += data
        while (at := body.find(b"\n")) >= 0:
            request = json.loads(body[:at])
            del body[: at + 1]
            self.sim.spawn(self.worker, self._answer(end, request))

    def _answer(self, end: End, request: dict[str, Any]) -> Steps:
        try:
            answer = yield from self._post(request)
        except Problem as problem:
            answer = {"code": problem.code}
        end.write(json.dumps(answer).encode() + b"\n")

    def _post(self, request: dict[str, Any]) -> Steps:
        if self.worker.stopping or not self.eases():
            raise Problem("http-send-again", "send again")
        ground, name, token = self.ground, request["stream"], request["token"]
        instance = f"{DOOR}/{request['instance']}" if request["instance"] else ground.own_instance(DOOR)
        client = ground.client(instance)
        if not (yield from self._kept(client.opening, OPEN_SECONDS)):
            return self._lost(client)
        if not request["values"]:
            return {"code": "", "committed": tokens.committed(ground, client, name)}
        size = sum(map(len, request["values"]))
        client.hold(size)
        yield self.sim.random.uniform(0.0, BODY_SECONDS)
        client.hold(-size)
        if client.ended or (stream := client.stream(name)) is None:
            return self._lost(client)
        messages = Messages([value.encode() for value in request["values"]])
        if token is not None:
            ticket = tokens.send(ground, instance, stream, messages, token)
        else:
            ticket = stream.send(messages, stream.next_reference(self._time_ns()))
        if (yield from self._kept(ticket, self.worker.options.http_timeout)):
            return {"code": "", "committed": ticket.reference}
        return {"code": "http-send-again" if ticket.kept is False else "202"}

    def _lost(self, client: DoorClient) -> dict[str, Any]:
        if client.slot is None or client.slot == self.worker.slot or not client.address:
            return {"code": "http-send-again"}
        return {"code": "http-elsewhere", "place": f"{parse_address(client.address)[0]}:{HTTP_PORT + client.slot}"}

    def _kept(self, ticket: Ticket, seconds: float) -> Steps:
        done = Promise()
        call = done.resolve
        ticket.when_done(call)
        self.sim.after(seconds, self.worker, call)
        yield done
        ticket.forget(call)
        return ticket.kept is True


class _KafkaSide:
    """The worker's side of the connections of Kafka's clients."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def take(self, end: End, data: bytes) -> None:
        """Bytes have arrived."""
        doors = self._doors
        doors.kafka.received(end.number, data, doors.sim.now, doors._time_ns())

    def gone(self, end: End, reason: str) -> None:
        """The connection has ended."""
        self._doors.kafka.disconnected(end.number)
        self._doors.gone(end)

    def session_of(self, end: End) -> None:
        """It carries no session."""


class _HttpSide(_KafkaSide):
    """The worker's side of the connections of HTTP's clients."""

    def take(self, end: End, data: bytes) -> None:
        """Bytes have arrived."""
        self._doors.requested(end, data)

    def gone(self, end: End, reason: str) -> None:
        """The connection has ended; its request goes on."""
        self._doors.gone(end)
