"""A worker at a real port that does what a check says, and the user's program, which connects to it.

The program sends the lines of its standard input, which are a file, too, as the messages of one stream, ends the
stream, and exits with status 0 once everything is acknowledged. So each message is known in advance.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wallaroo_spark.conformance.checks import CheckedSession, Mismatch, NotApplicableError, Running, Wire, shown
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
LATE_SECONDS = 11.0
"""Time behind which OK comes late: beyond the 10 s for which a worker waits for the driver, and time limits of 10 s."""
HELLO_SECONDS = 10.0
"""Time for HELLO, as workers have it."""
_BACK_SECONDS = 5.0
"""Time in which a connector closes the connection behind RESTART, as the page says."""
_LOOK_SECONDS = 0.05
_HELLO_AGAIN_SECONDS = 1.0
"""Time for the HELLO of a connection that must not be. A choice."""
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
    late: float = LATE_SECONDS
    """The time behind which a late OK comes."""
    running: Running = field(default_factory=Running)
    """The programs that run."""


class ConnectorRun:
    """One run of the connector, and the worker that it connects to."""

    def __init__(self, setting: CheckedConnector, check: str, revisions: Sequence[str]) -> None:
        self.setting = setting
        # Its own, because a connector may keep its place by it.
        self.instance = f"conformance-{check}-{secrets.token_hex(4)}"
        self.lines: Sequence[bytes] = LINES
        self.committed = 0
        """Lines that are committed."""
        self.reference: int | None = None
        """The message id of the last of them."""
        self.ids: dict[int, int] = {}
        """Line, from 0 → the id that the connector has given it."""
        self.came = 0.0
        """When the newest session has connected, by the monotonic clock."""
        self.stream: Notify | None = None
        """The NOTIFY of the connector's one stream."""
        self._revisions = revisions
        self._closing = contextlib.ExitStack()
        self._door = self._listen()
        self._former: socket.socket | None = None
        self._folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="wallaroo-conformance-")))
        self._program: _Program | None = None

    def __enter__(self) -> ConnectorRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def moved(self) -> str:
        """From now on the worker is at another address, which is returned."""
        self._former, self._door = self._door, self._listen()
        return self._address()

    def killed(self) -> None:
        """The program is killed. It is started again, with the same arguments and lines, for the next session."""
        assert self._program is not None
        self._program.end()
        self._program = None

    def accept(self) -> ScriptedSession:
        """The next session, up to its HELLO, which is compared with what the connector was given."""
        setting = self.setting
        wire = self._connection(setting.seconds)
        self.came = time.monotonic()
        session = ScriptedSession(self, wire)
        # A worker closes a connection without one.
        frame = session.next("HELLO", min(setting.seconds, HELLO_SECONDS))
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
        """The connector has been told that it must not come back: its program fails."""
        expected = "no further connection behind this ERROR, and an exit status of the program that is not 0"
        try:
            self._again()
        except _NobodyCameError as nobody:
            raise Mismatch(expected, nobody.still_runs) from None
        except _ExitedError as exited:
            if exited.status:
                return
            raise Mismatch(expected, exited.came) from None
        raise Mismatch(expected, "the connector has connected again")

    def exits(self) -> None:
        """Everything is acknowledged: the program ends with status 0."""
        expected = "the program ends with exit status 0 when everything is acknowledged"
        try:
            self._again()
        except _NobodyCameError as nobody:
            raise Mismatch(expected, nobody.still_runs) from None
        except _ExitedError as exited:
            if exited.status:
                raise Mismatch(expected, exited.came) from None
            return
        raise Mismatch(expected, "a further connection, beside or behind the one in which all was acknowledged")

    def _again(self) -> None:
        """The connector has said HELLO once more. Raises what :meth:`_connection` does."""
        hello = b""
        while self.instance.encode() not in hello:
            # Another program may take the port for that of a worker that is gone.
            hello = self._connection(self.setting.seconds).first(_HELLO_AGAIN_SECONDS)

    def ending(self) -> str:
        """What is to be said of a program whose connection has ended."""
        assert self._program is not None
        status = self._program.wait(_EXIT_SECONDS)
        ended = "" if status is None else f"; the program has ended with exit status {status}"
        return ended + self._program.tail()

    def _listen(self) -> socket.socket:
        return self._closing.enter_context(socket.create_server(("127.0.0.1", 0)))

    def _address(self) -> str:
        return format_address(*self._door.getsockname())

    def _connection(self, seconds: float) -> Wire:
        """The next connection. Raises :class:`Mismatch`, or what :meth:`stays_away` expects."""
        program = self._program = self._program or self._started()
        until = time.monotonic() + seconds
        while True:
            # The program may have connected and ended since the last look.
            status = program.wait(0)
            if self._former is not None and _accepted(self._former, 0) is not None:
                raise Mismatch(f"a connection to {self._address()}", "one to the address that the worker has left")
            if (connection := _accepted(self._door, _LOOK_SECONDS)) is not None:
                wire = Wire(connection, End.WORKER)
                self._closing.callback(wire.drop)
                return wire
            if status is not None:
                raise _ExitedError(status, program.tail())
            if time.monotonic() > until:
                raise _NobodyCameError(seconds, program.tail())

    def _started(self) -> _Program:
        file = self._folder / "lines.txt"
        file.write_bytes(b"".join(line + b"\n" for line in self.lines))
        cookie = self.setting.cookie
        given = {"address": self._address(), "cookie": cookie, "instance": self.instance, "input": str(file)}
        command = list(self.setting.command)
        for name, value in given.items():
            command = [part.replace(f"{{{name}}}", value) for part in command]
        variables = {variable: given[name] for name, variable in VARIABLES.items()}
        program = _Program(command, file, {**os.environ, **variables})
        self._closing.callback(program.end)
        self._closing.enter_context(self.setting.running.until(program.kill))
        return program


