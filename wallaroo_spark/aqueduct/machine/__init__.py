"""One connection of Aqueduct as a pure machine: no socket, no clock, no asyncio. Source: ``docs/aqueduct.md``."""

from wallaroo_spark.aqueduct.frames.channels import ENTRYPOINT, ChannelId, Half, Side
from wallaroo_spark.aqueduct.machine.connection import Connection, Counts, Received
from wallaroo_spark.aqueduct.machine.instructions import (
    Acked,
    CloseCode,
    CloseConnection,
    End,
    Ended,
    Headers,
    HeadersReceived,
    Instruction,
    MessageAvailable,
    Nacked,
    Opened,
    ReceiverClosed,
    ResetCode,
    ResetStream,
    RoomAgain,
    SendDatagram,
    SenderClosed,
    SendStream,
)
from wallaroo_spark.aqueduct.machine.limits import Limits
