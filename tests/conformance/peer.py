"""A connector of the standard library alone: ``peer.py ADDRESS COOKIE INSTANCE REVISION VARIANT``.

It has the variant, if one is given: a fault, or something unusual that is allowed. It sends the lines of standard input
as the messages of one stream.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
import time

ADDRESS, COOKIE, INSTANCE, REVISION, VARIANT = (*sys.argv[1:], "")[:5]
ORDER = "<" if REVISION == "draft-le" else ">"
V3 = REVISION == "v3"
TAGS = {"H": 0, "O": 1, "E": 2, "N": 3, "K": 4, "M": 5, "A": 6, "R": 7, "F": 8}
if not V3:
    TAGS = {**{tag: ord(tag) for tag in "HOENMA"}, "R": ord("!")}
STREAM, NAME = 7, b"lines"
NOTHING = 2**64 - 1
STEP = 1000 if VARIANT == "has-gaps-between-ids" else 1
FIRST = time.time_ns() >> 10 if VARIANT == "has-new-ids-in-each-run" else 0
PAUSE = {"reconnects-without-a-pause": 0, "reconnects-after-a-second": 1}.get(VARIANT, 0.1)
LINES = sys.stdin.buffer.read().split(b"\n")[:-1]


def pack(layout: str, *values: int) -> bytes:
    return struct.pack(ORDER + layout, *values)


def short(text: bytes) -> bytes:
    return pack("H", len(text)) + text


def frame(tag: str, body: bytes) -> bytes:
    more = 4 if VARIANT == "length-counts-itself" and tag == "M" else 0
    return pack("I", len(body) + 1 + more) + bytes([TAGS[tag]]) + body


def id_of(number: int) -> int:
    return FIRST + STEP * number


def number_of(reference: int) -> int:
    return max(0, reference - FIRST) // STEP


def message(number: int) -> bytes:
    line, message_id = LINES[number - 1], id_of(number if VARIANT != "ids-repeat" else number // 2 + 1)
    if VARIANT == "drops-empty-lines" and not line:
        return b""
    if VARIANT == "has-keys-and-times":
        rest = pack("q", 1_700_000_000) + (short(b"key") if ORDER == ">" else b"") + line
        if V3:
            return frame("M", pack("QQ", STREAM, message_id) + rest)
        return frame("M", pack("HQQ", 16 | (32 if ORDER == ">" else 0), STREAM, message_id) + rest)
    if V3:
        return frame("M", pack("QQqH", STREAM, message_id, 0, 0) + line)
    flags = 0x0100 if VARIANT == "flags-in-the-wrong-order" else 0
    if VARIANT == "ends-with-its-last-line" and number == len(LINES):
        flags = 4
    return frame("M", pack("HQQ", flags, STREAM, message_id) + line)


def end() -> bytes:
    message_id = id_of(len(LINES))
    message_id += {"ends-below-its-last-id": -3, "ends-above-its-last-id": 3}.get(VARIANT, 0)
    if V3:
        return frame("F", pack("Q", STREAM) + (b"" if VARIANT == "ends-without-an-id" else pack("Q", message_id)))
    return frame("M", pack("HQQ", 2 | 4, STREAM, message_id))


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
        self.open = self.ended = self.spare = False
        self.next, self.nacks = 1, 0

    def read(self) -> tuple[int, bytes]:
        while True:
            if len(self.buffer) >= 4:
                (length,) = struct.unpack(ORDER + "I", self.buffer[:4])
                if len(self.buffer) >= 4 + length:
                    tag, body = self.buffer[4], self.buffer[5 : 4 + length]
                    # The faulty peer takes what one read returns for one frame.
                    self.buffer = b"" if VARIANT == "one-frame-a-read" else self.buffer[4 + length :]
                    return tag, body
                if VARIANT == "whole-frames-only":
                    raise Refused("half a frame")
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                sys.exit("no answer")
            except OSError as error:
                raise Back from error
            if not data and VARIANT == "takes-the-end-of-a-connection-for-its-own":
                sys.exit(0)
            if not data:
                raise Back
            if VARIANT == "whole-frames-only" and len(data) < 5:
                raise Refused("half a frame")
            self.buffer += data

    def run(self) -> None:
        if VARIANT == "notify-before-ok":
            hello = self.hello() + frame("N", pack("Q", STREAM) + short(NAME) + pack("Q", 0))
        else:
            hello = self.hello()
        if VARIANT == "says-hello-late":
            time.sleep(60)
        if VARIANT == "gives-up-early":
            self.socket.settimeout(0.3)
        self.write(hello)
        while not self.done():
            self.send()
            if VARIANT == "leaves-early" and self.ended:
                return
            self.take(*self.read())

    def hello(self) -> bytes:
        cookie = b"guess" if VARIANT == "forgets-the-cookie" else COOKIE.encode()
        return frame("H", short(b"0.0.1") + short(cookie) + short(b"peer") + short(INSTANCE.encode()))

    def write(self, data: bytes) -> None:
        size = (1 if len(data) < 2000 else 997) if VARIANT == "writes-in-small-pieces" else len(data) or 1
        for at in range(0, len(data), size):
            self.socket.sendall(data[at : at + size])
            if size < len(data):
                time.sleep(0.0002)

    def done(self) -> bool:
        if VARIANT in ("never-ends-the-stream", "closes-when-its-lines-are-acknowledged"):
            return self.committed >= len(LINES)
        return self.ended and self.committed >= len(LINES)

    def send(self) -> None:
        if not self.open:
            return
        data = b""
        while self.next <= len(LINES) and (self.credits > 0 or VARIANT == "ignores-credits"):
            data += message(self.next)
            if VARIANT == "marks-its-place" and not self.spare and not V3 and self.credits > 1:
                data += frame("M", pack("HQQ", 2, STREAM, id_of(self.next)))
                self.credits, self.spare = self.credits - 1, True
            if VARIANT == "ends-with-its-last-line" and self.next == len(LINES):
                self.ended = True
            self.next, self.credits = self.next + 1, self.credits - 1
        free = V3 or self.credits > 0 or VARIANT == "end-without-credit"
        if self.next > len(LINES) and not self.ended and free and VARIANT != "never-ends-the-stream":
            data += end()
            self.ended, self.credits = True, self.credits - (not V3)
        self.write(data)

    def notify(self, reference: int) -> None:
        self.write(frame("N", pack("Q", STREAM) + short(NAME) + pack("Q", reference)))
        self.credits -= 1
        if VARIANT == "sends-before-notify-ack":
            self.write(message(1))

    def begin(self, reference: int) -> None:
        """The stream is open, behind a committed message."""
        if VARIANT == "goes-on-behind-the-sent-message":
            reference = max(reference, self.acknowledged)
        self.committed = max(self.committed, number_of(reference))
        if VARIANT == "begins-at-the-beginning":
            reference = 0
        self.open, self.ended, self.next = True, False, number_of(reference) + 1

    def take(self, tag: int, body: bytes) -> None:
        if tag == TAGS["E"]:
            self.error(body[2:].decode())
        elif tag == TAGS["O"]:
            self.ok(body)
        elif V3 and tag == TAGS["K"]:
            success, _, reference = struct.unpack(">BQQ", body)
            if success:
                self.begin(0 if reference == NOTHING else reference)
            elif VARIANT != "never-notifies-again":
                time.sleep(0.1)
                self.notify(0)
        elif tag == TAGS["A"]:
            (credits,) = struct.unpack(ORDER + "I", body[:4])
            self.credits += credits
            for at in range(8 if ORDER == ">" else 4, len(body), 16):
                _, reference = struct.unpack(ORDER + "QQ", body[at : at + 16])
                self.committed = number_of(reference)
        elif tag == TAGS["R"]:
            self.rewind(body)

    def ok(self, body: bytes) -> None:
        (self.credits,) = struct.unpack(ORDER + "I", body[:4])
        if VARIANT == "opens-two-connections":
            self.second = Session(ADDRESS, 0)
            self.second.write(self.hello())
        found, at = 0, 4
        while at < len(body):
            if REVISION == "draft-be":
                (length,) = struct.unpack(">H", body[at + 8 : at + 10])
                if VARIANT == "knows-streams-by-name" and body[at + 10 : at + 10 + length] != NAME:
                    raise Refused("an unknown stream")
                at += 10 + length
            else:
                at += 8
            (found,) = struct.unpack(ORDER + "Q", body[at : at + 8])
            at += 8
        self.notify(0 if VARIANT == "begins-at-the-beginning" else found)
        if not V3:
            self.begin(found)

    def rewind(self, body: bytes) -> None:
        if VARIANT == "ignores-rewinds":
            return
        if REVISION == "draft-le":
            credits, _, reference = struct.unpack("<IQQ", body)
            self.credits += credits if VARIANT != "ignores-credits-of-nacks" else 0
            self.nacks += 1
            if VARIANT != "one-notify-for-two-nacks" or self.nacks == 1:
                self.notify(reference)
            self.begin(reference)
            return
        raise Back(body[4:].decode() if V3 and VARIANT != "ignores-the-address-of-restart" else "")

    def error(self, reason: str) -> None:
        found = re.match(r"redirect to (\S+): ", reason)
        if found and VARIANT == "goes-back-in-place-of-a-redirect":
            raise Back
        if found and VARIANT != "ignores-redirects":
            raise Back(found[1])
        if reason.startswith("try again later: ") and VARIANT != "takes-later-for-never":
            raise Back
        if VARIANT == "comes-back-after-a-refusal" or (
            VARIANT == "comes-back-when-superseded" and reason.endswith("takes its place")
        ):
            raise Back
        if VARIANT == "stays-behind-a-refusal":
            self.socket.close()
            time.sleep(60)
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
            if VARIANT == "never-comes-back":
                sys.exit("the connection is lost")
            known = session.next - 1 if session is not None else known
            address = next(iter(again.args), "") if isinstance(again, Back) else ""
            address = address or ADDRESS
            time.sleep(PAUSE)
        except Refused as refused:
            sys.stderr.write(f"refused: {refused}\n")
            sys.exit(1)
        finally:
            if session is not None:
                session.socket.close()


if __name__ == "__main__":
    main()
