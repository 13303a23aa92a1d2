"""An iterable as a source of records."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator

from wallaroo_spark.connector.arguments import callable_of
from wallaroo_spark.connector.message_columns import GroupedRecords, MessageColumns, grouped
from wallaroo_spark.connector.record import Record, RecordOrPair, as_record
from wallaroo_spark.errors import ReplayError


class Records:
    """An iterable of :class:`Record` or (reference, payload) that can be made again.

    ``make`` is called for each reading and returns an iterable, plain or asynchronous, that starts at the beginning;
    committed records are skipped. With ``opaque`` references are only compared for equality; otherwise they increase.
    """

    replayable = True

    def __init__(
        self,
        name: str,
        make: Callable[[], Iterable[RecordOrPair] | AsyncIterable[RecordOrPair]],
        *,
        opaque: bool = False,
    ) -> None:
        self.name = name
        self._make = callable_of(make, "make")
        self._opaque = opaque

    @property
    def opaque(self) -> bool:
        """Whether references are only compared for equality."""
        return self._opaque

    def read(self, after: int | None) -> Iterator[Record] | AsyncIterator[Record]:
        """The records after reference ``after``."""
        given = self._make()
        if isinstance(given, AsyncIterable):
            return self._asynchronous(given, after)
        return GroupedRecords(self._groups(iter(given), after))

    def _groups(self, given: Iterator[RecordOrPair], after: int | None) -> Generator[MessageColumns, None, None]:
        committed = _Committed(self, after)
        for group in grouped(given):
            if committed.passed and group.ids is not None:
                yield group
                continue
            ids = [None] if group.ids is None else group.ids
            first = next((at for at, reference in enumerate(ids) if not committed.includes(reference)), len(ids))
            if first < len(ids):
                yield group.part(first, len(ids))
        committed.finish()

    async def _asynchronous(self, given: AsyncIterable[RecordOrPair], after: int | None) -> AsyncIterator[Record]:
        committed = _Committed(self, after)
        async for one in given:
            record = as_record(one)
            if not committed.includes(record.id):
                yield record
        committed.finish()


class _Committed:
    """Recognises the committed records at the beginning of a reading."""

    def __init__(self, source: Records, after: int | None) -> None:
        self._source = source
        self._after = after
        self.passed = after is None
        """Whether all committed records were read."""

    def includes(self, reference: int | None) -> bool:
        """Whether the next record, with this reference, is committed."""
        if reference is None:
            raise ReplayError(
                f"source {self._source.name!r} has a record without a reference; a source that is read again needs one "
                "in each record",
                code="source-without-reference",
                source=self._source.name,
            )
        if self.passed:
            return False
        assert self._after is not None
        if self._source.opaque:
            self.passed = reference == self._after
            return True
        self.passed = reference > self._after
        return not self.passed

    def finish(self) -> None:
        """The source has ended. Raises :class:`ReplayError` if the committed reference was not in it."""
        if self._source.opaque and not self.passed:
            raise ReplayError(
                f"source {self._source.name!r} has no record with reference {self._after}, which is the last one "
                "committed; the source has changed",
                code="source-changed",
                source=self._source.name,
                reference=self._after,
            )
