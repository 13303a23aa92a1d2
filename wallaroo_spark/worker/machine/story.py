"""The last events of a worker, each with the instructions that it caused: for whoever looks for the cause of something.

Only a digest of each is kept, and no bytes of messages. Nothing becomes text before it is asked for. What happens all
the time (messages that come and are taken in) has a log of its own, so that it does not push out what is rare: a
connection, a commit, a query that goes back.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, NamedTuple, get_args

from wallaroo_spark.worker.machine import events as e

RARE_EVENTS = 256
"""Events kept of those that are rare."""
FREQUENT_EVENTS = 64
"""Events kept of those that happen all the time."""
INSTRUCTIONS = 8
"""Instructions kept of each event; of the rest there is only the number."""
CHARACTERS = 200
"""Characters kept of a text: a peer chooses names, and a reason names them."""
_SHOWN = 5

_FREQUENT = frozenset({e.Received, e.Wanted, e.Tick})
_QUIET = frozenset({e.Send, e.WakeReaders, e.PauseReading, e.ResumeReading})


class Digest(NamedTuple):
    """What is kept of an event or an instruction: its type, and values in the order of the type's names."""

    kind: type
    values: tuple[Any, ...]

    def __str__(self) -> str:
        names, _ = _KEPT[self.kind]
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(names, self.values, strict=True))
        return f"{self.kind.__name__}({shown})"


class Entry(NamedTuple):
    """One event. ``now`` is the machine's clock in monotonic seconds, ``left_out`` counts instructions not kept."""

    serial: int
    now: float
    event: Digest
    instructions: tuple[Digest, ...]
    left_out: int
    error: str

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
        """An event was dealt with; ``error`` is what it failed with, if it did.

        A Tick without instructions is left out.
        """
        kind = type(event)
        if kind is e.Tick and not instructions and not error:
            return
        frequent = kind in _FREQUENT and not error and all(type(one) in _QUIET for one in instructions)
        self._serial += 1
        kept = tuple(map(digest, instructions[:INSTRUCTIONS]))
        left_out = len(instructions) - len(kept)
        entry = Entry(self._serial, now, digest(event), kept, left_out, error[:CHARACTERS])
        (self._frequent if frequent else self._rare).append(entry)

    def entries(self) -> list[Entry]:
        """Those that are kept, the oldest first."""
        return sorted([*self._rare, *self._frequent])

    def lines(self) -> list[str]:
        """Those that are kept as text, the oldest first."""
        return [str(entry) for entry in self.entries()]


def digest(value: e.Event | e.Instruction) -> Digest:
    """What is kept of an event or an instruction."""
    kind = type(value)
    return Digest(kind, _KEPT[kind][1](value))


def _few(values: Collection[Any]) -> tuple[Any, ...]:
    """The first of some values, and how many there are when there are more."""
    few = tuple(_small(value) for value in islice(values, _SHOWN))
    return few if len(values) <= _SHOWN else (*few, f"{len(values)} in all")


def _fields(kind: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """A small value is kept as it is, but for long texts and what has many parts."""
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
    e.Wanted: (("ranges",), lambda event: (len(event.ranges),)),
    e.Send: (("connection", "bytes"), lambda send: (send.connection, len(send.data))),
    e.Log: (("connection", "text"), lambda log: (log.connection, log.text[:CHARACTERS])),
}
