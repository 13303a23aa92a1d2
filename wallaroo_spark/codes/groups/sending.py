"""Codes of the connector SDK, its arguments and its sources."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

SENDING = CodeGroup(
    "Connector SDK and sources",
    "Raised by `Connector`, `BlockingConnector`, their streams, and `wallaroo-spark send`.",
    (
        CodeEntry(
            "argument-type",
            "An argument or a setting is of the wrong type.",
            "Payloads and keys are bytes, message ids integers, names text; a single payload is not an iterable of "
            "them.",
            "Convert the value as the message says; text becomes bytes with `.encode()`.",
            "docs/settings.md",
        ),
        CodeEntry(
            "columns-uneven",
            "Columns that are sent together have different lengths.",
            "Ids, keys, event times or flags were given for some messages of `send_many` only.",
            "Give one value for each payload, or leave the whole column out.",
            "docs/settings.md",
        ),
        CodeEntry(
            "time-zone-missing",
            "An event time has no time zone.",
            "A naive `datetime` means another moment on each machine.",
            "Give an aware datetime, for example with `tzinfo=UTC`.",
            "docs/settings.md",
        ),
        CodeEntry(
            "id-out-of-range",
            "A stream id or a message id is not an unsigned 64-bit integer.",
            "It is negative, 2⁶⁴ or more, or not an integer.",
            "Use an id from 0 to 18446744073709551615; a name can stand for a stream in place of an id.",
            "docs/protocol.md#frame-bodies",
        ),
        CodeEntry(
            "connector-closed",
            "The connector is not open.",
            "It was closed, was not opened yet, or this side has closed the connection.",
            "Use the connector within its `with` statement, or open another one.",
            "docs/settings.md",
        ),
        CodeEntry(
            "connector-forked",
            "The connector was opened by the process from which this one was forked.",
            "Two processes would send on one connection, each with its own count of credits.",
            "Open a connector behind the fork in each process, with an instance name of its own.",
            "docs/settings.md",
        ),
        CodeEntry(
            "callback-late",
            "Messages are acknowledged, and not all of their callbacks were called in time.",
            "A callback of `on_delivery` takes too long, or waits for something.",
            "Keep callbacks short, and hand long work to another thread.",
            "docs/settings.md",
        ),
        CodeEntry(
            "stream-ended",
            "The stream has ended.",
            "`end()` was called, so no further message can follow in this stream.",
            "Open the stream again to send more.",
            "docs/protocol.md#stream-states",
        ),
        CodeEntry(
            "stream-given-up",
            "The stream was given up in this session with messages unacknowledged.",
            "With opaque ids the worker could not tell these messages from new ones.",
            "Close this connector, and send the stream with another one.",
            "docs/protocol.md#points-of-reference",
        ),
        CodeEntry(
            "stream-busy",
            "The stream is active in another session.",
            "Another connector sends a stream with this id; a stream has one sender at a time.",
            "End the other connector, or use another stream id.",
            "docs/protocol.md#stream-states",
        ),
        CodeEntry(
            "instance-shared",
            "Another program sends this stream under the same instance name.",
            "A reference is committed that this program has not sent yet, so the worker may have dropped messages of "
            "one program as replays of the other's.",
            "Give each program an instance name of its own, and set the clocks of their machines.",
            "docs/protocol.md#points-of-reference",
        ),
        CodeEntry(
            "messages-not-kept",
            "Messages must be sent again that were acknowledged and are no longer kept.",
            "The checkpoint was restored to an older state, or a new checkpoint is used, and the stream is not fed "
            "from a source that can be read again.",
            "Feed the stream from a file or another source that is read again, or restore the checkpoint whose commits "
            "acknowledged the messages.",
            "docs/protocol.md#a-reference-below-the-one-that-was-acknowledged",
        ),
        CodeEntry(
            "acknowledgement-late",
            "Messages were sent, and not acknowledged in time.",
            "Acknowledgements come when Spark commits a batch: the query does not run, its batches are slow, or its "
            "trigger is longer than the limit.",
            "Look at `wallaroo-spark top`, which names the cause; allow more time if the batches are just long.",
            "docs/architecture.md#acknowledgements-come-from-the-commit-log",
        ),
        CodeEntry(
            "no-session",
            "The connector has no session with a worker, and tries to get one.",
            "The receiver does not run, its query has not started, or the addresses are wrong. The message has the "
            "last reason of each address. It is an error once the connector's time for it is over.",
            "Check that the receiver and its query run, and that these are the addresses that it prints.",
            "docs/protocol.md#when-to-try-again",
        ),
        CodeEntry(
            "hello-unanswered",
            "A worker has not answered HELLO in time.",
            "A worker answers once the query has started and has planned its first batch; until then connectors wait.",
            "Check that the query runs and was started by the receiver, or raise `handshake_timeout`.",
            "docs/protocol.md#session-states",
        ),
        CodeEntry(
            "source-changed",
            "A source that must be read again has changed.",
            "A file was truncated, moved, deleted or replaced, or a source no longer has the record with the committed "
            "reference.",
            "Restore the source, or send the new content as a stream of its own name.",
            "docs/protocol.md#points-of-reference",
        ),
        CodeEntry(
            "source-incomplete",
            "A source ends within a record.",
            "A program still writes the file.",
            "Complete the file, or read it with `follow=True` (`--follow`) while it is being written.",
            "docs/cli.md#wallaroo-spark-send",
        ),
        CodeEntry(
            "source-without-reference",
            "A source has a record without a reference.",
            "A source that is read again after a failure is positioned by the references of its records.",
            "Give each record a reference that increases.",
            "docs/protocol.md#points-of-reference",
        ),
        CodeEntry(
            "record-too-long",
            "A line or a record is longer than the limit.",
            "The file is not of this kind (a binary file that is read as lines), or its records are too long for a "
            "frame.",
            "Check the kind of the file; split longer records.",
            "docs/cli.md#wallaroo-spark-send",
        ),
    ),
)
