"""The protocol of a source for :meth:`Connector.feed`.

A source returns records, each with a point of reference, and returns them again from any reference if it is replayable.
Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from wallaroo_spark.connector.record import Record


class Source(Protocol):
    """Records in an order that is the same each time they are read."""

    @property
    def name(self) -> str:
        """The name of its stream, unless :meth:`Connector.feed` gets another."""

    @property
    def replayable(self) -> bool:
        """Whether the records can be read again. If not, they are sent as EPHEMERAL messages."""

    def read(self, after: int | None) -> Iterator[Record] | AsyncIterator[Record]:
        """The records after reference ``after``; None means from the beginning.

        May be called any number of times; the iterator of the call before is closed first. A plain iterator should not
        block for long, because everything else on the connection waits for it. Raises :class:`ReplayError` when the
        source no longer has the records after ``after``.
        """
