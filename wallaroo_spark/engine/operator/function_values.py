"""The values that functions of stages are given and return. Pure.

Source: ``docs/pipelines/engine.md#functions-of-stages``.
"""

from __future__ import annotations

import json
from typing import Any

from wallaroo_spark.pipelines.controller.messages.values import (
    CloudEvent,
    PartitionKey,
    Payload,
    StageDelivery,
    StreamOutput,
)
from wallaroo_spark.pipelines.partitioning import partition_of

JSON = "application/json"
TEXT = "text/plain"
_REQUIRED = ("id", "source", "type")


class ResultError(Exception):
    """A result of a function that cannot be used; it becomes the reason of a nack."""


def given_payload(payload: Payload) -> Any:
    """The output of a stage as a function is given it. Raises ValueError when its data is not of its content type."""
    return _decoded(payload.data, payload.content_type)


def given_event(event: CloudEvent) -> dict[str, Any]:
    """An event as a function is given it: a dict of its attributes and ``data``.

    Raises ValueError when the data is not of its ``datacontenttype``.
    """
    found: dict[str, Any] = {"id": event.id, "source": event.source, "type": event.type}
    found.update(event.attributes)
    found["data"] = None if event.data is None else _decoded(event.data, found.get("datacontenttype", ""))
    return found


def _decoded(data: bytes, content_type: str) -> Any:
    """JSON as its value, text as str, all else as bytes."""
    if not content_type:
        return data
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON or kind.endswith("+json"):
        return json.loads(data)
    return data.decode() if kind.startswith("text/") else data


def is_absent(value: Any) -> bool:
    """Whether a value of a result stands for none: None, NaN, NaT or NA."""
    if value is None:
        return True
    return (isinstance(value, float) and value != value) or type(value).__name__ in ("NaTType", "NAType")


def payload_of(value: Any, content_type: Any) -> Payload | None:
    """The output that a function returned. Raises ValueError or TypeError for a value that is not one of JSON."""
    if is_absent(value):
        return None
    data, kind = _encoded(value)
    return Payload(data, kind if is_absent(content_type) else str(content_type))


def _encoded(value: Any) -> tuple[bytes, str]:
    """The bytes of a value, and the content type that it has by itself."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), ""
    if isinstance(value, str):
        return value.encode(), TEXT
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)
    return text.encode(), JSON


def _plain(value: Any) -> Any:
    """A value of numpy as one of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no value of JSON")


def events_of(delivery: StageDelivery, partition: int, stream: str, partitions: int, value: Any) -> list[StreamOutput]:
    """The stream outputs of one row for one stream: one for each partition, and an empty one if there is no event.

    ``partition`` is that of the instance. An event without an id gets one that is the same when the function runs
    again.
    """
    by_partition: dict[int, list[CloudEvent]] = {}
    if not is_absent(value):
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list | tuple):
            raise ResultError(
                f"the events for stream {stream} are a {type(value).__name__}; return a list of dicts, one for each "
                "event"
            )
        for number, one in enumerate(value):
            event = _event(delivery, partition, stream, number, one)
            by_partition.setdefault(partition_of(event, partitions), []).append(event)
    if not by_partition:
        return [StreamOutput(PartitionKey(stream, 0), ())]
    return [
        StreamOutput(PartitionKey(stream, partition), tuple(events))
        for partition, events in sorted(by_partition.items())
    ]


def _event(delivery: StageDelivery, partition: int, stream: str, number: int, value: Any) -> CloudEvent:
    if not isinstance(value, dict):
        raise ResultError(
            f"an event for stream {stream} is a {type(value).__name__}; return a dict with the attributes of the event "
            "and its data"
        )
    given = dict(value)
    given.pop("specversion", None)
    instance = f"{partition}/{delivery.instance}"
    given.setdefault("id", f"{delivery.pipeline}:{instance}:{delivery.stage}:{stream}:{number}")
    given.setdefault("source", delivery.pipeline)
    for name in _REQUIRED:
        if not isinstance(given.get(name), str) or not given[name]:
            raise ResultError(f"an event for stream {stream} has no {name}; give it, as a text")
    name, source, kind_of_event = (given.pop(name) for name in _REQUIRED)
    data, kind = given.pop("data", None), ""
    if data is not None:
        data, kind = _encoded(data)
    if kind and "datacontenttype" not in given:
        given["datacontenttype"] = kind
    attributes = tuple((str(name), str(text)) for name, text in given.items() if text is not None)
    return CloudEvent(name, source, kind_of_event, data, attributes)
