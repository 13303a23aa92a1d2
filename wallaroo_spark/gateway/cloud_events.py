"""CloudEvents of the gRPC interface as those of the controller, and back. Pure functions.

Attributes are kept as their text of the specification's type system: an integer in decimal digits, a boolean as
``true`` or ``false``, bytes in base64, a time as RFC 3339 in UTC with microseconds at most. They are sent back as
strings, except ``time`` and ``dataschema``, which have types of their own.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from datetime import UTC, datetime

from wallaroo_spark.api import cloudevents_pb2 as wire
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.refusals import invalid
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent

VERSION = "1.0"
_NAME = re.compile(r"[a-z0-9]{1,100}")
_REQUIRED = ("id", "source", "type", "specversion", "data")
_LONGEST_TEXT = 4096
"""The most characters of ``id``, ``source`` and ``type``. A choice: they are a key of the state, and stand in logs."""


def events_of(given: Iterable[wire.CloudEvent], limits: GatewayLimits) -> list[CloudEvent]:
    """The events of a request, in their order. Raises :class:`Refused` with the place of the first invalid one."""
    found = [event_of(event, limits, f"event {place}") for place, event in enumerate(given)]
    if len(found) > limits.events:
        raise invalid(f"the request has {len(found)} events, and {limits.events} are permitted; divide it")
    return found


def event_of(given: wire.CloudEvent, limits: GatewayLimits, name: str = "the event") -> CloudEvent:
    """One event. Raises :class:`Refused` when it is not valid; ``name`` is its name in the message."""
    for field, value in (("id", given.id), ("source", given.source), ("type", given.type)):
        if not value:
            raise invalid(f"{name} has no {field}; CloudEvents 1.0 requires id, source and type")
        if len(value) > _LONGEST_TEXT:
            raise invalid(f"{name} has a {field} of {len(value)} characters, and {_LONGEST_TEXT} are permitted")
    if given.spec_version not in ("", VERSION):
        raise invalid(f"{name} is of CloudEvents {given.spec_version[:20]!r}, and {VERSION} is read; send that version")
    if (size := given.ByteSize()) > limits.event_bytes:
        raise invalid(
            f"{name} has {size} bytes, and {limits.event_bytes} are permitted; keep large data elsewhere, and send "
            "its address"
        )
    if len(given.attributes) > limits.attributes:
        raise invalid(f"{name} has {len(given.attributes)} attributes, and {limits.attributes} are permitted")
    attributes = tuple(sorted((key, _text(key, value, name)) for key, value in given.attributes.items()))
    return CloudEvent(given.id, given.source, given.type, _data(given, name), attributes)


def to_wire(event: CloudEvent) -> wire.CloudEvent:
    """The message of an event."""
    sent = wire.CloudEvent(id=event.id, source=event.source, spec_version=VERSION, type=event.type)
    for name, value in event.attributes:
        if name == "time" and (moment := _moment(value)) is not None:
            sent.attributes[name].ce_timestamp.FromDatetime(moment)
        elif name == "dataschema":
            sent.attributes[name].ce_uri = value
        else:
            sent.attributes[name].ce_string = value
    if event.data is not None:
        sent.binary_data = event.data
    return sent


def event_size(event: CloudEvent) -> int:
    """About how many bytes an event takes in memory and in a message."""
    return 100 + len(event.data or b"") + sum(len(name) + len(value) for name, value in event.attributes)


def rfc3339(moment: datetime) -> str:
    """The text of a time: in UTC, with as many digits of the second as there are (0, 3 or 6), as tables have it."""
    moment = moment.astimezone(UTC).replace(tzinfo=None)
    digits = "milliseconds" if moment.microsecond and not moment.microsecond % 1000 else "auto"
    return moment.isoformat(timespec=digits) + "Z"


def _data(given: wire.CloudEvent, name: str) -> bytes | None:
    match given.WhichOneof("data"):
        case "binary_data":
            return given.binary_data
        case "text_data":
            return given.text_data.encode()
        case "proto_data":
            raise invalid(f"{name} has proto_data, which a stream does not keep; send its bytes as binary_data")
    return None


def _text(key: str, value: wire.CloudEvent.CloudEventAttributeValue, name: str) -> str:
    if not _NAME.fullmatch(key) or key in _REQUIRED:
        raise invalid(
            f"{name} has an attribute {key[:100]!r}; use 1 to 100 lower-case letters and digits, and none of "
            f"{', '.join(_REQUIRED)}"
        )
    kind = value.WhichOneof("attr")
    if kind is None:
        raise invalid(f"{name}: its attribute {key!r} has no value; give one, or leave the attribute out")
    if kind == "ce_timestamp":
        try:
            return rfc3339(value.ce_timestamp.ToDatetime(UTC))
        except (ValueError, OverflowError) as error:
            raise invalid(f"{name}: its attribute {key!r} is no time of the years 1 to 9999") from error
    if kind == "ce_boolean":
        text = "true" if value.ce_boolean else "false"
    elif kind == "ce_integer":
        text = str(value.ce_integer)
    elif kind == "ce_bytes":
        text = base64.b64encode(value.ce_bytes).decode()
    else:
        text = str(getattr(value, kind))
    if key == "time":
        moment = _moment(text)
        if moment is None:
            raise invalid(f"{name}: its time {text[:60]!r} is not RFC 3339; write for example 2026-03-01T12:00:00Z")
        text = rfc3339(moment)
    return text


def _moment(text: str) -> datetime | None:
    """The time of an RFC 3339 text, None for another text."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None and "T" in text.upper() else None
    except (ValueError, OverflowError):
        return None
