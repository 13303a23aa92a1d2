"""The source's offset, as it stands in Spark's offset log.

Source: ``docs/pipelines/engine.md#the-source``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.streams.inbox import InboxPosition


@dataclass(frozen=True)
class InputOffset:
    """How far the inputs of an application are read. Two equal offsets are the same text in Spark's log."""

    inbox: Mapping[str, InboxPosition] = field(default_factory=lambda: MappingProxyType({}))
    """The last file that is read of each gateway."""
    batch: int = -1
    """The newest batch whose carried messages are read; its manifest has the timers. -1 before the first batch."""
    time: int = 0
    """The time up to which timers are due, in milliseconds since 1970 UTC."""
    schema: int = 0
    """The version of the schema; 0 before the first."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON values."""
        inbox = {gateway: self.inbox[gateway]._asdict() for gateway in sorted(self.inbox)}
        return {"inbox": inbox, "batch": self.batch, "time": self.time, "schema": self.schema}

    @classmethod
    def from_json(cls, value: Any) -> InputOffset:
        """Decode :meth:`to_json`. Raises :class:`CheckpointError` for anything else."""
        try:
            inbox = {
                str(gateway): InboxPosition(int(at["generation"]), int(at["sequence"]))
                for gateway, at in value["inbox"].items()
            }
            return cls(inbox, int(value["batch"]), int(value["time"]), int(value["schema"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the offset {str(value)[:200]} is not one of the source wallaroo_pipelines ({error!r}); restore the "
                "checkpoint, or use the release that wrote it",
                code="checkpoint-damaged",
            ) from error
