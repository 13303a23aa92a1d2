"""The files of an application as a gateway uses them. All calls block.

:class:`ApplicationFiles` is the interface, so that tests have an application in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from wallaroo_spark.gateway.tokens import KeptToken
from wallaroo_spark.pipelines.controller.messages.instructions import Instruction
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.store import StoredSchema

Message = tuple[Instruction, tuple[CloudEvent, ...] | None]
"""An instruction for a gateway, and the records of a delivery where they are attached."""


class ApplicationFiles(Protocol):
    """The files of an application, for one gateway."""

    def open(self) -> int:
        """Begin a new generation of the gateway's inbox, and return its number."""

    def write(self, events: Sequence[tuple[PartitionKey, bytes]]) -> int:
        """Write one file of the inbox durably, and return its number."""

    def superseded(self) -> bool:
        """Whether another process has begun a newer generation, so that nothing of this one is read any more.

        Raises :class:`wallaroo_spark.errors.CheckpointError`, with the code ``inbox-lost`` when the inbox was deleted.
        """

    def committed(self) -> int | None:
        """The newest committed batch."""

    def await_commit(self) -> None:
        """Wait for half a second at most until there may be another commit. Called in a thread."""

    def read_to(self, batch: int) -> int:
        """The number of the newest file of this generation that batches up to a committed one have read; 0: none."""

    def messages(self, batch: int) -> Sequence[Message]:
        """The messages of a committed batch for this gateway, in order for each key."""

    def read(self, stream: str, partition: int, first: int, last: int) -> tuple[int, Sequence[CloudEvent]]:
        """Committed records of a partition, and the offset of the first of them, which retention may have raised."""

    def schema(self, known: int) -> StoredSchema | None:
        """The newest schema; None when it is of the version ``known``."""

    def tokens(self) -> Mapping[str, KeptToken]:
        """The kept tokens, by identifier."""
