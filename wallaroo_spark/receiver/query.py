"""The query that receivers feed: it is started on a checkpoint that is locked, and its commits reach the workers.

Source: ``docs/decisions/acks-from-the-commit-log.md`` and ``docs/decisions/one-writer-per-checkpoint.md``.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from wallaroo_spark.checkpoint import CheckpointFiles, CheckpointWatcher, QueryProgress
from wallaroo_spark.checkpoint.power_loss import SyncedBatches, synced_batches
from wallaroo_spark.errors import CheckpointError, ConfigurationError, RegistryError, WallarooError, one_line
from wallaroo_spark.inner.notices import LastCommit
from wallaroo_spark.observe.query_facts import QueryFacts
from wallaroo_spark.options import Options
from wallaroo_spark.receiver import checks, spark_queries
from wallaroo_spark.receiver.announcer import Announcer
from wallaroo_spark.receiver.spark_queries import RunningQuery
from wallaroo_spark.registry import NO_QUERY, QUERY_STARTS, Registry
from wallaroo_spark.runtime.handle import Waits
from wallaroo_spark.runtime.long_jobs import session_stopped
from wallaroo_spark.runtime.spark_checks import classic_context
from wallaroo_spark.runtime.spark_sessions import quick_on_local_disk
from wallaroo_spark.sidecar.task_access import require_reach

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


OWN_SECONDS = 10.0
"""How long the checkpoint's metadata file may take to become visible.

Spark has written it when the start of a query returns. A choice: it only bounds how long a file system with stale
listings may take, and how late a wrong location is refused.
"""
_LOOK_SECONDS = 0.05
"""Pause between two reads of the metadata file. A choice: on a local disk the first read finds it."""


def require_own(spark: Any, query: Any, files: CheckpointFiles, location: str, stopping: threading.Event) -> None:
    """Wait until the checkpoint that ``files`` reads has the id of the started query.

    After :data:`OWN_SECONDS`, raises :class:`CheckpointError`, with the location that the query writes to and the
    location that is read. Returns without a check when the query has
    ended, because the query's own error says more, and when ``stopping`` is set.
    """
    until = time.monotonic() + OWN_SECONDS
    while (other := files.query_id()) != str(query.id):
        if not query.isActive or stopping.is_set():
            return
        if time.monotonic() >= until:
            raise _not_own(query, files, other, _written_to(spark, query, location))
        stopping.wait(_LOOK_SECONDS)


def _not_own(query: Any, files: CheckpointFiles, other: str | None, written: str) -> CheckpointError:
    """The error for a checkpoint that has the id of another query, or (``other`` is None) no query's id."""
    problem = f"is of the query {other}" if other else "has no query's metadata"
    return CheckpointError(
        f"the query {query.id} writes its checkpoint to {written}, but the receiver reads {files.identity}, which "
        f"{problem}: no message would be acknowledged, so the query was stopped; give checkpoint= as a whole URI "
        "(hdfs://…, s3a://…, file:///…) of a location that this process can read as Spark does",
        code="checkpoint-elsewhere",
        query=str(query.id),
        found=other,
        written=written,
        read=files.identity,
    )


def require_shared(files: CheckpointFiles, location: str, name: str, spark: Any) -> None:
    """Refuse a folder for the checkpoint of receiver ``name`` that other machines of the cluster do not have.

    There the query could not be continued, and the state of its aggregates would be on other disks than its log.
    Raises :class:`ConfigurationError`.
    """
    if files.local_folder:
        require_reach(spark, location, f"receiver {name!r}")


def _written_to(spark: Any, query: Any, location: str) -> str:
    """The location of the query's checkpoint, as Spark reports it; ``location`` when Spark does not report it."""
    try:
        if classic_context(spark) is not None:
            return str(query._jsq.streamingQuery().resolvedCheckpointRoot())
        # Spark Connect does not report the location, but it returns whole URIs for the input files of a read.
        metadata = spark.read.text(f"{location.rstrip('/')}/metadata").inputFiles()[0]
        return str(metadata).removesuffix("/metadata")
    except Exception:
        return f"{location} (as Spark resolves it)"


log = one_line("wallaroo_spark.receiver")


