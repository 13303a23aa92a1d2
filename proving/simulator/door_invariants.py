"""The promises to producers that send through doors; a broken one raises :class:`Violation`. See ``docs/doors.md``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from proving.simulator.engine.core import Violation
from proving.simulator.parts.checkpoint import Row
from proving.simulator.parts.producers import KafkaProducer, Producer
from proving.simulator.parts.surroundings import Surroundings
from proving.simulator.parts.worker import Worker
from wallaroo_spark.doors.kafka import PREFIX
from wallaroo_spark.doors.kafka.record_batch import HEAD_BYTES
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.source.forgetting import SLACK_PART


class DoorJudge:
    """Observes producers and commits. ``table`` counts each message of all committed batches."""

    def __init__(self, world: Surroundings) -> None:
        self.world = world
        self.producers: list[Producer] = []
        self.messages = 0
        self.when_planned: Callable[[Producer], None] | None = None
        """What happens once a batch with rows of a producer is planned."""
        self.table: Counter[str] = Counter()
        self._doubtful: set[str] = set()
        self._last: dict[str, tuple[int, int]] = {}
        self._used_at: dict[StreamKey, float] = {}

    def answered(self, producer: Producer, values: list[str]) -> None:
        """Messages were answered with success: a commit must cover them."""
        missing = [value for value in values if not self.table[value]]
        if missing:
            raise Violation(f"{producer.name} is told that {missing} are committed, and they are not")
        self.world.sim.log(producer.name, f"is told that {values} are committed")

    def doubtful(self, values: list[str]) -> None:
        """Messages may come twice from now on, because their client sends them again as new ones."""
        self._doubtful.update(values)

    def gave_up(self, instance: str) -> None:
        """A range is given up, because its client has not come back."""
        if self.world.profile.busy and instance.startswith(PREFIX):
            raise Violation(f"a range of {instance} is given up, and its client was there all the time")

    def unused(self, key: StreamKey, since: float) -> None:
        """A plan of a query that began at ``since`` says that a stream leaves: nothing of it was read for long."""
        used_at, most = self._used_at[key], self.world.profile.producer_retention
        # An offset is written some time after its plan.
        if used_at >= since and self.world.sim.now - used_at < most * (1 - 1 / SLACK_PART):
            raise Violation(f"{key} leaves {self.world.sim.now - used_at:.2f} s after a batch has read it")

    def forgotten(self, key: StreamKey) -> None:
        """A plan forgets a stream: no worker may hold rows of it that were accepted behind what is forgotten."""
        self.world.sim.history.counts["producers_forgotten"] += 1
        for producer in self.producers:
            if isinstance(producer, KafkaProducer) and producer.name in key.scope.split("/"):
                # It was away for longer than it is remembered.
                producer.is_forgotten()
        for port in self.world.inner.ports.values():
            state = port.state if isinstance(port, Worker) and port.serving else None
            stream = state.buffer.streams.get(key) if state is not None else None
            if stream is not None and not stream.empty and stream.committed is not None:
                raise Violation(f"{key} is forgotten, and {port.name} holds rows of it: {stream}")

    def planned(self, ranges: Iterable[PlannedRange]) -> None:
        """The offset of a batch is written."""
        ranges = list(ranges)
        self._used_at.update((planned.key, self.world.sim.now) for planned in ranges)
        found = [one for planned in ranges for one in self.producers if one.name in planned.key.scope.split("/")]
        if found and self.when_planned is not None:
            act, self.when_planned = self.when_planned, None
            act(found[0])

    def was_read(self, planned: PlannedRange, rows: list[Row]) -> None:
        """The rows of a planned range were read."""
        start, ids = planned.start or 0, [message_id or 0 for _, message_id, _ in rows]
        assert isinstance(start, int)
        assert isinstance(planned.end, int)
        if ids != sorted(ids) or any(not start < one <= planned.end for one in ids):
            raise Violation(f"{planned} has the ids {ids}")

    def committed(self, rows: Iterable[Row]) -> None:
        """A batch with these rows is committed."""
        requests: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for key, _, value in rows:
            if value is None:
                continue
            text = value[HEAD_BYTES if key.scope.startswith(PREFIX) else 0 :].decode()
            self._once_in_order(text)
            lane, serial, part, _ = text.split()
            requests[lane, serial][part] += 1
            self.messages += 1
        for request, parts in requests.items():
            if len(set(parts.values())) > 1 or len(parts) != self._parts[request]:
                raise Violation(f"a batch has only a part of request {request}: {parts}")

    @property
    def _parts(self) -> dict[tuple[str, str], int]:
        found = {}
        for text in self.table:
            lane, serial, _, parts = text.split()
            found[lane, serial] = int(parts)
        return found

    def _once_in_order(self, text: str) -> None:
        lane, serial, part, _ = text.split()
        name = lane.partition(":")[0]
        producer = next(one for one in self.producers if one.name == name)
        self.table[text] += 1
        again = self.table[text] > 1
        if again and producer.once and text not in self._doubtful:
            raise Violation(f"{text!r} is committed a second time")
        place = int(serial), int(part)
        if producer.once and not again and place < self._last.get(lane, (0, 0)):
            raise Violation(f"{text!r} is committed behind {self._last[lane]}")
        self._last[lane] = max(place, self._last.get(lane, (0, 0)))

    def unfinished(self) -> list[str]:
        """The producers that wait."""
        return [producer.waits for producer in self.producers if producer.waits]

    def nothing_is_left(self) -> None:
        """All producers have their answers, and were away for a while: nothing of them is left."""
        for port in self.world.inner.ports.values():
            if isinstance(port, Worker) and port.doors is not None:
                found = list(port.doors.left_over())
                if found:
                    raise Violation("; ".join(found))
