"""A connector of the standard library alone: ``peer.py ADDRESS COOKIE INSTANCE REVISION FAULT``.

It has the fault, if one is given. It sends the lines of standard input as the messages of one stream.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
import time

ADDRESS, COOKIE, INSTANCE, REVISION, FAULT = (*sys.argv[1:], "")[:5]
ORDER = "<" if REVISION == "draft-le" else ">"
V3 = REVISION == "v3"
TAGS = {"H": 0, "O": 1, "E": 2, "N": 3, "K": 4, "M": 5, "A": 6, "R": 7, "F": 8}
if not V3:
    TAGS = {**{tag: ord(tag) for tag in "HOENMA"}, "R": ord("!")}
STREAM, NAME = 7, b"lines"
NOTHING = 2**64 - 1
LINES = sys.stdin.buffer.read().split(b"\n")[:-1]


def pack(layout: str, *values: int) -> bytes:
    return struct.pack(ORDER + layout, *values)


def short(text: bytes) -> bytes:
    return pack("H", len(text)) + text


def frame(tag: str, body: bytes) -> bytes:
    more = 4 if FAULT == "length-counts-itself" and tag == "M" else 0
    return pack("I", len(body) + 1 + more) + bytes([TAGS[tag]]) + body


def message(number: int) -> bytes:
    line, number = LINES[number - 1], number if FAULT != "ids-repeat" else number // 2 + 1
    if FAULT == "drops-empty-lines" and not line:
        return b""
    if V3:
        return frame("M", pack("QQqH", STREAM, number, 0, 0) + line)
    flags = 0x0100 if FAULT == "flags-in-the-wrong-order" else 0
    return frame("M", pack("HQQ", flags, STREAM, number) + line)


def end() -> bytes:
    if V3:
        return frame("F", pack("QQ", STREAM, len(LINES)))
    return frame("M", pack("HQQ", 2 | 4, STREAM, len(LINES)))


class Refused(Exception):
    """An ERROR for a person."""


class Back(Exception):
    """Connect again, perhaps to this address."""


class Session:
    def __init__(self, address: str, known: int) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.buffer = b""
        self.credits = 0
        self.committed = 0
        self.acknowledged = known
        """What an earlier session knew."""
        self.open = self.ended = False
        self.next = 1

    def read(self) -> tuple[int, bytes]:
        while True:
            if len(self.buffer) >= 4:
                (length,) = struct.unpack(ORDER + "I", self.buffer[:4])
                if len(self.buffer) >= 4 + length:
                    tag, body = self.buffer[4], self.buffer[5 : 4 + length]
                    # The faulty peer takes what one read returns for one frame.
                    self.buffer = b"" if FAULT == "one-frame-a-read" else self.buffer[4 + length :]
                    return tag, body
                if FAULT == "whole-frames-only":
                    raise Refused("half a frame")
            try:
                data = self.socket.recv(65536)
            except OSError as error:
                raise Back from error
            if not data:
                raise Back
            if FAULT == "whole-frames-only" and len(data) < 5:
                raise Refused("half a frame")
            self.buffer += data

    def run(self) -> None:
        if FAULT == "notify-before-ok":
            hello = self.hello() + frame("N", pack("Q", STREAM) + short(NAME) + pack("Q", 0))
        else:
            hello = self.hello()
        self.socket.sendall(hello)
        while not self.done():
            self.send()
            if FAULT == "leaves-early" and self.ended:
                return
            self.take(*self.read())

    def hello(self) -> bytes:
        cookie = b"guess" if FAULT == "forgets-the-cookie" else COOKIE.encode()
        return frame("H", short(b"0.0.1") + short(cookie) + short(b"peer") + short(INSTANCE.encode()))

    def done(self) -> bool:
        if FAULT == "never-ends-the-stream":
            return self.committed >= len(LINES)
        return self.ended and self.committed >= len(LINES)

    def send(self) -> None:
        if not self.open:
            return
        data = b""
        while self.next <= len(LINES) and (self.credits > 0 or FAULT == "ignores-credits"):
            data += message(self.next)
            self.next, self.credits = self.next + 1, self.credits - 1
        free = V3 or self.credits > 0 or FAULT == "end-without-credit"
        if self.next > len(LINES) and not self.ended and free and FAULT != "never-ends-the-stream":
            data += end()
            self.ended, self.credits = True, self.credits - (not V3)
        self.socket.sendall(data)

    def notify(self, reference: int) -> None:
        self.socket.sendall(frame("N", pack("Q", STREAM) + short(NAME) + pack("Q", reference)))
        self.credits -= 1

    def begin(self, reference: int) -> None:
        """The stream is open, behind a committed message."""
        if FAULT == "goes-on-behind-the-sent-message":
            reference = max(reference, self.acknowledged)
        self.committed = max(self.committed, reference)
        self.open, self.ended, self.next = True, False, reference + 1

    def take(self, tag: int, body: bytes) -> None:
        if tag == TAGS["E"]:
            self.error(body[2:].decode())
        elif tag == TAGS["O"]:
            self.ok(body)
        elif V3 and tag == TAGS["K"]:
            success, _, reference = struct.unpack(">BQQ", body)
            if success:
                self.begin(0 if reference == NOTHING else reference)
            else:
                time.sleep(0.1)
                self.notify(0)
        elif tag == TAGS["A"]:
            (credits,) = struct.unpack(ORDER + "I", body[:4])
            self.credits += credits
            for at in range(8 if ORDER == ">" else 4, len(body), 16):
                _, reference = struct.unpack(ORDER + "QQ", body[at : at + 16])
                self.committed = reference
        elif tag == TAGS["R"]:
            self.rewind(body)

    def ok(self, body: bytes) -> None:
        (self.credits,) = struct.unpack(ORDER + "I", body[:4])
        found, at = 0, 4
        while at < len(body):
            if REVISION == "draft-be":
                (length,) = struct.unpack(">H", body[at + 8 : at + 10])
                if FAULT == "knows-streams-by-name" and body[at + 10 : at + 10 + length] != NAME:
                    raise Refused("an unknown stream")
                at += 10 + length
            else:
                at += 8
            (found,) = struct.unpack(ORDER + "Q", body[at : at + 8])
            at += 8
        self.notify(found)
        if not V3:
            self.begin(found)

    def rewind(self, body: bytes) -> None:
        if FAULT == "ignores-rewinds":
            return
        if REVISION == "draft-le":
            credits, _, reference = struct.unpack("<IQQ", body)
            self.credits += credits
            if FAULT != "one-notify-for-two-nacks" or self.next != reference + 1:
                self.notify(reference)
            self.begin(reference)
            return
        raise Back(body[4:].decode() if V3 else "")

    def error(self, reason: str) -> None:
        found = re.match(r"redirect to (\S+): ", reason)
        if found and FAULT != "ignores-redirects":
            raise Back(found[1])
        if reason.startswith("try again later: ") and FAULT != "takes-later-for-never":
            raise Back
        if FAULT == "comes-back-after-a-refusal" or (
            FAULT == "comes-back-when-superseded" and reason.endswith("takes its place")
        ):
            raise Back
        raise Refused(reason)


def main() -> None:
    address, known = ADDRESS, 0
    while True:
        session = None
        try:
            session = Session(address, known)
            session.run()
            return
        except (Back, OSError) as again:
            if FAULT == "never-comes-back":
                sys.exit("the connection is lost")
            known = session.next - 1 if session is not None else known
            address = next(iter(again.args), "") if isinstance(again, Back) else ""
            address = address or ADDRESS
            time.sleep(0.02)
        except Refused as refused:
            sys.stderr.write(f"refused: {refused}\n")
            sys.exit(1)
        finally:
            if session is not None:
                session.socket.close()


if __name__ == "__main__":
    main()