class FedQuery:
    """One receiver's part in the query that reads it: the checkpoint, the watcher of its commits, and its facts.

    ``renew`` writes the driver's entries in the registry. Between :meth:`open` and :meth:`close` the receiver runs.
    """

    def __init__(
        self, name: str, owner: str, options: Options, spark: Any, waits: Waits, renew: Callable[[], None]
    ) -> None:
        self.name, self.owner, self.options = name, owner, options
        self.facts = QueryFacts()
        self.query: Any = None
        self.files: CheckpointFiles | None = None
        self.watcher: CheckpointWatcher | None = None
        self._spark, self._waits, self._renew = spark, waits, renew
        self._registry: Registry | None = None
        self._checkpoints: Registry | None = None
        self._announcer: Announcer | None = None
        self._synced: SyncedBatches | None = None
        self._listener: Waker | None = None
        self._starts = False
        self._lock_owner = owner
        self._file: IO[str] | None = None
        """The file by whose lock this process alone writes a checkpoint on a disk of this machine."""

    def open(self, url: str, registry: Registry, announcer: Announcer) -> None:
        """The receiver runs: ``url`` is that of its registry, ``announcer`` sends commits to its workers."""
        self._registry, self._announcer = registry, announcer
        self._checkpoints = Registry(url, "checkpoints", lease_seconds=self.options.lease_seconds)
        self._checkpoints.ping()

    def close(self) -> None:
        """The receiver does not run any more."""
        checkpoints, self._checkpoints = self._checkpoints, None
        self._registry = self._announcer = None
        if checkpoints is not None:
            checkpoints.close()

    @property
    def state(self) -> str:
        """The field ``query`` of the fleet's record: the id of the running query, QUERY_STARTS or NO_QUERY."""
        query = self.query
        if query is None:
            return QUERY_STARTS if self._starts else NO_QUERY
        return str(query.id) if query.isActive else NO_QUERY

    def renew_lock(self) -> None:
        """Renew the lock of the checkpoint, because Redis may have lost it. Raises :class:`RegistryError`."""
        files, checkpoints = self.files, self._checkpoints
        if files is not None and checkpoints is not None:
            checkpoints.lock(files.key, self._lock_owner, self.options.lease_seconds)

    def require_none(self) -> None:
        """Refuse a second query."""
        if self.query is not None and self.query.isActive:
            raise ConfigurationError(
                f"receiver {self.name!r} feeds a query already; stop it first, or use foreachBatch for several sinks",
                code="receiver-feeds-query",
            )

    def lock(self, files: CheckpointFiles, owner: str) -> None:
        """Lock the checkpoint, because only one query may use it.

        ``owner`` is the owner of the receiver that starts the query. All receivers that the query reads lock the
        checkpoint under this owner. Raises :class:`CheckpointError` when another owner has the lock. On a disk of this
        machine a file is locked, too: a driver that is stopped and goes on later has that lock all the time. A standby
        waits for it.
        """
        checkpoints = self._checkpoints
        assert checkpoints is not None
        refused: list[WallarooError] = []

        def in_use(other: str) -> CheckpointError:
            return CheckpointError(
                f"checkpoint {files.identity} is used by another query, of {other}; stop that one, or use another "
                "checkpoint",
                code="checkpoint-in-use",
                checkpoint=files.identity,
            )

        def take() -> bool:
            if not self._waits.take(checkpoints, files.key, owner, seconds):
                refused[:] = [in_use(str(checkpoints.locked_by(files.key)))]
                return False
            if owner != self.owner or self._file is not None:
                return True
            try:
                self._file = files.lock_file(owner, in_use)
            except CheckpointError as error:
                if error.code != "checkpoint-in-use":
                    raise
                if self.options.standby and not refused:
                    log.warning("receiver %s: %s; this standby waits until that process has ended", self.name, error)
                refused[:] = [error]
                return False
            return True

        seconds = self.options.lease_seconds
        self._waits.hold(take, math.inf if self.options.standby else seconds, lambda: refused[0])
        self.files, self._lock_owner = files, owner

    def expect(self) -> None:
        """A query that runs already is about to be adopted: its source waits meanwhile."""
        self._starts = True
        self._try_to_renew()

    def begin(self, trigger: str, synced: SyncedBatches | None) -> None:
        """Send the workers the references from which the query continues, and create the watcher."""
        files, registry, announcer = self.files, self._registry, self._announcer
        assert files is not None
        assert registry is not None
        assert announcer is not None
        self._synced = synced
        self.facts.starting(files.identity, trigger)
        if warning := checks.slow_trigger(trigger, self.options):
            log.warning("%s", warning)
        committed = files.progress(self.name).committed
        checks.decided(files.identity, committed)
        references = committed.references if committed else (self.options.starting_offsets or {})
        epoch = announcer.next_epoch(self._waits.ask(registry.next_submission))
        last_commit = LastCommit(epoch, committed.batch if committed else -1, references)
        announcer.begin(last_commit, files.given_up(self.name))
        self._starts = True
        self._waits.ask(self._renew)
        self.watcher = CheckpointWatcher(files, self.name, functools.partial(self._progressed, epoch))
        if files.stamp() is None:
            # A listener costs many calls to Java for each batch, because PySpark reads every value of a report from
            # Java. So it is used only where the commit log cannot be watched cheaply.
            self._listener = Waker(self.watcher)
            self._spark.streams.addListener(self._listener)

    def started(self, query: Any) -> None:
        """Spark runs the query."""
        self.query = query
        self.facts.started(query)

    def follow(self) -> None:
        """Watch the checkpoint of the query that has started, and publish the query's id."""
        assert self.watcher is not None
        self.watcher.start()
        self._try_to_renew()

    def stop(self) -> None:
        """Stop the query. The watcher then reads the commit log once more and reports the last commit."""
        query, watcher, listener, files = self.query, self.watcher, self._listener, self.files
        self.query = self._listener = None
        self._starts = False
        with contextlib.ExitStack() as last:
            last.callback(self._release_checkpoint, files)
            last.callback(self._try_to_renew)
            runs = not session_stopped(self._spark)
            if listener is not None and runs:
                last.callback(self._spark.streams.removeListener, listener)
            if watcher is not None:
                if self._announcer is not None:
                    # The workers have the last commit before anything else is sent to them.
                    last.callback(self._announcer.settle)
                last.callback(watcher.stop)
            last.callback(self.facts.ended)
            if query is not None and runs and query.isActive:
                query.stop()

    def _progressed(self, epoch: int, progress: QueryProgress) -> None:
        announcer = self._announcer
        if progress.committed is not None and announcer is not None:
            committed = progress.committed
            if self._synced is not None:
                self._synced.sync(committed.batch)
            announcer.commit(epoch, committed.batch, committed.references, (*committed.undecided, *committed.partial))

    def _try_to_renew(self) -> None:
        """Renew the driver's entries; errors are ignored, because the announcer's next round repeats and logs them."""
        with contextlib.suppress(WallarooError):
            self._renew()

    def _release_checkpoint(self, files: CheckpointFiles | None) -> None:
        self.watcher = self.files = None
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        if files is not None and self._checkpoints is not None:
            with contextlib.suppress(RegistryError):
                self._checkpoints.unlock(files.key, self._lock_owner)


