"""Stages prepared rows beside the checkpoint, for stores whose own transactions end with their connection.

The rows of a partition are an Arrow stream in a file, which is complete and on the disk before the transaction counts
as prepared. Commit reads only the files of the transactions in the decision, so the file of a failed task does no harm.
For stores without types, columns are converted to bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.task_access import write_arrow
from wallaroo_spark.sinks.decision_log import ROWS
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.storage.locations import Location, for_tasks, session

_FILE = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.([0-9a-z]{1,32})\.arrow")


def file_of(transaction: Transaction) -> str:
    """The name of a transaction's file in its sink's folder."""
    return f"{transaction.batch}.{transaction.partition}.{transaction.attempt}.arrow"


def transaction_of(sink: str, name: str) -> Transaction | None:
    """Return the transaction of a file by its name; None for a name of another form."""
    match = _FILE.fullmatch(name)
    return Transaction(sink, int(match[1]), int(match[2]), match[3]) if match else None


class StagedRows:
    """The folder ``<checkpoint>/_wallaroo/stages/<sink>``. Picklable: tasks write to it, the driver reads it.

    Methods raise :class:`SinkError` for missing rows, :class:`CheckpointError` when the folder cannot be used.
    """

    def __init__(self, checkpoint: Location, sink: str) -> None:
        self.checkpoint = checkpoint
        self._sink = sink

    def __reduce__(self) -> tuple[type[StagedRows], tuple[Location, str]]:
        return StagedRows, (for_tasks(self.checkpoint, session()), self._sink)

    @cached_property
    def _folder(self) -> SidecarFolder:
        return SidecarFolder(self.checkpoint, ROWS, self._sink, spark=session())

    def identity(self) -> str:
        """Return a random text that identifies this sink of this checkpoint. It is deleted with the checkpoint.

        A store records it together with its last batch, because the batches of a new checkpoint begin at 0 again.
        """
        return self._folder.mark()

    def write(self, transaction: Transaction, rows: Iterable[pa.RecordBatch]) -> Prepared:
        """Write rows of one schema to a file; they are on the disk when this returns."""
        try:
            with self._folder.new_file(file_of(transaction)) as stream:
                written = write_arrow(stream, rows, compression="lz4")
        except OSError as error:
            raise SinkError(
                f"{self._folder.identity}: the rows of {transaction.id} cannot be written: {error}; check that there "
                "is room and that executors may write beside the checkpoint",
                code="checkpoint-unwritable",
                transaction=transaction.id,
            ) from error
        return Prepared(transaction, written)

    def read(self, prepared: Sequence[Prepared]) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of several transactions, in their order. Raises :class:`SinkError` for missing rows."""
        for one in prepared:
            if not one.rows:
                continue
            path = self._folder.file(file_of(one.transaction))
            found = 0
            try:
                with self._folder.filesystem.open_input_stream(path) as stream:
                    for piece in pa.ipc.open_stream(stream):
                        found += piece.num_rows
                        yield piece
            except (OSError, pa.ArrowInvalid) as error:
                raise self._gone(one, found, str(error)) from error
            if found != one.rows:
                raise self._gone(one, found, "the file ends too early")

    def found(self) -> list[Transaction]:
        """Return the transactions that have a file, complete or not."""
        found = (transaction_of(self._sink, name) for name in self._folder.names())
        return [transaction for transaction in found if transaction is not None]

    def drop(self, transactions: Iterable[Transaction]) -> None:
        """Delete the files of transactions; transactions without a file are ignored."""
        for transaction in transactions:
            self._folder.delete(file_of(transaction))

    def clear(self, batch: int) -> None:
        """Delete the files of a batch and of all earlier batches, also those of abandoned tasks."""
        self.drop(transaction for transaction in self.found() if transaction.batch <= batch)

    def _gone(self, prepared: Prepared, found: int, why: str) -> SinkError:
        return SinkError(
            f"sink {self._sink}: {found} of {prepared.rows} rows of {prepared.transaction.id} can be read in "
            f"{self._folder.identity}: {why}; restore that folder together with the checkpoint",
            code="sink-rows-lost",
            transaction=prepared.transaction.id,
            rows=prepared.rows,
            found=found,
        )


@contextmanager
def explained(sink: str, action: str, place: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise errors of writing at a place as :class:`SinkError`; ``action`` is what the sink could not do."""
    try:
        yield
    except errors as error:
        raise SinkError(
            f"sink {sink}: could not {action} in {place}: {error}; check that there is room and that driver and "
            "executors may write there",
            code="sink-write-failed",
            path=place,
        ) from error


def rows_lost(sink: str, one: Prepared, why: str) -> SinkError:
    """An error: prepared rows cannot be committed, because of ``why``."""
    return SinkError(
        f"sink {sink}: the {one.rows} rows of {one.transaction.id} cannot be committed, because {why}; restore it, or "
        "deliver the batch again from an older checkpoint",
        code="sink-rows-lost",
        transaction=one.transaction.id,
    )


def check_newer(where: str, newest: int, batch: int) -> None:
    """Raise :class:`SinkError` where a store has a batch already that is to be written: its rows may be others now."""
    if newest >= batch:
        raise SinkError(
            f"{where} has batch {newest} already, and this is batch {batch}: the query's checkpoint is older than "
            "that; start the query with the newest checkpoint, or give it another name= to write these rows again",
            code="sink-batch-unknown",
            batch=batch,
        )


class StagedSink:
    """What sinks have in common whose rows are staged beside the checkpoint until they are committed."""

    def __init__(self, name: str, checkpoint: str) -> None:
        self.name = name
        self.in_tasks: tuple[str, ...] = (checkpoint,)
        self._stage = StagedRows(checkpoint, name)

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Delete the staged rows."""
        self._stage.drop(transactions)

    def recover(self) -> Sequence[Transaction]:
        """The transactions whose rows are staged."""
        return self._stage.found()


def checked_columns(found: Sequence[str], known: Sequence[str], needed: Sequence[str], where: str) -> None:
    """Raise :class:`SinkError` when a needed column is missing, or a column is unknown to the sink or repeated."""
    missing = [name for name in needed if name not in found]
    strange = [name for name in found if name not in known]
    if missing or strange or len(set(found)) < len(found):
        problem = "column " + (
            f"{missing[0]} is missing" if missing else f"{strange[0]} is unknown" if strange else "names repeat"
        )
        raise SinkError(
            f"{where}: {problem}; it takes the columns {', '.join(known)}, and the rows have {', '.join(found)}: "
            "select and rename them first",
            code="sink-columns",
            columns=list(found),
        )


def as_bytes(column: pa.Array, name: str, where: str) -> pa.Array:
    """Convert a column to ``binary``: binary unchanged, text as UTF-8; numbers, booleans, dates and times as text.

    Raises :class:`SinkError` for structs, lists, maps and other types that have no text form.
    """
    kind = column.type
    try:
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
            kind = column.type
        if pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary(kind):
            return column.cast(pa.binary())
        if pa.types.is_nested(kind):
            raise pa.ArrowNotImplementedError(f"{kind} has no text of its own")
        return pc.cast(column, pa.string()).cast(pa.binary())
    except pa.ArrowException as error:
        raise SinkError(
            f"{where}: column {name} of type {kind} cannot be written: {error}; turn it into a string or binary first, "
            "for instance with to_json",
            code="sink-columns",
            column=name,
            type=str(kind),
        ) from error
