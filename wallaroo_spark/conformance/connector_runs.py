"""A worker at a real port that does what a check says, and the user's program, which connects to it.

The program sends the lines of its standard input, which are a file, too, as the messages of one stream, ends the
stream, and exits with status 0 once everything is acknowledged. So each message is known in advance.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wallaroo_spark.conformance.checks import CheckedSession, Mismatch, NotApplicableError, Wire, shown
from wallaroo_spark.errors import printable
from wallaroo_spark.protocol import (
    NOTHING_PROCESSED,
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
    StreamReference,
)
from wallaroo_spark.transport import format_address
from wallaroo_spark.wiretap.decoding import DecodedFrame
from wallaroo_spark.wiretap.proxy import End

LINES = tuple(b"line %d" % number for number in range(1, 41))
"""The messages of most checks."""
WINDOW = 20
"""The credits that a worker grants in checks that are not about them: less than there are lines."""
VARIABLES = {
    "address": "WALLAROO_WORKERS",
    "cookie": "WALLAROO_COOKIE",
    "instance": "WALLAROO_INSTANCE",
    "input": "WALLAROO_INPUT",
}
"""What the program is given, as ``{name}`` in its arguments → the variable with the same value."""
STAY_AWAY_SECONDS = 5.0
"""Time in which a connector that must not come back would. A choice: long for a first back-off."""
_BACK_SECONDS = 5.0
"""Time in which a connector closes the connection behind RESTART, as the page says."""
_LOOK_SECONDS = 0.05
_EXIT_SECONDS = 2.0
"""Time in which a program ends that has closed its connection because it has failed. A choice."""
_TAIL_LINES = 6
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class CheckedConnector:
    """What the checks of a connector have in common."""

    command: Sequence[str]
    """The program and its arguments."""
    cookie: str = "conformance"
    version: str = "0.0.1"
    seconds: float = 30.0
    """The longest wait for something that has to come."""
    quiet: float = 0.5
    """The time in which something must not come."""
    running: set[int] = field(default_factory=set)
    """The programs that run, by their process groups."""

    def kill(self) -> None:
        """End all programs that run."""
        for group in list(self.running):
            _kill(group)


class ConnectorRun:
    """One run of the connector, and the worker that it connects to."""

    def __init__(self, setting: CheckedConnector, check: str, revisions: Sequence[str]) -> None:
        self.setting = setting
        self.instance = f"conformance-{check}"
        self.lines: Sequence[bytes] = LINES
        self.committed = 0
        """Lines that are committed."""
        self.reference: int | None = None
        """The message id of the last of them."""
        self.ids: dict[int, int] = {}
        """Line, from 0 → the id that the connector has given it."""
        self.stream: Notify | None = None
        """The NOTIFY of the connector's one stream."""
        self._revisions = revisions
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = contextlib.ExitStack()
        self._door = self._listen()
        self._folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="wallaroo-conformance-")))
        self._output = self._folder / "output.txt"

    def __enter__(self) -> ConnectorRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            _kill(self._process.pid)
            self._process.wait()
            self.setting.running.discard(self._process.pid)
        self._closing.close()

    def moved(self) -> str:
        """From now on the worker is at another address, which is returned."""
        self._door = self._listen()
        return self._address()

    def accept(self) -> ScriptedSession:
        """The next session, up to its HELLO, which is compared with what the connector was given."""
        setting = self.setting
        wire = self._connection(setting.seconds)
        session = ScriptedSession(self, wire)
        frame = session.next("HELLO")
        hello = frame.frame
        assert isinstance(hello, Hello)
        assert frame.revision is not None
        session.revision = frame.revision
        if self._revisions and session.revision.name not in self._revisions:
            raise NotApplicableError(f"the connector speaks {session.revision.name}")
        given = {"version": setting.version, "cookie": setting.cookie.encode(), "instance": self.instance}
        for name, value in given.items():
            if getattr(hello, name) != value:
                raise Mismatch(f"{name} {value!r} in HELLO", repr(getattr(hello, name)), frame)
        return session

    def answered(self, credits: int = WINDOW, *more: Frame, name: bool = True) -> ScriptedSession:
        """The next session, behind its OK; the arguments are those of :meth:`ScriptedSession.answer`."""
        session = self.accept()
        session.answer(credits, *more, name=name)
        return session

    def turn_away(self) -> None:
        """End the next connection without an answer, as a machine does whose worker starts again."""
        self._connection(self.setting.seconds).close(reset=True)

    def stays_away(self) -> None:
        """The connector has been told that it must not come back."""
        try:
            self._connection(STAY_AWAY_SECONDS)
        except _NobodyCameError:
            return
        except _ExitedError as exited:
            if exited.status:
                return
            raise Mismatch("an exit status that is not 0, because lines are not committed", str(exited)) from None
        raise Mismatch("no further connection behind this ERROR", "the connector has connected again")

    def exits(self) -> None:
        """Everything is acknowledged: the program ends with status 0."""
        assert self._process is not None
        expected = "the program ends with exit status 0 when everything is acknowledged"
        try:
            status = self._process.wait(self.setting.seconds)
        except subprocess.TimeoutExpired:
            raise Mismatch(expected, f"it still runs after {self.setting.seconds:g} s{self._tail()}") from None
        if status:
            raise Mismatch(expected, f"exit status {status}{self._tail()}")

    def ending(self) -> str:
        """What is to be said of a program whose connection has ended."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"; the program has ended with exit status {self._process.wait(_EXIT_SECONDS)}{self._tail()}"
        return self._tail()

    def _listen(self) -> socket.socket:
        return self._closing.enter_context(socket.create_server(("127.0.0.1", 0)))

    def _address(self) -> str:
        return format_address(*self._door.getsockname())

    def _connection(self, seconds: float) -> Wire:
        """The next connection. Raises :class:`Mismatch`, or what :meth:`stays_away` expects."""
        process = self._process or self._start()
        until = time.monotonic() + seconds
        while True:
            # The program may have connected and ended since the last look.
            status = process.poll()
            self._door.settimeout(_LOOK_SECONDS)
            try:
                wire = Wire(self._door.accept()[0], End.WORKER)
            except TimeoutError:
                if status is not None:
                    raise _ExitedError(status, self._tail()) from None
                if time.monotonic() < until:
                    continue
                raise _NobodyCameError(seconds, self._tail()) from None
            self._closing.callback(wire.drop)
            return wire

    def _start(self) -> subprocess.Popen[bytes]:
        file = self._folder / "lines.txt"
        file.write_bytes(b"".join(line + b"\n" for line in self.lines))
        cookie = self.setting.cookie
        given = {"address": self._address(), "cookie": cookie, "instance": self.instance, "input": str(file)}
        command = list(self.setting.command)
        for name, value in given.items():
            command = [part.replace(f"{{{name}}}", value) for part in command]
        variables = {variable: given[name] for name, variable in VARIABLES.items()}
        with file.open("rb") as lines, self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=lines,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        self.setting.running.add(self._process.pid)
        return self._process

    def _tail(self) -> str:
        """The last lines of what the program has printed."""
        with self._output.open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = output.read().decode("utf-8", "backslashreplace").splitlines()[-_TAIL_LINES:]
        return "".join(f"\n    | {printable(line)}" for line in lines)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class _ExitedError(Mismatch):
    """The program has ended in place of connecting."""

    def __init__(self, status: int, tail: str) -> None:
        super().__init__("a connection", f"the program has ended with exit status {status}{tail}")
        self.status = status


class _NobodyCameError(Mismatch):
    """The program runs and has not connected."""

    def __init__(self, seconds: float, tail: str) -> None:
        super().__init__("a connection", f"none within {seconds:g} s{tail}")


class ScriptedSession(CheckedSession):
    """One session of the connector."""

    def __init__(self, run: ConnectorRun, wire: Wire) -> None:
        super().__init__(wire, "connector", run.setting.seconds)
        self.held: list[int] = []
        """Ids of the lines that are held and not committed."""
        self.notifies = 0
        """NOTIFYs of the session."""
        self.accepting = True
        """v3: whether NOTIFY is answered with success."""
        self.end: int | None = None
        """The id with which the stream has ended."""
        self._resets = 0
        self._last: int | None = None
        self._run = run

    def quiet(self, expected: str) -> None:
        """For a while nothing may come that breaks a rule, and the connection stays open."""
        until = time.monotonic() + self._run.setting.quiet
        while True:
            try:
                frame = self.wire.receive(until - time.monotonic())
            except TimeoutError:
                return
            if frame is None:
                raise self._over(expected)
            self._take(frame)

    def answer(self, credits: int = WINDOW, *more: Frame, name: bool = True) -> None:
        """Answer HELLO with OK, and send further frames in the same piece."""
        run = self._run
        listed: tuple[StreamReference, ...] = ()
        if run.reference is not None and run.stream is not None and not self.revision.has(NotifyAck):
            listed = (StreamReference(run.stream.stream_id, run.reference, run.stream.name if name else ""),)
        self.send(Ok(credits, listed), *more)

    def commit(self, count: int | None = None, credits: int = 0, *, more: Sequence[Frame] = (), cut: int = 0) -> None:
        """Commit held lines, all or the first ones, and acknowledge them; ``more`` follows in the same piece.

        Of the last frame the last ``cut`` bytes are not sent.
        """
        run = self._run
        count = len(self.held) if count is None else count
        if count:
            run.reference = self.held[count - 1]
            run.committed += count
            del self.held[:count]
        if self.end is not None and not self.held:
            run.reference = max(self.end, run.reference or 0)
        refs: tuple[tuple[int, int], ...] = ()
        if run.stream is not None and run.reference is not None:
            refs = ((run.stream.stream_id, run.reference),)
        data = b"".join(map(self.revision.encode, (Ack(credits, refs), *more)))
        self.wire.send(data[: len(data) - cut], apart=self.apart)

    def refuse(self, reason: str) -> None:
        """Send an ERROR, and close the connection in order."""
        self.send(Error(reason))
        self.wire.close()

    def rewind(self, times: int) -> None:
        """Ask for the stream again, behind the committed line, with several NACKs."""
        run = self._run
        assert run.stream is not None
        self.send(*[Nack(0, run.stream.stream_id, run.reference or 0)] * times)
        self._resets, self.held, self.end = self._resets + times, [], None

    def filled(self, lines: int) -> None:
        """Take frames until so many lines are held."""
        self.take(lambda: len(self.held) >= lines, f"{lines} lines as messages")

    def all_sent(self, *, committing: bool = False) -> None:
        """Take frames until the stream has ended. Credits are granted, with ``committing`` for commits."""
        run = self._run
        while self.end is None:
            if (self.wire.credits or 0) <= 0:
                self.commit(len(self.held) if committing else 0, WINDOW)
            self._take(self.next("all lines as messages, and the end of the stream"))
        missing = len(run.lines) - run.committed - len(self.held)
        if missing:
            line = run.committed + len(self.held)
            came = f"the end of the stream, {missing} lines too early"
            raise Mismatch(f"line {line + 1} of {len(run.lines)}, {_line(run, line)}", came)

    def finish(self) -> None:
        """Take everything, committing as it comes; then the connector closes and its program ends."""
        self.all_sent(committing=True)
        self.commit()
        self.closed()
        self._run.exits()

    def closed(self) -> None:
        """The connector closes the connection, and sends nothing before."""
        expected = "the connector closes the connection when everything is acknowledged"
        try:
            frame = self.wire.receive(self._seconds)
        except TimeoutError:
            raise Mismatch(expected, f"it is open after {self._seconds:g} s; {self._state()}") from None
        if frame is not None:
            raise Mismatch(expected, shown(frame), frame)

    def goes_back(self) -> None:
        """The connector closes the connection because it was asked to come back; frames on their way are ignored."""
        try:
            self.wire.drain(_BACK_SECONDS)
        except TimeoutError:
            raise Mismatch(
                "the connector closes the connection behind RESTART", f"it is open after {_BACK_SECONDS:g} s"
            ) from None
        self.wire.close()

    def _take(self, frame: DecodedFrame, expected: str = "") -> None:
        match frame.frame:
            case Notify() as notify:
                self._notified(notify, frame)
            case Message() as message:
                self._message(message, frame)
            case EosMessage(message_id=last):
                self.end = (self._run.reference or 0) if last is None else last
            case Error(reason=reason):
                raise Mismatch("no ERROR, because the worker has broken no rule", printable(reason), frame)
            case _:
                raise Mismatch("a frame of a connector behind HELLO", shown(frame), frame)

    def _notified(self, notify: Notify, frame: DecodedFrame) -> None:
        run, drafts = self._run, not self.revision.has(NotifyAck)
        first, run.stream = run.stream or notify, run.stream or notify
        if (notify.stream_id, notify.name) != (first.stream_id, first.name):
            raise Mismatch(f"the one stream {first.stream_id} {first.name!r} again", shown(frame), frame)
        reference = run.reference or 0
        if drafts and notify.ref not in (0, reference):
            raise Mismatch(f"NOTIFY with the committed reference {reference}, or with 0", shown(frame), frame)
        self.notifies += 1
        self._last, self._resets = None, max(0, self._resets - 1)
        if not drafts:
            self.send(NotifyAck(self.accepting, notify.stream_id, reference or NOTHING_PROCESSED))

    def _message(self, message: Message, frame: DecodedFrame) -> None:
        if self._resets:
            return
        if message.message_id is None or message.flags & (Flags.EPHEMERAL | Flags.UNSTABLE_REFERENCE):
            expected = "messages that can be sent again, each by itself: not EPHEMERAL, and no UNSTABLE_REFERENCE"
            raise Mismatch(expected, shown(frame), frame, "docs/conformance.md#a-connector")
        if message.payload is not None:
            self._line(message.message_id, message, frame)
        if message.flags & Flags.EOS:
            self.end = message.message_id

    def _line(self, message_id: int, message: Message, frame: DecodedFrame) -> None:
        run = self._run
        assert message.payload is not None
        last, self._last = self._last, message_id
        if last is not None and message_id <= last:
            expected = f"a message id above {last}, the one before it"
            raise Mismatch(expected, shown(frame), frame, "docs/protocol.md#points-of-reference")
        if run.reference is not None and message_id <= run.reference:
            return  # A committed message that is sent again does no harm.
        place = run.committed + len(self.held)
        if place >= len(run.lines):
            raise Mismatch(f"no message behind the last of {len(run.lines)} lines", shown(frame), frame)
        if message.payload != run.lines[place]:
            expected = f"line {place + 1} of {len(run.lines)}, {_line(run, place)}"
            at = frame.offset + len(frame.data) - len(message.payload) + _difference(message.payload, run.lines[place])
            raise Mismatch(expected, shown(frame), replace(frame, error_offset=at))
        if run.ids.setdefault(place, message_id) != message_id:
            expected = f"line {place + 1} with the same message id as before, {run.ids[place]}"
            raise Mismatch(expected, shown(frame), frame, "docs/protocol.md#points-of-reference")
        self.held.append(message_id)

    def _state(self) -> str:
        run = self._run
        text = f"{run.committed} lines are committed, {len(self.held)} held, credits are {self.wire.credits}"
        return f"{text}, NOTIFYs of this session {self.notifies}"

    def _ending(self) -> str:
        return self._run.ending()


def _line(run: ConnectorRun, place: int) -> str:
    return repr(run.lines[place][:40])[1:]


def _difference(one: bytes, other: bytes) -> int:
    """Where two payloads begin to differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (this, that) in pairs if this != that), min(len(one), len(other)))
