"""The last events of a worker, each with its instructions, for finding the cause of a failure.

Only a digest of each is kept, without the bytes of messages, and it is formatted only on request. Frequent events (the
arrival of messages) have a log of their own, so that they do not displace rare ones: a connection, a commit, a rewind.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, NamedTuple, get_args

from wallaroo_spark.worker.machine import events as e

RARE_EVENTS = 256
"""Number of rare events that are kept. It bounds memory."""
FREQUENT_EVENTS = 64
"""Number of frequent events that are kept. It bounds memory."""
INSTRUCTIONS = 8
"""Number of instructions kept for each event; the others are only counted."""
CHARACTERS = 200
"""Number of characters kept of a text, because peers choose names."""
_SHOWN = 5
"""Number of values kept of a collection."""

_FREQUENT = frozenset({e.Received, e.Holding, e.Wanted, e.ReadBegan, e.Tick})
_QUIET = frozenset({e.Send, e.WakeReaders, e.WakeDriver, e.SetReading})


class Digest(NamedTuple):
    """The kept part of an event or an instruction."""

    kind: type
    values: tuple[Any, ...]

    def __str__(self) -> str:
        names, _ = _KEPT[self.kind]
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(names, self.values, strict=True))
        return f"{self.kind.__name__}({shown})"


class Entry(NamedTuple):
    """One event with its instructions."""

    serial: int
    """Number of the event; it grows."""
    now: float
    """The machine's clock in monotonic seconds."""
    event: Digest
    instructions: tuple[Digest, ...]
    """Digests of the first instructions."""
    left_out: int
    """Number of instructions that are not kept."""
    error: str
    """The error of this program; empty without one."""

    def __str__(self) -> str:
        done = [*map(str, self.instructions)]
        if self.left_out:
            done.append(f"and {self.left_out} more")
        if self.error:
            done.append(f"FAILED: {self.error}")
        return f"#{self.serial} {self.now:.2f} s  {self.event} → {', '.join(done) or 'nothing'}"


class Story:
    """A bounded log of events and their instructions."""

    def __init__(self) -> None:
        self._serial = 0
        self._rare: deque[Entry] = deque(maxlen=RARE_EVENTS)
        self._frequent: deque[Entry] = deque(maxlen=FREQUENT_EVENTS)

    def add(self, now: float, event: e.Event, instructions: Sequence[e.Instruction], error: str = "") -> None:
        """Record an event; ``error`` is the error that it failed with. A Tick without instructions is skipped."""
        kind = type(event)
        if kind is e.Tick and not instructions and not error:
            return
        frequent = kind in _FREQUENT and not error and all(type(one) in _QUIET for one in instructions)
        self._serial += 1
        kept = tuple(map(digest, instructions[:INSTRUCTIONS]))
        left_out = len(instructions) - len(kept)
        entry = Entry(self._serial, now, digest(event), kept, left_out, error[:CHARACTERS])
        (self._frequent if frequent else self._rare).append(entry)

    def lines(self) -> list[str]:
        """The kept entries as text, the oldest first."""
        return [str(entry) for entry in sorted([*self._rare, *self._frequent])]


def digest(value: e.Event | e.Instruction) -> Digest:
    """The digest of an event or an instruction."""
    kind = type(value)
    return Digest(kind, _KEPT[kind][1](value))


def _few(values: Collection[Any]) -> tuple[Any, ...]:
    """The first values of a collection, and the number of all values if there are more."""
    few = tuple(_small(value) for value in islice(values, _SHOWN))
    return few if len(values) <= _SHOWN else (*few, f"{len(values)} in all")


def _fields(kind: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of a type's fields, and a function that keeps their values; long texts and collections are cut."""
    names = tuple(field.name for field in dataclasses.fields(kind))

    def keep(value: Any) -> tuple[Any, ...]:
        return tuple(_small(getattr(value, name)) for name in names)

    return names, keep


def _small(value: Any) -> Any:
    if isinstance(value, str):
        return value[:CHARACTERS]
    return _few(value) if isinstance(value, tuple | frozenset) else value


_KEPT: dict[type, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = {
    **{kind: _fields(kind) for kind in (*get_args(e.Event), *get_args(e.Instruction))},
    e.Received: (
        ("connections", "bytes"),
        lambda event: (_few([number for number, _ in event.parts]), sum(len(data) for _, data in event.parts)),
    ),
    e.Rewound: (("epoch", "batch", "references"), lambda event: (event.epoch, event.batch, len(event.references))),
    e.Committed: (("epoch", "batch", "references"), lambda event: (event.epoch, event.batch, len(event.references))),
    e.GiveUp: (("planned",), lambda event: (str(event.planned)[:CHARACTERS],)),
    e.Wanted: (("ranges",), lambda event: (len(event.ranges),)),
    e.Send: (("connection", "bytes"), lambda send: (send.connection, len(send.data))),
    e.Log: (("connection", "text"), lambda log: (log.connection, log.text[:CHARACTERS])),
}
