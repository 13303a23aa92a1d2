"""The SDK for programs that push streams of records to a receiver; it does not need Spark.

:class:`Connector` is for asyncio, :class:`BlockingConnector` is its blocking form. Both keep a session with a worker,
resume every stream at its committed reference, and resend unacknowledged messages.
"""

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.blocking import BlockingConnector, BlockingStream
from wallaroo_spark.connector.connector import Connector, stream_id_of
from wallaroo_spark.connector.record import Record
from wallaroo_spark.connector.reporting import (
    CONNECTOR_CODES,
    Acknowledgement,
    ConnectorCause,
    ConnectorStatus,
    Delivery,
)
from wallaroo_spark.connector.sending.source_feed import FeedProgress, FeedResult
from wallaroo_spark.connector.sources import Framed, Lines, Records, RotatedFramed, RotatedLines, Source, Stdin
from wallaroo_spark.connector.stream import Stream

__all__ = [
    "CONNECTOR_CODES",
    "Acknowledgement",
    "Backoff",
    "BlockingConnector",
    "BlockingStream",
    "Connector",
    "ConnectorCause",
    "ConnectorStatus",
    "Delivery",
    "FeedProgress",
    "FeedResult",
    "Framed",
    "Lines",
    "Record",
    "Records",
    "RotatedFramed",
    "RotatedLines",
    "Source",
    "Stdin",
    "Stream",
    "stream_id_of",
]
