"""The files of an application as a gateway uses them. All calls block.

:class:`ApplicationFiles` is the interface, so that tests have an application in memory; :class:`FolderFiles` are a
folder's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from wallaroo_spark.checkpoint import CheckpointFiles, CommitFollower
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.gateway.limits import Refused
from wallaroo_spark.gateway.tokens import KeptToken, TokenStore
from wallaroo_spark.pipelines.controller.messages.instructions import Instruction
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.storage.locations import Location, within
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.inbox import InboxWriter, positions_in
from wallaroo_spark.streams.places import CHECKPOINT
from wallaroo_spark.streams.stream_table import TableReader

T = TypeVar("T")
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


class FolderFiles:
    """The files of the application in ``folder``, as a task opens it, for the gateway of a name.

    ``fsync``: see :class:`CheckpointFiles`.
    """

    def __init__(self, folder: Location, gateway: str, *, fsync: bool = False) -> None:
        self._gateway = gateway
        self._inbox = InboxWriter(folder, gateway)
        self._outputs = BatchOutputs(folder)
        self._tables = TableReader(folder)
        self._schema = SchemaStore(folder)
        self._checkpoint = CheckpointFiles(within(folder, CHECKPOINT), fsync=fsync)
        self._commits = CommitFollower(self._checkpoint)
        self._tokens = TokenStore(folder)
        self.write, self.superseded = self._inbox.write, self._inbox.superseded
        self.committed = self._checkpoint.committed

    def open(self) -> int:
        """Begin a new generation of the inbox, behind what the checkpoint has read of it."""
        return self._inbox.open(positions_in(self._checkpoint.newest_offsets()).get(self._gateway))

    def await_commit(self) -> None:
        """Wait for half a second at most until there may be another commit."""
        self._commits.wait()

    def read_to(self, batch: int) -> int:
        """The number of the newest file of this generation that batches up to a committed one have read; 0: none."""
        at = positions_in(self._checkpoint.source_offsets(batch)).get(self._gateway)
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


MOST_READS = 32
"""The most calls at once, beside the one that writes the inbox. The event loop's own pool has as many."""


class FileCalls:
    """Makes calls that block, each in a thread of its own and for at most ``seconds``.

    A hung network mount answers no call. The threads are no part of the event loop's pool: one that never ends would
    hold up the others, and the end of the gateway.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._room = asyncio.Semaphore(MOST_READS)

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a call once fewer than ``MOST_READS`` others run. It raises as :meth:`call`."""
        async with self._room:
            return await self.call(function, *arguments)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a call. Raises its error, and :class:`Refused` when it does not return in time."""
        running: concurrent.futures.Future[T] = concurrent.futures.Future()
        running.set_running_or_notify_cancel()

        def run() -> None:
            try:
                running.set_result(function(*arguments))
            except BaseException as error:
                running.set_exception(error)

        threading.Thread(target=run, name="wallaroo-gateway-files", daemon=True).start()
        done = asyncio.wrap_future(running)
        try:
            await asyncio.wait([done], timeout=self._seconds)
            if done.done():
                return done.result()
        finally:
            # Nobody waits any more, and the loop may end before the call does.
            done.cancel()
        name = getattr(function, "__name__", "a call")
        raise Refused(
            f"the file system of the application's folder has not answered for {self._seconds:g} seconds "
            f"({name}); check that it is mounted and reachable from this machine",
            code="folder-silent",
        )
