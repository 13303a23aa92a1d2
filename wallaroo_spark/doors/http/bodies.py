"""From the body of a request to messages, by its media type. Pure; a body is taken as a whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass

from wallaroo_spark.doors.client import Messages
from wallaroo_spark.doors.http import cloud_events
from wallaroo_spark.doors.http.json_body import begins_array, elements, read_json
from wallaroo_spark.doors.http.parser import RequestHead
from wallaroo_spark.doors.http.problems import Problem

LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
"""Media types of one message a line. The lines are not looked into."""
JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"
KNOWN = (JSON, LINES[0], TEXT, BYTES, cloud_events.STRUCTURED, cloud_events.BATCH)
FRAME_OVERHEAD = 64
"""Bytes of a frame in addition to key and payload, rounded up."""


@dataclass
class Taken:
    """The messages of a request, and how they are recognised when they come again."""

    messages: Messages
    identities: list[str] | None = None
    """What identifies each message; None where nothing does."""


def media_type(head: RequestHead) -> str:
    """The media type of a body, in lower case and without parameters. Raises :class:`Problem` for one that is not
    known."""
    kind = head.get("content-type").partition(";")[0].strip().lower()
    if cloud_events.is_binary(kind, head.fields) or kind in KNOWN or kind in LINES:
        return kind
    hint = ""
    if kind == "application/x-www-form-urlencoded":
        hint = " (curl sends this one unless it is told another: -H 'Content-Type: application/json')"
    shown = f"{kind[:64]!r}{hint}" if kind else "missing"
    raise Problem("http-media-type", f"the Content-Type is {shown}; known are {', '.join(KNOWN)}")


def take(head: RequestHead, body: bytes, unit: str, most: int) -> Taken:
    """The messages of a body. ``unit`` is that of event times, ``most`` the longest message in bytes.

    Raises :class:`Problem`.
    """
    kind, key = media_type(head), _key(head)
    taken = _taken(head, kind, body, unit)
    messages = taken.messages
    if key is not None:
        messages.keys = [key] * len(messages)
    longest = max(map(len, messages.values), default=0)
    keys = max((len(one) for one in messages.keys or () if one), default=0)
    if keys > 0xFFFF:
        raise Problem("http-field-unreadable", f"a key has {keys} bytes, and at most {0xFFFF}")
    if longest + keys + FRAME_OVERHEAD > most:
        raise Problem(
            "http-body-too-large",
            f"a message of {longest} bytes is longer than {most - keys - FRAME_OVERHEAD} (maxFrameBytes); divide it, "
            "or send many messages as application/x-ndjson",
        )
    return taken


def _taken(head: RequestHead, kind: str, body: bytes, unit: str) -> Taken:
    if cloud_events.is_binary(kind, head.fields):
        return _events([cloud_events.binary(head.fields, body, unit)])
    if kind == cloud_events.STRUCTURED:
        return _events([cloud_events.structured(read_json(body), body, unit)])
    if kind == cloud_events.BATCH:
        return _events([cloud_events.structured(value, sent, unit) for value, sent in elements(body)])
    if kind in LINES:
        return Taken(Messages([line for line in body.replace(b"\r\n", b"\n").split(b"\n") if line]))
    if kind != JSON:
        return Taken(Messages([body]))
    if begins_array(body):
        return Taken(Messages([sent for _, sent in elements(body)]))
    if not isinstance(read_json(body), dict):
        raise Problem("http-body-unreadable", "a JSON body is an object, or an array with a message in each element")
    return Taken(Messages([body]))


def _events(events: list[cloud_events.EventMessage]) -> Taken:
    keys = [event.key for event in events]
    times = [event.event_time for event in events]
    messages = Messages(
        [event.value for event in events],
        keys if any(key is not None for key in keys) else None,
        times if any(time is not None for time in times) else None,
    )
    return Taken(messages, [event.identity for event in events])


def _key(head: RequestHead) -> bytes | None:
    if "wallaroo-key" not in head.fields:
        return None
    try:
        # A field has bytes, which were read as Latin-1.
        return head.get("wallaroo-key").encode("latin-1")
    except UnicodeEncodeError:
        raise Problem("http-field-unreadable", "wallaroo-key cannot be read") from None
