"""Tools on the wire: a proxy that records and disturbs connections, and the readers of recorded frames.

:class:`Proxy` stands between a connector and a worker; :class:`Recorder` writes the bytes that pass to a file, and
:func:`read` reads it. Nothing here needs Spark or pyarrow. Source: ``docs/debug-a-connector.md``.
"""

from wallaroo_spark.wiretap.decoding import DecodedFrame, decode, decode_bytes
from wallaroo_spark.wiretap.faults import Faults
from wallaroo_spark.wiretap.proxy import End, Proxy, Trouble, Watcher
from wallaroo_spark.wiretap.recording import ConnectionOpened, Event, Passed, Recorder, Remark, is_capture, read

__all__ = [
    "ConnectionOpened",
    "DecodedFrame",
    "End",
    "Event",
    "Faults",
    "Passed",
    "Proxy",
    "Recorder",
    "Remark",
    "Trouble",
    "Watcher",
    "decode",
    "decode_bytes",
    "is_capture",
    "read",
]
