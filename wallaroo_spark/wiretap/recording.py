"""The file of a capture: one JSON object a line, appended as bytes pass, readable after a kill.

:class:`Recorder` writes it as the watcher of a proxy, :func:`read` reads it. The format is documented in
``docs/debug-a-connector.md#the-file``.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from wallaroo_spark.errors import ConfigurationError, TransportError, WallarooError
from wallaroo_spark.protocol import REVISIONS, Revision
from wallaroo_spark.wiretap.framing import FrameCursor, HelloMask
from wallaroo_spark.wiretap.proxy import End, Watcher

FORMAT = 1
"""The version of the format, in the first line of each file."""
HEAD = "wallaroo_capture"
"""The name in the first line by which a file is recognised."""
_TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of TLS: a handshake record of any version."""


@dataclass(frozen=True)
class ConnectionOpened:
    """A connection was accepted, or goes on from an earlier file."""

    at: float
    """Seconds since 1970."""
    connection: int
    """Number of the connection, from 1."""
    peer: str
    """Address of the connector."""
    revision: Revision | None = None
    """The revision, where an earlier file has the HELLO."""
    skip: dict[End, int] = field(default_factory=dict)
    """Bytes of each direction that still belong to a frame in an earlier file."""
    begun: dict[End, bytes] = field(default_factory=dict)
    """Bytes of a frame's length that are in an earlier file."""
    continued: bool = False
    """Whether an earlier file has the beginning of the connection."""


@dataclass(frozen=True)
class Passed:
    """Bytes that were passed on."""

    at: float
    """Seconds since 1970."""
    connection: int
    """Number of the connection."""
    sender: End
    """The end that sent them."""
    data: bytes


@dataclass(frozen=True)
class Remark:
    """A fault that the proxy caused, or the end of a connection with its cause."""

    at: float
    """Seconds since 1970."""
    connection: int
    """Number of the connection; 0 for a remark on the file itself."""
    text: str
    """The fault or the cause."""
    closed: bool = False
    """Whether the connection has ended."""


Event = ConnectionOpened | Passed | Remark


@dataclass
class _Recorded:
    """A recorder's state of one open connection."""

    peer: str
    """Address of the connector."""
    mask: HelloMask
    """Masks the cookie, and recognises the revision."""
    cursors: dict[End, FrameCursor] = field(default_factory=dict)
    """The position of each direction within a frame, once the revision is known."""
    begun: bool = False
    """Whether the connector has sent anything."""


