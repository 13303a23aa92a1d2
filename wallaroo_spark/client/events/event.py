"""Events: CloudEvents 1.0, as programs give and get them, and their protobuf format."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from wallaroo_spark.api import cloudevents_pb2 as ce
from wallaroo_spark.client.events.values import BYTES_TYPE, decode_value, encode_value
from wallaroo_spark.connector.arguments import shown
from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError

SPEC_VERSION = "1.0"
PARTITION_KEY = "partitionkey"
"""The extension whose value decides the partition."""
_EXTENSION = re.compile(r"[a-z0-9]{1,100}")
_OPTIONAL = ("subject", "datacontenttype", "dataschema")
_RESERVED = frozenset({"id", "source", "specversion", "type", "time", "data", *_OPTIONAL})
_INT32 = 1 << 31

Attribute = bool | int | str | bytes | datetime
"""The types of an extension."""


def random_id() -> str:
    """An id that no other event has."""
    return str(uuid.uuid4())


@dataclass(frozen=True)
class Event:
    """An event of CloudEvents 1.0.

    ``Event("shop.order.created", {"order": 17})`` is enough to publish it. ``id`` is random unless given: give one that
    is always the same for the same fact, so that it is written once, however often programs publish it.

    Raises :class:`ArgumentTypeError` and :class:`ArgumentValueError` for attributes that cannot work.
    """

    type: str
    """Its type, such as ``shop.order.created``; the triggers of pipelines match it."""
    data: Any = None
    """Its payload. It is given as bytes, a str or a JSON value, and kept as bytes; :attr:`value` decodes it. None: it
    has none."""
    id: str = field(default_factory=random_id, kw_only=True)
    """Its id, unique within ``source``."""
    source: str = field(default="", kw_only=True)
    """The context in which it happened; empty: the client's setting ``source``."""
    subject: str | None = field(default=None, kw_only=True)
    """The subject within ``source``."""
    time: datetime | None = field(default=None, kw_only=True)
    """When it happened: an aware datetime."""
    datacontenttype: str | None = field(default=None, kw_only=True)
    """Content type of the payload; None: the one of the type in which ``data`` is given."""
    dataschema: str | None = field(default=None, kw_only=True)
    """URI of the payload's schema."""
    extensions: Mapping[str, Attribute] = field(default_factory=dict, kw_only=True)
    """Further attributes, whose names have small letters and digits. ``partitionkey`` decides the partition."""

    def __post_init__(self) -> None:
        for name in ("type", "id", "source", *_OPTIONAL):
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name in _OPTIONAL):
                raise ArgumentTypeError(
                    f"an event's {name} is a str, and this one is {type(value).__name__}: {shown(value)}",
                    code="argument-type",
                    argument=name,
                )
        for name in ("type", "id"):
            if not getattr(self, name):
                raise ArgumentValueError(
                    f"an event's {name} is empty; give at least one character", code="event-invalid", argument=name
                )
        self._check_time()
        self._check_extensions()
        object.__setattr__(self, "extensions", MappingProxyType(dict(self.extensions)))
        if self.data is not None:
            data, content_type = encode_value(self.data)
            object.__setattr__(self, "data", data)
            if self.datacontenttype is None and content_type != BYTES_TYPE:
                object.__setattr__(self, "datacontenttype", content_type)

    def _check_time(self) -> None:
        if self.time is not None and not isinstance(self.time, datetime):
            raise ArgumentTypeError(
                f"an event's time is an aware datetime, and this one is {type(self.time).__name__}: "
                f"{shown(self.time)}; convert it to a datetime with a time zone",
                code="argument-type",
                argument="time",
            )
        if self.time is not None and self.time.tzinfo is None:
            raise ArgumentValueError(
                f"event time {self.time.isoformat()} has no time zone; give an aware datetime, for example with "
                "tzinfo=UTC",
                code="time-zone-missing",
                argument="time",
            )

    def _check_extensions(self) -> None:
        for name, value in self.extensions.items():
            if not isinstance(name, str) or not _EXTENSION.fullmatch(name) or name in _RESERVED:
                raise ArgumentValueError(
                    f"extension {shown(name)} is no name that an extension may have; use small letters and digits, "
                    "and not the name of an attribute of CloudEvents",
                    code="event-invalid",
                    argument="extensions",
                )
            if not isinstance(value, bool | int | str | bytes | datetime):
                raise ArgumentTypeError(
                    f"extension {name} is a str, an int of 32 bits, a bool, bytes or a datetime, and this one is "
                    f"{type(value).__name__}: {shown(value)}",
                    code="argument-type",
                    argument=name,
                )
            if isinstance(value, int) and not -_INT32 <= value < _INT32:
                raise ArgumentValueError(
                    f"extension {name} is {value}, and integers of CloudEvents have 32 bits; give it as a str",
                    code="event-invalid",
                    argument=name,
                )

    @property
    def value(self) -> Any:
        """The payload by its content type: a JSON value, a str, or bytes; None without one."""
        return decode_value(self.data, self.datacontenttype or "")

    def to_message(self, source: str = "", key: str | None = None) -> ce.CloudEvent:
        """The event in protobuf, with a source for an event without one, and a key of its partition likewise."""
        message = ce.CloudEvent(id=self.id, source=self.source or source, spec_version=SPEC_VERSION, type=self.type)
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                # The type of a dataschema is a URI.
                kind = "ce_uri" if name == "dataschema" else "ce_string"
                setattr(message.attributes[name], kind, value)
        if self.time is not None:
            message.attributes["time"].ce_timestamp.FromDatetime(self.time)
        extensions = dict(self.extensions)
        if key is not None:
            extensions.setdefault(PARTITION_KEY, key)
        for name, value in extensions.items():
            _set(message.attributes[name], value)
        if self.data is not None:
            message.binary_data = self.data
        return message

    @classmethod
    def from_message(cls, message: ce.CloudEvent) -> Event:
        """The event of a message."""
        found = {name: _get(value) for name, value in message.attributes.items()}
        time = found.pop("time", None)
        known = {name: str(found.pop(name)) for name in _OPTIONAL if name in found}
        kind = message.WhichOneof("data")
        data: bytes | None = None
        if kind == "binary_data":
            data = message.binary_data
        elif kind == "text_data":
            data = message.text_data.encode()
        elif kind == "proto_data":
            data = message.proto_data.SerializeToString()
        return _received(cls, message, data, _time(time), known, found)


