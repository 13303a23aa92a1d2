"""A topic as a source of a connector, so that one Spark application can feed another.

It implements the source protocol of the connector SDK without importing it. Source:
``docs/protocol.md#points-of-reference`` and ``docs/pubsub.md``.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from wallaroo_spark.columnar.python_values import python_rows
from wallaroo_spark.errors import PubSubError, ReplayError, one_line
from wallaroo_spark.json_text import dump_json
from wallaroo_spark.pubsub.messages import Why
from wallaroo_spark.pubsub.subscribing.settings import FollowingSettings, TopicSourceSettings
from wallaroo_spark.pubsub.subscribing.subscription import look_up, subscribe
from wallaroo_spark.pubsub.times import Epoch, Position, batch_of, start_of
from wallaroo_spark.settings import rows, takes_settings
from wallaroo_spark.sidecar.task_access import as_arrow_stream

INDEX_BITS = 32
"""Bits of a reference for the index of a message within its batch; the batch's id is above them."""
MOST_BATCHES = 1 << 31
"""Limit of batch ids in references, so that a reference is below 2^63."""
MOST_PLACES = 1 << INDEX_BITS
"""Limit of messages in one batch."""

log = one_line("wallaroo_spark.pubsub")


@dataclass(frozen=True, slots=True)
class FeedRow:
    """A record to send; ``event_time`` and ``key`` are always None."""

    id: int
    """Reference of the message."""
    payload: bytes
    """Payload of the message."""
    event_time: None = None
    """Always None."""
    key: None = None
    """Always None."""


class TopicSource:
    """The rows of a topic in a reproducible order: by epoch, then by partition.

    It begins with the next epoch. After a restart it continues after the last acknowledged row, as long as the topic
    retains that batch (``retain``). A sender that ends before any acknowledgement may miss the rows that were published
    until its restart. The stream is named after the topic and its identity, so that a topic that is started anew is a
    new stream.

    Raises :class:`PubSubError` when the topic does not run within ``wait`` seconds, and :class:`RegistryError`.
    """

    replayable = True

    @takes_settings(TopicSourceSettings)
    def __init__(self, settings: TopicSourceSettings) -> None:
        self.topic = settings.topic
        self._value = settings.value
        self._settings = {one.name: getattr(settings, one.name) for one in rows(FollowingSettings)}
        self._settings["reopen"] = settings.reopen
        self._record = look_up(settings.topic, settings.registry, settings.wait)
        self._start: int | None = None

    @property
    def name(self) -> str:
        """Name of the stream: the topic and the first characters of its identity."""
        return f"topic:{self.topic}:{self._record.identity[:12]}"

    async def read(self, after: int | None) -> AsyncGenerator[Any, None]:
        """Iterate over the records behind reference ``after``; None begins with the next epoch.

        The iterator raises :class:`ReplayError` when the topic no longer retains the needed batch, and the errors of
        iterating over a subscription. When the publisher cuts off this source as too slow, it continues from the
        retained batches.
        """
        last = after
        while True:
            try:
                async with aclosing(self._behind(last)) as found:
                    async for row in found:
                        last = row.id
                        yield row
                return
            except PubSubError as error:
                why = error.fields.get("why")
                if why == Why.NOT_KEPT:
                    raise ReplayError(
                        f"source topic:{self.topic} cannot be read behind reference {last}: {error.message}",
                        code="epochs-not-kept",
                        source=self.topic,
                        reference=last,
                    ) from error
                if why != Why.SLOW:
                    raise
                log.info("source topic:%s continues from the retained batches: %s", self.topic, error)

    async def _behind(self, after: int | None) -> AsyncGenerator[FeedRow, None]:
        start = self._start if after is None else after >> INDEX_BITS
        position = None
        if start is not None:
            position = Position(self._record.identity, start_of(start, product=self._record.product))
        place = ReferenceCounter()
        async with subscribe(resume=position, **self._settings) as subscription:
            async for item in subscription:
                if start is None:
                    # Dropping only some times of a batch would give its messages other references on a second read.
                    begun = [batch_of(time) + 1 for time in subscription.upper]
                    first = [item.epoch] if isinstance(item, Epoch) else item.frontier
                    start = self._start = max([*begun, *map(batch_of, first)], default=0)
                if not isinstance(item, Epoch) or batch_of(item.epoch) < start:
                    continue
                for payload in self._payloads(item.batch):
                    reference = place.next(batch_of(item.epoch))
                    if after is None or reference > after:
                        yield FeedRow(reference, payload)

    def _payloads(self, batch: Any) -> Iterator[bytes]:
        if self._value == "json":
            return map(row_as_json, python_rows(batch))
        return iter([as_arrow_stream(batch)])


class ReferenceCounter:
    """Assigns references in order: the batch, and the index of the message within it."""

    def __init__(self) -> None:
        self._batch = -1
        self._index = 0

    def next(self, batch: int) -> int:
        """The reference of the next message of ``batch``. Raises :class:`PubSubError` when 64 bits cannot hold it."""
        self._index = self._index + 1 if batch == self._batch else 0
        self._batch = batch
        if batch >= MOST_BATCHES or self._index >= MOST_PLACES:
            raise PubSubError(
                f"message {self._index} of batch {batch} has no reference; {MOST_BATCHES} batches of {MOST_PLACES} "
                "messages is the limit, so send rows as Arrow (value='arrow'), or begin a new checkpoint",
                code="too-many-messages",
            )
        return batch << INDEX_BITS | self._index


def row_as_json(row: dict[str, Any]) -> bytes:
    """Encode a row as a JSON object on one line, in UTF-8.

    Times are in ISO 8601, decimals are text, bytes are hexadecimal text. NaN and infinities, which JSON does not have,
    are text too.
    """
    try:
        return dump_json(row, _plain)
    except ValueError:
        return dump_json(_finite(row), _plain)


def _finite(value: Any) -> Any:
    """A value without numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
