"""The named steps from a frame to its acknowledgement, and from a batch to a sink, at which a process may die.

Tests of crashes have a process die there. Nothing outside a process can switch that on: no option and no variable, only
code that runs in it and calls :func:`at_each`; otherwise passing a step does nothing.
Source: ``docs/architecture.md#rules``, rules 1 to 7.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Step(Enum):
    """Where a process may be. The value says what the process has just done."""

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


class SinkStep(Enum):
    """Where a process that has part in a batch's way into a transactional sink may be.

    Those that begin with ``SERVER`` are steps of the program that receives rows for a connector sink.
    """

    ROWS_HALF_HANDED_OVER = "a task has handed a part of its partition's rows to the sink"
    PREPARED = "the sink has a partition's rows for good, and the driver does not know"
    VOTED = "every partition has voted to commit, and nothing is decided"
    DECIDED = "the decision to commit is written, and the sink was not told"
    HALF_COMMITTED = "a part of a batch is committed in the sink"
    COMMITTED = "all of a batch is committed in the sink, and not noted as finished"
    FINISHED = "the batch is noted as finished, and Spark was not told"
    SERVER_ROWS_TAKEN = "the server has written a part of a transaction's rows"
    SERVER_PREPARED = "the server has logged that a transaction is prepared, and has not answered"
    SERVER_DECIDED = "the server has logged that a transaction is committed, and has appended nothing"
    SERVER_HALF_APPENDED = "the server has appended a part of a committed transaction"
    SERVER_APPENDED = "the server has appended a committed transaction, and has not logged that"
    SERVER_LOG_REWRITTEN = "the server has written a shorter log, and the old one is in place"


AnyStep = Step | SinkStep

_watches: list[Callable[[AnyStep], None]] = []


def at_each(watch: Callable[[AnyStep], None]) -> Callable[[], None]:
    """Have ``watch`` called at each step of this process, in the passing thread; calling the result ends that."""
    _watches.append(watch)
    return lambda: _watches.remove(watch)


def passed(step: AnyStep) -> None:
    """This process is at a step."""
    for watch in _watches:
        watch(step)