class Recorder(Watcher):
    """Appends the events of a proxy to a file; it is the proxy's watcher.

    The cookie in HELLO is masked unless ``keep_cookies``. With ``max_bytes`` a full file is renamed to ``FILE.1`` (that
    one to ``FILE.2``, and so on), ``keep`` old files are kept, and a new file begins. Connections that speak TLS are
    refused, because their bytes could not be read later; ``failed`` is called with the error of the first of them, and
    with the error of a file that cannot be written.

    Raises :class:`ConfigurationError` when the file exists or cannot be made.
    """

    def __init__(
        self,
        path: str | Path,
        target: str,
        *,
        keep_cookies: bool = False,
        max_bytes: int | None = None,
        keep: int = 1,
        failed: Callable[[WallarooError], None] = lambda error: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self.bytes = 0
        """Bytes in the present file."""
        self.sent = {End.CONNECTOR: 0, End.WORKER: 0}
        """Bytes that each end has sent."""
        self._target = target
        self._keep_cookies = keep_cookies
        self._max_bytes, self._keep = max_bytes, keep
        self._failed, self._clock = failed, clock
        self._part = 0
        self._open: dict[int, _Recorded] = {}
        self._file = -1
        older = [self.path, *([_numbered(self.path, 1)] if max_bytes else [])]
        if existing := next((path for path in older if path.exists()), None):
            raise ConfigurationError(
                f"file {existing} exists; name another one, or remove it", code="file-unwritable", path=str(existing)
            )
        self._begin_file()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # The methods of a watcher.

    def opened(self, connection: int, peer: str) -> None:
        """Record that a connection was accepted."""
        self._open[connection] = _Recorded(peer, HelloMask(keep=self._keep_cookies))
        self._append(connection, opened=peer)

    def passed(self, connection: int, sender: End, data: bytes) -> None:
        """Record bytes, without the cookie."""
        known = self._open[connection]
        self.sent[sender] += len(data)
        if sender is End.CONNECTOR and not known.begun:
            known.begun = True
            if data.startswith(_TLS_HANDSHAKE):
                raise self._refused(known.peer)
        if sender is End.CONNECTOR:
            data = known.mask.feed(data)
            if known.mask.revision is not None and not known.cursors:
                known.cursors = {end: FrameCursor(known.mask.revision) for end in End}
        self._append_bytes(connection, sender, data)

    def fault(self, connection: int, text: str) -> None:
        """Record a fault of the proxy."""
        self._append(connection, fault=text)

    def closed(self, connection: int, cause: str) -> None:
        """Record the end of a connection."""
        if connection in self._open:
            self._append_bytes(connection, End.CONNECTOR, self._open[connection].mask.finish())
        self._append(connection, closed=cause)
        self._open.pop(connection, None)

    def _append_bytes(self, connection: int, sender: End, data: bytes) -> None:
        if not data:
            return
        self._append(connection, **{"from": str(sender), "bytes": base64.b64encode(data).decode()})
        # Not before: a file that begins with this line begins where the bytes before it ended.
        cursors = self._open[connection].cursors
        if cursors:
            cursors[sender].feed(data)

    def _append(self, connection: int, **values: Any) -> None:
        line = _line({"at": round(self._clock(), 6), "connection": connection, **values})
        if self._max_bytes is not None and self.bytes and self.bytes + len(line) > self._max_bytes:
            self._rotate()
        self._write(line)

    def _write(self, line: bytes) -> None:
        if self._file < 0:
            return
        try:
            # One write for each line: no buffer of this process is lost when it is killed.
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            raise self._fail(_unwritable(self.path, error)) from error
        self.bytes += len(line)

    def _begin_file(self) -> None:
        self._part += 1
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.bytes = 0
        cookies = "kept" if self._keep_cookies else "masked"
        head = {HEAD: FORMAT, "part": self._part, "at": round(self._clock(), 6), "to": self._target, "cookies": cookies}
        self._write(_line(head))

    def _rotate(self) -> None:
        self.close()
        try:
            for number in range(self._keep, 0, -1):
                source = _numbered(self.path, number - 1) if number > 1 else self.path
                with contextlib.suppress(FileNotFoundError):
                    source.rename(_numbered(self.path, number))
            if self._keep == 0:
                self.path.unlink()
            self._begin_file()
        except (OSError, ConfigurationError) as error:
            reason = error if isinstance(error, ConfigurationError) else _unwritable(self.path, error)
            raise self._fail(reason) from error
        for number, known in self._open.items():
            self._write(_line({"at": round(self._clock(), 6), "connection": number, "continued": _state(known)}))

    def _fail(self, error: WallarooError) -> WallarooError:
        self._failed(error)
        return error

    def _refused(self, peer: str) -> WallarooError:
        return self._fail(
            TransportError(
                f"the connector at {peer} speaks TLS, and its bytes could not be decoded later: give the proxy a "
                "certificate (--tls-certificate and --tls-key, and --to-tls for TLS to the worker), or let the "
                "connector speak to the proxy without TLS",
                code="capture-needs-tls",
                reason="tls",
            )
        )


def read(files: Iterable[IO[bytes]]) -> Iterator[Event]:
    """The events of a capture; of a rotated one, the files in order, the oldest first.

    An incomplete last line, which a kill leaves behind, is ignored. A damaged line in the middle becomes a
    :class:`Remark`. Raises :class:`ConfigurationError` for a file that is no capture.
    """
    for file in files:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise TypeError
                if number == 1:
                    _check_head(found, getattr(file, "name", "the input"))
                    continue
                yield _event(found)
            except (ValueError, KeyError, TypeError, binascii.Error):
                if number == 1:
                    raise _no_capture(getattr(file, "name", "the input")) from None
                yield Remark(0.0, 0, f"line {number} of the capture is damaged and is left out")


def is_capture(start: bytes) -> bool:
    """Whether a file that starts with these bytes is a capture."""
    return start.startswith(f'{{"{HEAD}"'.encode())


def _check_head(found: dict[str, Any], name: str) -> None:
    if HEAD not in found:
        raise _no_capture(name)
    if found[HEAD] != FORMAT:
        raise ConfigurationError(
            f"{name} is a capture of format {found[HEAD]}, and this version reads format {FORMAT}; use the version "
            "that wrote it",
            code="capture-invalid",
            path=name,
        )


def _no_capture(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} is no capture; wallaroo-spark capture makes one", code="capture-invalid", path=name
    )


def _event(found: dict[str, Any]) -> Event:
    at, connection = float(found["at"]), int(found["connection"])
    if "bytes" in found:
        return Passed(at, connection, End(found["from"]), base64.b64decode(found["bytes"], validate=True))
    if "opened" in found:
        return ConnectionOpened(at, connection, str(found["opened"]))
    if "continued" in found:
        return _continued(at, connection, found["continued"])
    if "closed" in found:
        return Remark(at, connection, str(found["closed"]), closed=True)
    return Remark(at, connection, str(found["fault"]))


def _state(known: _Recorded) -> dict[str, Any]:
    places = {sender: cursor.place for sender, cursor in known.cursors.items()}
    return {
        "peer": known.peer,
        "revision": known.mask.revision.name if known.mask.revision else None,
        "skip": {str(sender): skip for sender, (skip, _) in places.items()},
        "begun": {str(sender): base64.b64encode(begun).decode() for sender, (_, begun) in places.items()},
    }


def _continued(at: float, connection: int, state: dict[str, Any]) -> ConnectionOpened:
    skip = {End(sender): int(count) for sender, count in state["skip"].items()}
    begun = {End(sender): base64.b64decode(data, validate=True) for sender, data in state["begun"].items()}
    revision = REVISIONS[state["revision"]] if state["revision"] else None
    return ConnectionOpened(at, connection, str(state["peer"]), revision, skip, begun, continued=True)


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the capture {path} cannot be written: {error.strerror or error}; name a file in a place with room",
        code="file-unwritable",
        path=str(path),
    )
