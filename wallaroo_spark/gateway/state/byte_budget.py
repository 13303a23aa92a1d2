"""Bytes that wait in the memory of a gateway, with one limit for all of its clients together. Pure."""

from __future__ import annotations


class ByteBudget:
    """Counts bytes up to a limit. One part that alone is larger has room while nothing else waits."""

    def __init__(self, limit: int) -> None:
        self.used = 0
        """The bytes that wait."""
        self._limit = limit

    def has_room(self, size: int) -> bool:
        """Whether so many more may wait."""
        return not self.used or self.used + size <= self._limit

    def add(self, size: int) -> None:
        """So many more wait."""
        self.used += size

    def remove(self, size: int) -> None:
        """So many do not wait any more."""
        self.used -= size
