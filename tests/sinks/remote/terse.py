"""A connector sink of another making, as strict and as terse as Wallaroo's own; written from ``docs/protocol.md``
alone.

It takes NOTIFY of stream 1 and of no other. Rows go into the worker's file as they come, under the offset in front of
them; what is committed is in its log alone. It tells of a transaction only to the worker that made it, and holds one
of each worker. Its reference counts whatever was written, and is 0 after its start. Where a worker breaks a rule, or
greets with another version or cookie, the program ends without a word, and somebody starts it again: so a test sees
that nothing of ours makes it end, by :func:`deaths`.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION, COOKIE = "v9.9.9", "a cookie of its own"
_HELLO, _OK, _ERROR, _NOTIFY, _NOTIFY_ACK, _MESSAGE = range(6)
_LIST, _LISTED, _PHASE1, _REPLY, _PHASE2 = range(201, 206)


class Log:
    """The log of one worker: ``(what, transaction, start, end)`` a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(self, kind: str, transaction: str, start: int, end: int) -> None:
        """Write a line and have it on the disk."""
        entry = [kind, transaction, start, end]
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.entries.append(entry)

    def committed(self) -> int:
        """Where the output ends."""
        return max((end for kind, _, _, end in self.entries if kind == "commit"), default=0)

    def prepared(self) -> dict[str, tuple[int, int, bool]]:
        """The transaction that waits for a decision, with its vote."""
        found = {}
        for kind, transaction, start, end in self.entries:
            if kind in ("yes", "no"):
                found[transaction] = (start, end, kind == "yes")
            else:
                found.pop(transaction, None)
        return found


class Session(socketserver.BaseRequestHandler):
    """One connection of one worker."""

    server: Terse

    def handle(self) -> None:
        """Everything up to the peer's close."""
        self.worker, self.gap = "", False
        with self.request.makefile("rb") as file:
            while len(head := file.read(4)) == 4:
                frame = file.read(int.from_bytes(head, "big"))
                with self.server.lock:
                    self._on(frame[0], frame[1:])

    def _on(self, tag: int, body: bytes) -> None:
        if tag == _HELLO:
            self._on_hello(*_texts(body))
        elif tag == _NOTIFY:
            stream = int.from_bytes(body[:8], "big")
            if stream != 1:
                self._say(_ERROR, _text(f"stream {stream} is not supported"))
                return
            self._say(_NOTIFY_ACK, struct.pack(">BQQ", 1, 1, self.server.references.get(self.worker, 0)))
        elif tag == _MESSAGE:
            stream, message_id, _, key = struct.unpack_from(">QQqH", body)
            payload = body[26 + key :]
            if stream == 0:
                self._on_control(payload[0], payload[1:])
            else:
                self._on_row(message_id, payload)
        else:
            self._break(f"frame {tag}")

    def _on_hello(self, version: str, cookie: str, program: str, worker: str) -> None:
        if (version, cookie) != (VERSION, COOKIE):
            self._break(f"HELLO of {program} with version {version}")
        self.worker = worker
        self.log = Log(self.server.folder / f"{worker}.log")
        prepared = self.log.prepared()
        if len(prepared) > 1:
            self._break(f"{worker} has {len(prepared)} transactions")
        # Rows that are not committed and not prepared are cut off.
        self.offset = max([self.log.committed(), *(end for _, end, yes in prepared.values() if yes)])
        self.output = self.server.folder / f"{worker}.rows"
        self.output.touch()
        os.truncate(self.output, self.offset)
        self._say(_OK, struct.pack(">I", 500))

    def _on_row(self, message_id: int, row: bytes) -> None:
        if message_id < self.offset:
            self._break(f"row {message_id} behind {self.offset}: it is there already")
        if message_id > self.offset:
            self.gap = True
            return
        with self.output.open("r+b") as file:
            file.seek(self.offset)
            file.write(row)
        self.offset += len(row)
        self.server.references[self.worker] = self.offset

    def _on_control(self, tag: int, body: bytes) -> None:
        if tag == _LIST:
            names = list(self.log.prepared())
            self._tell(_LISTED, body + struct.pack(">I", len(names)) + b"".join(map(_text, names)))
            return
        size = int.from_bytes(body[:2], "big")
        transaction, rest = body[2 : 2 + size].decode(), body[2 + size :]
        if tag == _PHASE1:
            count, stream, start, end = struct.unpack(">IQQQ", rest)
            if end > self.offset and not self.gap:
                self._break(f"PHASE1 up to {end}, and there are {self.offset}")
            fits = (count, stream, start, end) == (1, 1, self.log.committed(), self.offset)
            yes = fits and not self.gap and not self.server.refuses(self.worker)
            self.gap = False
            self.log.add("yes" if yes else "no", transaction, start, end)
            self._tell(_REPLY, _text(transaction) + bytes([yes]))
        elif tag == _PHASE2:
            self._decide(transaction, bool(rest[0]))
        else:
            self._break(f"control message {tag}")

    def _decide(self, transaction: str, commit: bool) -> None:
        found = self.log.prepared().get(transaction)
        if found is None:
            return
        start, end, yes = found
        if commit and (not yes or end != self.offset):
            self._break(f"{transaction} cannot be committed")
        self.log.add("commit" if commit else "abort", transaction, start, end)
        if not commit:
            os.truncate(self.output, start)
            self.offset = self.server.references[self.worker] = start

    def _tell(self, tag: int, body: bytes) -> None:
        self._say(_MESSAGE, struct.pack(">QQqH", 0, 0, 0, 0) + bytes([tag]) + body)

    def _say(self, tag: int, body: bytes) -> None:
        self.request.sendall(struct.pack(">IB", 1 + len(body), tag) + body)

    def _break(self, why: str) -> None:
        with (self.server.folder / "deaths").open("a") as file:
            file.write(f"{self.worker}: {why}\n")
        os.kill(os.getpid(), signal.SIGKILL)


class Terse(socketserver.ThreadingTCPServer):
    """The program, in the directory ``to``."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, to: str, port: int) -> None:
        self.folder = Path(to)
        self.folder.mkdir(exist_ok=True)
        self.references: dict[str, int] = {}
        self.lock = threading.RLock()
        super().__init__(("127.0.0.1", port), Session)

    def refuses(self, worker: str) -> bool:
        """Whether the next vote on a worker's rows is a no, as a test has asked for."""
        try:
            (self.folder / f"{worker}.refuse").unlink()
        except FileNotFoundError:
            return False
        return True


def run(to: str, port: int) -> None:
    """Serve until the process ends."""
    Terse(to, port).serve_forever()


def deaths(to: Path) -> list[str]:
    """Why the program has ended by itself."""
    path = to / "deaths"
    return path.read_text().splitlines() if path.exists() else []


def committed(to: Path, name: str) -> Iterator[str]:
    """The committed rows of ``<name>-<partition>``, as a reader sees them."""
    for path in sorted(to.glob(f"{name}-*.rows")):
        end = Log(path.with_suffix(".log")).committed()
        content = path.read_bytes()
        assert len(content) >= end
        yield from content[:end].decode().splitlines()


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def _texts(body: bytes) -> Any:
    at = 0
    found = []
    while at < len(body):
        size = int.from_bytes(body[at : at + 2], "big")
        found.append(body[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return found


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
