"""Events and payloads as programs have them.

Payloads as Python values: bytes, texts and JSON, by their content types. Pure.

Events: CloudEvents 1.0, as programs give and get them, and their protobuf format.

Events in the JSON format of CloudEvents. Pure.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from wallaroo_spark.api import cloudevents_pb2 as ce
from wallaroo_spark.connector.arguments import check_aware, shown, utf8_of, wrong_type
from wallaroo_spark.errors import ArgumentValueError
from wallaroo_spark.json_text import dump_json, load_json

BYTES_TYPE = "application/octet-stream"
TEXT_TYPE = "text/plain; charset=utf-8"
JSON_TYPE = "application/json"


def encode_value(value: Any, name: str = "data") -> tuple[bytes, str]:
    """A payload's bytes and its content type: bytes stay, a str becomes UTF-8 text, all else becomes JSON.

    Raises :class:`ArgumentTypeError` for a value that JSON cannot express, and :class:`ArgumentValueError` for a str
    that UTF-8 cannot express.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), BYTES_TYPE
    if isinstance(value, str):
        return utf8_of(value, name), TEXT_TYPE
    try:
        return dump_json(value), JSON_TYPE
    except (TypeError, ValueError) as error:
        expected = f"{name} is bytes, a str or a value that JSON can express"
        raise wrong_type(expected, value, name, f"encode it first ({error})") from None


def decode_value(data: bytes | None, content_type: str) -> Any:
    """The value of a payload: JSON is parsed, a text becomes a str, all else stays bytes; None without a payload.

    Bytes that are not as the content type says stay bytes.
    """
    if data is None:
        return None
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == JSON_TYPE or kind.endswith("+json"):
            return load_json(data)
        if kind.startswith("text/"):
            return data.decode()
    except ValueError:
        pass
    return data


SPEC_VERSION = "1.0"
PARTITION_KEY = "partitionkey"
"""The extension whose value decides the partition."""
_EXTENSION = re.compile(r"[a-z0-9]{1,100}")
_OPTIONAL = ("subject", "datacontenttype", "dataschema")
_RESERVED = frozenset({"id", "source", "specversion", "type", "time", "data", *_OPTIONAL})
_INT32 = 1 << 31

