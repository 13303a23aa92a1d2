"""The connector protocol without I/O: frames, the tables of the three revisions, session and stream states, credits.

No code in this package opens a socket, starts a thread or reads a clock. Source: ``docs/protocol.md``.
"""

from wallaroo_spark.protocol.codecs import frame_name
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.frames import (
    NOTHING_PROCESSED,
    U64_MAX,
    Ack,
    EosMessage,
    Error,
    Flags,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    StreamReference,
    shorten,
)
from wallaroo_spark.protocol.framing import LENGTH_BYTES, FrameBuffer, MessageRun, RawFrame
from wallaroo_spark.protocol.revisions import DRAFT_BE, DRAFT_LE, REVISIONS, V3, Revision, recognise
from wallaroo_spark.protocol.runs import (
    HEAD_BYTES,
    EncodedRun,
    PlainHead,
    encode_frame,
    encode_run,
    encode_single,
    plain_head,
)
from wallaroo_spark.protocol.sessions.connector_session import ConnectorSession
from wallaroo_spark.protocol.sessions.states import SESSION, Role, SessionState, StreamEvent, StreamState
from wallaroo_spark.protocol.sessions.streams import CreditWindow, SessionStreams, StreamSpan
from wallaroo_spark.protocol.sessions.worker_session import (
    MAX_INSTANCE_BYTES,
    MAX_NAME_BYTES,
    Admission,
    NotifyReceived,
    WorkerEvent,
    WorkerSession,
)
