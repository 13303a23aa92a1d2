"""The streams that connectors send; each payload names its message."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from wallaroo_spark.protocol import Flags, Message
from wallaroo_spark.references import StreamKey


@dataclass
class Source:
    """A stream of a program with all its messages; the first ``produced`` exist by now."""

    key: StreamKey
    """The stream's identity."""
    name: str
    """Its name, as NOTIFY carries it."""
    ids: list[int]
    """The message ids, in the order of sending."""
    sizes: list[int]
    """The bytes that pad each message's payload."""
    flags: list[Flags]
    """The flags of each message."""
    ephemeral: bool = False
    """Whether the stream is ephemeral: its messages are sent once."""
    ends: bool = False
    """Whether its last message ends the stream."""
    produced: int = 0
    """How many messages exist by now."""
    spent: int = 0
    """How many messages of an ephemeral stream were sent; they are not sent again."""
    index: dict[int, int] = field(default_factory=dict)
    """The index of each message id in ``ids``."""

    def __post_init__(self) -> None:
        self.index = {message_id: at for at, message_id in enumerate(self.ids)}

    @property
    def stream_id(self) -> int:
        """Its id on the wire."""
        return self.key.stream_id

    @property
    def complete(self) -> bool:
        """Whether all messages exist."""
        return self.produced == len(self.ids)

    def after(self, reference: int | None) -> int:
        """The index of the message that follows a reference."""
        return 0 if reference is None else self.index[reference] + 1

    def payload(self, at: int) -> bytes | None:
        """The payload of a message; None for a boundary."""
        if self.flags[at] & Flags.BOUNDARY:
            return None
        return f"{self.name} {at} ".encode() + b"x" * self.sizes[at]

    def message(self, at: int) -> Message:
        """A message in the form that is sent."""
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