_FIELDS = {bool: "ce_boolean", int: "ce_integer", str: "ce_string", bytes: "ce_bytes"}
"""Type of an attribute → the field of its message."""

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
                raise wrong_type(f"an event's {name} is a str", value, name)
            if value is not None:
                utf8_of(value, f"an event's {name}")
        for name in ("type", "id"):
            if not getattr(self, name):
                raise _invalid(f"an event's {name} is empty; give at least one character", name)
        self._check_time()
        self._check_extensions()
        object.__setattr__(self, "extensions", MappingProxyType(dict(self.extensions)))
        if self.data is not None:
            data, content_type = encode_value(self.data)
            object.__setattr__(self, "data", data)
            if self.datacontenttype is None and content_type != BYTES_TYPE:
                object.__setattr__(self, "datacontenttype", content_type)

    def _check_time(self) -> None:
        if self.time is None:
            return
        if not isinstance(self.time, datetime):
            raise wrong_type(
                "an event's time is an aware datetime", self.time, "time", "convert it to a datetime with a time zone"
            )
        _check_moment(self.time, "time")

    def _check_extensions(self) -> None:
        for name, value in self.extensions.items():
            if not isinstance(name, str) or not _EXTENSION.fullmatch(name) or name in _RESERVED:
                raise _invalid(
                    f"extension {shown(name)} is no name that an extension may have; use small letters and digits, "
                    "and not the name of an attribute of CloudEvents",
                    "extensions",
                )
            if not isinstance(value, bool | int | str | bytes | datetime):
                raise wrong_type(
                    f"extension {name} is a str, an int of 32 bits, a bool, bytes or a datetime", value, name
                )
            if isinstance(value, str):
                utf8_of(value, f"extension {name}")
            elif isinstance(value, datetime):
                _check_moment(value, name)
            if isinstance(value, int) and not -_INT32 <= value < _INT32:
                raise _invalid(
                    f"extension {name} is {value}, and integers of CloudEvents have 32 bits; give it as a str", name
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
        # Without __post_init__: an event of another program is not checked again, and may be stranger than ours.
        event = object.__new__(cls)
        values = {
            **dict.fromkeys(_OPTIONAL),
            **known,
            "type": message.type,
            "data": data,
            "id": message.id,
            "source": message.source,
            "time": _time(time),
            "extensions": MappingProxyType(found),
        }
        vars(event).update(values)
        return event


def _invalid(text: str, argument: str) -> ArgumentValueError:
    return ArgumentValueError(text, code="event-invalid", argument=argument)


def _check_moment(moment: datetime, name: str) -> None:
    check_aware(moment, "event time", name)
    try:
        moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(
            f"event time {moment.isoformat()} is in no year from 1 to 9999 in UTC; leave it out, or give a str in "
            "an extension",
            name,
        ) from None


def _set(attribute: Any, value: Attribute) -> None:
    if isinstance(value, datetime):
        attribute.ce_timestamp.FromDatetime(value)
    else:
        # In Python a bool is an int, so it comes first.
        setattr(attribute, next(name for kind, name in _FIELDS.items() if isinstance(value, kind)), value)


def _get(attribute: Any) -> Any:
    kind = attribute.WhichOneof("attr")
    if kind is None:
        return ""
    value = getattr(attribute, kind)
    if not isinstance(value, Timestamp):
        return value
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        # A time that Python does not have: its seconds, so that the event can be read at all.
        return str(value.seconds)


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
    raise wrong_type(f"an {name} is an Event", given, name, "write Event('shop.order.created', data), for example")


def to_structured(event: Event) -> dict[str, Any]:
    """The members of an event: ``data`` where it is a JSON value or a text, ``data_base64`` otherwise."""
    found: dict[str, Any] = {
        "specversion": SPEC_VERSION,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        **{name: value for name in _OPTIONAL if (value := getattr(event, name)) is not None},
    }
    if event.time is not None:
        found["time"] = event.time.isoformat()
    for name, value in event.extensions.items():
        if isinstance(value, datetime):
            found[name] = value.isoformat()
        else:
            found[name] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    if event.data is not None:
        value = event.value
        if isinstance(value, bytes) or not _is_json(value):
            found["data_base64"] = base64.b64encode(event.data).decode()
        else:
            found["data"] = value
    return found


def _is_json(value: Any) -> bool:
    """Whether JSON can say a value that was read from JSON: an infinity, which was 1e400 there, it cannot."""
    try:
        dump_json(value)
    except ValueError:
        return False
    return True


def from_structured(text: str | bytes | dict[str, Any], where: str, id: str = "") -> Event:
    """The event of a JSON object; ``where`` names it in errors.

    ``id`` and ``source`` may be missing: the id is that argument then, or random, and the source is the client's.
    Raises :class:`ArgumentValueError` and :class:`ArgumentTypeError`.
    """
    try:
        found = dict(text) if isinstance(text, dict) else load_json(text)
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        if found.pop("specversion", SPEC_VERSION) != SPEC_VERSION:
            raise ValueError(f"its specversion is not {SPEC_VERSION}")
        if "type" not in found:
            raise ValueError("it has no type")
        values: dict[str, Any] = {name: found.pop(name) for name in ("id", "source", *_OPTIONAL) if name in found}
        if id:
            values.setdefault("id", id)
        if "time" in found:
            values["time"] = datetime.fromisoformat(found.pop("time"))
        data = found.pop("data", None)
        if "data_base64" in found:
            data = base64.b64decode(found.pop("data_base64"), validate=True)
        kind = values.get("datacontenttype") or ""
        if isinstance(data, str) and "json" in kind:
            # With this content type a text is a JSON string.
            data = dump_json(data)
        return Event(found.pop("type"), data, **values, extensions=found)
    except (ValueError, TypeError) as error:
        if isinstance(error, ArgumentValueError):
            raise
        raise _invalid(
            f"{where} is not an event in the JSON format of CloudEvents ({error}): {shown(text)}; write "
            '{"type": "shop.order.created", "data": {…}}, for example',
            "event",
        ) from None
