"""Codes of the sentence on what a connector waits for.

The titles are the meanings in ``docs/producers.md``. A few of these codes stand in other groups, because a receiver's
status, or an error, has them too.
"""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

_STATUS = "docs/producers.md#what-a-connector-waits-for"

CONNECTORS = CodeGroup(
    "What a connector waits for",
    "Causes in `connector.status()` and in the SDK's log. A connector's status also has the codes `connector-closed`, "
    "`no-session`, `session-pending` and `no-credits`.",
    (
        CodeEntry(
            "connector-not-started",
            "The connector has not been asked to connect yet.",
            "A connector connects when its `with` block begins or its first stream is opened.",
            "Open a stream.",
            _STATUS,
        ),
        CodeEntry(
            "connector-failed",
            "The connector has ended with an error, and does not try again.",
            "A worker has refused it for good, or no worker was found in the time that the connector has for it. The "
            "sentence ends with the error, which has a code of its own.",
            "Mend the cause of that error, then open another connector and send again what was not acknowledged.",
            _STATUS,
        ),
        CodeEntry(
            "stream-pending",
            "A worker has not opened a stream yet.",
            "The connector has announced the stream, and the worker has not answered.",
            "Wait. When it lasts, look at `wallaroo-spark status`: the worker may be overloaded or frozen.",
            "docs/protocol.md#session-states",
        ),
        CodeEntry(
            "resending",
            "Messages of an earlier session are sent again before new ones.",
            "The session before has ended, or a worker has died, with messages that Spark had not committed.",
            "Wait: new messages follow as soon as these are sent.",
            "docs/protocol.md#rewinding",
        ),
        CodeEntry(
            "network-full",
            "The network takes no more bytes for now.",
            "The socket's buffer is full: the network is slower than the sender, or the worker does not read because "
            "its own buffer is full.",
            "Check the network to the worker, and whether `wallaroo-spark status` says that the worker's buffer is "
            "full.",
            _STATUS,
        ),
        CodeEntry(
            "unacknowledged-full",
            "As many bytes are unacknowledged as the connector may keep.",
            "Messages are kept until Spark commits them, and batches commit more slowly than messages are sent.",
            "Check that the receiver's query commits, or raise `max_unacknowledged`.",
            _STATUS,
        ),
        CodeEntry(
            "commit-awaited",
            "Messages are sent and wait until Spark commits their batch.",
            "A message is acknowledged by the commit of the batch that it is in.",
            "Nothing, as long as batches commit. When it lasts, the receiver's own status names the cause.",
            "docs/architecture.md#acknowledgements-come-from-the-commit-log",
        ),
        CodeEntry(
            "idle",
            "Everything that was sent is acknowledged.",
            "The program has sent nothing since.",
            "",
            _STATUS,
        ),
    ),
)
