"""The worked sessions of ``docs/protocol.md``: the fields and the bytes of each frame on the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wallaroo_spark.protocol import (
    REVISIONS,
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
    Revision,
    StreamReference,
)
from wallaroo_spark.protocol.sinks.messages import (
    CONTROL_STREAM,
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    SinkMessage,
    WorkersLeft,
    decode_control,
    encode_control,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
_BLOCK = re.compile(r"^```frames (\S+)( single)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"([→←]) (\w+) ?(.*)")


@dataclass(frozen=True)
class Shown:
    """One frame of the page. ``out`` is whether the side that connected sends it."""

    out: bool
    name: str
    fields: dict[str, Any]
    wire: bytes


@dataclass(frozen=True)
class Worked:
    """One block of the page. ``whole`` is whether its frames are a session from its beginning."""

    kind: str
    whole: bool
    frames: tuple[Shown, ...]

    @property
    def revision(self) -> Revision:
        """The revision that the frames are of."""
        return REVISIONS["v3" if self.kind == "sink" else self.kind]


def worked() -> list[Worked]:
    """All blocks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return [Worked(kind, not single, tuple(_shown(body))) for kind, single, body in _BLOCK.findall(text)]


def _shown(body: str) -> Iterator[Shown]:
    for said, wire in re.findall(r"^([→←].*)\n((?: +[0-9a-f ]+\n)*)", body, re.MULTILINE):
        found = _LINE.fullmatch(said)
        assert found, said
        call = ast.parse(f"f({found[3]})", mode="eval").body
        assert isinstance(call, ast.Call)
        fields = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
        yield Shown(found[1] == "→", found[2], fields, bytes.fromhex(wire))


def frame_of(name: str, fields: dict[str, Any]) -> Frame:
    """The frame that a line of the page tells of; every field of the line has to be used."""
    given = dict(fields)
    frame = _control(name, given) or _frame(name, given)
    assert not given, f"{name} has no {', '.join(given)}"
    return frame


def _frame(name: str, f: dict[str, Any]) -> Frame:
    match name:
        case "HELLO":
            return Hello(f.pop("version"), f.pop("cookie").encode(), f.pop("program"), f.pop("instance"))
        case "OK":
            return Ok(f.pop("credits"), tuple(_stream(*entry) for entry in f.pop("streams", ())))
        case "ERROR":
            return Error(f.pop("reason"))
        case "NOTIFY":
            return Notify(f.pop("stream"), f.pop("name"), f.pop("ref"))
        case "NOTIFY_ACK":
            return NotifyAck(bool(f.pop("success")), f.pop("stream"), f.pop("ref"))
        case "MESSAGE":
            payload, key = f.pop("payload", None), f.pop("key", None)
            flags = Flags(f.pop("flags", 0))
            return Message(
                f.pop("stream"),
                f.pop("id", None),
                None if payload is None else payload.encode(),
                flags,
                f.pop("event_time", None),
                None if key is None else key.encode(),
            )
        case "EOS_MESSAGE":
            return EosMessage(f.pop("stream"), f.pop("id", None))
        case "ACK":
            return Ack(f.pop("credits"), tuple(f.pop("refs")))
        case "NACK":
            return Nack(f.pop("credits"), f.pop("stream"), f.pop("ref"))
        case "RESTART":
            return Restart(f.pop("address", ""))
    raise AssertionError(f"the page tells of {name}, which no revision has")


def _stream(stream_id: int, *rest: Any) -> StreamReference:
    return StreamReference(stream_id, rest[-1], rest[0] if len(rest) == 2 else "")


def _control(name: str, f: dict[str, Any]) -> Frame | None:
    said: SinkMessage
    match name:
        case "LIST_UNCOMMITTED":
            said = ListUncommitted(f.pop("request"))
        case "REPLY_UNCOMMITTED":
            said = ReplyUncommitted(f.pop("request"), tuple(f.pop("transactions")))
        case "PHASE1":
            said = Phase1(f.pop("transaction"), tuple(Range(*one) for one in f.pop("ranges")))
        case "REPLY":
            said = Reply(f.pop("transaction"), bool(f.pop("commit")))
        case "PHASE2":
            said = Phase2(f.pop("transaction"), bool(f.pop("commit")))
        case "WORKERS_LEFT":
            said = WorkersLeft(f.pop("request"), tuple(f.pop("workers")))
        case _:
            return None
    payload = encode_control(said)
    assert decode_control(payload) == said
    return Message(CONTROL_STREAM, 0, payload, event_time=0, key=b"")
