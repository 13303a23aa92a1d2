"""The calls to a worker beyond the client: plans, samples of messages, and notices of commits.

Source: ``docs/decisions/acks-from-the-commit-log.md`` and ``docs/decisions/plans-beside-the-checkpoint.md``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from wallaroo_spark.columnar import ROW_SCHEMA
from wallaroo_spark.references import Changes, PlannedRange, Reference, References, StreamKey, nest

K = TypeVar("K")
Starts = Mapping[StreamKey, Reference | None]
"""The references at which a batch starts in some streams; None for a stream that is read from its beginning."""


class StreamOffer(NamedTuple):
    """The rows of one stream that a worker offers to a batch."""

    start: Reference | None
    """The start that the worker has assumed."""
    end: Reference
    """The reference of the last row."""
    rows: int
    """Number of the rows."""
    bytes: int
    """Their bytes, as the worker counts them in its buffer."""


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """The question how far a batch may go."""

    starts: Starts = field(default_factory=dict)
    """The starts of the batch in streams whose committed reference the worker may not know yet."""
    max_rows: int | None = None
    """The most rows of all streams together; None for no limit."""
    max_bytes: int | None = None
    """The most bytes of all streams together; None for no limit."""
    behind: int = 0
    """When the plan was made behind which the batch starts, by the plans' clock; 0 where plans have no time."""

    def encode(self) -> bytes:
        """The question as :meth:`decode` takes it."""
        return _dump(
            {
                "of": runs(self.starts),
                "starts": list(self.starts.values()),
                "most": [self.max_rows, self.max_bytes],
                "behind": self.behind,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> PlanQuestion:
        """The question that :meth:`encode` has encoded."""
        body = json.loads(data)
        max_rows, max_bytes = body["most"]
        starts = dict(zip(keys(body["of"]), body["starts"], strict=True))
        return cls(starts, max_rows, max_bytes, body.get("behind", 0))


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The rows that one worker offers to a batch."""

    offers: Mapping[StreamKey, StreamOffer] = field(default_factory=dict)
    """The streams in which there are rows to read, within the limits of the question."""
    rows: int = 0
    """The number of rows that the worker would offer without limits."""
    size: int = 0
    """The bytes that the worker would offer without limits."""
    unknown: Sequence[StreamKey] = ()
    """Streams with rows that the worker cannot offer before the question names their start."""
    uncommitted: Sequence[StreamKey] = ()
    """Streams whose start a question must name, because it differs from their committed reference at the worker."""
    ended: Mapping[StreamKey, Reference] = field(default_factory=dict)
    """Streams that end at this reference, of which no notice has told that the driver knows it."""
    leaving: str = ""
    """The token of the leaving streams that the worker was told of last; empty when there are none."""
    wanted: Sequence[StreamKey] = ()
    """Leaving streams that a connector sends here, or has asked for."""

    @property
    def ends(self) -> dict[str, dict[str, Reference]]:
        """The ends of the offered streams, nested."""
        return nest({key: offer.end for key, offer in self.offers.items()})

    def encode(self) -> bytes:
        """The answer as :meth:`decode` takes it."""
        columns = [list(column) for column in zip(*self.offers.values(), strict=True)]
        body = {"of": runs(self.offers), "offers": columns, "whole": [self.rows, self.size]}
        ends = [runs(self.ended), list(self.ended.values()), self.leaving, runs(self.wanted)]
        return _dump({**body, "unknown": runs(self.unknown), "uncommitted": runs(self.uncommitted), "ends": ends})

    @classmethod
    def decode(cls, data: bytes) -> PlanAnswer:
        """The answer that :meth:`encode` has encoded."""
        body = json.loads(data)
        offers = map(StreamOffer._make, zip(*body["offers"], strict=True))
        found = dict(zip(keys(body["of"]), offers, strict=True))
        rows, size = body["whole"]
        of, references, leaving, wanted = body["ends"]
        ended = dict(zip(keys(of), references, strict=True))
        unknown, uncommitted = keys(body["unknown"]), keys(body["uncommitted"])
        return cls(found, rows, size, unknown, uncommitted, ended, leaving, tuple(keys(wanted)))


def shares(
    offered: Mapping[K, tuple[int, int]], max_rows: int | None, max_bytes: int | None
) -> dict[K, tuple[int | None, int | None]]:
    """The most rows and bytes of each part of a batch, in proportion to the rows and bytes that it has offered.

    Parts that have offered no rows are left out. The result is empty when all offers together are within the limits.
    """
    rows, size = (sum(column) for column in zip(*offered.values(), strict=True)) if offered else (0, 0)
    row_limit = max_rows if max_rows is not None and rows > max_rows else None
    byte_limit = max_bytes if max_bytes is not None and size > max_bytes else None
    if row_limit is None and byte_limit is None:
        return {}
    return {
        part: (_share(row_limit, mine, rows), _share(byte_limit, my_bytes, size))
        for part, (mine, my_bytes) in offered.items()
        if mine
    }


def _share(limit: int | None, part: int, whole: int) -> int | None:
    return None if limit is None else max(1, limit * part // max(1, whole))


def encode_starts(starts: Starts) -> bytes:
    """Starts of streams as bytes."""
    return _dump({"of": runs(starts), "starts": list(starts.values())})


def decode_starts(data: bytes) -> dict[StreamKey, Reference | None]:
    """The starts that :func:`encode_starts` has encoded."""
    body = json.loads(data)
    return dict(zip(keys(body["of"]), body["starts"], strict=True))


def _dump(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def runs(keys: Iterable[StreamKey]) -> list[tuple[str, list[int]]]:
    """Keys in their order; consecutive keys of one scope share one entry with the scope's name."""
    return [(scope, [key[1] for key in run]) for scope, run in groupby(keys, itemgetter(0))]


def keys(runs: Iterable[tuple[str, list[int]]]) -> list[StreamKey]:
    """The keys of which :func:`runs` has made this."""
    return [StreamKey(scope, stream_id) for scope, ids in runs for stream_id in ids]


MOST_ROWS = 1000
"""Most rows of one sample. A choice that bounds the answer."""
MOST_BYTES = 1 << 20
"""Bytes of keys and payloads after which no further stream is added to a sample. A choice."""
LONGEST_CUT = 64 << 10
"""Most bytes of one payload in a sample. A choice."""
MOST_WAIT = 5.0
"""Longest wait of one question, in seconds; a caller asks again. A choice."""
SAMPLE_SCHEMA = ROW_SCHEMA.append(pa.field("size", pa.int64()))
"""The rows of Spark, and the size of the payload, which may be cut."""
_CURSOR = b"cursor"


@dataclass(frozen=True)
class SampleQuestion:
    """Which messages a caller wants to see."""

    stream: str
    """The name or the id of the stream; ``*`` for all streams."""
    instance: str = ""
    """The connector instance; empty for all."""
    rows: int = 100
    """Most messages; at most :data:`MOST_ROWS` are given."""
    cut: int = 4096
    """Bytes behind which keys and payloads are cut; at most :data:`LONGEST_CUT`."""
    wait: float = 0.0
    """Seconds to wait for a message; at most :data:`MOST_WAIT`."""
    cursor: Mapping[StreamKey, int] = field(default_factory=dict)
    """The cursor of the sample before, behind which the messages are new."""

    def encode(self) -> bytes:
        """The question as :meth:`decode` takes it."""
        return json.dumps({**vars(self), "cursor": _listed(self.cursor)}).encode()

    @classmethod
    def decode(cls, body: bytes) -> SampleQuestion:
        """The question of these bytes, within the limits."""
        given = json.loads(body)
        return cls(
            str(given["stream"]),
            str(given["instance"]),
            max(1, min(int(given["rows"]), MOST_ROWS)),
            max(0, min(int(given["cut"]), LONGEST_CUT)),
            max(0.0, min(float(given["wait"]), MOST_WAIT)),
            _cursor(given["cursor"]),
        )


@dataclass(frozen=True)
class MessageSample:
    """Copies of some messages that a worker holds."""

    rows: pa.Table
    """The messages, with the columns of :data:`SAMPLE_SCHEMA`."""
    cursor: Mapping[StreamKey, int]
    """For each stream in question the position behind the messages that were there."""

    def encode(self) -> bytes:
        """The sample as :meth:`decode` takes it."""
        rows = self.rows.replace_schema_metadata({_CURSOR: json.dumps(_listed(self.cursor))})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded

    @classmethod
    def decode(cls, body: bytes) -> MessageSample:
        """The sample of these bytes."""
        rows = pa.ipc.open_stream(body).read_all()
        return cls(rows, _cursor(json.loads(rows.schema.metadata[_CURSOR])))


def _listed(cursor: Mapping[StreamKey, int]) -> list[tuple[str, str, int]]:
    """Stream ids as text, because many JSON readers round a u64."""
    return [(key.scope, str(key.stream_id), position) for key, position in cursor.items()]


def _cursor(listed: list[tuple[str, str, int]]) -> dict[StreamKey, int]:
    return {StreamKey(scope, int(stream_id)): int(position) for scope, stream_id, position in listed}


@dataclass(frozen=True, slots=True)
class FollowedScopes:
    """A worker's answer to the driver: the scopes whose committed references it needs."""

    cursor: int
    """The number of the last scope that began to be followed; the driver names it in its next question and notices."""
    new: Sequence[str]
    """The scopes that began to be followed since the last question, all of whose references the worker needs."""
    kept: Sequence[str] | None
    """The scopes that were followed before; None where the question did not ask for them."""
    count: int
    """The number of all followed scopes."""
    give_up: Sequence[PlannedRange] = ()
    """Ranges in new scopes that the worker gives up once it is told that this is recorded."""

    def encode(self) -> bytes:
        """The answer as :meth:`decode` takes it."""
        give_up = [planned.to_json() for planned in self.give_up]
        return _dump([self.cursor, self.new, self.kept, self.count, give_up])

    @classmethod
    def decode(cls, data: bytes) -> FollowedScopes:
        """The answer that :meth:`encode` has encoded."""
        cursor, new, kept, count, give_up = json.loads(data)
        return cls(cursor, new, kept, count, tuple(map(PlannedRange.from_json, give_up)))


COMMITTED = "committed"
"""The action of a notice with the references that have changed since an earlier notice to the same worker."""
REWIND = "rewind"
"""The action of a notice with all references that a worker needs, from which the query continues."""
_LENGTH = struct.Struct(">I")
"""The length of the JSON head, before it."""


@dataclass(frozen=True)
class Notice:
    """One notice of the query's position to one worker, with the references of the scopes that it follows."""

    action: str
    """:data:`COMMITTED` or :data:`REWIND`."""
    epoch: int
    """The number of the query's start; it increases with each start."""
    batch: int
    """The last committed batch; -1 before the first."""
    references: Changes = field(repr=False)
    """The changed references, nested; None for a stream that is forgotten."""
    whole: References = field(default_factory=dict, repr=False)
    """All references of some scopes; these scopes are not in ``references``."""
    cursor: int = 0
    """The number of the last scope of which the driver has heard from the worker."""
    leaving: tuple[str, Sequence[StreamKey]] = ("", ())
    """The token of the streams that are forgotten next, and these streams."""
    ended: Sequence[StreamKey] = ()
    """Streams of which the driver has recorded the end since the last notice."""
    given_up: Sequence[PlannedRange] = ()
    """The recorded ranges of the scopes in ``whole`` that were given up."""

    @cached_property
    def body(self) -> bytes:
        """The notice as :func:`decode` takes it."""
        scopes = [*self.references, *self.whole]
        parts = [*self.references.values(), *self.whole.values()]
        counts = [len(streams) for streams in parts]
        ids = [int(stream) for streams in parts for stream in streams]
        values = [reference for streams in parts for reference in streams.values()]
        # Few references are texts, which ephemeral streams have, or None.
        others = {at: value for at, value in enumerate(values) if not isinstance(value, int)}
        numbers = [value if isinstance(value, int) else 0 for value in values] if others else values
        token, leaving = self.leaving
        ends = [token, runs(leaving), runs(self.ended), [planned.to_json() for planned in self.given_up]]
        position = [self.epoch, self.batch, self.cursor, len(self.references)]
        head = _dump([position, scopes, counts, list(others.items()), ends])
        columns = np.array([ids, numbers], dtype="<u8")
        return b"".join((_LENGTH.pack(len(head)), head, columns.tobytes()))


class DecodedNotice(NamedTuple):
    """A notice as a worker takes it; the fields are those of :class:`Notice`, and the references flat."""

    epoch: int
    """The number of the query's start."""
    batch: int
    """The last committed batch."""
    references: dict[StreamKey, Reference | None]
    """The changed references, and all those of ``scopes``; None for a stream that is forgotten."""
    scopes: Sequence[str]
    """The scopes of which it has all references."""
    cursor: int
    """The number of the last scope of which the driver has heard from the worker."""
    leaving: tuple[str, frozenset[StreamKey]]
    """The token of the streams that are forgotten next, and these streams."""
    ended: tuple[StreamKey, ...]
    """Streams of which the driver has recorded the end since the last notice."""
    given_up: tuple[PlannedRange, ...]
    """The recorded ranges of ``scopes`` that were given up."""


def decode(body: bytes) -> DecodedNotice:
    """Decode the bytes of a notice."""
    (length,) = _LENGTH.unpack_from(body)
    begin = _LENGTH.size + length
    position, scopes, counts, others, ends = json.loads(body[_LENGTH.size : begin])
    epoch, batch, cursor, changed = position
    columns = np.frombuffer(body, "<u8", offset=begin).reshape(2, -1)
    ids: list[int] = columns[0].tolist()
    values: list[Reference | None] = columns[1].tolist()
    for at, value in others:
        values[at] = value
    owners = (scope for scope, count in zip(scopes, counts, strict=True) for _ in range(count))
    flat = zip(owners, ids, values, strict=True)
    references = {StreamKey(scope, stream_id): value for scope, stream_id, value in flat}
    token, leaving, ended, given_up = ends
    left = token, frozenset(keys(leaving))
    ranges = tuple(map(PlannedRange.from_json, given_up))
    return DecodedNotice(epoch, batch, references, scopes[changed:], cursor, left, tuple(keys(ended)), ranges)
