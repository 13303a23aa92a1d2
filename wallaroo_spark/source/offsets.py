"""The source's offset, as it stands in Spark's offset log.

An offset is a dictionary of JSON values: ``wallaroo`` is the format's version, ``receiver`` the receiver's name, and
``streams`` has the end reference of each stream, by scope and by stream id as decimal text. ``ids`` is only present
when message ids have no order; its value is then ``opaque``. Two offsets with the same references are the same text,
because Spark compares offsets as text. Source: ``docs/architecture.md#the-source``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wallaroo_spark.references import Reference, References

OFFSET_VERSION = 1


def offset(receiver: str, references: References, message_ids: str = "increasing") -> dict[str, Any]:
    """The offset with exactly these references; ``message_ids`` is the value of the option ``messageIds``."""
    streams = {
        scope: {stream_id: references[scope][stream_id] for stream_id in sorted(references[scope], key=int)}
        for scope in sorted(references)
        if references[scope]
    }
    kind = {"ids": message_ids} if message_ids == "opaque" else {}
    return {"wallaroo": OFFSET_VERSION, "receiver": receiver, **kind, "streams": streams}


def references_of(value: Mapping[str, Any]) -> dict[str, dict[str, Reference]]:
    """The references in an offset; none for an empty one."""
    streams: dict[str, dict[str, Reference]] = value.get("streams", {})
    return streams