def _received(
    cls: type[Event],
    message: ce.CloudEvent,
    data: bytes | None,
    time: datetime | None,
    known: dict[str, str],
    extensions: dict[str, Any],
) -> Event:
    # Without __post_init__: an event of another program is not checked again, and may be stranger than ours.
    event = object.__new__(cls)
    values: dict[str, Any] = {
        "type": message.type,
        "data": data,
        "id": message.id,
        "source": message.source,
        "subject": None,
        "time": time,
        "datacontenttype": None,
        "dataschema": None,
        "extensions": MappingProxyType(extensions),
        **known,
    }
    for name, value in values.items():
        object.__setattr__(event, name, value)
    return event


def _set(attribute: Any, value: Attribute) -> None:
    if isinstance(value, bool):
        attribute.ce_boolean = value
    elif isinstance(value, int):
        attribute.ce_integer = value
    elif isinstance(value, str):
        attribute.ce_string = value
    elif isinstance(value, bytes):
        attribute.ce_bytes = value
    else:
        attribute.ce_timestamp.FromDatetime(value)


def _get(attribute: Any) -> Any:
    kind = attribute.WhichOneof("attr")
    if kind is None:
        return ""
    value = getattr(attribute, kind)
    return value.ToDatetime(tzinfo=UTC) if isinstance(value, Timestamp) else value


def _time(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        return None


def as_event(given: Any, name: str = "event") -> Event:
    """The event itself. Raises :class:`ArgumentTypeError` for another object."""
    if isinstance(given, Event):
        return given
    raise ArgumentTypeError(
        f"an {name} is an Event, and this one is {type(given).__name__}: {shown(given)}; write "
        "Event('shop.order.created', data), for example",
        code="argument-type",
        argument=name,
    )
