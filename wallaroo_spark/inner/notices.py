"""The notices by which the driver tells workers the committed references. The bytes are the same for all workers.

Stream ids and references are columns of u64, because a notice is sent to each worker and decoded there: 6,400 changes
take 110 kB and 3.4 ms of CPU time as columns, 230 kB and 9.4 ms as JSON (measured side by side). Source:
``docs/decisions/acks-from-the-commit-log.md``.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from wallaroo_spark.references import Reference, References, StreamKey

COMMITTED = "committed"
"""The action of a notice with the references that have changed since an earlier notice."""
REWIND = "rewind"
"""The action of a notice with all references, from which the query continues."""
_LENGTH = struct.Struct(">I")
"""The length of the JSON head, before it."""


@dataclass(frozen=True)
class Notice:
    """One notice of the query's position. It is encoded once, for any number of workers."""

    action: str
    """:data:`COMMITTED` or :data:`REWIND`."""
    epoch: int
    """The number of the query's start; it increases with each start."""
    batch: int
    """The last committed batch; -1 before the first."""
    references: References = field(repr=False)
    """The changed references, or all of them, nested."""

    @cached_property
    def body(self) -> bytes:
        """The notice as :func:`decode` takes it."""
        ids: list[int] = []
        values: list[Reference] = []
        counts = []
        scopes = list(self.references)
        for scope in scopes:
            streams = self.references[scope]
            counts.append(len(streams))
            ids += map(int, streams)
            values += streams.values()
        # References of ephemeral streams are texts; they are few.
        texts = {at: value for at, value in enumerate(values) if isinstance(value, str)}
        numbers = [0 if isinstance(value, str) else value for value in values] if texts else values
        head = json.dumps([self.epoch, self.batch, scopes, counts, list(texts.items())]).encode()
        columns = np.array([ids, numbers], dtype="<u8")
        return b"".join((_LENGTH.pack(len(head)), head, columns.tobytes()))


def decode(body: bytes) -> tuple[int, int, dict[StreamKey, Reference]]:
    """Epoch, batch and flat references of a notice."""
    (length,) = _LENGTH.unpack_from(body)
    begin = _LENGTH.size + length
    epoch, batch, scopes, counts, texts = json.loads(body[_LENGTH.size : begin])
    columns = np.frombuffer(body, "<u8", offset=begin).reshape(2, -1)
    ids: list[int] = columns[0].tolist()
    values: list[Reference] = columns[1].tolist()
    for at, text in texts:
        values[at] = text
    references: dict[StreamKey, Reference] = {}
    at = 0
    for scope, count in zip(scopes, counts, strict=True):
        for stream_id, value in zip(ids[at : at + count], values[at : at + count], strict=True):
            references[StreamKey(scope, stream_id)] = value
        at += count
    return epoch, batch, references
