"""CloudEvents of the gRPC interface as those of the controller, and back. Pure functions.

Attributes are kept as their text of the specification's type system: an integer in decimal digits, a boolean as
``true`` or ``false``, bytes in base64, a time as RFC 3339 in UTC with microseconds at most. They are sent back as
strings, except ``time`` and ``dataschema``, which have types of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC

from wallaroo_spark.api import cloudevents_pb2 as wire
from wallaroo_spark.gateway.limits import GatewayLimits, invalid
from wallaroo_spark.pipelines.schema.cloud_event import (
    CloudEvent,
    EventProblem,
    attribute_text,
    moment_of,
    rfc3339,
    valid_event,
)

VERSION = "1.0"


def events_of(given: Iterable[wire.CloudEvent], limits: GatewayLimits) -> list[CloudEvent]:
    """The events of a request, in their order. Raises :class:`Refused` with the place of the first invalid one."""
    found = [event_of(event, limits, f"event {place}") for place, event in enumerate(given)]
    if len(found) > limits.events:
        raise invalid(f"the request has {len(found)} events, and {limits.events} are permitted; divide it")
    return found


def event_of(given: wire.CloudEvent, limits: GatewayLimits, name: str = "the event") -> CloudEvent:
    """One event. Raises :class:`Refused` when it is not valid; ``name`` is its name in the message."""
    if given.spec_version not in ("", VERSION):
        raise invalid(f"{name} is of CloudEvents {given.spec_version[:20]!r}, and {VERSION} is read; send that version")
    if (size := given.ByteSize()) > limits.event_bytes:
        raise invalid(
            f"{name} has {size} bytes, and {limits.event_bytes} are permitted; keep large data elsewhere, and send "
            "its address"
        )
    try:
        attributes = tuple((key, _text(key, value, name)) for key, value in given.attributes.items())
        event = CloudEvent(given.id, given.source, given.type, _data(given, name), attributes)
        return valid_event(event, limits.event_bytes, limits.attributes)
    except EventProblem as problem:
        raise invalid(f"{name} {problem}") from None


def to_wire(event: CloudEvent) -> wire.CloudEvent:
    """The message of an event."""
    sent = wire.CloudEvent(id=event.id, source=event.source, spec_version=VERSION, type=event.type)
    for name, value in event.attributes:
        if name == "time" and (moment := moment_of(value)) is not None:
            sent.attributes[name].ce_timestamp.FromDatetime(moment)
        elif name == "dataschema":
            sent.attributes[name].ce_uri = value
        else:
            sent.attributes[name].ce_string = value
    if event.data is not None:
        sent.binary_data = event.data
    return sent


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
    kind = value.WhichOneof("attr")
    if kind is None:
        raise invalid(f"{name}: its attribute {key[:100]!r} has no value; give one, or leave the attribute out")
    if kind == "ce_timestamp":
        try:
            return rfc3339(value.ce_timestamp.ToDatetime(UTC))
        except (ValueError, OverflowError):
            raise invalid(f"{name}: its attribute {key[:100]!r} is no time of the years 1 to 9999") from None
    return attribute_text(getattr(value, kind))
