"""The source's offset, as it stands in Spark's offset log.

An offset is a dictionary of JSON values: ``wallaroo`` is the format's version, ``receiver`` the receiver's name, and
``streams`` has the end reference of each stream, by scope and by stream id as decimal text. ``ids`` is only present
when message ids have no order; its value is then ``opaque``. ``endings`` has the ended streams, and is only present
where the receiver has a ``streamRetention``. Two offsets with the same references are the same text, because Spark
compares offsets as text. Source: ``docs/architecture.md#the-source``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wallaroo_spark.references import References, endings_of, plain, with_endings

OFFSET_VERSION = 1


def offset(receiver: str, references: References, message_ids: str = "increasing") -> dict[str, Any]:
    """The offset with exactly these references; ``message_ids`` is the value of the option ``messageIds``."""
    endings, references = endings_of(references), plain(references)
    streams = {
        scope: {stream_id: references[scope][stream_id] for stream_id in sorted(references[scope], key=int)}
        for scope in sorted(references)
        if references[scope]
    }
    kind = {"ids": message_ids} if message_ids == "opaque" else {}
    value = {"wallaroo": OFFSET_VERSION, "receiver": receiver, **kind, "streams": streams}
    if endings is not None:
        value["endings"] = endings.to_json()
    return value


def references_of(value: Mapping[str, Any]) -> References:
    """The references in an offset, with its ended streams; none for an empty one."""
    return with_endings(value.get("streams", {}), value.get("endings"))
