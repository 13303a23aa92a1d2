"""How long committed rows were held: a histogram of the seconds from the arrival of a message to its acknowledgement.

Source: ``docs/architecture.md#rules``, rule 8.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

ACK_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the buckets, in seconds.

They lie around the latencies that ``docs/performance.md`` measures (0.1 to 2 s), up to sinks that take minutes.
"""
AGE, AGE_SUM = "ack-age:", "ack-age-us"
"""Names in a worker's counts: ``ack-age:0.05`` counts the rows of a bucket, ``ack-age-us`` sums all ages."""

_BOUNDS = np.array([seconds * 1e6 for seconds in ACK_SECONDS])
_NAMES = (*(f"{AGE}{bound:g}" for bound in ACK_SECONDS), f"{AGE}+Inf")


class CommitAges:
    """The rows that were committed since the last :meth:`take`, with the times at which they were received."""

    def __init__(self) -> None:
        self.rows = 0
        self._received: list[NDArray[np.int64]] = []
        self._counts: list[NDArray[np.int64]] = []

    def add(self, received: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Rows were committed: ``counts`` of them were received at ``received``, in µs since 1970 UTC."""
        self.rows += int(counts.sum())
        self._received.append(received)
        self._counts.append(counts)

    def take(self, counts: Counter[str], now: int | None) -> None:
        """Add the rows to a worker's counts, and forget them.

        ``now`` is in µs since 1970 UTC; None: their ages are not counted.
        """
        rows, self.rows = self.rows, 0
        received, self._received = self._received, []
        weights, self._counts = self._counts, []
        counts["committed"] += rows
        if not rows or now is None:
            return
        ages = np.maximum(now - np.concatenate(received), 0)
        weight = np.concatenate(weights)
        found = np.bincount(np.searchsorted(_BOUNDS, ages), weights=weight, minlength=len(_NAMES))
        for name, count in zip(_NAMES, found.tolist(), strict=True):
            if count:
                counts[name] += int(count)
        counts[AGE_SUM] += int((ages * weight).sum())
