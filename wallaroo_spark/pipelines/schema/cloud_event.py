"""Events, outputs of stages, and the rules that hold for all of them, whoever writes them; partitions. Pure.

A publisher, a worker, a transaction, a query, a function in Spark and a schedule all write into the same streams,
and clients in any language read them. So an event that is accepted is one that every client can receive: its names and
texts are as CloudEvents has them, and it fits into a message. Source: ``docs/pipelines/gateway.md#limits``.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from wallaroo_spark.api.limits import EVENT_BYTES, MESSAGE_BYTES
from wallaroo_spark.pipelines.schema.names import ROOT_EVENT

MOST_ATTRIBUTES = 100
"""The most optional attributes and extensions of one event. A choice."""
LONGEST_TEXT = 4096
"""The most characters of ``id``, ``source`` and ``type``. A choice: they are a key of the state, and stand in logs."""
LONGEST_CONTENT_TYPE = 1000
"""The most characters of the content type of an output. A choice."""
INPUT_BYTES = MESSAGE_BYTES - (64 << 10)
"""The most bytes of all inputs of a stage: its root event and the outputs that it is given travel in one message."""
REQUIRED = ("id", "source", "type", "specversion", "data")
"""The names that an attribute cannot have."""
PARTITION_KEY = "partitionkey"
"""The extension of CloudEvents whose value decides the partition."""
HASH_BYTES = 8
"""Bytes of the hash that decides the partition."""
_NAME = re.compile(r"[a-z0-9]{1,100}")


_RECORD_BYTES = 100
"""Bytes of a record without any content, about."""


class CloudEvent(NamedTuple):
    """A record's content: an event of CloudEvents 1.0. The order of the fields is part of the stored format."""

    id: str
    """Unique within ``source``."""
    source: str
    """The context in which it happened."""
    type: str
    """Its type; the triggers of pipelines match it."""
    data: bytes | None = None
    """The payload."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Optional attributes and extensions, as names and values."""

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory, in a message and in a file: everything counts, also its names."""
        size = _RECORD_BYTES + len(self.data or b"") + sum(map(_text_bytes, self[:3]))
        for name, value in self.attributes:
            size += len(name) + _text_bytes(value)
        return size


class Payload(NamedTuple):
    """The output of a stage. The order of the fields is part of the stored format."""

    data: bytes
    content_type: str = ""


class EventProblem(ValueError):
    """An event or an output that nobody may write. The text names the value, the limit and the remedy."""


def valid_event(event: CloudEvent, most_bytes: int = EVENT_BYTES, most_attributes: int = MOST_ATTRIBUTES) -> CloudEvent:
    """The event as it is stored: attributes in the order of their names, ``time`` in UTC.

    Raises :class:`EventProblem`, whose text goes on behind a name of the event.
    """
    for name, value in (("id", event.id), ("source", event.source), ("type", event.type)):
        if not value:
            raise EventProblem(f"has no {name}; CloudEvents 1.0 requires id, source and type")
        if len(value) > LONGEST_TEXT:
            article = "an" if name == "id" else "a"
            raise EventProblem(f"has {article} {name} of {len(value)} characters, and {LONGEST_TEXT} are permitted")
    if len(event.attributes) > most_attributes:
        raise EventProblem(f"has {len(event.attributes)} attributes, and {most_attributes} are permitted")
    attributes = tuple(sorted(_attribute(name, value) for name, value in event.attributes))
    for before, after in itertools.pairwise(attributes):
        if before[0] == after[0]:
            raise EventProblem(f"has the attribute {before[0]!r} twice; leave one out")
    found = CloudEvent(event.id, event.source, event.type, event.data, attributes)
    try:
        size = event_bytes(found)
    except UnicodeEncodeError:
        raise EventProblem("has a text with a lone surrogate, which UTF-8 has no bytes for; replace it") from None
    if size > most_bytes:
        raise EventProblem(
            f"has {size} bytes, and {most_bytes} are permitted; keep large data elsewhere, and send its address"
        )
    return found


def valid_output(output: Payload, most_bytes: int = EVENT_BYTES) -> Payload:
    """The output of a stage. Raises :class:`EventProblem`, whose text goes on behind a name of the output."""
    if (size := len(output.data)) > most_bytes:
        raise EventProblem(
            f"has {size} bytes, and {most_bytes} are permitted; keep large data elsewhere, and put out its address"
        )
    if len(output.content_type) > LONGEST_CONTENT_TYPE or not output.content_type.isprintable():
        raise EventProblem(
            f"has a content type of {len(output.content_type)} characters, {output.content_type[:60]!r}; give at most "
            f"{LONGEST_CONTENT_TYPE} characters that can be printed"
        )
    return output


def event_bytes(event: CloudEvent) -> int:
    """The bytes of an event's texts and its payload. A message has at most 2 KiB more. Raises UnicodeEncodeError."""
    size = len(event.id.encode()) + len(event.source.encode()) + len(event.type.encode()) + len(event.data or b"")
    for name, value in event.attributes:
        size += len(name) + len(value.encode())
    return size


