"""The states of a connection, of the two halves of a channel, and of what is read from a stream, as tables.

A missing key of a table is a violation by the peer, an error of the application's call, or an event that comes too
late, as the table says. The diagrams in the documentation are drawn from these tables. Source:
``docs/aqueduct/protocol.md#states``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from wallaroo_spark.aqueduct.frames import Side
from wallaroo_spark.aqueduct.violations import Rule


class MachineState(StrEnum):
    """The state of a connection."""

    CONNECTING = "connecting"
    GREETING = "greeting"
    ANSWERING = "answering"
    OPEN = "open"
    ENDED = "ended"


class MachineEvent(StrEnum):
    """What changes the state of a connection."""

    HANDSHAKE = "handshake complete"
    HEADERS = "headers of the peer"
    ANSWER = "headers of the server"
    END = "end"


MACHINE: Mapping[Side, Mapping[MachineState, Mapping[MachineEvent, MachineState]]] = {
    Side.CLIENT: {
        MachineState.CONNECTING: {
            MachineEvent.HANDSHAKE: MachineState.GREETING,
            MachineEvent.END: MachineState.ENDED,
        },
        MachineState.GREETING: {
            MachineEvent.HANDSHAKE: MachineState.GREETING,
            MachineEvent.HEADERS: MachineState.OPEN,
            MachineEvent.END: MachineState.ENDED,
        },
        MachineState.OPEN: {MachineEvent.HANDSHAKE: MachineState.OPEN, MachineEvent.END: MachineState.ENDED},
        MachineState.ENDED: {},
    },
    Side.SERVER: {
        MachineState.CONNECTING: {
            MachineEvent.HANDSHAKE: MachineState.GREETING,
            MachineEvent.END: MachineState.ENDED,
        },
        MachineState.GREETING: {MachineEvent.HEADERS: MachineState.ANSWERING, MachineEvent.END: MachineState.ENDED},
        MachineState.ANSWERING: {MachineEvent.ANSWER: MachineState.OPEN, MachineEvent.END: MachineState.ENDED},
        MachineState.OPEN: {MachineEvent.END: MachineState.ENDED},
        MachineState.ENDED: {},
    },
}
"""Side → state → event → state. A second handshake of a client is the one behind early data."""


class SenderState(StrEnum):
    """The state of a sender."""

    OPEN = "open"
    FINISHING = "finishing"
    CANCELLING = "cancelling"
    """The control stream cannot be reset yet."""
    CANCELLED = "cancelled"
    """The control stream was reset; the receiver's last acks are on their way."""
    ENDED = "ended"


class SenderEvent(StrEnum):
    """What changes the state of a sender."""

    SEND = "send"
    FINISH = "finish"
    CANCEL = "cancel"
    RESET = "reset sent"
    CLOSED = "CloseReceiver or reset received"
    LOSE = "lost"


SENDER: Mapping[SenderState, Mapping[SenderEvent, SenderState]] = {
    SenderState.OPEN: {
        SenderEvent.SEND: SenderState.OPEN,
        SenderEvent.FINISH: SenderState.FINISHING,
        SenderEvent.CANCEL: SenderState.CANCELLING,
        SenderEvent.CLOSED: SenderState.ENDED,
        SenderEvent.LOSE: SenderState.ENDED,
    },
    SenderState.FINISHING: {
        SenderEvent.CANCEL: SenderState.CANCELLING,
        SenderEvent.CLOSED: SenderState.ENDED,
        SenderEvent.LOSE: SenderState.ENDED,
    },
    SenderState.CANCELLING: {
        SenderEvent.RESET: SenderState.CANCELLED,
        SenderEvent.CLOSED: SenderState.ENDED,
        SenderEvent.LOSE: SenderState.ENDED,
    },
    SenderState.CANCELLED: {SenderEvent.CLOSED: SenderState.ENDED, SenderEvent.LOSE: SenderState.ENDED},
    SenderState.ENDED: {},
}
"""State → event → state. A missing key of SEND and FINISH is an error of the call; CANCEL has no effect there."""


class ReceiverState(StrEnum):
    """The state of a receiver."""

    OPEN = "open"
    FINISHING = "finishing"
    CLOSING = "closing"
    """The application has closed it, and its control stream is not attached yet."""
    FINISHED = "finished"
    """CloseReceiver was sent, and the application has not taken all messages."""
    ENDED = "ended"


