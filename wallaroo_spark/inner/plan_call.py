"""The call ``plan`` on a worker's inner port: the question, the answer, and their bytes.

A planner may know the starts of a million streams, while a worker holds rows of a few of them. So the question names
only the starts that the worker may not know, and the answer has only the streams in which there are rows to read. Each
of these streams comes with the start that the worker has assumed: the start in the question, otherwise the committed
reference. The planner compares it with the start that Spark gave, and asks again for the streams in which they differ.
So no answer is used that assumes a wrong start, and neither side has to remember a version of the other side's state.
Source: ``docs/decisions/planning-costs-what-is-active.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wallaroo_spark.references import Reference, StreamKey, nest

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
    runs: list[tuple[str, list[int]]] = []
    scope: str | None = None
    ids: list[int] = []
    for key in keys:
        if key[0] != scope:
            scope, ids = key[0], []
            runs.append((scope, ids))
        ids.append(key[1])
    return runs


def keys(runs: Iterable[tuple[str, list[int]]]) -> list[StreamKey]:
    """The keys of which :func:`runs` has made this."""
    return [StreamKey(scope, stream_id) for scope, ids in runs for stream_id in ids]
