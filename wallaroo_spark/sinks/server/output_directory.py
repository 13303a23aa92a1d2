"""A sink server's disk: an output a worker, files of what is not committed, and the log of transactions.

    DIR/<worker>.out            what readers see: committed rows, appended; nothing else ever
    DIR/.wallaroo/log           the transactions (``journal.py``)
    DIR/.wallaroo/….part        rows of one transaction, until PHASE2
    DIR/.wallaroo/lock          held by the server that uses the directory

A yes is given when the part and a record of it are synced; a commit is appended when its record is synced, and may be
appended again by the next server, at the same place. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import re
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from wallaroo_spark.errors import ConfigurationError, SinkError, one_line
from wallaroo_spark.sidecar.syncing import sync, sync_open_file
from wallaroo_spark.sinks.server.journal import Journal
from wallaroo_spark.sinks.server.transactions import LogRecord, OutputPart, ServerTransactions, prepare_record
from wallaroo_spark.sinks.two_phase.states import TransactionState
from wallaroo_spark.steps import SinkStep, passed

log = one_line(logging.getLogger("wallaroo_spark.sinks"))

HIDDEN = ".wallaroo"
LOG_LINES = 10_000
"""Records after which the log is written anew."""
WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""The names a worker may have: each is part of a file's name."""
_PIECE = 1 << 20
# A session has one of these, and there may be many.
_BUFFER = 64 * 1024


class UnvotedPart:
    """Rows of a transaction before its vote. A failure of the disk is kept as the reason to vote abort."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.worker = worker
        self.path = folder / f"{worker}.{uuid.uuid4().hex}.part"
        self.size = 0
        self.failure = ""
        self._file: IO[bytes] | None = None

    def write(self, rows: Sequence[bytes]) -> None:
        """Add rows."""
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
        """Have all of it on the disk, and the file closed."""
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
    """The directory ``to``, made if need be, brought up to date with its log. For any threads.

    Raises :class:`SinkError` when another server has it, or the log or an output is not as it must be.
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
                path=str(self.folder),
            ) from error

    def begin(self, worker: str) -> UnvotedPart:
        """A place for the rows of a transaction."""
        return UnvotedPart(self._hidden, worker)

    def prepare(self, part: UnvotedPart, transaction: str, start: int, end: int) -> str:
        """Vote: empty for a yes, and then the part is on the disk until it is decided; else the reason for a no."""
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
        """PHASE2, from a session of ``worker``. A transaction that is unknown, or somebody else's, is nothing.

        Raises :class:`SinkError` when the decision cannot be carried out now; it may be given again.
        """
        part = self.transactions.part(transaction)
        if part is None or part.worker != worker:
            log.info("PHASE2 of %s for %r, which is not here: passed over", worker, transaction)
            return
        with self._of(part.worker):
            if self.transactions.state(transaction) is TransactionState.PREPARED:
                if commit and part.start != self.transactions.offset(part.worker):
                    raise SinkError(
                        f"transaction {transaction} starts at {part.start}, and the output of {part.worker} ends at "
                        f"{self.transactions.offset(part.worker)}: another of its transactions was committed; abort it",
                        transaction=transaction,
                    )
                do = "commit" if commit else "abort"
                self._must_log({"do": do, "transaction": transaction})
                if not commit:
                    self._remove(part)
                    return
                passed(SinkStep.SERVER_DECIDED)
            if self.transactions.state(transaction) is TransactionState.COMMITTED:
                self._append(part)

    def settle(self, worker: str) -> int:
        """Append what is committed and could not be appended; how much of the worker's output readers see."""
        with self._of(worker):
            part = self.transactions.waiting(worker)
            if part is not None:
                self._append(part)
            return self.transactions.offset(worker)

    def offset(self, worker: str) -> int:
        """How much of the worker's output readers see."""
        with self._mutex:
            return self.transactions.offset(worker)

    def uncommitted(self, worker: str) -> list[str]:
        """The answer to LIST_UNCOMMITTED."""
        with self._mutex:
            return self.transactions.uncommitted(worker)

    def output(self, worker: str) -> Path:
        """The file that readers of a worker's rows read."""
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
                path=str(self.folder),
            ) from None

    def _of(self, worker: str) -> threading.RLock:
        """The lock that orders all changes of one worker's output."""
        with self._mutex:
            return self._busy.setdefault(worker, threading.RLock())

    def _settle_all(self) -> None:
        """Bring the outputs up to the log, and remove parts that it does not have."""
        for worker, offset in self.transactions.outputs().items():
            self._check(worker, offset)
        known = {part.file for part in self.transactions.parts()}
        for path in self._hidden.glob("*.part"):
            if path.name not in known:
                path.unlink()
        for part in self.transactions.parts():
            if self.transactions.state(part.transaction) is TransactionState.COMMITTED:
                self._append(part)
        self._shorten()

    def _check(self, worker: str, offset: int) -> None:
        waiting = self.transactions.waiting(worker)
        problem = self._misfit(worker, offset, waiting.end if waiting is not None else offset)
        if problem:
            raise SinkError(problem, path=str(self.output(worker)))

    def _misfit(self, worker: str, least: int, most: int) -> str:
        """Why an output cannot have its size; empty if it can."""
        output = self.output(worker)
        size = output.stat().st_size if output.exists() else 0
        if least <= size <= most:
            return ""
        return (
            f"{output} has {size} bytes, and {least} of it are committed by the log in {self._hidden}: somebody else "
            "wrote to it or cut it; restore it, or start with an empty directory"
        )

    def _append(self, part: OutputPart) -> None:
        """Put a committed part into its output, where it may stand already, in part or whole."""
        source, output = self._hidden / part.file, self.output(part.worker)
        try:
            if source.exists():
                self._copy(source, output, part)
            elif not output.exists() or output.stat().st_size < part.end:
                raise FileNotFoundError(2, "its rows are gone", str(source))
            passed(SinkStep.SERVER_APPENDED)
            # Were this record lost, the part would be appended again, at the same place.
            self._log({"do": "append", "transaction": part.transaction}, synced=False)
        except OSError as error:
            log.error("transaction %s is committed, and cannot be appended to %s: %s", part.transaction, output, error)
            raise SinkError(
                f"transaction {part.transaction} is committed, and cannot be appended to {output}: "
                f"{error.strerror or error}; make room, and it is appended when the worker comes back",
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
        """Log a record; why it could not be, empty when it is."""
        try:
            self._log(record)
        except OSError as error:
            return f"the log in {self._hidden} cannot be written: {error.strerror or error}"
        return ""

    def _must_log(self, record: LogRecord) -> None:
        problem = self._logged(record)
        if problem:
            raise SinkError(f"transaction {record['transaction']}: {problem}; make room, and decide it again")

    def _log(self, record: LogRecord, *, synced: bool = True) -> None:
        with self._mutex:
            self._journal.append(record, synced=synced)
            self.transactions.apply(record)
            if self._journal.lines > self._log_lines:
                try:
                    self._shorten()
                except OSError as error:
                    # The record is in the long log all the same.
                    log.warning("the log in %s cannot be written anew: %s", self._hidden, error)

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
            f"worker {name[:64]!r}: a worker is named by 1 to 128 of A-Z a-z 0-9 . _ -, a letter or digit first",
            worker=name,
        )
    return name
