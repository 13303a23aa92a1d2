"""Requests as they arrive: bytes become heads, parts of bodies and ends. The limits of a head are held here.

llhttp, the parser of Node.js, reads HTTP/1.1. It refuses a request whose length is given twice or in two ways, so no
request can hide in the body of another. Pure: no socket and no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote

import httptools

from wallaroo_spark.doors.http.problems import Problem

HEAD_BYTES = 32 << 10
"""Limit of a request line with its fields, in bytes. A choice: several times what browsers and proxies send."""
FIELDS = 128
"""Limit of the number of fields. A choice, as before."""


@dataclass
class RequestHead:
    """The request line and the fields of a request."""

    method: str
    target: str
    fields: dict[str, str] = field(default_factory=dict)
    """The fields by name in lower case, without white space around them; those of one name are joined by commas."""
    keep_alive: bool = True
    """Whether the client may send another request over the connection."""
    path: str = ""
    """The path without its escapes decoded."""
    query: dict[str, str] = field(default_factory=dict)

    def get(self, name: str, default: str = "") -> str:
        """A field."""
        return self.fields.get(name, default)

    def number(self, name: str) -> int | None:
        """A field that is a whole number; None without the field. Raises :class:`Problem`."""
        text = self.get(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise Problem("http-field-unreadable", f"{name} is {text[:64]!r}; it is a whole number")
        return int(text)

    def segments(self) -> list[str]:
        """The decoded segments of the path."""
        return [unquote(part, errors="strict") for part in self.path.split("/")[1:]]


class RequestEnd:
    """A request is complete."""


Event = RequestHead | bytes | RequestEnd


class RequestParser:
    """The requests of one connection. ``feed`` takes bytes; what was found is in ``events``, in order."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self._head: RequestHead | None = None
        self._head_bytes = 0
        self._count = 0
        self._failed = False

    @property
    def within_head(self) -> bool:
        """Whether a part of a head has come."""
        return self._head is not None

    def feed(self, data: bytes) -> None:
        """Take bytes. Raises :class:`Problem` when they are no HTTP, after which the connection must be closed."""
        if self._failed:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._failed = True
            raise Problem("http-malformed", "no other protocol is spoken here; leave out Upgrade") from None
        except httptools.HttpParserError as error:
            self._failed = True
            cause = error.__context__
            if isinstance(cause, Problem):
                raise cause from None
            raise Problem("http-malformed", f"this is not a request of HTTP/1.1: {error}") from None
        if self._head is not None:
            self._weigh(len(data))

    def _weigh(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._failed = True
            raise Problem("http-head-too-large", f"the head of a request has at most {HEAD_BYTES} bytes")

    # Called by httptools.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head, self._head_bytes, self._count = RequestHead("", ""), 0, 0

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        assert self._head is not None
        self._head.target += url.decode("latin-1")
        if len(self._head.target) > HEAD_BYTES:
            raise Problem("http-head-too-large", f"the target of a request has at most {HEAD_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field."""
        assert self._head is not None
        self._count += 1
        if self._count > FIELDS:
            raise Problem("http-head-too-large", f"a request has at most {FIELDS} fields")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        fields = self._head.fields
        fields[key] = f"{fields[key]},{text}" if key in fields else text

    def on_headers_complete(self) -> None:
        """The head is complete."""
        head, self._head = self._head, None
        assert head is not None
        head.method = self._parser.get_method().decode("latin-1")
        if "upgrade" in head.fields and head.method == "POST":
            # The parser would take the body for the other protocol.
            raise Problem("http-malformed", "no other protocol is spoken here; leave out Upgrade")
        head.keep_alive = self._parser.should_keep_alive()
        path, _, query = head.target.partition("?")
        head.path = path
        head.query = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        self.events.append(head)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self.events.append(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self.events.append(RequestEnd())
