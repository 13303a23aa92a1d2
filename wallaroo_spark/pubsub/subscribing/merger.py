"""Merges the messages of all partitions into one sequence of complete epochs. Pure: without sockets or clocks.

Source: ``docs/pubsub/protocol.md#where-it-comes-from``. Resuming after a lost connection is an addition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wallaroo_spark.errors import ConfigurationError, PubSubError
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.pubsub.messages import Data, Snapshot, Update
from wallaroo_spark.pubsub.times import Frontier, MaximalAntichain, MinimalAntichain, Time, key, least

MAX_HELD_BYTES = 256 << 20
"""Default limit in bytes of the data of incomplete epochs.

A choice. It bounds a subscriber's memory to 64 messages of about 4 MiB, before it stops reading from publishers that
are ahead of the others.
"""


@dataclass(frozen=True)
class Delivered:
    """Rows for the application."""

    time: Time
    """Time of the rows."""
    partition: int
    """Partition that sent them."""
    payload: bytes | memoryview = field(repr=False)
    """The rows, still encoded; see :mod:`wallaroo_spark.pubsub.messages`."""


MergedItem = Delivered | Frontier


@dataclass
class _Partition:
    """The merger's state of one partition."""

    own: MinimalAntichain | None = None
    """The partition's lower frontier; None before its first snapshot."""
    connected: bool = False
    """Whether the current connection has sent its snapshot."""
    ended: bool = False
    """Whether its publisher has sent the end of the topic."""
    held: list[Data] = field(default_factory=list)
    """Data of incomplete epochs."""
    seen: int = 0
    """Data messages received since the frontier last moved."""
    repeated: int = 0
    """Data messages that the publisher sends a second time after a lost connection."""

    @property
    def held_bytes(self) -> int:
        return sum(len(data.payload) for data in self.held)