def start_query(
    fed: Sequence[FedQuery], writer: Any, checkpoint: str, read: set[str] | None, spark: Any, waits: Waits
) -> StreamingQuery:
    """Start the query of a ``DataStreamWriter`` that reads these receivers, of which the first starts it.

    ``read`` are the names of all receivers that the query reads; None when that is not known.
    """
    with _another_query(fed):
        files = CheckpointFiles(checkpoint, spark)
        require_shared(files, checkpoint, fed[0].name, spark)
        fsync = any(one.options.fsync for one in fed)

        def check() -> None:
            checks.synchronous(writer, files.holes(), files.identity)
            checks.same_receivers(files.identity, files.receivers(), read or {fed[0].name})

        if not fsync:
            check()
        for one in fed:
            one.lock(CheckpointFiles(checkpoint, spark), fed[0].owner)
        synced = _synced(files, fsync, writer, spark)
        if fsync:
            # Before, a file of the checkpoint may have been one that a loss of power has left in part.
            check()
        for one in fed:
            one.begin(spark_queries.trigger(writer), synced)
        with quick_on_local_disk(spark, files.local_folder):
            query: StreamingQuery = writer.option("checkpointLocation", checkpoint).start()
        for one in fed:
            one.started(query)
        require_own(spark, query, files, checkpoint, waits.stopping)
        for one in fed:
            one.follow()
    return query


@contextlib.contextmanager
def _another_query(fed: Sequence[FedQuery]) -> Iterator[None]:
    """Within the block receivers that feed no query are given one. After an error they feed none."""
    for one in fed:
        one.require_none()
    try:
        for one in fed:
            one.stop()
        yield
    except BaseException:
        for one in fed:
            one.stop()
        raise


def adopt_query(fed: Sequence[FedQuery], running: RunningQuery, spark: Any, waits: Waits) -> None:
    """Follow a query that Spark's own ``.start()`` began, and that reads these receivers.

    The sources of the receivers plan nothing before :meth:`FedQuery.started`, so the query commits nothing meanwhile.
    After an error nothing is followed, and the query is left to its sources, which fail with that error.
    """
    with _another_query(fed):
        for one in fed:
            one.expect()
        files = CheckpointFiles(running.checkpoint, spark)
        require_shared(files, running.checkpoint, fed[0].name, spark)
        checks.without_holes(files.holes(), files.identity)
        checks.same_receivers(files.identity, files.receivers(), running.receivers)
        for one in fed:
            one.lock(CheckpointFiles(running.checkpoint, spark), fed[0].owner)
        require_own(spark, running.query, files, running.checkpoint, waits.stopping)
        for one in fed:
            one.begin(spark_queries.in_words(running.trigger), None)
    for one in fed:
        one.started(running.query)
    for one in fed:
        one.follow()


def _synced(files: CheckpointFiles, wanted: bool, writer: Any, spark: Any) -> SyncedBatches | None:
    """Prepare the option ``fsync``, which holds for the query if one of the receivers that it reads has it."""
    synced = synced_batches(files, wanted=wanted, sink=spark_queries.option(writer, "path") or "", spark=spark)
    if synced is not None:
        synced.begin()
    elif wanted:
        log.info("fsync changes nothing, because %s is not a local disk", files.identity)
    return synced


class Waker(StreamingQueryListener):
    """Wakes a watcher at each progress report, which Spark sends after it has written ``commits/N``.

    It is for file systems on which watching the files is expensive.
    """

    def __init__(self, watcher: CheckpointWatcher) -> None:
        self._watcher = watcher

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: no batch is committed yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Wake the watcher: a batch has been committed."""
        self._watcher.wake()

    def onQueryTerminated(self, event: Any) -> None:
        """Wake the watcher: the last batch may have been committed after the last report."""
        self._watcher.wake()
