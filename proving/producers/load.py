"""What the programs of Python's clients send, and when."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST = 200
"""The most messages of a request. A choice."""


@dataclass(frozen=True)
class Load:
    """The arguments of a program."""

    bootstrap: str
    topic: str
    client_id: str
    first: int
    count: int
    rate: float = 0.0
    """Messages a second; 0: as fast as it goes."""
    codec: str = ""
    password: str = ""
    ca: str = ""
    value_bytes: int = 0
    key: str | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set: no further record of a Kafka client is sent."""

    def record_key(self) -> bytes | None:
        """The key of every record of a Kafka client."""
        key = self.client_id if self.key is None else self.key
        return key.encode() or None

    def value(self, number: int) -> bytes:
        """The value of such a record."""
        return b"%0*d" % (self.value_bytes, number)

    def due(self) -> Iterator[tuple[int, float]]:
        """The numbers of the messages, each with the seconds to wait before it is sent."""
        begun = time.monotonic()
        for sent in range(self.count):
            if self.over.is_set():
                return
            wait = begun + sent / self.rate - time.monotonic() if self.rate else 0.0
            yield self.first + sent, max(0.0, wait)

    def requests(self) -> Iterator[range]:
        """The numbers of each request's messages: those that are due when the one before has been answered."""
        begun = time.monotonic()
        sent = 0
        while sent < self.count:
            due = min(self.count, 1 + int((time.monotonic() - begun) * self.rate)) if self.rate else self.count
            if due <= sent:
                time.sleep(max(0.0, begun + sent / self.rate - time.monotonic()))
                continue
            chosen = range(sent, min(due, sent + MOST))
            yield range(self.first + chosen.start, self.first + chosen.stop)
            sent = chosen.stop

    def tell(self, numbers: range, failure: str) -> None:
        """Print what became of a request; ``failure`` is empty for success."""
        for number in numbers:
            print(f"failed {number} {failure}" if failure else f"acked {number}", flush=True)


def load_of(parser: argparse.ArgumentParser) -> Load:
    """The load of the command line; fields that a client has beside the common ones are arguments of its parser."""
    for name in ("bootstrap", "topic", "client-id"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("first", "count"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--password", default="")
    given = vars(parser.parse_args())
    return Load(**{name: given[name] for name in Load.__dataclass_fields__ if name in given})