@dataclass(eq=False)
class Merger:
    """Merges the messages of the publishers of all partitions into one sequence of items.

    With ``atomic``, epochs that some publisher had begun before its snapshot are dropped, and each other epoch is held
    back until the frontier of the whole topic has passed it. Without, all rows are delivered on arrival. Rows at or
    before ``beyond`` are dropped in both cases. ``resume`` begins at a frontier of an earlier subscription instead of
    the next batch. Above ``max_held_bytes``, only partitions that block the others are read; see :meth:`may_read`.

    Raises :class:`ConfigurationError` when ``partitions`` is below 1, or ``beyond`` and ``resume`` have different
    shapes.
    """

    partitions: int
    atomic: bool = True
    beyond: tuple[Time, ...] = ()
    resume: tuple[Time, ...] = ()
    max_held_bytes: int = MAX_HELD_BYTES
    held_bytes: int = field(default=0, init=False)
    """Bytes of the data that waits for the completion of its epoch."""
    upper: tuple[Time, ...] = field(default=(), init=False)
    """Merged upper frontier of the snapshots; constant. Rows at or before it may be incomplete and are dropped."""

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise ConfigurationError(
                f"a topic has at least 1 partition, and not {self.partitions}", code="option-out-of-range"
            )
        self._partitions = [_Partition() for _ in range(self.partitions)]
        self._beyond = MaximalAntichain(self.beyond)
        self._lower = MinimalAntichain()
        self._filter = MaximalAntichain()
        self._began = False
        self._shape = tuple({least(time) for time in (*self.beyond, *self.resume)})
        if len(self._shape) > 1:
            raise ConfigurationError(
                f"beyond {self.beyond!r} and resume {self.resume!r} are of different shapes; a topic has times of one "
                "shape",
                code="epoch-invalid",
            )

    @property
    def frontier(self) -> tuple[Time, ...] | None:
        """The lower frontier of the whole topic; None until every partition has sent its snapshot."""
        return self._lower.elements if self._began else None

    @property
    def finished(self) -> bool:
        """Whether every publisher has sent the end of the topic."""
        return all(one.ended for one in self._partitions)

    def resumes_at(self, partition: int) -> tuple[Time, ...]:
        """The time for a hello to resume from, as a tuple of one element; empty to begin with the next batch.

        Raises :class:`PubSubError` when the partition's frontier is not one time. Publishers of this package always
        have one.
        """
        one = self._partitions[partition]
        if one.own is None:
            return self.resume
        if len(one.own) != 1:
            raise PubSubError(
                f"partition {partition} has the frontier {one.own.elements!r}, and a hello has one time",
                code="epoch-invalid",
            )
        return one.own.elements

    def may_read(self, partition: int) -> bool:
        """Whether to read from a partition now. A partition that holds back the topic's frontier is always read."""
        own = self._partitions[partition].own
        if self.held_bytes <= self.max_held_bytes or own is None:
            return True
        return all(one.own is not None for one in self._partitions) and any(time in self._lower for time in own)

    def received(self, partition: int, message: Snapshot | Update | Data) -> list[MergedItem]:
        """Process a publisher's message. Returns the items for the application, in order.

        Raises :class:`RemoteProtocolError` when the message violates the protocol.
        """
        one = self._partitions[partition]
        match message:
            case Snapshot():
                return self._snapshot(partition, one, message)
            case Data():
                return self._data(partition, one, message)
            case Update():
                return self._update(partition, one, message)

    def lost(self, partition: int) -> None:
        """A connection was lost. Rows of incomplete epochs are dropped, because the publisher sends them again."""
        one = self._partitions[partition]
        if one.connected and one.own is not None:
            own = one.own
            self._hold(one, [data for data in one.held if not own.may_see(data.time)])
            # Rows that were already delivered (without ``atomic``) are recognised by counting data messages.
            one.repeated, one.seen = (0 if self.atomic else max(one.seen, one.repeated)), 0
        one.connected = False

    def ended(self, partition: int) -> None:
        """A publisher has sent the end of the topic."""
        self.lost(partition)
        self._partitions[partition].ended = True

    def validate(self) -> None:
        """Raise AssertionError when an invariant is violated; for tests."""
        assert self.held_bytes == sum(one.held_bytes for one in self._partitions)
        owns = [one.own for one in self._partitions if one.own is not None]
        assert self._lower.elements == MinimalAntichain([time for own in owns for time in own]).elements
        assert not self._began or self.atomic or not self.held_bytes
        if self._began:
            assert all(self._lower.may_see(data.time) for one in self._partitions for data in one.held)

    def _snapshot(self, partition: int, one: _Partition, message: Snapshot) -> list[MergedItem]:
        if one.connected:
            raise broken(Fault.WRONG_STATE, f"partition {partition} sends a second snapshot")
        self._check_shapes((*message.lower, *message.upper), f"partition {partition}")
        expected = self.resumes_at(partition)
        if expected and message.lower != expected:
            raise broken(
                Fault.REPLAY_DIFFERS,
                f"partition {partition} was asked to resume from {expected[0]!r} and begins at {message.lower!r}",
            )
        one.connected, one.ended = True, False
        if one.own is not None:
            return []
        one.own = MinimalAntichain(message.lower)
        self._lower.update([(time, 1) for time in one.own])
        for time in message.upper:
            self._filter.insert(time)
        return self._begin() if all(other.own is not None for other in self._partitions) else []

    def _begin(self) -> list[MergedItem]:
        """All snapshots have arrived: apply the merged filter to the data received before."""
        self._began = True
        self.upper = self._filter.elements
        for one in self._partitions:
            self._hold(one, [data for data in one.held if not self._dropped(data.time)])
        elements = self._lower.elements
        return self._moved([(time, 1) for time in elements])

    def _data(self, partition: int, one: _Partition, message: Data) -> list[MergedItem]:
        own = self._own(partition, one, "data")
        self._check_shapes((message.time,), f"partition {partition}")
        if not own.may_see(message.time):
            raise broken(Fault.WRONG_STATE, f"partition {partition} sends data at {message.time!r}, which it completed")
        one.seen += 1
        if one.seen <= one.repeated:
            return []
        if not self.atomic:
            dropped = self._beyond.covers(message.time)
            return [] if dropped else [Delivered(message.time, partition, message.payload)]
        # The filter is complete only when all snapshots have arrived; until then all data is held.
        if not self._began or not self._dropped(message.time):
            one.held.append(message)
            self.held_bytes += len(message.payload)
        return []

    def _update(self, partition: int, one: _Partition, message: Update) -> list[MergedItem]:
        own = self._own(partition, one, "a frontier update")
        self._check_shapes((time for time, _ in message.changes), f"partition {partition}")
        before = MinimalAntichain(own)
        try:
            changes = own.update(message.changes)
        except PubSubError as error:
            raise broken(Fault.WRONG_STATE, f"partition {partition} breaks its frontier: {error.message}") from None
        if any(change > 0 and not before.may_see(time) for time, change in changes):
            raise broken(Fault.WRONG_STATE, f"partition {partition} moves its frontier back, to {own.elements!r}")
        one.seen = one.repeated = 0
        visible = self._lower.update(changes)
        return self._moved(visible) if self._began and visible else []

    def _moved(self, changes: list[tuple[Time, int]]) -> list[MergedItem]:
        """Return the rows of the epochs that the frontier has passed, then the change of the frontier."""
        self._filter.drop_passed(self._lower)
        passed: list[tuple[int, Data]] = []
        for partition, one in enumerate(self._partitions):
            kept = [data for data in one.held if self._lower.may_see(data.time)]
            if len(kept) < len(one.held):
                passed += [(partition, data) for data in one.held if not self._lower.may_see(data.time)]
                self._hold(one, kept)
        passed.sort(key=lambda found: (key(found[1].time), found[0]))
        items: list[MergedItem] = [Delivered(data.time, partition, data.payload) for partition, data in passed]
        return [*items, Frontier(self._lower.elements, tuple(changes))]

    def _dropped(self, time: Time) -> bool:
        return self._filter.covers(time) or self._beyond.covers(time)

    def _hold(self, one: _Partition, held: list[Data]) -> None:
        self.held_bytes -= one.held_bytes
        one.held = held
        self.held_bytes += one.held_bytes

    def _own(self, partition: int, one: _Partition, message: str) -> MinimalAntichain:
        if not one.connected or one.own is None:
            raise broken(Fault.WRONG_STATE, f"partition {partition} sends {message} before its snapshot")
        return one.own

    def _check_shapes(self, times: Iterable[Time], who: str) -> None:
        for time in times:
            self._shape = self._shape or (least(time),)
            if least(time) != self._shape[0]:
                raise broken(
                    Fault.WRONG_STATE,
                    f"{who} sends the time {time!r}, and earlier times are like {self._shape[0]!r}; "
                    "one topic has times of one shape",
                )
