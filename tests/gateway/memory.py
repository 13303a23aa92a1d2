"""An application in memory that a test may hold, and whose files may hang, fail and be watched."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.documents import Problems, read_declarations
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.testing import fake_application
from wallaroo_spark.yaml_reader import documents_of


def schema_of(text: str, version: int = 1) -> StoredSchema:
    """The schema of YAML documents, each of which is valid by itself. Raises ConfigurationError."""
    problems = Problems()
    found = read_declarations(documents_of(text, "test"), problems)
    problems.refuse()
    return StoredSchema(version, {placed.key: placed.declaration for placed in found})


class MemoryApplication(fake_application.MemoryApplication):
    """An application of YAML documents, whose batches a test may hold."""

    def __init__(self, schema: str) -> None:
        self.seen: list[tuple[PartitionKey, e.Event]] = []
        """Every event that a gateway has written."""
        self.attach = True
        """Whether records are attached to deliveries."""
        self._held = False
        super().__init__(schema_of(schema))

    def hold(self) -> None:
        """Run no batch any more, except by :meth:`run_batch`."""
        with self._turn:
            self._held = True

    def release(self) -> None:
        """Run batches again."""
        with self._turn:
            self._held = False
            self._turn.notify_all()

    def apply(self, schema: str | StoredSchema) -> None:
        """Apply a new version of the schema, which replaces the whole."""
        super().apply(schema_of(schema, self.schema.version + 1) if isinstance(schema, str) else schema)

    def files(self, gateway: str = "g0") -> MemoryFiles:
        """The files as a gateway has them."""
        return MemoryFiles(self, gateway)

    def write(self, events: Sequence[tuple[PartitionKey, e.Event]]) -> int:
        """Add events to the inbox."""
        self.seen += events
        return super().write(events)

    def _waiting(self) -> bool:
        return not self._held and super()._waiting()

    def _attached(self, one: i.ForGateway, table: Sequence[CloudEvent]) -> tuple[CloudEvent, ...] | None:
        return super()._attached(one, table) if self.attach else None


class MemoryFiles(fake_application.MemoryFiles):
    """The files of an application in memory, which may hang and fail."""

    def __init__(self, application: fake_application.MemoryApplication, gateway: str) -> None:
        super().__init__(application, gateway)
        self.reads: list[tuple[str, int, int, int]] = []
        """The ranges that the gateway has read from tables."""
        self.begun = 0
        """Number of files that the gateway has begun to write."""
        self.stuck = threading.Event()
        """While it is clear, writing a file waits."""
        self.stuck.set()
        self.newer = False
        """Whether another process has begun a newer generation."""
        self.failure: Exception | None = None
        """Raised by the next write."""

    def write(self, events: Sequence[tuple[PartitionKey, bytes]]) -> int:
        """Write events to the inbox, and return the number of the file."""
        self.begun += 1
        self.stuck.wait()
        if self.failure is not None:
            raise self.failure
        return super().write(events)

    def superseded(self) -> bool:
        """Whether another process has begun a newer generation."""
        return self.newer

    def read(self, stream: str, partition: int, first: int, last: int) -> tuple[int, Sequence[CloudEvent]]:
        """Records of a partition, and the offset of the first."""
        self.reads.append((stream, partition, first, last))
        return super().read(stream, partition, first, last)


@dataclass
class ServedGateway(fake_application.ServedGateway):
    """A gateway that serves an address, with files that a test watches."""

    files: MemoryFiles


@contextlib.asynccontextmanager
async def serving(
    application: MemoryApplication, name: str = "g0", limits: GatewayLimits | None = None, **fields: Any
) -> AsyncIterator[ServedGateway]:
    """Run a gateway on a port of loopback; ``fields`` are those of the package's function."""
    async with fake_application.serving(application, name, limits, **fields) as found:
        assert isinstance(found.files, MemoryFiles)
        try:
            yield ServedGateway(found.gateway, found.files, found.address, found.failures, found.peers)
        finally:
            found.files.stuck.set()
