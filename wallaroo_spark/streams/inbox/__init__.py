"""The inbox of an application: files of events that gateways and the driver write, and that the source reads.

    <folder>/_wallaroo/inbox/<gateway>/<generation>-<random>.claim              a gateway began this generation
                                       <generation>/<sequence>-<rows>.arrow     events, an Arrow IPC stream of INPUT

A transactional sink has a folder as a gateway has; each of its generations is a batch, whose claim is written last.

Source: ``docs/pipelines/engine.md#the-inbox``.
"""

from __future__ import annotations

from wallaroo_spark.streams.inbox.names import DRIVER, SINK, InboxFile, InboxPosition, positions_in, positions_of
from wallaroo_spark.streams.inbox.reader import InboxReader, Unread
from wallaroo_spark.streams.inbox.writer import InboxWriter

__all__ = [
    "DRIVER",
    "SINK",
    "InboxFile",
    "InboxPosition",
    "InboxReader",
    "InboxWriter",
    "Unread",
    "positions_in",
    "positions_of",
]
