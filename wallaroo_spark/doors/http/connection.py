"""One connection of the HTTP door: requests are read with time limits, one after another, and answers are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus

from wallaroo_spark.doors.http.parser import Event, RequestEnd, RequestHead, RequestParser
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.transport import ByteStream

IDLE_SECONDS = 75.0
"""How long a connection may stay open between two requests. A choice: that of other servers."""
PROGRESS_BYTES = 16 << 10
"""Bytes of a body that must come within the option ``handshakeTimeout``, unless they are the rest of it."""


class Answer:
    """An answer: its status, its fields and its body."""

    def __init__(self, status: HTTPStatus, body: bytes = b"", media: str = "", **fields: str) -> None:
        self.status = status
        self.body = body
        self.fields: dict[str, str] = {name.replace("_", "-"): value for name, value in fields.items()}
        if media:
            self.fields["Content-Type"] = media


class HttpConnection:
    """The requests of one peer. ``seconds`` is the limit for a head, and for a part of a body."""

    def __init__(self, stream: ByteStream, seconds: float) -> None:
        self.stream = stream
        self.idle = True
        """Whether it is between two requests."""
        self.whole = True
        """Whether the last request was read to its end."""
        self._seconds = seconds
        self._parser = RequestParser()
        self._problem: Problem | None = None
        self._first = True

    async def head(self) -> RequestHead | None:
        """The next request; None when none comes. Raises :class:`Problem` for bytes that are none."""
        loop = asyncio.get_running_loop()
        self.idle = True
        patience = self._seconds if self._first else IDLE_SECONDS
        until = loop.time() + patience
        begun = False
        while not self._parser.events:
            if self._parser.within_head and not begun:
                begun, until = True, loop.time() + self._seconds
            if begun:
                self.idle = False
            try:
                if not await self._read(until - loop.time()):
                    return None
            except TimeoutError:
                if not begun:
                    return None
                raise Problem(
                    "http-too-slow", f"the head of a request comes within {self._seconds:g} s (handshakeTimeout)"
                ) from None
        self.idle = self._first = False
        head = self._parser.events.popleft()
        assert isinstance(head, RequestHead), head
        self.whole = False
        return head

    async def body(self) -> AsyncIterator[bytes]:
        """The parts of the request's body. Raises :class:`Problem` when it does not come, or ends too early."""
        loop = asyncio.get_running_loop()
        until, due = loop.time() + self._seconds, PROGRESS_BYTES
        while True:
            event = await self._next(until - loop.time())
            if isinstance(event, RequestEnd):
                self.whole = True
                return
            assert isinstance(event, bytes), event
            due -= len(event)
            if due <= 0:
                until, due = loop.time() + self._seconds, PROGRESS_BYTES
            yield event

    def body_at_hand(self) -> bytes | None:
        """The whole body when it has come with its head, as small ones do; None when it is to be waited for."""
        events = self._parser.events
        last = next((at for at in range(min(2, len(events))) if isinstance(events[at], RequestEnd)), None)
        if last is None:
            return None
        body = events.popleft() if last else b""
        events.popleft()
        self.whole = True
        assert isinstance(body, bytes), body
        return body

    async def _next(self, seconds: float) -> Event:
        while not self._parser.events:
            try:
                if not await self._read(seconds):
                    raise Problem("http-malformed", "the connection ended within the body of a request")
            except TimeoutError:
                raise Problem(
                    "http-too-slow",
                    f"{PROGRESS_BYTES} bytes of a body, or its rest, come within {self._seconds:g} s "
                    "(handshakeTimeout)",
                ) from None
        return self._parser.events.popleft()

    async def _read(self, seconds: float) -> bool:
        """Read until there is an event or nothing to come. Raises TimeoutError, and :class:`Problem`."""
        if self._problem is not None:
            raise self._problem
        async with asyncio.timeout(max(0.0, seconds)):
            data = await self.stream.read()
        if not data:
            return False
        try:
            self._parser.feed(data)
        except Problem as problem:
            # What came before it is handled first.
            self._problem = problem
            if not self._parser.events:
                raise
        return True

    def go_on(self) -> None:
        """Tell a client that waits for it to send the body."""
        self.stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def answer(self, answer: Answer, common: Mapping[str, str], *, keep: bool) -> None:
        """Write an answer. ``common`` are fields of every answer; ``keep`` is whether another request may follow."""
        fields = {**common, **answer.fields, "Content-Length": str(len(answer.body))}
        if not keep:
            fields["Connection"] = "close"
        lines = [f"HTTP/1.1 {int(answer.status)} {answer.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        self.stream.write("\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + answer.body)
        await self.stream.drain()
