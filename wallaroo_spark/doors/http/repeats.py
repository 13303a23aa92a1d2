"""Requests without a token that come again: recognised by ``Idempotency-Key``, by source and id of a CloudEvent, or by
the whole body of an OTLP request.

They are known for a while, and to this worker alone: after its death they are new. Pure.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from wallaroo_spark.doors.client import DoorStream, Messages

REMEMBERED = 100_000
"""Identities that are remembered. A choice: some 30 MiB at most."""


class Repeats:
    """The identities of the messages that were accepted lately."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[str, str, str], tuple[DoorStream, int, float]] = OrderedDict()

    def known(self, instance: str, stream: str, identity: str, now: float = 0.0) -> int | None:
        """The reference under which a message is in the worker or committed; None when it is new.

        A message whose session has ended before its commit is new, because it may be lost.
        """
        found = self._seen.get((instance, stream, identity))
        if found is None or found[2] <= now:
            return None
        sent, reference, _ = found
        return reference if sent.alive or sent.has(reference) else None

    def remember(
        self,
        instance: str,
        stream: DoorStream,
        identities: Sequence[str],
        references: Sequence[int],
        until: float = math.inf,
    ) -> None:
        """Messages were accepted under these references, and are known until then, on the clock of ``known``."""
        for identity, reference in zip(identities, references, strict=True):
            key = (instance, stream.name, identity)
            self._seen[key] = (stream, reference, until)
            self._seen.move_to_end(key)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)


def without(messages: Messages, places: Sequence[int]) -> Messages:
    """The messages at other places than these."""
    gone = set(places)
    kept = [at for at in range(len(messages)) if at not in gone]
    keys, times = messages.keys, messages.event_times
    return Messages(
        [messages.values[at] for at in kept],
        None if keys is None else [keys[at] for at in kept],
        None if times is None else [times[at] for at in kept],
    )
