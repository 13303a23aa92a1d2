"""One connection as a pure machine: no socket, no clock, no asyncio. Source: ``docs/aqueduct/protocol.md``."""

from wallaroo_spark.aqueduct.frames import ENTRYPOINT, ChannelId, Half, Headers, Side
from wallaroo_spark.aqueduct.machine.channels.receiving import TakenMessage
from wallaroo_spark.aqueduct.machine.connection import ConnectionMachine, Counts
from wallaroo_spark.aqueduct.machine.instructions import (
    Acked,
    CloseConnection,
    Ended,
    EndReason,
    HeadersExchanged,
    HeadersReceived,
    Instruction,
    MessageAvailable,
    Nacked,
    ReceiverEnded,
    ResetCode,
    ResetStream,
    RoomAgain,
    SendDatagram,
    SenderEnded,
    SendStream,
)
from wallaroo_spark.aqueduct.machine.limits import AqueductLimits
from wallaroo_spark.aqueduct.violations import CloseCode, Rule
