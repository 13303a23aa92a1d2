"""HTTP requests: from the bytes of a head to its method, path, query and headers. Without sockets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

LONGEST_HEAD = 16 << 10
"""The most bytes of a request's head. A choice: browsers send about 1 KB, and cookies of other programs come on top."""
MOST_FIELDS = 20
"""The most fields of a query string. A choice: the page sends fewer than ten."""
HEAD_END = b"\r\n\r\n"

_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*|\*) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")


class BadRequestError(Exception):
    """The bytes are not a request that this server answers."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Request:
    """The head of one HTTP request. Requests have no body, because the server only shows."""

    method: str
    """The method in upper case, such as ``GET``."""
    path: str
    """The path without the query, still percent-encoded: no path of this server needs an encoding."""
    query: Mapping[str, str]
    """The decoded fields of the query; of a repeated field the last one."""
    headers: Mapping[str, str]
    """The headers by name in lower case; repeated ones are joined by a comma, except for a repeated ``host``."""

    def cookie(self, name: str) -> str:
        """The value of a cookie; empty when the request has none of that name."""
        for pair in self.headers.get("cookie", "").split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value
        return ""


def parse(head: bytes) -> Request:
    """Read a head, which ends with an empty line. Raises :class:`BadRequestError`."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise BadRequestError(400, "the request line is not one of HTTP/1.0 or HTTP/1.1")
    headers: dict[str, str] = {}
    for text in lines:
        header = _HEADER.fullmatch(text)
        if header is None:
            raise BadRequestError(400, "a header cannot be read")
        name, value = header[1].lower(), header[2]
        if name == "host" and name in headers:
            raise BadRequestError(400, "the request has two Host headers")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
        raise BadRequestError(413, "this server takes no request bodies")
    return Request(line[1], *_target(line[2]), headers)


def _target(target: str) -> tuple[str, dict[str, str]]:
    path, _, query = target.partition("?")
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise BadRequestError(400, f"the query has more than {MOST_FIELDS} fields") from None
    return path, dict(fields)


def host_name(header: str) -> str:
    """The host name in a ``Host`` header, in lower case, without port and brackets; empty when it cannot be read."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""
