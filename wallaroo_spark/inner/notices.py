"""The notices by which the driver tells workers the committed references. The bytes are the same for all workers.

Stream ids and references are columns of u64, because a notice is sent to each worker and decoded there: 6,400 changes
take 110 kB and 3.4 ms of CPU time as columns, 230 kB and 9.4 ms as JSON (measured side by side). Source:
``docs/decisions/acks-from-the-commit-log.md``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wallaroo_spark.inner.plan_call import keys, runs
from wallaroo_spark.references import Changes, Reference, StreamKey

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
    references: Changes = field(repr=False)
    """The changed references, or all of them, nested; None for a stream that is forgotten."""
    leaving: tuple[str, Sequence[StreamKey]] = ("", ())
    """The token of the streams that are forgotten next, and these streams."""
    ended: Sequence[StreamKey] = ()
    """Streams of which the driver has recorded the end since the last notice."""

    @cached_property
    def body(self) -> bytes:
        """The notice as :func:`decode` takes it."""
        ids: list[int] = []
        values: list[Reference | None] = []
        counts = []
        scopes = list(self.references)
        for scope in scopes:
            streams = self.references[scope]
            counts.append(len(streams))
            ids += map(int, streams)
            values += streams.values()
        # Few references are texts, which ephemeral streams have, or None.
        others = {at: value for at, value in enumerate(values) if not isinstance(value, int)}
        numbers = [value if isinstance(value, int) else 0 for value in values] if others else values
        token, leaving = self.leaving
        ends = [token, runs(leaving), runs(self.ended)]
        head = json.dumps([self.epoch, self.batch, scopes, counts, list(others.items()), ends]).encode()
        columns = np.array([ids, numbers], dtype="<u8")
        return b"".join((_LENGTH.pack(len(head)), head, columns.tobytes()))


class DecodedNotice(NamedTuple):
    """A notice as a worker takes it; the fields are those of :class:`Notice`, and the references flat."""

    epoch: int
    """The number of the query's start."""
    batch: int
    """The last committed batch."""
    references: dict[StreamKey, Reference | None]
    """The changed references, or all of them; None for a stream that is forgotten."""
    leaving: tuple[str, frozenset[StreamKey]]
    """The token of the streams that are forgotten next, and these streams."""
    ended: tuple[StreamKey, ...]
    """Streams of which the driver has recorded the end since the last notice."""

    @property
    def known(self) -> dict[StreamKey, Reference]:
        """The references without the streams that are forgotten."""
        return {key: reference for key, reference in self.references.items() if reference is not None}


def decode(body: bytes) -> DecodedNotice:
    """Decode the bytes of a notice."""
    (length,) = _LENGTH.unpack_from(body)
    begin = _LENGTH.size + length
    epoch, batch, scopes, counts, others, ends = json.loads(body[_LENGTH.size : begin])
    columns = np.frombuffer(body, "<u8", offset=begin).reshape(2, -1)
    ids: list[int] = columns[0].tolist()
    values: list[Reference | None] = columns[1].tolist()
    for at, value in others:
        values[at] = value
    references: dict[StreamKey, Reference | None] = {}
    at = 0
    for scope, count in zip(scopes, counts, strict=True):
        for stream_id, value in zip(ids[at : at + count], values[at : at + count], strict=True):
            references[StreamKey(scope, stream_id)] = value
        at += count
    token, leaving, ended = ends
    return DecodedNotice(epoch, batch, references, (token, frozenset(keys(leaving))), tuple(keys(ended)))
