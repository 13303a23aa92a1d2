"""The frames of a capture, or of plain bytes, as values: their fields, offsets and errors.

An error in a frame is named at its byte, and decoding goes on at the next frame. The frames of a session are compared
with the tables of the protocol that sessions use, too: order, streams and credits. Source:
``docs/protocol.md#frame-bodies``, ``docs/protocol.md#session-states``, ``docs/protocol.md#stream-states`` and
``docs/protocol.md#credits``; ``docs/debug-a-connector.md#read-it``.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from wallaroo_spark import protocol
from wallaroo_spark.errors import ProtocolError, RemoteProtocolError, printable
from wallaroo_spark.protocol.frames import Reader
from wallaroo_spark.wiretap.framing import HEADER_BYTES, FrameFinder, Piece
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import ConnectionOpened, Event, Passed, Remark

_MOST_STREAMS = 1 << 20
"""Most streams of a session whose states are followed. A choice that bounds memory; a worker allows far fewer."""
_ROLES = {End.CONNECTOR: protocol.Role.CONNECTOR, End.WORKER: protocol.Role.WORKER}
_ENDED = (protocol.SessionState.ERROR, protocol.SessionState.RESTARTING, protocol.SessionState.DISCONNECTED)


class SessionRules:
    """Checks the frames of one session; a violation does not end it.

    ``credits`` is the connector's balance; None before OK, and where a file begins later.
    """

    def __init__(self, revision: protocol.Revision, *, whole: bool = True) -> None:
        self.credits: int | None = None
        self._state = protocol.SessionState.CONNECTED
        self._streams = protocol.SessionStreams(revision, _MOST_STREAMS)
        self._whole = whole

    def follow(self, sender: End, frame: protocol.Frame) -> None:
        """Apply a frame. Raises :class:`RemoteProtocolError` for the violation of a rule."""
        if not self._whole or self._state in _ENDED:
            # Behind an ERROR or a RESTART frames that were on their way are ignored.
            return
        next_state = protocol.SESSION[_ROLES[sender]].get(self._state, {}).get(type(frame))
        if next_state is None:
            name = protocol.frame_name(type(frame))
            raise protocol.broken(
                protocol.Fault.WRONG_STATE, f"{name} of a {sender} is not allowed in state {self._state}"
            )
        self._state = next_state
        self._credits(frame)
        self._streams.follow(frame)

    def _credits(self, frame: protocol.Frame) -> None:
        match frame:
            case protocol.Ok(credits=granted):
                self.credits = granted
            case protocol.Ack(credits=granted) | protocol.Nack(credits=granted) if self.credits is not None:
                self.credits += granted
            case protocol.Notify() if self.credits is not None:
                self.credits -= 1
            case protocol.Message() if self.credits is not None:
                self.credits -= 1
                if self.credits < 0:
                    raise protocol.broken(
                        protocol.Fault.NO_CREDIT,
                        f"sent with no credit left (the balance is {self.credits}); wait for an ACK",
                    )


LONGEST_FRAME = 64 << 20
"""Default limit in bytes of a frame's length. A choice: sixteen times the default of workers."""

_MOST_WAITING = 1 << 20
"""Most bytes of a worker that wait for a HELLO. A choice that bounds memory; a worker says little before HELLO."""


@dataclass(frozen=True)
class DecodedFrame:
    """One frame, or bytes that are not a frame."""

    at: float | None
    """Seconds since 1970 at which its last byte passed; None where that is not known."""
    connection: int
    """Number of the connection."""
    sender: End | None
    """The end that sent it; None where that is not known."""
    offset: int
    """Bytes of the direction in front of it."""
    data: bytes
    """Its bytes, with length and tag."""
    name: str = ""
    """The frame's name, for example ``NOTIFY_ACK``; empty for bytes that are no frame."""
    frame: protocol.Frame | None = None
    """The frame; None where it could not be decoded."""
    error: str = ""
    """Its error; empty when there is none."""
    error_offset: int | None = None
    """Offset in the direction of the byte at which the error was found."""
    credits: int | None = None
    """The connector's credits behind this frame; None where that is not known."""
    revision: protocol.Revision | None = None
    """The revision of the connection; None where it does not speak this protocol."""
    code: str = ""
    """The code of the error; empty where it has none."""

    def fields(self) -> dict[str, Any]:
        """The frame's fields by the names that ``docs/protocol.md`` gives them; bytes are ``bytes``."""
        return {} if self.frame is None else _fields(self.frame)

    def text(self, most: int = 60) -> str:
        """The frame as ``docs/protocol.md`` writes frames; payloads are cut behind ``most`` bytes."""
        if self.frame is None:
            return self.name or f"{len(self.data)} bytes"
        return f"{self.name} {', '.join(f'{key}={_shown(key, value, most)}' for key, value in self.fields().items())}"

    def to_json(self) -> dict[str, Any]:
        """All of it as values for JSON. Bytes that are UTF-8 are text, others are base64 under ``…_base64``."""
        values: dict[str, Any] = {
            "at": self.at,
            "connection": self.connection,
            "from": None if self.sender is None else str(self.sender),
            "offset": self.offset,
            "size": len(self.data),
            "frame": self.name or None,
        }
        for key, value in self.fields().items():
            values |= _as_json(key, value)
        if self.error:
            values |= {"error": self.error, "error_offset": self.error_offset}
        if self.frame is None:
            values["bytes_base64"] = base64.b64encode(self.data).decode()
        if self.credits is not None:
            values["balance"] = self.credits
        return values


