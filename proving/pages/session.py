"""A session as a picture: frames that the codecs encode, decoded as a capture is, with the states of the tables."""

from __future__ import annotations

from wallaroo_spark.protocol import (
    REVISIONS,
    SESSION,
    Ack,
    Frame,
    Hello,
    Message,
    Notify,
    Ok,
    Role,
    SessionState,
    StreamReference,
    StreamState,
)
from wallaroo_spark.protocol.sessions.states import StreamEvent
from wallaroo_spark.wiretap.decoding import CaptureDecoder
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import Passed

HEAD = """\
# A session, frame by frame

For people who want to see what travels between a producer and Spark before they read [the protocol](../protocol.md).
Two pictures: a session that sends three messages, and the one behind a worker's death. They are made by `python -m
proving.pages`, from frames that the codecs have encoded and decoded, and from the tables of states; the revision is
draft-be.

"""
BETWEEN = """\
The connector has sent message 4, and the worker has died with it: no commit had named it. So the connector, which
kept it, opens a session at the worker that took the slot. OK says what is committed, and everything behind it is sent
again:

"""
TAIL = """\
What to see in them:

- **Credits.** NOTIFY and MESSAGE take a credit each, and an ACK gives some back. Without credits the connector waits;
  that is how Spark's speed reaches the producer.
- **An ACK is a commit.** Between a MESSAGE and its ACK lie the batch and the file in `commits/`; nothing else
  acknowledges.
- **The reference decides.** The new session begins behind the last committed message, whatever the old one had sent.

The states have diagrams of their own for each revision, made from the same tables: [states](../states.md). [A
notebook](../../examples/a_session.ipynb) walks through a session with its bytes, and `wallaroo-spark dev up --frames`
shows those of your own connector.
"""
REVISION = REVISIONS["draft-be"]
_STREAM = 7
_HELLO = Hello(version="0.0.1", cookie=b"", program="orders", instance="shop-1")

Step = Frame | str
"""A frame, or what happens beside the connection."""


def _message(number: int) -> Message:
    return Message(_STREAM, number, f"line {number}".encode())


FIRST: tuple[Step, ...] = (
    _HELLO,
    Ok(credits=100, streams=()),
    Notify(_STREAM, "orders"),
    *map(_message, (1, 2, 3)),
    "Spark plans batch 17: messages 1 to 3 of stream 7",
    "Spark reads them, and the sink writes them",
    "Spark writes commits/17",
    Ack(credits=4, refs=((_STREAM, 3),)),
    _message(4),
    "the worker is killed",
)
SECOND: tuple[Step, ...] = (
    _HELLO,
    Ok(credits=100, streams=(StreamReference(_STREAM, 3, "orders"),)),
    Notify(_STREAM, "orders", 3),
    _message(4),
    "Spark commits batch 18 with message 4",
    Ack(credits=2, refs=((_STREAM, 4),)),
)


def session_page() -> str:
    """The page as Markdown with Mermaid diagrams."""
    return "\n".join([HEAD + _diagram(FIRST), BETWEEN + _diagram(SECOND), TAIL])


def _diagram(steps: tuple[Step, ...]) -> str:
    lines = ["```mermaid", "sequenceDiagram", "    participant C as connector", "    participant W as worker"]
    decoder, session, stream = CaptureDecoder(), SessionState.CONNECTED, StreamState.START
    for step in steps:
        if isinstance(step, str):
            lines.append(f"    Note right of W: {step}")
            continue
        role = next(role for role in Role if type(step) in SESSION.get(role, {}).get(session, {}))
        before = session, stream
        session = SESSION[role][session][type(step)]
        if isinstance(step, Notify | Message):
            stream = REVISION.streams[stream][StreamEvent(type(step).__name__.upper())]
        end = End.CONNECTOR if role is Role.CONNECTOR else End.WORKER
        (frame,) = decoder.feed(Passed(0.0, 1, end, REVISION.encode(step)))
        assert not frame.error, frame.error
        arrow = "C->>W" if end is End.CONNECTOR else "W->>C"
        lines.append(f"    {arrow}: {frame.text(20)}")
        notes = [f"session {session}"] * (session is not before[0]) + [f"stream {stream}"] * (stream is not before[1])
        notes += [f"credits {frame.credits}"] * (frame.credits is not None and not isinstance(step, Hello))
        lines.append(f"    Note left of C: {', '.join(notes)}")
    return "\n".join([*lines, "```", ""])
