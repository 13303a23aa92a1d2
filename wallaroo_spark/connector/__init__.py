"""The SDK for programs that push streams of records to a receiver; it needs no Spark.

:class:`Connector` is for asyncio, :class:`BlockingConnector` the same for plain scripts. Both keep a session with a
worker, resume every stream at its committed reference, and send again what was not acknowledged.
"""

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.batches import Record
from wallaroo_spark.connector.blocking import BlockingConnector, BlockingStream
from wallaroo_spark.connector.connector import Connector, stream_id_of
from wallaroo_spark.connector.feed import FeedResult, Progress
from wallaroo_spark.connector.files import Framed, Lines
from wallaroo_spark.connector.sources import Records, Source, Stdin
from wallaroo_spark.connector.stream import Stream

__all__ = [
    "Backoff",
    "BlockingConnector",
    "BlockingStream",
    "Connector",
    "FeedResult",
    "Framed",
    "Lines",
    "Progress",
    "Record",
    "Records",
    "Source",
    "Stdin",
    "Stream",
    "stream_id_of",
]