@dataclass
class _Connection:
    """The state of one connection."""

    revision: protocol.Revision | None = None
    """The revision; None before it is recognised."""
    rules: SessionRules | None = None
    """The rules that its frames are compared with."""
    raw: bool = False
    """Whether the connection does not speak this protocol."""
    start: bytes = b""
    """The connector's bytes before the revision is recognised."""
    offsets: dict[End | None, int] = field(default_factory=dict)
    """Bytes of each direction of a connection that does not speak this protocol."""
    finders: dict[End | None, FrameFinder] = field(default_factory=dict)
    """Finds the frames of each direction; None is the direction of bytes whose sender is not known."""
    waiting: bytes = b""
    """The worker's bytes before the revision is recognised."""


class CaptureDecoder:
    """Decodes the events of a capture. ``revision`` is used where no HELLO is seen."""

    def __init__(self, revision: protocol.Revision | None = None, max_frame_bytes: int = LONGEST_FRAME) -> None:
        self._revision = revision
        self._max = max_frame_bytes
        self._connections: dict[int, _Connection] = {}

    def feed(self, event: Event) -> Iterator[DecodedFrame]:
        """The frames that are complete with this event."""
        match event:
            case ConnectionOpened():
                self._open(event)
            case Passed(at, number, sender, data):
                known = self._connections.setdefault(number, _Connection())
                yield from self._passed(known, at, number, sender, data)
            case Remark(at, number, _, closed=True):
                yield from self._closed(at, number)

    def finish(self) -> Iterator[DecodedFrame]:
        """The capture has ended; incomplete frames are named."""
        for number in list(self._connections):
            yield from self._closed(None, number)

    def _open(self, event: ConnectionOpened) -> None:
        if event.continued and event.connection in self._connections:
            return
        known = self._connections[event.connection] = _Connection()
        if event.revision is not None:
            self._speak(known, event.revision, whole=False, opened=event)

    def _speak(
        self, known: _Connection, revision: protocol.Revision, *, whole: bool, opened: ConnectionOpened | None = None
    ) -> None:
        known.revision = revision
        known.rules = SessionRules(revision, whole=whole)
        for sender in End:
            skip = opened.skip.get(sender, 0) if opened else 0
            finder = known.finders[sender] = FrameFinder(revision, self._max, skip=skip)
            if opened:
                list(finder.feed(opened.begun.get(sender, b"")))

    def _passed(
        self, known: _Connection, at: float | None, number: int, sender: End | None, data: bytes
    ) -> Iterator[DecodedFrame]:
        if known.revision is None and not known.raw:
            if sender is End.WORKER and len(known.waiting) + len(data) <= _MOST_WAITING:
                known.waiting += data
                return
            recognised = self._recognised(known, data if sender is End.CONNECTOR else b"")
            if recognised is None and sender is End.CONNECTOR:
                return
            known.raw = known.raw or recognised is None
            waiting, known.waiting = known.waiting, b""
            if waiting:
                yield from self._passed(known, at, number, End.WORKER, waiting)
            data = recognised or data
        if known.raw:
            offset = known.offsets.get(sender, 0)
            known.offsets[sender] = offset + len(data)
            problem = "" if offset else "this is not the protocol: the first five bytes are no start of a HELLO"
            yield DecodedFrame(
                at, number, sender, offset, data, error=problem, error_offset=offset if problem else None
            )
            return
        for piece in known.finders[sender].feed(data):
            yield self._decoded(known, at, number, sender, piece)

    def _recognised(self, known: _Connection, data: bytes) -> bytes | None:
        """Try to recognise the revision; return the connector's bytes up to now, None where they are too few."""
        start = known.start + data
        try:
            found = protocol.recognise(start)
        except ProtocolError:
            found = self._revision
            known.raw = found is None
        if found is not None:
            self._speak(known, found, whole=self._revision is None)
        decided = found is not None or known.raw
        known.start = b"" if decided else start
        return start if decided else None

    def _closed(self, at: float | None, number: int) -> Iterator[DecodedFrame]:
        known = self._connections.pop(number, _Connection())
        for sender, rest in ((End.CONNECTOR, known.start), (End.WORKER, known.waiting)):
            if rest:
                problem = f"the connection ended behind {len(rest)} bytes, before a HELLO was recognised"
                yield DecodedFrame(at, number, sender, 0, rest, error=problem, error_offset=len(rest))
        for side, finder in known.finders.items():
            for piece in finder.finish():
                yield self._decoded(known, at, number, side, piece)

    def _decoded(
        self, known: _Connection, at: float | None, number: int, sender: End | None, piece: Piece
    ) -> DecodedFrame:
        assert known.revision is not None
        if piece.problem:
            at_byte = piece.offset
            return DecodedFrame(
                at, number, sender, at_byte, piece.data, error=piece.problem, error_offset=at_byte, code=piece.code
            )
        name, frame, problem, error_at = decode_frame(known.revision, piece.data)
        credits = None
        if frame is not None and known.rules is not None and sender is not None:
            try:
                known.rules.follow(sender, frame)
            except RemoteProtocolError as violated:
                problem = violated
            credits = known.rules.credits
        found = DecodedFrame(
            at, number, sender, piece.offset, piece.data, name, frame, credits=credits, revision=known.revision
        )
        if problem is None:
            return found
        return replace(found, error=problem.message, error_offset=piece.offset + error_at, code=problem.code)


