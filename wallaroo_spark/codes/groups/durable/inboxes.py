"""Codes of the inbox of an application of durable streams, and of the source that reads it."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

INBOXES = CodeGroup(
    "Inbox of an application",
    "Raised by gateways that write events, and by the source that plans and reads them.",
    (
        CodeEntry(
            "inbox-superseded",
            "Another process has begun a newer generation of this gateway, so events of this one may not be read.",
            "The gateway lost its lease, for example because its machine did not answer for a while, and another task "
            "took its place. It is not known whether the events of the last call are read.",
            "Nothing: the gateway ends, and its clients connect to another one and send again what was not answered.",
            "docs/pipelines/engine.md#fencing-of-gateways",
        ),
        CodeEntry(
            "folder-silent",
            "The file system of the application's folder has not answered a gateway for a minute.",
            "A network mount hangs, or the machine of the gateway is cut from the file system.",
            "Check that the folder can be read and written on that machine. The gateway ends and is started again, and "
            "its clients connect to another one and send again what was not answered.",
            "docs/pipelines/engine.md#the-inbox",
        ),
        CodeEntry(
            "inbox-disputed",
            "Several processes claim the generations of one gateway at the same time.",
            "Two programs run gateways with one name in one folder.",
            "Run one application for each folder, and give each gateway a name of its own.",
            "docs/pipelines/engine.md#fencing-of-gateways",
        ),
        CodeEntry(
            "inbox-missing",
            "A file of events is not there although a batch has to read it.",
            "The folder of the application was restored without a part of it, or a file was deleted by hand.",
            "Restore the folder `_wallaroo` along with the checkpoint.",
            "docs/pipelines/engine.md#the-inbox",
        ),
        CodeEntry(
            "inbox-misused",
            "The writer of an inbox was called in a way that cannot work.",
            "It was not open, an earlier call failed, or there was no event to write.",
            "Call `open()` first, and again after an error, and pass at least one event.",
            "docs/pipelines/engine.md#the-inbox",
        ),
    ),
)
