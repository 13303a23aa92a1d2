"""Events in the JSON format of CloudEvents. Pure."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

from wallaroo_spark.client.events.event import SPEC_VERSION, Event
from wallaroo_spark.connector.arguments import shown
from wallaroo_spark.errors import ArgumentValueError

_NAMED = ("subject", "datacontenttype", "dataschema")


def to_structured(event: Event) -> dict[str, Any]:
    """The members of an event: ``data`` where it is a JSON value or a text, ``data_base64`` otherwise."""
    found: dict[str, Any] = {
        "specversion": SPEC_VERSION,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        **{name: value for name in _NAMED if (value := getattr(event, name)) is not None},
    }
    if event.time is not None:
        found["time"] = event.time.isoformat()
    for name, value in event.extensions.items():
        if isinstance(value, datetime):
            found[name] = value.isoformat()
        else:
            found[name] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    if isinstance(event.value, bytes):
        found["data_base64"] = base64.b64encode(event.value).decode()
    elif event.data is not None:
        found["data"] = event.value
    return found


def from_structured(text: str | bytes | dict[str, Any], where: str) -> Event:
    """The event of a JSON object; ``where`` names it in errors.

    ``id`` and ``source`` may be missing: the id is random then, and the source is the client's. Raises
    :class:`ArgumentValueError` and :class:`ArgumentTypeError`.
    """
    try:
        found = dict(text) if isinstance(text, dict) else json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        if found.pop("specversion", SPEC_VERSION) != SPEC_VERSION:
            raise ValueError(f"its specversion is not {SPEC_VERSION}")
        if "type" not in found:
            raise ValueError("it has no type")
        values: dict[str, Any] = {name: found.pop(name) for name in ("id", "source", *_NAMED) if name in found}
        if "time" in found:
            values["time"] = datetime.fromisoformat(found.pop("time"))
        data = found.pop("data", None)
        if "data_base64" in found:
            data = base64.b64decode(found.pop("data_base64"), validate=True)
        kind = values.get("datacontenttype") or ""
        if isinstance(data, str) and "json" in kind:
            # With this content type a text is a JSON string.
            data = json.dumps(data).encode()
        return Event(found.pop("type"), data, **values, extensions=found)
    except (ValueError, TypeError) as error:
        if isinstance(error, ArgumentValueError):
            raise
        raise ArgumentValueError(
            f"{where} is not an event in the JSON format of CloudEvents ({error}): {shown(text)}; write "
            '{"type": "shop.order.created", "data": {…}}, for example',
            code="event-invalid",
            argument="event",
        ) from None
