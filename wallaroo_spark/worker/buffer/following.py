"""The scopes whose committed references a worker needs, and whether the driver has told it all of them. Pure.

A worker *follows* a scope (see :class:`~wallaroo_spark.references.StreamKey`) from the moment at which the registry
assigns a connector instance to its slot, until the instance is released and no end of a stream is left to report. The
driver asks each worker which scopes it follows, and tells it the references of these and of no others. Each scope has a
number, which grows with every scope that begins to be followed; the driver names the highest number that it has heard
of in each notice. So an answer that the driver gave before a connector came is not taken for an answer to it.

Source: ``docs/decisions/workers-are-told-what-they-serve.md``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from wallaroo_spark.inner.calls import FollowedScopes
from wallaroo_spark.references import PlannedRange, StreamKey


class Following:
    """The scopes that a worker follows, with their numbers."""

    def __init__(self) -> None:
        self.cursor = 0
        """The number of the last scope that began to be followed, or that has to be told again."""
        self.left: set[str] = set()
        """The scopes without a connector here. Another worker may get one, so they must be told again after that."""
        self.given_up: dict[StreamKey, PlannedRange] = {}
        """For a stream of a door: the range of which the driver has recorded that it was given up."""
        self._giving_up: dict[StreamKey, PlannedRange] = {}
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._untold: set[str] = set()
        self._covered = 0
        """The number up to which the driver tells all changes."""

    def __contains__(self, scope: str) -> bool:
        return scope in self._numbers

    def knows(self, scope: str) -> bool:
        """Whether the worker was told all references of a scope, and is told each change of them."""
        return scope in self._numbers and scope not in self._untold

    def ask(self, scope: str) -> None:
        """A connector of this scope is served from now on: follow it, unless that is so already."""
        if scope not in self._numbers or scope in self.left:
            self._number(scope)
            self.left.discard(scope)

    def forget(self, scope: str) -> None:
        """Do not follow a scope any more."""
        self._numbers.pop(scope, None)
        self._untold.discard(scope)
        self.left.discard(scope)
        for ranges in (self.given_up, self._giving_up):
            for key in [key for key in ranges if key.scope == scope]:
                del ranges[key]

    def give_up(self, planned: PlannedRange) -> None:
        """Have the driver record that a range was given up. It tells so with all references of the scope."""
        scope = planned.key.scope
        if scope in self._numbers and self._giving_up.get(planned.key) != planned:
            self._giving_up[planned.key] = planned
            self._number(scope)

    def recorded(self, ranges: Collection[PlannedRange]) -> None:
        """The driver has recorded that these ranges were given up."""
        for planned in ranges:
            if planned.key.scope in self._numbers:
                self.given_up[planned.key] = planned
                self._giving_up.pop(planned.key, None)

    def restart(self) -> None:
        """A notice names all references that the driver tells this worker: nothing from before it is valid."""
        self._untold.update(self._numbers)

    def take(self, scopes: Collection[str] | None, cursor: int | None) -> list[str]:
        """A notice has all references of ``scopes``, and its sender has heard of scopes up to the number ``cursor``.

        None means all of them. Returns the scopes whose references in the notice are to be taken; a scope that began to
        be followed after the sender was asked is not among them.
        """
        cursor = self.cursor if cursor is None else cursor
        wanted = self._numbers if scopes is None else scopes
        told = [scope for scope in wanted if self._numbers.get(scope, cursor + 1) <= cursor]
        self._untold.difference_update(told)
        # Scopes that an earlier sender has told, and of which this one has not heard.
        unheard = self._after(cursor) if cursor < self._covered else []
        # Scopes of which this sender has heard, and which it has not told: it believes that it has.
        missed = [scope for scope in self._untold if self._numbers.get(scope, cursor + 1) <= cursor]
        for scope in sorted({*unheard, *missed}):
            self._number(scope)
        self._covered = cursor
        return told

    def answer(self, cursor: int, everything: bool) -> FollowedScopes:
        """The answer to a driver that has heard of the scopes up to the number ``cursor``."""
        new = self._after(cursor)
        kept = [scope for scope, number in self._numbers.items() if number <= cursor] if everything else None
        give_up = tuple(planned for key, planned in self._giving_up.items() if key.scope in new)
        return FollowedScopes(self.cursor, new, kept, len(self._numbers), give_up)

    def _number(self, scope: str) -> None:
        # In this order, so that an error in between leaves no scope that counts as told.
        self._untold.add(scope)
        self._numbers[scope] = self.cursor + 1
        self._numbers.move_to_end(scope)
        self.cursor += 1

    def _after(self, cursor: int) -> list[str]:
        """The scopes with a greater number, in the order of their numbers."""
        found = []
        for scope, number in reversed(self._numbers.items()):
            if number <= cursor:
                break
            found.append(scope)
        return found[::-1]
