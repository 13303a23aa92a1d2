"""The connectors of the checks of a worker.

The messages of these checks become rows of the receiver, under instance names that begin with ``conformance-``. Source:
``docs/conformance.md``.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from wallaroo_spark.conformance.checks import CheckedSession, Mismatch, Running, Wire, error_of, shown
from wallaroo_spark.errors import printable
from wallaroo_spark.protocol import (
    Ack,
    EosMessage,
    Error,
    Flags,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Revision,
)
from wallaroo_spark.protocol.faults import is_later, redirect_address
from wallaroo_spark.transport import parse_address
from wallaroo_spark.wiretap.decoding import DecodedFrame
from wallaroo_spark.wiretap.proxy import End

PROGRAM = "conformance"
NAME = "conformance"
"""The name of each stream."""
MESSAGES = 10
"""Messages of a check."""
_REDIRECTS = 5
_BACK_SECONDS = 0.5
"""Seconds between two attempts to open a session. A choice."""


@dataclass(frozen=True)
class CheckedWorker:
    """What the checks of a worker have in common."""

    address: str
    cookie: str = ""
    version: str = "0.0.1"
    tls: ssl.SSLContext | None = None
    seconds: float = 30.0
    """The longest wait for something that has to come, a commit among them."""
    running: Running = field(default_factory=Running)
    """The connections."""


class Visitor:
    """The connectors of one check, in one revision."""

    def __init__(self, setting: CheckedWorker, revision: Revision, check: str) -> None:
        self.setting = setting
        self.revision = revision
        name = secrets.token_hex(8)
        self.instance = f"conformance-{check}-{revision.name}-{name}"
        self.stream = int(name, 16)
        """Its own: in v3 the ids of all connectors of a receiver differ."""
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def call(self, address: str = "") -> WorkerCall:
        """A connection without a HELLO. Raises :class:`Mismatch` when there is none."""
        host, port = parse_address(address or self.setting.address)
        try:
            made = socket.create_connection((host, port), timeout=self.setting.seconds)
            if self.setting.tls is not None:
                made = self.setting.tls.wrap_socket(made, server_hostname=host)
        except OSError as error:
            raise Mismatch(f"a worker at {host}:{port}", f"no connection ({error.strerror or error})") from None
        wire = Wire(made, End.CONNECTOR)
        self._closing.callback(wire.drop)
        self._closing.enter_context(self.setting.running.until(wire.interrupt))
        return WorkerCall(self, wire)

    def session(self, *, apart: bool = False) -> WorkerCall:
        """A session: behind OK, wherever the worker sends its connector."""
        address, redirects = "", 0
        until = time.monotonic() + self.setting.seconds
        while True:
            call = self.call(address)
            call.apart = apart
            call.send(self.hello())
            frame = call.next("OK")
            if isinstance(frame.frame, Ok):
                call.welcome = frame.frame
                return call
            reason = error_of(frame) or ""
            elsewhere = redirect_address(reason)
            if elsewhere is not None and redirects < _REDIRECTS:
                address, redirects = elsewhere, redirects + 1
            elif is_later(reason) and time.monotonic() < until:
                time.sleep(_BACK_SECONDS)
            else:
                raise Mismatch("OK", shown(frame), frame)

    def hello(self, *, version: str | None = None, cookie: str | None = None) -> Hello:
        """The HELLO of this connector, or one with another version or cookie."""
        setting = self.setting
        return Hello(
            setting.version if version is None else version,
            (setting.cookie if cookie is None else cookie).encode(),
            PROGRAM,
            self.instance,
        )


_REASONS = "docs/protocol.md#reasons-that-a-connector-may-act-on"


def _for_a_person(reason: str) -> bool:
    """Whether no connector connects again because of this reason."""
    return bool(reason) and not (is_later(reason) or redirect_address(reason))


class WorkerCall(CheckedSession):
    """One connection to the worker."""

    welcome: Ok

    def __init__(self, visitor: Visitor, wire: Wire) -> None:
        super().__init__(wire, "worker", visitor.setting.seconds)
        self.revision = visitor.revision
        self.sent = 0
        """The id of the last message."""
        self.acknowledged = 0
        """The reference of the last ACK of the stream."""
        self.notified: NotifyAck | None = None
        """v3: the answer to the last NOTIFY."""
        self._acks = 0
        self._visitor = visitor

    def notify(self, reference: int = 0) -> bool:
        """Announce the stream; in v3 wait for the answer. Returns whether the stream is open."""
        self.send(Notify(self._visitor.stream, NAME, reference))
        if not self.revision.has(NotifyAck):
            return True
        self.notified = None
        self.take(lambda: self.notified is not None, "NOTIFY_ACK")
        return self._accepted()

    def open(self, reference: int = 0) -> None:
        """Open the stream. Where a worker cannot open it yet, it is announced again."""
        until = time.monotonic() + self._seconds
        while not self.notify(reference):
            if time.monotonic() > until:
                raise Mismatch("NOTIFY_ACK with success 1 for a stream that no session has", "success 0")
            time.sleep(_BACK_SECONDS)

    def messages(self, first: int = 1, last: int = MESSAGES) -> None:
        """Send messages with these ids, as many at a time as there are credits."""
        at = first
        while at <= last:
            self.take(lambda: (self.wire.credits or 0) > 0, "an ACK with credits")
            end = min(last, at + (self.wire.credits or 0) - 1)
            self.sent = max(self.sent, end)
            self.send(*(self.message(number) for number in range(at, end + 1)))
            at = end + 1

    def message(self, number: int) -> Message:
        """A message; its payload names it."""
        return message_of(self.revision, self._visitor.stream, number)

    def end_stream(self) -> None:
        """End the stream behind its last message, and wait for the ACK of the end."""
        self.take(lambda: (self.wire.credits or 0) > 0, "an ACK with credits")
        self.send(self.revision.end_of_stream(self._visitor.stream, self.sent))
        before = self._acks
        self.take(lambda: self._acks > before, f"an ACK of the stream's end, with reference {self.sent}")

    def acked(self, reference: int) -> None:
        """The worker has acknowledged the stream up to this reference."""
        self.take(lambda: self.acknowledged >= reference, f"an ACK of message {reference}, once it is committed")

    def refused(self, expected: str, reason: Callable[[str], bool] = _for_a_person) -> str:
        """The worker sends ERROR, and closes the connection. Returns the reason."""
        end = time.monotonic() + self._seconds
        while (found := error_of(frame := self.next(expected, left=end - time.monotonic()))) is None:
            if isinstance(frame.frame, Ok):
                raise Mismatch(expected, shown(frame), frame)
            self._take(frame)
        if not reason(found):
            raise Mismatch(f"{expected}, which is for a person", shown(frame), frame, _REASONS)
        self.closed("the worker closes the connection behind its ERROR")
        return found

    def closed(self, expected: str) -> None:
        """The worker closes the connection, and sends nothing before."""
        try:
            data = self.wire.drain(self._seconds)
        except TimeoutError:
            raise Mismatch(expected, f"it is open after {self._seconds:g} s") from None
        if data:
            raise Mismatch(expected, f"{len(data)} more bytes: {data[:64].hex(' ')}")

    def _take(self, frame: DecodedFrame, expected: str = "") -> None:
        match frame.frame:
            case Error(reason=reason):
                raise Mismatch(expected, printable(reason), frame)
            case NotifyAck() as answer:
                self.notified = answer
            case Ack(refs=refs):
                for stream, reference in refs:
                    self._acknowledged(stream, reference, frame)

    def _acknowledged(self, stream: int, reference: int, frame: DecodedFrame) -> None:
        page = "docs/protocol.md#points-of-reference"
        if stream != self._visitor.stream:
            raise Mismatch("ACKs of streams of this session", f"one of stream {stream}", frame, page)
        if reference > max(self.sent, self._visitor_reference()):
            raise Mismatch(f"references up to {self.sent}, the last message", f"{reference}", frame, page)
        if reference < self.acknowledged:
            raise Mismatch(f"no reference below {self.acknowledged}, the one before", f"{reference}", frame, page)
        self.acknowledged = reference
        self._acks += 1

    def _visitor_reference(self) -> int:
        return max((one.ref for one in self.welcome.streams), default=0)

    def _accepted(self) -> bool:
        return self.notified is not None and self.notified.success

    def _state(self) -> str:
        return f"messages up to {self.sent} are sent, {self.acknowledged} acknowledged, credits are {self.wire.credits}"


def message_of(revision: Revision, stream: int, number: int) -> Message:
    """A message of a stream; its payload names it. In v3 the event time and the key are always present."""
    time_and_key = (0, b"") if revision.has(EosMessage) else (None, None)
    return Message(stream, number, b"message %d" % number, Flags.NONE, *time_and_key)
