"""The inbox of an application: files of events that gateways and the driver write, and that the source reads.

    <folder>/_wallaroo/inbox/<gateway>/<generation>-<random>.claim              a gateway began this generation
                                       <generation>/<sequence>-<rows>.arrow     events, an Arrow IPC stream of INPUT

Source: ``docs/pipelines/engine.md#the-inbox``.
"""

from __future__ import annotations

from wallaroo_spark.streams.inbox.names import DRIVER, InboxFile, InboxPosition
from wallaroo_spark.streams.inbox.reader import InboxReader, Unread
from wallaroo_spark.streams.inbox.writer import InboxWriter

__all__ = ["DRIVER", "InboxFile", "InboxPosition", "InboxReader", "InboxWriter", "Unread"]
