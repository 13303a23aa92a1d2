"""The files of an application's folder for one gateway; see :class:`~wallaroo_spark.gateway.files.ApplicationFiles`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wallaroo_spark.checkpoint import CheckpointFiles, CommitFollower
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.gateway.files import Message
from wallaroo_spark.gateway.token_store import TokenStore
from wallaroo_spark.gateway.tokens import KeptToken
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.inbox import InboxWriter, positions_of
from wallaroo_spark.streams.places import checkpoint_for_tasks
from wallaroo_spark.streams.tables.stream_table import TableReader


class FolderFiles:
    """The files of the application in ``folder``, as a task opens it, for the gateway of a name.

    ``fsync``: see :class:`CheckpointFiles`.
    """

    def __init__(self, folder: Location, gateway: str, *, fsync: bool = False) -> None:
        self._folder = folder
        self._gateway = gateway
        self._inbox = InboxWriter(folder, gateway)
        self._outputs = BatchOutputs(folder)
        self._tables = TableReader(folder)
        self._schema = SchemaStore(folder)
        self._tokens = TokenStore(folder)
        self._checkpoint = CheckpointFiles(checkpoint_for_tasks(folder), fsync=fsync)
        self._commits = CommitFollower(self._checkpoint)

    def open(self) -> int:
        """Begin a new generation of the inbox, behind what the checkpoint has read of it."""
        offsets = self._checkpoint.newest_offsets()
        read = positions_of(offsets[0]["inbox"]).get(self._gateway) if offsets else None
        return self._inbox.open(read)

    def write(self, events: Sequence[tuple[PartitionKey, bytes]]) -> int:
        """Write one file of the inbox."""
        return self._inbox.write(events)

    def superseded(self) -> bool:
        """Whether another process has begun a newer generation."""
        return self._inbox.superseded()

    def committed(self) -> int | None:
        """The newest committed batch."""
        return self._checkpoint.committed()

    def await_commit(self) -> None:
        """Wait for half a second at most until there may be another commit."""
        self._commits.wait()

    def read_to(self, batch: int) -> int:
        """The number of the newest file of this generation that batches up to a committed one have read; 0: none."""
        offsets = self._checkpoint.source_offsets(batch)
        at = positions_of(offsets[0]["inbox"]).get(self._gateway) if offsets else None
        return at.sequence if at is not None and at.generation == self._inbox.generation else 0

    def messages(self, batch: int) -> Sequence[Message]:
        """The messages of a committed batch."""
        return self._outputs.messages(batch, self._gateway)

    def read(self, stream: str, partition: int, first: int, last: int) -> tuple[int, Sequence[CloudEvent]]:
        """Records of a partition. Raises :class:`PipelineError` when some are missing that are not expired."""
        key = PartitionKey(stream, partition)
        found, records = self._tables.read(key, first, last)
        if found <= last and found + len(records) <= last:
            oldest = self._tables.oldest(key)
            if records or (oldest is not None and oldest <= last):
                raise PipelineError(
                    f"{key}: of the records {first} to {last} only {len(records)} from {found} on are "
                    "there; restore the application's folder",
                    code="pipeline-records-missing",
                )
        # Where all of them have expired, the first one that may be there is behind the range.
        return found if records else max(found, last + 1), records

    def schema(self, known: int) -> StoredSchema | None:
        """The newest schema, unless it is of the version ``known``."""
        newest = self._schema.newest_version()
        return self._schema.version(newest) if newest != known else None

    def tokens(self) -> Mapping[str, KeptToken]:
        """The kept tokens."""
        return self._tokens.list()
