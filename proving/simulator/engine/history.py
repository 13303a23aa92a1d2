"""The events of a history, one line each: the last lines for readers, a digest of all to compare histories."""

from __future__ import annotations

import hashlib
from collections import Counter, deque

SHOWN = 60


class History:
    """The lines of one history. Equal histories have the same ``digest``; ``counts`` has the faults by name."""

    def __init__(self, *, verbose: bool = False, shown: int = SHOWN) -> None:
        self.counts: Counter[str] = Counter()
        self._verbose = verbose
        self._last: deque[str] = deque(maxlen=shown)
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, now: float, who: str, text: str) -> None:
        """Add a line."""
        line = f"{now:9.4f}  {who:<12} {text}"
        self._last.append(line)
        self._hash.update(line.encode())
        if self._verbose:
            print(line)

    @property
    def digest(self) -> str:
        """A fingerprint of all lines."""
        return self._hash.hexdigest()

    def last_lines(self) -> str:
        """The last lines of the history."""
        return "\n".join(self._last)
