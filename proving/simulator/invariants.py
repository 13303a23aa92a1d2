"""The promises that must hold after every step; a broken one raises :class:`Violation`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from proving.simulator.door_invariants import DoorJudge
from proving.simulator.engine.core import Violation
from proving.simulator.parts.checkpoint import Row
from proving.simulator.parts.connector import Connector, Program
from proving.simulator.parts.query import Query
from proving.simulator.parts.sources import Source
from proving.simulator.parts.surroundings import Surroundings
from proving.simulator.parts.worker import Worker
from proving.simulator.worker_validation import validate_worker
from wallaroo_spark.protocol import NOTHING_PROCESSED, ConnectorSession, Frame, NotifyAck, Ok
from wallaroo_spark.protocol.reserved import reserved
from wallaroo_spark.references import Endings, Reference, StreamKey, flatten, ranges, references_of
from wallaroo_spark.source.forgetting import dwell_seconds
from wallaroo_spark.worker.machine.connection_state import Connection
from wallaroo_spark.worker.machine.state import WorkerState

LOOK_AT_WAITING_SECONDS = 0.5
"""How often waiting queries are checked."""
LONGEST_WAIT_SECONDS = 5.0
"""The longest time for which a worker may hold rows while the query, which knows the worker, asks for no plan."""
LEASE_SLACK_SECONDS = 4.0
"""The longest time in seconds that a renewal and its answer take together."""


class Judge:
    """Observes the parts and checks them. ``ever`` has all references that any commit has covered, by stream."""

    def __init__(self, world: Surroundings, programs: Sequence[Program]) -> None:
        self.world = world
        self._programs = programs
        self.doors = DoorJudge(world)
        self.ever: defaultdict[StreamKey, set[Reference]] = defaultdict(set)
        self.messages = 0
        self._touched: dict[str, Worker] = {}
        self._heard: dict[str, Connector] = {}
        self._read: dict[int, list[Row]] = {}
        self._superseded: dict[str, float] = {}
        self._acknowledged: dict[StreamKey, int] = {}
        """For each stream the index behind the last message that an ACK has named."""
        self._done: dict[StreamKey, int] = {}
        self._complete_at: dict[StreamKey, float] = {}
        self.ever_forgotten: set[StreamKey] = set()
        self._anew: set[StreamKey] = set()
        self._since_forgotten: dict[StreamKey, set[Reference]] = {}
        """For each stream that a plan in the checkpoint has forgotten: the references of later plans."""
        self._queries: dict[str, float] = {}
        """When each query asked for its first plan."""
        self._named = ""
        """The token of the leaving streams that a plan has named last."""
        self._leaving: tuple[str, str, float] = ("", "", 0.0)
        """The query that plans, the token of its leaving streams, and when this query has found them leaving."""
        self._waiting: dict[tuple[str, StreamKey], float] = {}
        self._waited_at = 0.0

    # After each step.

    def touched(self, worker: Worker) -> None:
        """A worker's state has changed."""
        self._touched[worker.name] = worker

    def heard(self, connector: Connector) -> None:
        """A connector's state has changed."""
        self._heard[connector.name] = connector

    def after_step(self) -> None:
        """Check the parts that have changed."""
        if self._touched:
            for worker in self._touched.values():
                self._check_worker(worker)
            self._touched.clear()
        if self._heard:
            for connector in self._heard.values():
                self._check_connector(connector)
            self._heard.clear()

    def _check_worker(self, worker: Worker) -> None:
        state = worker.state
        if state is None or not worker.alive or worker.failed:
            return
        try:
            validate_worker(state)
        except AssertionError as error:
            raise Violation(f"{worker.name} contradicts itself: {error!r}") from error
        self._check_memory(worker, state)

    def _check_memory(self, worker: Worker, state: WorkerState) -> None:
        limit = state.buffer.budget + worker.largest_read
        if state.buffer.used > limit:
            raise Violation(f"{worker.name} holds {state.buffer.used} bytes; budget and one read are {limit}")

    def _check_connector(self, connector: Connector) -> None:
        session, end = connector.session, connector.end
        if session is None or end is None:
            return
        for sending in connector.streams.values():
            try:
                sending.messages.validate()
            except AssertionError as error:
                raise Violation(f"{connector.name}: {sending.source.name}'s messages contradict themselves") from error
        self._check_credits(connector, session)

    def _check_credits(self, connector: Connector, session: ConnectorSession) -> None:
        """A connector has received the credits that its worker has counted, or less while a grant is on its way."""
        theirs = connector.worker_session()
        if theirs is None:
            return
        for credits in (session.credits, theirs.credits):
            if credits.available < -connector.notified:
                raise Violation(f"{connector.name}: {credits!r} is below {connector.notified} NOTIFYs")
        if session.credits.granted > theirs.credits.granted:
            raise Violation(f"{connector.name} was granted {session.credits!r}, and the worker says {theirs.credits!r}")
        if session.credits.spent < theirs.credits.spent:
            raise Violation(f"{connector.name} spent {session.credits!r}, and the worker says {theirs.credits!r}")

    # Messages to connectors.

    def acknowledged(self, connector: Connector, stream_id: int, ref: int, how: str) -> None:
        """A connector receives an acknowledgement: a commit must cover it."""
        key = connector.key(stream_id)
        if ref not in self.ever[key]:
            raise Violation(
                f"{connector.name} is told by {how} that {key} is committed up to {ref}; no commit covers it"
            )
        self.world.sim.log(connector.name, f"{how}: stream {stream_id} up to {ref}")
        self._check_not_below(connector, key, ref, how)

    def _check_not_below(self, connector: Connector, key: StreamKey, ref: int, how: str) -> None:
        """OK names no reference below one that an ACK has named before, while the registry keeps its assignments."""
        place = self.world.sources[key].after(ref)
        if how == "ACK":
            self._acknowledged[key] = max(place, self._acknowledged.get(key, 0))
        may_be = self.world.profile.goes_back or key in self.ever_forgotten
        may_be = may_be or bool(self.world.sim.history.counts["empty_the_registry"])
        if how == "OK" and place < self._acknowledged.get(key, 0) and not may_be:
            raise Violation(f"{connector.name} is told {ref} of {key}, below what was acknowledged to it")

    def said(self, worker: Worker, session: int, data: bytes) -> None:
        """A worker sends to a session: it may not send OK long after its lease became another worker's."""
        state = worker.state
        assert state is not None
        client = state.connections.by_number.get(session)
        if client is None or client.protocol.revision is None:
            return
        if client.door:
            # It asks when it opens a stream.
            return
        revision = client.protocol.revision
        if data[4] == revision.by_frame[Ok].tag:
            self._must_hold_its_lease(worker, "lets a session in")
        answers = [row.tag for frame in (Ok, NotifyAck) if (row := revision.by_frame.get(frame)) is not None]
        if self._since_forgotten and data[4] in answers:
            self._tells_nothing_forgotten(worker, client, revision.decode(data[4], data[5:]))

    def _tells_nothing_forgotten(self, worker: Worker, client: Connection, answer: Frame) -> None:
        """No worker tells a connector a reference that was forgotten: new messages would be taken for old ones."""
        told = answer.streams if isinstance(answer, Ok) else [answer] if isinstance(answer, NotifyAck) else []
        for stream in told:
            key = client.key(stream.stream_id)
            known = self._since_forgotten.get(key)
            if known is not None and stream.ref != NOTHING_PROCESSED and stream.ref not in known:
                raise Violation(f"{worker.name} tells {client.instance} reference {stream.ref} of {key}, forgotten")

    def took_in(self, worker: Worker) -> None:
        """A worker has accepted messages: that must end soon after its lease became another worker's."""
        self._must_hold_its_lease(worker, "takes messages in")

    def _must_hold_its_lease(self, worker: Worker, what: str) -> None:
        lost = self._lost_since(worker)
        limit = worker.options.lease_seconds / 3 + LEASE_SLACK_SECONDS
        if lost is not None and self.world.sim.now - lost > limit:
            raise Violation(f"{worker.name} {what}, and lost its slot to another worker more than {limit:.1f} s ago")

    def _lost_since(self, worker: Worker) -> float | None:
        """The time from which a worker could know that its lease is another worker's; None before that."""
        registry = self.world.registry
        lost = registry.model.lost.get(worker.holder)
        if lost is None or registry.away:
            return None
        return max(lost, registry.back_since, worker.woken_at, worker.unanswered_at)

    # Batches.

    def planned(self, batch: int, start: Mapping[str, Any], ends: Mapping[str, Any]) -> None:
        """The offset of a batch is about to be written."""
        checkpoint = self.world.checkpoint
        if batch != max(checkpoint.batches("offsets"), default=-1) + 1:
            raise Violation(f"batch {batch} is planned a second time")
        for key in flatten(start).keys() - flatten(ends).keys():
            self._check_forgotten(key)
        for planned in ranges(start, ends):
            if reserved(planned.key.scope):
                continue
            begin, end, source = planned.start, planned.end, self.world.sources[planned.key]
            if isinstance(end, str) != source.ephemeral:
                raise Violation(f"{source.name} is planned up to {end!r}")
            if isinstance(end, str):
                continue
            place = source.after(_id(end)) - 1
            if place < source.after(_id(begin)):
                raise Violation(f"{source.name} is planned backwards: ({begin}, {end}]")
            if not source.stable(place):
                raise Violation(f"{source.name} is planned up to {end}, which cannot be resumed from")

    def named(self, query: Query, endings: Endings | None) -> None:
        """A plan says which streams leave: the end of each is committed for as long as the retention.

        The clock is that of the query's process, so the streams that ended in an earlier query do not count.
        """
        leaving = endings.leaving if endings is not None else None
        if leaving is None:
            return
        assert endings is not None
        now = self.world.sim.now
        self._finds_leaving(query, leaving.token)
        if leaving.token == self._named:
            return
        self._named = leaving.token
        self.world.sim.history.counts["left"] += 1
        for key in endings.leaving_streams():
            if reserved(key.scope):
                self.doors.unused(key, self._queries[query.name])
                continue
            ended_at = self._complete_at.get(key, now)
            if ended_at >= self._queries[query.name] and now - ended_at < self.world.profile.retention:
                raise Violation(f"{self.world.sources[key].name} leaves {now - ended_at:.2f} s after its end")

    def _finds_leaving(self, query: Query, token: str) -> None:
        """A query knows that streams are leaving; an earlier query may have named them, and others after them."""
        if self._leaving[:2] != (query.name, token):
            self._leaving = (query.name, token, self.world.sim.now)

    def written(self, start: Mapping[str, Any], ends: Mapping[str, Any]) -> None:
        """The offset of a batch is written, so that a later query runs the same batch."""
        gone, read = flatten(start).keys() - flatten(ends).keys(), ranges(start, ends)
        if gone and read:
            raise Violation(
                f"a plan forgets {sorted(gone)} and reads {list(map(str, read))}: one may wait for the other"
            )
        for key in gone:
            self._since_forgotten[key] = set()
            self._check_nobody_tells(key)
        for planned in read:
            if planned.key in self._since_forgotten:
                self._since_forgotten[planned.key].add(planned.end)
        self.doors.planned(read)

    def _check_nobody_tells(self, key: StreamKey) -> None:
        """No worker that has a slot may let a connector have the reference of a stream that a plan forgets."""
        records = self.world.registry.model.records
        for port in self.world.inner.ports.values():
            if not isinstance(port, Worker) or port.state is None or not port.serving:
                continue
            record, connections = records.get(port.slot), port.state.connections
            holds = record is not None and record.lease.holder == port.holder
            if holds and connections.buffer.reference(key) is not None and key not in connections.ends.leaving:
                raise Violation(f"{key} is forgotten, and {port.name} was not told that it leaves")

    def _check_forgotten(self, key: StreamKey) -> None:
        """A stream may be forgotten when it has ended, and all of it is committed for as long as the retention."""
        profile = self.world.profile
        named_for = self.world.sim.now - self._leaving[2]
        if named_for < dwell_seconds(profile.lease_seconds):
            raise Violation(f"{key} is forgotten after leaving for {named_for:.2f} s; a lost worker may live")
        if reserved(key.scope):
            self.doors.forgotten(key)
            return
        source = self.world.sources[key]
        ended_at = self._complete_at.get(key)
        if not source.ends or ended_at is None or self.delivered(source) < len(source.ids):
            raise Violation(f"{source.name} is forgotten, and has not ended: {self.delivered(source)} of it committed")
        if self.world.sim.now - ended_at < profile.retention:
            raise Violation(f"{source.name} is forgotten {self.world.sim.now - ended_at:.2f} s after its end")
        for port in self.world.inner.ports.values():
            state = port.state if isinstance(port, Worker) and port.serving else None
            stream = state.buffer.streams.get(key) if state is not None else None
            if stream is not None and not stream.empty and stream.committed == source.ids[-1]:
                raise Violation(f"{source.name} is forgotten, and {port.name} holds rows of it: {stream}")

    # Waiting.

    def plans(self, query: Query) -> None:
        """A query asks the workers for a plan: rows no longer wait without anybody asking."""
        self._queries.setdefault(query.name, self.world.sim.now)
        endings = query.start.endings
        if endings is not None and endings.leaving is not None:
            self._finds_leaving(query, endings.leaving.token)
        self._waiting.clear()

    def waits(self, query: Query) -> None:
        """A query waits because a plan found nothing: a worker that it knows may not hold rows for long meanwhile."""
        now = self.world.sim.now
        if now - self._waited_at < LOOK_AT_WAITING_SECONDS:
            return
        self._waited_at = now
        start = query.start
        found: dict[tuple[str, StreamKey], float] = {}
        for view in query.view.answering().values():
            worker = self.world.inner.ports.get(view.address)
            if not isinstance(worker, Worker) or not worker.serving or worker.asleep or worker.state is None:
                continue
            streams = worker.state.buffer.with_rows()
            starts = references_of(start, [stream.key for stream in streams])
            for stream in streams:
                if stream.extent(starts[stream.key], None, None) is not None:
                    found[worker.name, stream.key] = self._waiting.get((worker.name, stream.key), now)
        self._waiting = found
        for (name, key), since in found.items():
            if now - since > LONGEST_WAIT_SECONDS:
                raise Violation(f"{name} holds rows of {key} for {now - since:.1f} s, and nobody plans them")

    def gave_up(self, instance: str) -> None:
        """A worker has given up a range of a door's client."""
        self.doors.gave_up(instance)

    def was_read(self, batch: int, start: Mapping[str, Any], end: Mapping[str, Any], rows: list[Row]) -> None:
        """A batch was read completely: its rows are those of its plan, the same each time it is read."""
        found: defaultdict[StreamKey, list[Row]] = defaultdict(list)
        for row in rows:
            found[row[0]].append(row)
        for planned in ranges(start, end):
            key, begin, to = planned.key, planned.start, planned.end
            if reserved(key.scope):
                self.doors.was_read(planned, found.pop(key, []))
                continue
            source = self.world.sources[key]
            if source.ephemeral:
                self._in_order(source, found.pop(key, []))
                continue
            places = range(source.after(_id(begin)), source.after(_id(to)))
            wanted = [(key, source.ids[place], source.payload(place)) for place in places]
            if begin is None and key in self.ever_forgotten and (mine := found.get(key)):
                # Messages that were never acknowledged, though committed, may begin a stream anew.
                wanted = wanted[-len(mine) :]
            if found.pop(key, []) != wanted:
                got = [row[1] for row in rows if row[0] == key]
                raise Violation(
                    f"batch {batch} has {got} of {source.name} where ({begin}, {to}] is {[row[1] for row in wanted]}"
                )
        if found:
            raise Violation(f"batch {batch} has rows of streams that it has no plan for: {sorted(found)}")

    def _in_order(self, source: Source, rows: list[Row]) -> list[int]:
        places = [int(value.split()[1]) for _, _, value in rows if value is not None]
        if places != sorted(set(places)):
            raise Violation(f"{source.name} is ephemeral and comes out of order, or twice: {places}")
        return places

    def committed(self, batch: int) -> None:
        """A batch is committed: each stream continues where the last batch ended it."""
        checkpoint = self.world.checkpoint
        references = flatten(checkpoint.references(batch))
        for key, reference in references.items():
            self.ever[key].add(reference)
        gone = flatten(checkpoint.references(batch - 1)).keys() - references.keys()
        self.ever_forgotten |= gone
        self._anew |= gone
        self.doors.committed(row for row in checkpoint.sink[batch] if reserved(row[0].scope))
        for key, message_id, value in checkpoint.sink[batch]:
            if reserved(key.scope):
                continue
            source = self.world.sources[key]
            if source.ephemeral and value is None:
                continue
            self.messages += 1
            before = self._done.get(key, -1)
            if source.ephemeral:
                assert value is not None
                place = int(value.split()[1])
                if place <= before:
                    raise Violation(f"{source.name}: message {place} is delivered a second time, or late")
            else:
                place = source.index[message_id] if message_id is not None else -1
                if key in self._anew and place <= before:
                    # The stream was forgotten, and a connector sends it again.
                    self._anew.discard(key)
                    before = place - 1
                if place != before + 1 or value != source.payload(place):
                    raise Violation(f"{source.name}: message {place} is committed after message {before}")
            self._done[key] = place
            if place == len(source.ids) - 1:
                self._complete_at[key] = self.world.sim.now

    def went_back(self) -> None:
        """An older checkpoint is in place: count again from its commits."""
        self._done.clear()
        self._anew = set(self.ever_forgotten)
        self._since_forgotten.clear()
        checkpoint = self.world.checkpoint
        for batch in range(checkpoint.last_committed + 1):
            for key, message_id, value in checkpoint.sink.get(batch, []):
                source = self.world.sources[key]
                if not source.ephemeral:
                    self._done[key] = source.index[message_id] if message_id is not None else -1
                elif value is not None:
                    self._done[key] = int(value.split()[1])

    def delivered(self, source: Source) -> int:
        """How many messages of a stream are committed."""
        return self._done.get(source.key, -1) + 1

    def unfinished(self) -> list[str]:
        """The unfinished parts: streams with uncommitted messages, connectors without their acknowledgements."""
        late = [
            f"{source.name}: {self.delivered(source)} of {len(source.ids)} committed"
            for source in self.world.sources.values()
            if not source.ephemeral and self.delivered(source) < len(source.ids)
        ]
        late += self.doors.unfinished()
        for program in self._programs:
            process = program.process
            if process is None or not process.alive or not process.content:
                late.append(f"{program.instance} waits for acknowledgements")
        return late


def _id(reference: int | str | None) -> int | None:
    """The message id in a reference; None in that of an ephemeral stream."""
    assert not isinstance(reference, str)
    return reference
