"""The call ``plan`` on a worker's inner port: the question, the answer, and their bytes.

A planner knows the start of a batch in each of a million streams, and a worker holds rows of a few of them. So the
question names the starts of those streams alone of which the worker may not know it, and the answer has those streams
alone in which there is something to read, each with the start that the worker has assumed: the committed reference,
where the question named none. The planner compares that with the start that Spark handed to it, and asks again for
streams in which they differ. So no answer is taken that assumes another start, and neither side has to remember a
version of the other. Source: ``docs/decisions/planning-costs-what-is-active.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wallaroo_spark.references import Reference, StreamKey, nest

Starts = Mapping[StreamKey, Reference | None]
"""Where a batch starts in some streams; None where a stream is read from its beginning."""


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
    """How far may a batch go?"""

    starts: Starts = field(default_factory=dict)
    """Where the batch starts in streams whose committed reference the worker may not know yet."""
    max_rows: int | None = None
    """The most rows of all streams together; None for no limit."""
    max_bytes: int | None = None
    """The most bytes of all streams together; None for no limit."""

    def encode(self) -> bytes:
        """The question as :meth:`decode` takes it."""
        return _dump(
            {"of": _runs(self.starts), "starts": list(self.starts.values()), "most": [self.max_rows, self.max_bytes]}
        )

    @classmethod
    def decode(cls, data: bytes) -> PlanQuestion:
        """The question that :meth:`encode` has encoded."""
        body = json.loads(data)
        return cls(dict(zip(_keys(body["of"]), body["starts"], strict=True)), *body["most"])


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What one worker offers to a batch."""

    offers: Mapping[StreamKey, StreamOffer] = field(default_factory=dict)
    """The streams in which there is something to read, within the limits of the question."""
    rows: int = 0
    """The rows that it would offer without limits."""
    size: int = 0
    """The bytes that it would offer without limits."""
    unknown: Sequence[StreamKey] = ()
    """Streams with rows of which nothing can be said before the question names their start."""
    uncommitted: Sequence[StreamKey] = ()
    """Streams whose start the question had to name: it differs from their committed reference here."""
    version: int = 0
    """The version of the buffer to which the answer belongs."""

    @property
    def ends(self) -> dict[str, dict[str, Reference]]:
        """The ends of the offered streams, nested."""
        return nest({key: offer.end for key, offer in self.offers.items()})

    def encode(self) -> bytes:
        """The answer as :meth:`decode` takes it."""
        columns = [list(column) for column in zip(*self.offers.values(), strict=True)]
        body = {"of": _runs(self.offers), "offers": columns, "whole": [self.rows, self.size], "version": self.version}
        return _dump({**body, "unknown": _runs(self.unknown), "uncommitted": _runs(self.uncommitted)})

    @classmethod
    def decode(cls, data: bytes) -> PlanAnswer:
        """The answer that :meth:`encode` has encoded."""
        body = json.loads(data)
        offers = map(StreamOffer._make, zip(*body["offers"], strict=True))
        found = dict(zip(_keys(body["of"]), offers, strict=True))
        rows, size = body["whole"]
        return cls(found, rows, size, _keys(body["unknown"]), _keys(body["uncommitted"]), body["version"])


def encode_starts(starts: Starts) -> bytes:
    """Starts of streams as bytes."""
    return _dump({"of": _runs(starts), "starts": list(starts.values())})


def decode_starts(data: bytes) -> dict[StreamKey, Reference | None]:
    """The starts that :func:`encode_starts` has encoded."""
    body = json.loads(data)
    return dict(zip(_keys(body["of"]), body["starts"], strict=True))


def _dump(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _runs(keys: Iterable[StreamKey]) -> list[tuple[str, list[int]]]:
    """Keys in their order, with each scope named once for the keys of it that follow each other."""
    runs: list[tuple[str, list[int]]] = []
    scope: str | None = None
    ids: list[int] = []
    for key in keys:
        if key[0] != scope:
            scope, ids = key[0], []
            runs.append((scope, ids))
        ids.append(key[1])
    return runs


def _keys(runs: Iterable[tuple[str, list[int]]]) -> list[StreamKey]:
    return [StreamKey(scope, stream_id) for scope, ids in runs for stream_id in ids]
