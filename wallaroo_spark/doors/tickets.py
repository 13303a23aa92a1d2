"""What a door waits for: a session that opens, or a reference that the commit log gets."""

from __future__ import annotations

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase


def answered_when_received(name: str, patterns: Collection[str]) -> bool:
    """Whether requests for a stream are answered when the worker has received them, in place of their commit.

    ``patterns`` is the option ``door.received``.
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Ticket:
    """One wait, which ends once: it is *kept* when what it waits for has come, or *lost* with a reason. Pure."""

    __slots__ = ("_calls", "kept", "reason", "reference")

    def __init__(self, reference: int = 0) -> None:
        self.reference = reference
        """The reference that the commit log must have; 0 where the wait is for something else."""
        self.kept: bool | None = None
        """None while it waits."""
        self.reason = ""
        """Why it was lost, as a sentence."""
        self._calls: list[Callable[[], None]] = []

    def when_done(self, call: Callable[[], None]) -> None:
        """Call a function when the wait ends; at once when it has ended."""
        if self.kept is None:
            self._calls.append(call)
        else:
            call()

    def forget(self, call: Callable[[], None]) -> None:
        """Do not call this function any more."""
        if call in self._calls:
            self._calls.remove(call)

    def keep(self) -> None:
        """What was waited for has come."""
        self._end(True, "")

    def lose(self, reason: str) -> None:
        """What was waited for will not come."""
        self._end(False, reason)

    def _end(self, kept: bool, reason: str) -> None:
        if self.kept is not None:
            return
        self.kept, self.reason = kept, reason
        calls, self._calls = self._calls, []
        for call in calls:
            call()
