"""The source's offset: what Spark's offset log holds of it.

A dictionary of JSON values: ``wallaroo`` is the format's version, ``receiver`` the receiver's name, ``streams`` the end
reference of each stream by scope and decimal stream id; ``ids`` is there where they are ``opaque``, without an order.
Two offsets with the same references are the same text, because Spark compares them as text. Source:
``docs/architecture.md#the-source``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wallaroo_spark.references import Reference, References

OFFSET_VERSION = 1


def offset(receiver: str, references: References, message_ids: str = "increasing") -> dict[str, Any]:
    """The offset that holds exactly these references; ``message_ids`` is the option of that name."""
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
