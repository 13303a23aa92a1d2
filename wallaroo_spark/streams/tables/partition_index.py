"""Where the records of one partition are: files of its table, and files of batches that are not moved yet. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import NamedTuple


class Place(NamedTuple):
    """A file with records that follow each other."""

    first: int
    """Its first offset."""
    last: int
    """Its last offset, inclusive."""
    path: str
    """The file, on the file system of the application's folder."""


class PartitionIndex:
    """The files of a partition, as far as they are known; they cover a range of offsets without a hole."""

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._places: list[Place] = []
        self._lasts: list[int] = []
        for place in places:
            self.add(place)

    @property
    def first(self) -> int | None:
        """The first offset; None without a file."""
        return self._places[0].first if self._places else None

    @property
    def last(self) -> int:
        """The last offset; 0 without a file."""
        return self._lasts[-1] if self._lasts else 0

    def add(self, place: Place) -> None:
        """Add a file behind the others. A file whose records are known is ignored."""
        if place.last > self.last:
            self._places.append(place)
            self._lasts.append(place.last)

    def places(self) -> tuple[Place, ...]:
        """The files, in the order of their offsets."""
        return tuple(self._places)

    def at_or_after(self, offset: int) -> Place | None:
        """The file with this offset, or the first file behind it; None if all records are before it."""
        at = bisect.bisect_left(self._lasts, offset)
        return self._places[at] if at < len(self._places) else None
