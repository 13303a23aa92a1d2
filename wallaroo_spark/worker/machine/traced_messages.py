"""Follows one of every N messages from its arrival to its acknowledgement, for traces. Pure: times are arguments.

The driver asks for the finished ones and makes spans of them, so that executors need no tracing library. Nothing of
this exists when the option ``traceSample`` is 0. Source: ``docs/monitoring.md#traces``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.worker.buffer.held_stream import HeldStream

OPEN_MESSAGES = 64
"""Messages that are followed at the same time. It bounds the work of each read and commit."""
KEPT_MESSAGES = 256
"""Finished ones that are kept until the driver asks. The driver asks each second."""


@dataclass
class TracedMessage:
    """One message on its way; times are µs since 1970 UTC, 0 as long as they are to come."""

    instance: str
    """The connector instance."""
    stream: str
    stream_id: str
    """Id of the stream, in decimal digits, because it may exceed a signed 64-bit number."""
    message_id: str
    """The message's id, in decimal digits."""
    received_at: int
    """When the worker received it."""
    planned_at: int = 0
    """When a reading task first asked for a range with it."""
    read_at: int = 0
    """When its range was complete and was handed to the task."""
    committed_at: int = 0
    """When the worker was told of the commit."""
    acknowledged_at: int = 0
    """When the worker had sent the ACK."""
    batch: int = -1
    """The batch of the commit."""
    serial: int = 0
    """Number among the finished ones of this worker, from 1."""


class TracedMessages:
    """The followed messages of a worker. ``every`` is how many messages there are for each one that is followed."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._left = 1
        self._open: deque[tuple[StreamKey, int, TracedMessage]] = deque(maxlen=OPEN_MESSAGES)
        self._committed: list[TracedMessage] = []
        self._finished: deque[TracedMessage] = deque(maxlen=KEPT_MESSAGES)
        self._serial = 0

    def accepted(self, messages: int, stream: HeldStream, instance: str, received_at: int) -> None:
        """Messages were accepted, the last ones on ``stream``. When the next sample is due, it is the last of these."""
        self._left -= messages
        if self._left > 0 or stream.ephemeral or stream.empty:
            return
        self._left = self._every
        last = stream.reference_at(stream.end)
        if isinstance(last, int):
            sample = TracedMessage(instance, stream.name, str(stream.key.stream_id), str(last), received_at)
            self._open.append((stream.key, last, sample))

    def planned(self, ranges: Iterable[PlannedRange], now: int) -> None:
        """A reading task asks for these ranges."""
        for sample in self._within(ranges):
            sample.planned_at = sample.planned_at or now

    def read(self, ranges: Iterable[PlannedRange], now: int) -> None:
        """These ranges are handed to a reading task."""
        for sample in self._within(ranges):
            sample.read_at = sample.read_at or now

    def _within(self, ranges: Iterable[PlannedRange]) -> list[TracedMessage]:
        if not self._open:
            return []
        ends = {planned.key: (planned.start, planned.end) for planned in ranges}
        return [sample for key, last, sample in self._open if key in ends and _is_within(last, *ends[key])]

    def committed(self, references: Mapping[StreamKey, Reference | None], batch: int, now: int) -> None:
        """The worker was told of a commit up to these references."""
        still: list[tuple[StreamKey, int, TracedMessage]] = []
        for key, last, sample in self._open:
            reference = references.get(key)
            if isinstance(reference, int) and reference >= last:
                sample.committed_at, sample.batch = now, batch
                self._committed.append(sample)
            else:
                still.append((key, last, sample))
        self._open = deque(still, maxlen=OPEN_MESSAGES)

    def acknowledged(self, now: int) -> None:
        """The worker has sent the ACKs of the last commit."""
        for sample in self._committed:
            self._serial += 1
            sample.acknowledged_at, sample.serial = now, self._serial
            self._finished.append(sample)
        self._committed = []

    def finished(self, after: int) -> list[dict[str, Any]]:
        """The finished ones whose serial number is greater than ``after``, as JSON-ready values."""
        return [asdict(sample) for sample in self._finished if sample.serial > after]


def _is_within(last: int, start: Reference | None, end: Reference) -> bool:
    return isinstance(end, int) and last <= end and (not isinstance(start, int) or last > start)