class ReceiverEvent(StrEnum):
    """What changes the state of a receiver."""

    MESSAGE = "message"
    FINISH = "FinishSender"
    COMPLETE = "all messages decided"
    DRAINED = "all messages taken"
    CLOSE = "close"
    CLOSED = "CloseReceiver sent"
    CANCEL = "control stream reset"
    LOSE = "lost"


RECEIVER: Mapping[ReceiverState, Mapping[ReceiverEvent, ReceiverState]] = {
    ReceiverState.OPEN: {
        ReceiverEvent.MESSAGE: ReceiverState.OPEN,
        ReceiverEvent.FINISH: ReceiverState.FINISHING,
        ReceiverEvent.CLOSE: ReceiverState.CLOSING,
        ReceiverEvent.CANCEL: ReceiverState.ENDED,
        ReceiverEvent.LOSE: ReceiverState.ENDED,
    },
    ReceiverState.FINISHING: {
        ReceiverEvent.MESSAGE: ReceiverState.FINISHING,
        ReceiverEvent.COMPLETE: ReceiverState.FINISHED,
        ReceiverEvent.CLOSE: ReceiverState.CLOSING,
        ReceiverEvent.CANCEL: ReceiverState.ENDED,
        ReceiverEvent.LOSE: ReceiverState.ENDED,
    },
    ReceiverState.CLOSING: {
        ReceiverEvent.CLOSED: ReceiverState.ENDED,
        ReceiverEvent.CANCEL: ReceiverState.ENDED,
        ReceiverEvent.LOSE: ReceiverState.ENDED,
    },
    ReceiverState.FINISHED: {
        ReceiverEvent.DRAINED: ReceiverState.ENDED,
        ReceiverEvent.CLOSE: ReceiverState.ENDED,
        ReceiverEvent.LOSE: ReceiverState.ENDED,
    },
    ReceiverState.ENDED: {},
}
"""State → event → state. A message without a key is dropped, other events without one come too late."""


class ReadState(StrEnum):
    """What was read from a stream or a datagram so far, and so what may follow."""

    BIDIRECTIONAL = "peer's bidirectional stream"
    BIDIRECTIONAL_VERSION = "peer's bidirectional stream, behind Version"
    CONTROL_ANSWER = "answer on the connection control stream"
    CONTROL_ANSWER_VERSION = "answer on the connection control stream, behind Version"
    CONTROL = "connection control stream"
    FROM_SENDER_START = "answer of a sender"
    FROM_SENDER = "control stream of a sender"
    FROM_RECEIVER_START = "answer of a receiver"
    FROM_RECEIVER = "control stream of a receiver"
    UNIDIRECTIONAL = "peer's unidirectional stream"
    UNIDIRECTIONAL_VERSION = "peer's unidirectional stream, behind Version"
    MESSAGES = "messages"
    DATAGRAM = "datagram"
    DATAGRAM_FRAMES = "datagram, behind its first frame"
    LAST = "last frame"
    IGNORED = "ignored"


class ReadEvent(StrEnum):
    """A frame, or the end of a stream."""

    VERSION = "Version"
    CONNECTION_CONTROL = "ConnectionControl"
    CONTROL_FROM_SENDER = "ChannelControl of a sender"
    CONTROL_FROM_RECEIVER = "ChannelControl of a receiver"
    CONTROL_UNKNOWN = "ChannelControl of an unknown channel"
    MESSAGE = "Message"
    SENT_UNRELIABLE = "SentUnreliable"
    ACK_RELIABLE = "AckReliable"
    ACK_NACK_UNRELIABLE = "AckNackUnreliable"
    FINISH_SENDER = "FinishSender"
    CLOSE_RECEIVER = "CloseReceiver"
    CLOSED_CHANNEL_LOST = "ClosedChannelLost"
    END = "end"
    RESET = "reset"


