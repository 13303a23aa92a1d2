"""The named steps from a frame to its acknowledgement, and from a batch to a sink, at which a process may crash.

Crash tests kill a process at each step and check that no message is lost. No option or environment variable can enable
that: only code inside the process that calls :func:`at_each`. Without such a call, :func:`passed` does nothing.
Source: ``docs/architecture.md#rules``, rules 1 to 7.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Step(Enum):
    """A step of a message from its frame to its acknowledgement. The value says what the process has just done."""

    FRAME_RECEIVED = "a worker has read bytes from a connector and has not decoded them"
    BUFFERED = "a worker has buffered messages and has not reported them to anybody"
    PLAN_WRITTEN = "a source has written a plan beside the checkpoint, and Spark does not know its name"
    OFFSETS_WRITTEN = "Spark has written offsets/N, and the batch is about to be read"
    RANGE_HALF_SENT = "a worker has sent a part of a planned range to a reading task"
    RANGE_HALF_READ = "a reading task has passed a part of its ranges to Spark"
    SINK_WRITTEN = "a sink has written a batch"
    COMMITS_WRITTEN = "the driver has seen commits/N and has not notified any worker"
    PLANS_HALF_PURGED = "the driver has deleted a part of the plans that no offset leads to"
    REFERENCES_SENT = "the driver has sent the committed references to one worker"
    REFERENCES_RECEIVED = "a worker has received the committed references and has not sent an ACK"
    ACK_SENT = "a worker has acknowledged the committed messages"


class SinkStep(Enum):
    """A step of a batch into a transactional sink. The value says what the process has just done.

    Names that begin with ``SERVER`` are steps of the program that receives the rows of a connector sink.
    Source: ``docs/sinks.md``.
    """

    ROWS_HALF_HANDED_OVER = "a task has sent a part of its partition's rows to the sink"
    PREPARED = "the sink has stored a partition's rows durably, and the driver has not been notified"
    VOTED = "every partition has voted to commit, and the decision is not written"
    DECIDED = "the decision to commit is written, and the sink has not been notified"
    HALF_COMMITTED = "a part of a batch is committed in the sink"
    COMMITTED = "a whole batch is committed in the sink, and is not recorded as finished"
    FINISHED = "a batch is recorded as finished, and Spark has not been notified"
    SERVER_ROWS_TAKEN = "the server has written a part of a transaction's rows"
    SERVER_PREPARED = "the server has logged that a transaction is prepared, and has not answered"
    SERVER_DECIDED = "the server has logged that a transaction is committed, and has appended no rows"
    SERVER_HALF_APPENDED = "the server has appended a part of a committed transaction's rows"
    SERVER_APPENDED = "the server has appended a committed transaction's rows, and has not logged that"
    SERVER_LOG_REWRITTEN = "the server has written a shorter log, which has not replaced the old log yet"


class SchemaStep(Enum):
    """A step of a change of an application's schema. The value says what the process has just done."""

    CHECKED = "a new version of the schema is valid, and nothing of it is written"
    WRITTEN = "a new version of the schema is written, and its author has not been told"


class InboxStep(Enum):
    """A step of an event into a batch of an application. The value says what the process has just done.

    Source: ``docs/pipelines/engine.md#the-inbox``.
    """

    GENERATION_CLAIMED = "a gateway has claimed a generation, and has not checked whether another one did"
    EVENTS_WRITTEN = "a gateway has written a file of events durably, and has answered nobody"
    READ_HALF_DELETED = "the driver has deleted a part of the files that committed batches have read"


AnyStep = Step | SinkStep | SchemaStep | InboxStep

_watches: list[Callable[[AnyStep], None]] = []


def at_each(watch: Callable[[AnyStep], None]) -> Callable[[], None]:
    """Register ``watch``, which :func:`passed` then calls with each step; return a function that removes it.

    ``watch`` runs in the thread that calls :func:`passed`.
    """
    _watches.append(watch)
    return lambda: _watches.remove(watch)


def passed(step: AnyStep) -> None:
    """Call every registered function, because this process has reached the step."""
    for watch in _watches:
        watch(step)
