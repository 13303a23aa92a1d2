"""References of ephemeral streams: the buffer in which one is valid, and the position of a stream that changes buffers.

Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """The buffer for which ephemeral references are valid."""

    slot: int
    generation: int

    def reference(self, position: int) -> str:
        """The reference of an ephemeral stream at a position of this buffer."""
        return f"e:{self.slot}:{self.generation}:{position}"

    def position(self, reference: str) -> int | None:
        """The position in a reference; None when the reference is of another buffer."""
        kind, slot, generation, position = reference.split(":")
        return int(position) if (kind, int(slot), int(generation)) == ("e", self.slot, self.generation) else None

    def same_slot(self, reference: str) -> bool:
        """Whether a reference is of this slot. Only this slot can report that its rows are gone."""
        return int(reference.split(":")[1]) == self.slot


class Passage:
    """How far an ephemeral stream has been read here; needed when it continues in another buffer and comes back.

    A batch is planned when the one before it is committed. So where a batch starts behind a reference of another
    buffer, everything that was read here before is committed, even if this worker was never told so.
    """

    def __init__(self, position: int) -> None:
        self._read = position
        self._elsewhere: tuple[str, int] | None = None

    def was_read(self, position: int) -> None:
        """A planned range up to this position was delivered."""
        self._read = max(self._read, position)

    def behind(self, reference: str) -> int:
        """The position behind a reference of another buffer; the same on each call."""
        if self._elsewhere is None or self._elsewhere[0] != reference:
            self._elsewhere = (reference, self._read)
        return self._elsewhere[1]
