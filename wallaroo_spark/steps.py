"""The named steps on the way from a frame to its acknowledgement, at each of which a process may die.

Tests of crashes have a process die there. Nothing outside a process can switch that on: no option and no variable, only
code that runs in it and calls :func:`at_each`; otherwise passing a step does nothing.
Source: ``design.md``, rules 1 to 7.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Step(Enum):
    """Where a process may be. The value says what has just happened in it."""

    FRAME_RECEIVED = "a worker has read bytes and done nothing with them"
    BUFFERED = "a worker has taken messages in and told nobody"
    OFFSETS_WRITTEN = "Spark has written offsets/N, and the batch is about to be read"
    RANGE_HALF_SENT = "a worker has handed out a part of a range"
    RANGE_HALF_READ = "a reading task has passed a part of its ranges on to Spark"
    SINK_WRITTEN = "a sink has written a batch"
    COMMITS_WRITTEN = "the driver has seen commits/N and told nobody"
    REFERENCES_SENT = "the driver has told one worker what is committed"
    REFERENCES_RECEIVED = "a worker has been told what is committed and has acknowledged nothing"
    ACK_SENT = "a worker has acknowledged what is committed"


_watches: list[Callable[[Step], None]] = []


def at_each(watch: Callable[[Step], None]) -> Callable[[], None]:
    """Have ``watch`` called at each step that this process passes, by the thread that does; what comes back ends it."""
    _watches.append(watch)
    return lambda: _watches.remove(watch)


def passed(step: Step) -> None:
    """This process is at a step."""
    for watch in _watches:
        watch(step)
