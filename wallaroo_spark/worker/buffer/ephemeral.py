"""References of ephemeral streams: the buffer for which a reference is valid, and streams that move between buffers.

Source: ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """The buffer for which ephemeral references are valid."""

    slot: int
    """The slot of its worker."""
    generation: int
    """The generation of the slot's lease."""

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


class ReadPosition:
    """The position up to which an ephemeral stream was read here; needed when it moves to another buffer and back.

    Spark plans a batch when the batch before it is committed. So when a batch starts at a reference of another buffer,
    all rows that were read here before are committed, even if no commit notice has told this worker.
    """

    def __init__(self, position: int) -> None:
        self._read = position
        self._elsewhere: tuple[str, int] | None = None

    def was_read(self, position: int) -> None:
        """Record that a planned range up to this position was delivered."""
        self._read = max(self._read, position)

    def behind(self, reference: str) -> int:
        """The position here that follows a reference of another buffer; each call returns the same position."""
        if self._elsewhere is None or self._elsewhere[0] != reference:
            self._elsewhere = (reference, self._read)
        return self._elsewhere[1]
