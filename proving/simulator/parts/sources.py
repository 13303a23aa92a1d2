"""What connectors send: streams that can be told again, and say which message is which."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from wallaroo_spark.protocol import Flags, Message
from wallaroo_spark.references import StreamKey


@dataclass
class Source:
    """A stream as its program has it: all of its messages, of which the first ``produced`` exist by now.

    Of an ephemeral one the first ``spent`` were sent, and are not sent again.
    """

    key: StreamKey
    name: str
    ids: list[int]
    sizes: list[int]
    flags: list[Flags]
    ephemeral: bool = False
    ends: bool = False
    produced: int = 0
    spent: int = 0
    index: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = {message_id: at for at, message_id in enumerate(self.ids)}

    @property
    def stream_id(self) -> int:
        """Its id on the wire."""
        return self.key.stream_id

    @property
    def complete(self) -> bool:
        """Whether there will be no more messages."""
        return self.produced == len(self.ids)

    def after(self, reference: int | None) -> int:
        """The place behind a reference."""
        return 0 if reference is None else self.index[reference] + 1

    def payload(self, at: int) -> bytes | None:
        """The payload of a message; None for a boundary."""
        if self.flags[at] & Flags.BOUNDARY:
            return None
        return f"{self.name} {at} ".encode() + b"x" * self.sizes[at]

    def message(self, at: int) -> Message:
        """A message as it goes over the wire."""
        return Message(self.stream_id, self.ids[at], self.payload(at), self.flags[at])

    def stable(self, at: int) -> bool:
        """Whether a batch may end behind a message."""
        return not self.flags[at] & Flags.UNSTABLE_REFERENCE or (self.ends and at == len(self.ids) - 1)


def make_source(random: random.Random, key: StreamKey, name: str, *, draft: bool, opaque: bool, large: bool) -> Source:
    """A stream of up to fifty messages; its last one can be resumed from, unless the stream ends there."""
    count = random.randint(1, 50)
    at, ids = 0, []
    for _ in range(count):
        at += random.choice((1, 1, 1, 2, 7))
        ids.append(at)
    if opaque:
        random.shuffle(ids)
    sizes = [random.choice((0, 100, 40_000) if large else (0, 5, 50, 300)) for _ in ids]
    ephemeral = draft and random.random() < 0.12
    ends = not ephemeral and random.random() < 0.5
    flags = [Flags.EPHEMERAL if ephemeral else Flags.NONE] * count
    if draft and not ephemeral and random.random() < 0.35:
        for place in range(count - (0 if ends else 1)):
            flags[place] |= random.choice((Flags.NONE, Flags.UNSTABLE_REFERENCE, Flags.UNSTABLE_REFERENCE))
    if draft and not ephemeral and random.random() < 0.3:
        for place in range(count):
            flags[place] |= random.choice((Flags.NONE, Flags.NONE, Flags.BOUNDARY))
    return Source(key, name, ids, sizes, flags, ephemeral, ends)