def decode(
    events: Iterable[Event], revision: protocol.Revision | None = None, max_frame_bytes: int = LONGEST_FRAME
) -> Iterator[DecodedFrame | Remark | ConnectionOpened]:
    """Decode the events of a capture, in order; beside the frames come connections, faults and ends."""
    decoder = CaptureDecoder(revision, max_frame_bytes)
    for event in events:
        yield from decoder.feed(event)
        if not isinstance(event, Passed):
            yield event
    yield from decoder.finish()


def decode_bytes(
    chunks: Iterable[bytes], revision: protocol.Revision | None = None, max_frame_bytes: int = LONGEST_FRAME
) -> Iterator[DecodedFrame]:
    """Decode bytes of one direction. The revision is recognised by a HELLO, if they begin with one.

    Raises :class:`RemoteProtocolError` when they begin with no HELLO and no revision is given.
    """
    start, given = b"", iter(chunks)
    while revision is None and len(start) < HEADER_BYTES and (chunk := next(given, b"")):
        start += chunk
    if revision is None:
        revision = _recognised(start)
    decoder = CaptureDecoder(revision, max_frame_bytes)
    known = _Connection(revision, finders={None: FrameFinder(revision, max_frame_bytes)})
    decoder._connections[1] = known
    for chunk in itertools.chain((start,), given):
        yield from decoder._passed(known, None, 1, None, chunk)
    yield from decoder.finish()


def _recognised(start: bytes) -> protocol.Revision:
    try:
        found = protocol.recognise(start)
    except ProtocolError:
        found = None
    if found is None:
        raise RemoteProtocolError(
            f"the input is no capture, and its first bytes {start[:HEADER_BYTES].hex(' ')!r} are no start of a HELLO; "
            "name the revision of the frames (--revision)",
            code="capture-invalid",
        )
    return found


def decode_frame(
    revision: protocol.Revision, data: bytes
) -> tuple[str, protocol.Frame | None, RemoteProtocolError | None, int]:
    """Name, value, error and the error's offset of one whole frame, given with length and tag."""
    tag, body = data[HEADER_BYTES - 1], data[HEADER_BYTES:]
    row = revision.by_tag.get(tag)
    if row is None:
        tags = ", ".join(f"{one.tag} {protocol.frame_name(one.frame)}" for one in revision.rows)
        problem = f"tag {tag} is not a frame of {revision.name}; its tags are {tags}"
        return "", None, protocol.broken(protocol.Fault.UNKNOWN_TAG, problem), HEADER_BYTES - 1
    name = protocol.frame_name(row.frame)
    reader = Reader(body, revision.byte_order, name)
    try:
        return name, row.decode(reader), None, HEADER_BYTES
    except RemoteProtocolError as error:
        return name, None, error, HEADER_BYTES + reader.at


_NAMES = {"stream_id": "stream", "message_id": "id"}
"""Field of a frame → its name in ``docs/protocol.md``, where that differs."""


def _fields(frame: protocol.Frame) -> dict[str, Any]:
    found = {_NAMES.get(name, name): getattr(frame, name) for name in frame.__match_args__}
    match frame:
        case protocol.Ok(streams=streams):
            return {**found, "streams": [(one.stream_id, one.name, one.ref) for one in streams]}
        case protocol.NotifyAck(success=success, ref=ref):
            known = None if ref == protocol.NOTHING_PROCESSED else ref
            return {**found, "success": int(success), "ref": known}
        case protocol.Message(flags=flags):
            # The payload, which may be long, comes last.
            payload = found.pop("payload")
            found = {"flags": None, **found, "payload": payload}
            found["flags"] = str(flags.name) if flags else None
        case protocol.Ack(refs=refs):
            return {**found, "refs": list(refs)}
    absent = isinstance(frame, protocol.Message | protocol.EosMessage)
    return {name: value for name, value in found.items() if value is not None or not absent}


def _shown(key: str, value: Any, most: int) -> str:
    if isinstance(value, bytes):
        return protocol.shorten(value, most).removeprefix("b")
    if key == "ref" and value is None:
        return "nothing committed"
    return printable(f'"{value}"') if isinstance(value, str) and key != "flags" else str(value)


def _as_json(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bytes):
        return {key: value}
    try:
        return {key: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{key}_base64": base64.b64encode(value).decode()}
