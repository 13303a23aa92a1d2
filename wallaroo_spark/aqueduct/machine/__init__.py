"""One connection of Aqueduct as a pure machine: no socket, no clock, no asyncio. Source: ``docs/aqueduct.md``."""

from wallaroo_spark.aqueduct.frames import ENTRYPOINT, ChannelId, Half, Headers, Side
from wallaroo_spark.aqueduct.machine.connection import Connection, Counts, Received
from wallaroo_spark.aqueduct.machine.instructions import (
    Acked,
    CloseConnection,
    End,
    Ended,
    HeadersReceived,
    Instruction,
    MessageAvailable,
    Nacked,
    Opened,
    ReceiverEnded,
    ResetCode,
    ResetStream,
    RoomAgain,
    SendDatagram,
    SenderEnded,
    SendStream,
)
from wallaroo_spark.aqueduct.machine.limits import Limits
from wallaroo_spark.aqueduct.violations import CloseCode, Rule