_CHANNEL_CONTROL = {
    ReadEvent.CONTROL_FROM_SENDER: ReadState.FROM_SENDER,
    ReadEvent.CONTROL_FROM_RECEIVER: ReadState.FROM_RECEIVER,
    ReadEvent.CONTROL_UNKNOWN: ReadState.IGNORED,
    ReadEvent.RESET: ReadState.IGNORED,
}
_FROM_SENDER = {
    ReadEvent.SENT_UNRELIABLE: ReadState.FROM_SENDER,
    ReadEvent.FINISH_SENDER: ReadState.LAST,
    ReadEvent.RESET: ReadState.IGNORED,
}
_FROM_RECEIVER = {
    ReadEvent.ACK_RELIABLE: ReadState.FROM_RECEIVER,
    ReadEvent.ACK_NACK_UNRELIABLE: ReadState.FROM_RECEIVER,
    ReadEvent.CLOSE_RECEIVER: ReadState.LAST,
    ReadEvent.RESET: ReadState.IGNORED,
}
_UNIDIRECTIONAL = {
    ReadEvent.MESSAGE: ReadState.MESSAGES,
    ReadEvent.CLOSED_CHANNEL_LOST: ReadState.LAST,
    ReadEvent.RESET: ReadState.IGNORED,
}
READING: Mapping[ReadState, Mapping[ReadEvent, ReadState]] = {
    ReadState.BIDIRECTIONAL: {ReadEvent.VERSION: ReadState.BIDIRECTIONAL_VERSION, **_CHANNEL_CONTROL},
    ReadState.BIDIRECTIONAL_VERSION: {ReadEvent.CONNECTION_CONTROL: ReadState.CONTROL, **_CHANNEL_CONTROL},
    ReadState.CONTROL_ANSWER: {ReadEvent.VERSION: ReadState.CONTROL_ANSWER_VERSION},
    ReadState.CONTROL_ANSWER_VERSION: {ReadEvent.CONNECTION_CONTROL: ReadState.CONTROL},
    ReadState.CONTROL: {},
    ReadState.FROM_SENDER_START: {ReadEvent.VERSION: ReadState.FROM_SENDER, **_FROM_SENDER},
    ReadState.FROM_SENDER: _FROM_SENDER,
    ReadState.FROM_RECEIVER_START: {ReadEvent.VERSION: ReadState.FROM_RECEIVER, **_FROM_RECEIVER},
    ReadState.FROM_RECEIVER: _FROM_RECEIVER,
    ReadState.UNIDIRECTIONAL: {ReadEvent.VERSION: ReadState.UNIDIRECTIONAL_VERSION, **_UNIDIRECTIONAL},
    ReadState.UNIDIRECTIONAL_VERSION: {ReadEvent.END: ReadState.IGNORED, **_UNIDIRECTIONAL},
    ReadState.MESSAGES: {
        ReadEvent.MESSAGE: ReadState.MESSAGES,
        ReadEvent.END: ReadState.IGNORED,
        ReadEvent.RESET: ReadState.IGNORED,
    },
    ReadState.DATAGRAM: {
        ReadEvent.VERSION: ReadState.DATAGRAM_FRAMES,
        ReadEvent.MESSAGE: ReadState.DATAGRAM_FRAMES,
    },
    ReadState.DATAGRAM_FRAMES: {
        ReadEvent.MESSAGE: ReadState.DATAGRAM_FRAMES,
        ReadEvent.END: ReadState.IGNORED,
    },
    ReadState.LAST: {ReadEvent.END: ReadState.IGNORED, ReadEvent.RESET: ReadState.IGNORED},
    ReadState.IGNORED: dict.fromkeys((ReadEvent.END, ReadEvent.RESET), ReadState.IGNORED),
}
"""State → event → state. A missing key is a violation, whose rule :data:`MISPLACED` has. What an ignored stream brings
is not read."""

MISPLACED: Mapping[ReadEvent, Rule] = {
    ReadEvent.VERSION: Rule.VERSION_NOT_FIRST,
    ReadEvent.CONNECTION_CONTROL: Rule.HEADERS_MISPLACED,
    ReadEvent.CONTROL_FROM_SENDER: Rule.CHANNEL_CONTROL_MISPLACED,
    ReadEvent.CONTROL_FROM_RECEIVER: Rule.CHANNEL_CONTROL_MISPLACED,
    ReadEvent.CONTROL_UNKNOWN: Rule.CHANNEL_CONTROL_MISPLACED,
    ReadEvent.MESSAGE: Rule.MESSAGE_MISPLACED,
    ReadEvent.SENT_UNRELIABLE: Rule.SENT_UNRELIABLE_MISPLACED,
    ReadEvent.ACK_RELIABLE: Rule.ACK_RELIABLE_MISPLACED,
    ReadEvent.ACK_NACK_UNRELIABLE: Rule.ACK_NACK_UNRELIABLE_MISPLACED,
    ReadEvent.FINISH_SENDER: Rule.FINISH_SENDER_MISPLACED,
    ReadEvent.CLOSE_RECEIVER: Rule.CLOSE_RECEIVER_MISPLACED,
    ReadEvent.CLOSED_CHANNEL_LOST: Rule.CLOSED_CHANNEL_LOST_MISPLACED,
    ReadEvent.END: Rule.END_MISPLACED,
    ReadEvent.RESET: Rule.CONTROL_STREAM_ENDED,
}
"""The rule that is violated where an event has no key."""