class _Program:
    """The connector's program, in a process group of its own, and the last of what it prints."""

    def __init__(self, command: Sequence[str], lines: Path, variables: Mapping[str, str]) -> None:
        try:
            with lines.open("rb") as given:
                self._process = subprocess.Popen(
                    command,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    start_new_session=True,
                )
        except OSError as error:
            raise Mismatch("a program that can be started", f"{command[0]}: {error.strerror or error}") from None
        self._over = False
        self._printed = b""
        self._reader = threading.Thread(target=self._read, name="conformance-output", daemon=True)
        self._reader.start()

    def wait(self, seconds: float) -> int | None:
        """The exit status; None when it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def tail(self) -> str:
        """The last lines of what it has printed."""
        if self._process.poll() is not None:
            # A process that it has left behind may keep the pipe open.
            self._reader.join(_EXIT_SECONDS)
        lines = self._printed.decode("utf-8", "backslashreplace").splitlines()[-_TAIL_LINES:]
        return "".join(f"\n    | {printable(line)}" for line in lines)

    def kill(self) -> None:
        """Kill it, and what it has started."""
        if not self._over:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """It has ended behind this; its number may be another's then."""
        self.kill()
        self._over = True
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while data := os.read(pipe.fileno(), _TAIL_BYTES):
                self._printed = (self._printed + data)[-_TAIL_BYTES:]


def _accepted(door: socket.socket, seconds: float) -> socket.socket | None:
    """A connection that is made within so many seconds."""
    door.settimeout(seconds)
    with contextlib.suppress(TimeoutError, BlockingIOError):
        return door.accept()[0]
    return None


class _ExitedError(Mismatch):
    """The program has ended in place of connecting."""

    def __init__(self, status: int, tail: str) -> None:
        super().__init__("a connection", f"the program has ended with exit status {status}{tail}")
        self.status = status


class _NobodyCameError(Mismatch):
    """The program runs and has not connected."""

    def __init__(self, seconds: float, tail: str) -> None:
        super().__init__("a connection", f"none within {seconds:g} s (--timeout){tail}")
        self.still_runs = f"it still runs after {seconds:g} s (--timeout){tail}"


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
        self._open = False
        self._resets = 0
        self._last: int | None = None
        self._run = run

    def quiet(self, expected: str, seconds: float = 0.0) -> None:
        """For a while nothing may come that breaks a rule, and the connection stays open."""
        until = time.monotonic() + (seconds or self._run.setting.quiet)
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

    def rewind(self, times: int, credits: int = 0) -> None:
        """Ask for the stream again, behind the committed line, with several NACKs that each grant credits."""
        run = self._run
        assert run.stream is not None
        self.send(*[Nack(credits, run.stream.stream_id, run.reference or 0)] * times)
        self._resets, self.held, self.end = self._resets + times, [], None

    def filled(self, lines: int) -> None:
        """Take frames until so many lines are held. Where other frames use up the credits, as many more are granted."""

        def held() -> bool:
            missing = lines - len(self.held)
            if missing > 0 and self.wire.credits == 0 and not self.wire.queued:
                self.commit(0, missing)
            return missing <= 0

        self.take(held, f"{lines} lines as messages")

    def all_sent(self, *, committing: bool = False) -> None:
        """Take frames until the stream has ended. Credits are granted, with ``committing`` for commits."""
        run = self._run

        def ended() -> bool:
            if self.end is None and (self.wire.credits or 0) <= 0:
                self.commit(len(self.held) if committing else 0, WINDOW)
            return self.end is not None

        self.take(ended, "all lines as messages, and the end of the stream")
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
                self._ended(self._last or self._run.reference or 0 if last is None else last, frame)
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
            self.send(NotifyAck(self.accepting and not self._open, notify.stream_id, reference or NOTHING_PROCESSED))
            self._open = self.accepting

    def _message(self, message: Message, frame: DecodedFrame) -> None:
        if self._resets:
            return
        if message.message_id is None or message.flags & (Flags.EPHEMERAL | Flags.UNSTABLE_REFERENCE):
            expected = "messages that can be sent again, each by itself: not EPHEMERAL, and no UNSTABLE_REFERENCE"
            raise Mismatch(expected, shown(frame), frame, "docs/conformance.md#a-connector")
        if message.payload is not None:
            self._line(message.message_id, message, frame)
        if message.flags & Flags.EOS:
            self._ended(message.message_id, frame)

    def _ended(self, message_id: int, frame: DecodedFrame) -> None:
        last = self.held[-1] if self.held else self._run.reference or 0
        if message_id < last:
            expected = f"the end of the stream with the id of its last message, {last}, or one above it"
            raise Mismatch(expected, shown(frame), frame, "docs/protocol.md#stream-states")
        self.end, self._open = message_id, False

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

    def _progress(self) -> int:
        return self._run.committed + len(self.held)

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
