"""The bytes of Aqueduct: pure functions. Source: ``docs/aqueduct/protocol.md#frames``."""

from wallaroo_spark.aqueduct.frames.channels import ENTRYPOINT, ChannelId, Half, Side
from wallaroo_spark.aqueduct.frames.codec import FrameLimits, decode, encode
from wallaroo_spark.aqueduct.frames.frames import (
    AckNackUnreliable,
    AckReliable,
    ChannelControl,
    ClosedChannelLost,
    CloseReceiver,
    ConnectionControl,
    FinishSender,
    Frame,
    MessageFrame,
    SentUnreliable,
    Version,
)
from wallaroo_spark.aqueduct.frames.values import U64_MAX, Headers, Ranges
