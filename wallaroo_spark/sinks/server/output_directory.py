"""A sink server's directory: an output file for each worker, uncommitted rows, and the log of transactions.

    DIR/<worker>.out            committed rows only, appended; readers read this file
    DIR/.wallaroo/log           the transactions (``journal.py``)
    DIR/.wallaroo/….part        rows of one transaction, until PHASE2
    DIR/.wallaroo/lock          locked by the server that uses the directory

The server votes to commit when the part and its log record are synced. A committed part is appended when the record of
its commit is synced; after a crash the next server appends it again at the same offset.
Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from wallaroo_spark.errors import ConfigurationError, SinkError, one_line
from wallaroo_spark.sidecar.syncing import sync, sync_open_file
from wallaroo_spark.sinks.server.journal import (
    Journal,
    LogRecord,
    OutputPart,
    ServerTransactions,
    TransactionState,
    prepare_record,
)
from wallaroo_spark.steps import SinkStep, passed

log = one_line("wallaroo_spark.sinks")

HIDDEN = ".wallaroo"
LOG_LINES = 10_000
"""The log is rewritten without ended transactions after so many records. A choice that bounds the log's size."""
WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""The names that a worker may have; a name is part of the name of a file."""
_PIECE = 1 << 20
"""The most bytes that are copied at once. A choice: larger pieces need more memory."""
_BUFFER = 64 * 1024
"""Bytes of the write buffer of a part. A choice: every session has one, and there may be a thousand."""


class UnvotedPart:
    """The rows of a transaction before its vote. An error of the disk becomes the reason of a vote to abort."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.worker = worker
        self.path = folder / f"{worker}.{uuid.uuid4().hex}.part"
        self.size = 0
        self.failure = ""
        self._file: IO[bytes] | None = None

    def write(self, rows: Sequence[bytes]) -> None:
        """Append rows."""
        self.size += sum(map(len, rows))
        if self.failure:
            return
        try:
            if self._file is None:
                self._file = self.path.open("xb", buffering=_BUFFER)
            self._file.write(b"".join(rows))
        except OSError as error:
            self._fail(error)

    def sync(self) -> None:
        """Sync the rows and the file's name to the disk, and close the file."""
        if self.failure:
            return
        try:
            if self._file is None:
                self._file = self.path.open("xb", buffering=0)
            self._file.flush()
            sync_open_file(self._file.fileno())
            self._file.close()
            sync(self.path.parent)
        except OSError as error:
            self._fail(error)

    def discard(self) -> None:
        """Delete the rows."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _fail(self, error: OSError) -> None:
        self.failure = f"{self.path} cannot be written: {error.strerror or error}"
        self.discard()


class OutputDirectory:
    """The directory ``to``, which is created if it does not exist. May be used from several threads.

    The constructor completes the transactions that the log has as committed. It raises :class:`SinkError` when another
    server uses the directory, or when the log or an output is damaged.
    """

    def __init__(self, to: str | Path, *, log_lines: int = LOG_LINES) -> None:
        self.folder = Path(to)
        self._hidden = self.folder / HIDDEN
        self._log_lines = log_lines
        self._mutex = threading.RLock()
        self._busy: dict[str, threading.RLock] = {}
        try:
            if not self._hidden.is_dir():
                self._hidden.mkdir(parents=True, exist_ok=True)
                sync(self.folder)
                sync(self.folder.absolute().parent)
            self._lock = (self._hidden / "lock").open("a")
            self._take()
            self._journal = Journal(self._hidden / "log")
            self.transactions = ServerTransactions()
            for record in self._journal.read():
                self.transactions.apply(record)
            self._settle_all()
        except OSError as error:
            raise SinkError(
                f"{self.folder} cannot be used: {error.strerror or error}; name a directory that can be written",
                code="file-unwritable",
                path=str(self.folder),
            ) from error

    def begin(self, worker: str) -> UnvotedPart:
        """Return a new part for the rows of a transaction."""
        return UnvotedPart(self._hidden, worker)

    def prepare(self, part: UnvotedPart, transaction: str, start: int, end: int) -> str:
        """Vote on a part; return an empty text for a vote to commit, otherwise the reason of a vote to abort.

        After a vote to commit the part is on the disk until its transaction is decided.
        """
        with self._of(part.worker):
            wanted = OutputPart(transaction, part.worker, start, end, part.path.name)
            with self._mutex:
                objection = self.transactions.objection(wanted) or self._misfit(part.worker, start, start)
            if not objection and part.size != end - start:
                objection = f"its rows are {start} to {end}, and {part.size} bytes came"
            if not objection:
                part.sync()
                objection = part.failure
            if not objection:
                objection = self._logged(prepare_record(wanted))
            if objection:
                part.discard()
                return objection
            passed(SinkStep.SERVER_PREPARED)
        return ""

    def decide(self, worker: str, transaction: str, commit: bool) -> None:
        """Carry out PHASE2 of a session of ``worker``. Transactions of other workers and unknown ones are ignored.

        Raises :class:`SinkError` when the decision cannot be carried out now; the worker may send it again.
        """
        part = self.transactions.part(transaction)
        if part is None or part.worker != worker:
            log.info("PHASE2 of %s for %r is ignored: this directory has no such transaction", worker, transaction)
            return
        with self._of(part.worker):
            if self.transactions.state(transaction) is TransactionState.PREPARED:
                do = "commit" if commit else "abort"
                if problem := self._logged({"do": do, "transaction": transaction}):
                    raise SinkError(
                        f"transaction {transaction}: {problem}; make room, and decide it again",
                        code="sink-write-failed",
                    )
                if not commit:
                    self._remove(part)
                    return
                passed(SinkStep.SERVER_DECIDED)
            if self.transactions.state(transaction) is TransactionState.COMMITTED:
                self._append(part)

    def settle(self, worker: str) -> int:
        """Append a committed part that could not be appended before; return the length of the worker's output."""
        with self._of(worker):
            part = self.transactions.of_worker(worker, TransactionState.COMMITTED)
            if part is not None:
                self._append(part)
            return self.transactions.offset(worker)

    def offset(self, worker: str) -> int:
        """Return the number of bytes in the worker's output that readers see."""
        with self._mutex:
            return self.transactions.offset(worker)

    def uncommitted(self, worker: str) -> list[str]:
        """Return the ids of the worker's transactions that wait for a decision, as the answer to LIST_UNCOMMITTED."""
        with self._mutex:
            part = self.transactions.of_worker(worker, TransactionState.PREPARED)
            return [] if part is None else [part.transaction]

    def output(self, worker: str) -> Path:
        """Return the path of a worker's output."""
        return self.folder / f"{worker}.out"

    def close(self) -> None:
        """Release the directory, after records being written are logged."""
        with self._mutex:
            self._journal.close()
            self._lock.close()

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise SinkError(
                f"{self.folder} is in use by another sink server; stop that one, or name another directory",
                code="sink-folder-in-use",
                path=str(self.folder),
            ) from None

    def _of(self, worker: str) -> threading.RLock:
        """The lock that orders all changes of one worker's output."""
        with self._mutex:
            return self._busy.setdefault(worker, threading.RLock())

    def _settle_all(self) -> None:
        """Append the committed parts to their outputs, and delete parts that are not in the log."""
        for worker, offset in self.transactions.offsets.items():
            waiting = self.transactions.of_worker(worker, TransactionState.COMMITTED)
            if problem := self._misfit(worker, offset, waiting.end if waiting is not None else offset):
                raise SinkError(problem, code="sink-log-damaged", path=str(self.output(worker)))
        known = {part.file for part in self.transactions.parts()}
        for path in self._hidden.glob("*.part"):
            if path.name not in known:
                path.unlink()
        for part in self.transactions.parts():
            if self.transactions.state(part.transaction) is TransactionState.COMMITTED:
                self._append(part)
        self._shorten()

    def _misfit(self, worker: str, least: int, most: int) -> str:
        """Return a sentence when the output's size is not between ``least`` and ``most`` bytes; empty otherwise."""
        output = self.output(worker)
        size = output.stat().st_size if output.exists() else 0
        if least <= size <= most:
            return ""
        return (
            f"{output} has {size} bytes, and {least} of it are committed by the log in {self._hidden}: somebody else "
            "wrote to it or cut it; restore it, or start with an empty directory"
        )

    def _append(self, part: OutputPart) -> None:
        """Write a committed part to its place in the output, also when some or all of it is there already."""
        source, output = self._hidden / part.file, self.output(part.worker)
        try:
            if source.exists():
                self._copy(source, output, part)
            elif not output.exists() or output.stat().st_size < part.end:
                raise FileNotFoundError(2, "its rows are gone", str(source))
            passed(SinkStep.SERVER_APPENDED)
            # Not synced: if the record is lost, the part is appended again at the same offset.
            self._log({"do": "append", "transaction": part.transaction}, synced=False)
        except OSError as error:
            log.error("transaction %s is committed, and cannot be appended to %s: %s", part.transaction, output, error)
            raise SinkError(
                f"transaction {part.transaction} is committed, and cannot be appended to {output}: "
                f"{error.strerror or error}; make room, and it is appended when the worker comes back",
                code="sink-write-failed",
                transaction=part.transaction,
                path=str(output),
            ) from error
        self._remove(part)

    def _copy(self, source: Path, output: Path, part: OutputPart) -> None:
        new = not output.exists()
        size = part.end - part.start
        with source.open("rb") as rows, output.open("r+b" if not new else "xb", buffering=0) as into:
            into.seek(part.start)
            for piece in iter(lambda: rows.read(min(_PIECE, max(1, size // 2))), b""):
                _write_all(into, piece)
                passed(SinkStep.SERVER_HALF_APPENDED)
            sync_open_file(into.fileno())
        if new:
            sync(self.folder)

    def _remove(self, part: OutputPart) -> None:
        with contextlib.suppress(OSError):
            (self._hidden / part.file).unlink(missing_ok=True)

    def _logged(self, record: LogRecord) -> str:
        """Log a record; return the reason when that fails, otherwise an empty text."""
        try:
            self._log(record)
        except OSError as error:
            return f"the log in {self._hidden} cannot be written: {error.strerror or error}"
        return ""

    def _log(self, record: LogRecord, *, synced: bool = True) -> None:
        with self._mutex:
            self._journal.append(record, synced=synced)
            self.transactions.apply(record)
            if self._journal.lines > self._log_lines:
                try:
                    self._shorten()
                except OSError as error:
                    # The record is in the log all the same; only the rewriting has failed.
                    log.warning("the log in %s cannot be rewritten: %s", self._hidden, error)

    def _shorten(self) -> None:
        records = self.transactions.records()
        if len(records) < self._journal.lines:
            self._journal.rewrite(records)


def _write_all(into: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[into.write(view) :]


def checked_worker(name: str) -> str:
    """A worker's name. Raises :class:`ConfigurationError` for one that cannot be part of a file's name."""
    if not WORKER.fullmatch(name):
        raise ConfigurationError(
            f"worker {name[:64]!r}: use 1 to 128 of the characters A-Z a-z 0-9 . _ -, a letter or digit first",
            code="name-invalid",
            worker=name,
        )
    return name