def inputs_problem(root: CloudEvent | None, outputs: Iterable[tuple[str, Payload]]) -> str:
    """Why the inputs of a stage fit into no message, with the remedy; empty when they do."""
    sizes = {name: len(one.data) for name, one in outputs}
    size = sum(sizes.values()) + (event_bytes(root) if root is not None else 0)
    if size <= INPUT_BYTES:
        return ""
    names = ", ".join((*((ROOT_EVENT,) if root is not None else ()), *sizes))
    return (
        f"its inputs ({names}) have {size} bytes together, and {INPUT_BYTES} are permitted; keep large data elsewhere, "
        "and put out its address"
    )


def exact_text(value: str) -> str:
    """The text without the methods of a subclass, as numpy has one: that could not be stored."""
    return value if type(value) is str else str.__getitem__(value, slice(None))


def attribute_text(value: Any) -> str:
    """The value of an attribute as the text of the specification's type system. Raises :class:`EventProblem`.

    An integer becomes decimal digits, a boolean ``true`` or ``false``, bytes base64, a time RFC 3339 in UTC.
    """
    if isinstance(value, str):
        return exact_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise EventProblem(f"has the time {value.isoformat()} without a time zone; give an aware datetime")
        return rfc3339(value)
    raise EventProblem(f"has an attribute that is a {type(value).__name__}; give a text")


def rfc3339(moment: datetime) -> str:
    """The text of a time: in UTC, with as many digits of the second as there are (0, 3 or 6), as tables have it.

    Raises :class:`EventProblem` for a time that is in no year from 1 to 9999 in UTC.
    """
    try:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise EventProblem(f"has the time {moment.isoformat()}, which is in no year from 1 to 9999 in UTC") from None
    digits = "milliseconds" if moment.microsecond and not moment.microsecond % 1000 else "auto"
    return moment.isoformat(timespec=digits) + "Z"


def moment_of(text: str) -> datetime | None:
    """The time of an RFC 3339 text, None for another text."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None and "T" in text.upper() else None
    except (ValueError, OverflowError):
        return None


def _attribute(name: str, value: str) -> tuple[str, str]:
    if not _NAME.fullmatch(name) or name in REQUIRED:
        raise EventProblem(
            f"has an attribute {name[:100]!r}; use 1 to 100 lower-case letters and digits, and none of "
            f"{', '.join(REQUIRED)}"
        )
    if name != "time":
        return name, value
    moment = moment_of(value)
    if moment is None:
        raise EventProblem(
            f"has the time {value[:60]!r}, which is not RFC 3339; write for example 2026-03-01T12:00:00Z"
        )
    return name, rfc3339(moment)


def _text_bytes(text: str) -> int:
    """The bytes of a text at most. To encode each one would cost more than the exact number is worth."""
    return len(text) if text.isascii() else 4 * len(text)


def partition_of(event: CloudEvent, partitions: int) -> int:
    """The partition of an event, from 0: by its extension ``partitionkey``, else by its source and id.

    An event that is published again has the same partition, so it is recognized there. It is another one after the
    number of partitions was raised; the partitions tell each other then which events they have.
    """
    return partition_of_hash(partition_hash(event), partitions)


def partition_hash(event: CloudEvent) -> bytes:
    """The hash of which the partition of an event is made, whatever the number of partitions."""
    text = f"i{event.source}\0{event.id}"
    for name, value in event.attributes:
        if name == PARTITION_KEY:
            text = f"k{value}"
            break
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def partition_of_hash(hashed: bytes, partitions: int) -> int:
    """The partition of an event with this hash."""
    return int.from_bytes(hashed, "big") % partitions
