"""The ranges of doors' streams that were given up, of one receiver beside one checkpoint.

    <checkpoint>/_wallaroo/given-up/of-<receiver>/ranges.json

The offset log says of such a range that it was read. Only this file says that its messages may not be in the table, so
it is written before a batch goes on without them. A client that comes back late is then told so by every later worker.
Source: ``docs/doors.md#rows-that-nobody-can-resend``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.sidecar.folder import SidecarFolder

FOLDER, FILE = "given-up", "ranges.json"
MOST_STREAMS = 10_000
"""Streams whose last range is remembered; those of which a range was given up first are forgotten. A choice: 1 MB."""


class GivenUpRanges:
    """The last range of each stream, for several threads. Without a folder they are in memory alone.

    The file is read when the first instance is asked for. The methods raise :class:`CheckpointError`.
    """

    def __init__(self, folder: Callable[[], SidecarFolder] | None = None) -> None:
        self._open = folder
        self._known: dict[StreamKey, PlannedRange] | None = None
        self._lock = threading.Lock()

    def of(self, scopes: Collection[str]) -> list[PlannedRange]:
        """The ranges of streams of these instances."""
        with self._lock:
            return [planned for key, planned in self._ranges().items() if key.scope in scopes]

    def record(self, ranges: Collection[PlannedRange]) -> None:
        """Remember ranges; durable when this returns."""
        with self._lock:
            known = dict(self._ranges())
            for planned in ranges:
                before = known.pop(planned.key, planned)
                known[planned.key] = _together(before, planned)
            if known == self._known:
                return
            for key in [*known][: max(0, len(known) - MOST_STREAMS)]:
                del known[key]
            if self._open is not None:
                data = json.dumps([planned.to_json() for planned in known.values()]).encode()
                self._open().write(FILE, data)
            self._known = known

    def _ranges(self) -> dict[StreamKey, PlannedRange]:
        if self._known is None:
            folder = None if self._open is None else self._open()
            data = None if folder is None else folder.read(FILE)
            try:
                found = [] if data is None else [PlannedRange.from_json(one) for one in json.loads(data)]
            except (ValueError, TypeError) as error:
                raise CheckpointError(
                    f"{folder.identity if folder else ''}/{FILE} is damaged: {error!r}; restore it along with the rest "
                    "of the checkpoint. Without it, clients of doors are told of ranges that were given up that they "
                    "are committed",
                    code="checkpoint-damaged",
                    file=FILE,
                ) from error
            self._known = {planned.key: planned for planned in found}
        return self._known


def _together(before: PlannedRange, planned: PlannedRange) -> PlannedRange:
    """Both ranges when they touch each other, otherwise the later one: a client of a door does not go back."""
    (_, low, high), (key, start, end) = before, planned
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert isinstance(start, int)
    assert isinstance(end, int)
    return PlannedRange(key, min(low, start), max(high, end)) if start <= high and low <= end else planned
