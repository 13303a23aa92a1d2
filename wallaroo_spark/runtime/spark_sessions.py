"""What is registered, set and prepared in a user's Spark session.

A Python data source is registered under its own name or, where that is taken, under another. A source needs values that
are no options, because Spark shows options in plans and in its UI. The class that is registered has those of all of its
users in this process; Spark pickles it by value, and sends it to the processes in which the source plans and reads.

:func:`quick_on_local_disk` makes Spark write the files of a checkpoint on a local disk with few processes. Spark's
default manager of checkpoint files writes through Hadoop's FileContext. On a local disk without Hadoop's native library
this starts about ten processes (``readlink``, ``chmod``) for each file of ``offsets/`` and ``commits/``, and takes four
times as long as the manager that is selected here.

The selected manager checks whether the file exists and then renames in two steps, first the file and then its checksum.
This has two consequences. Two queries on one checkpoint could overwrite each other's files; the receiver's lock on the
checkpoint excludes that. And when the process crashes between the two steps while it replaces a file, as state stores
do, the new file is left with the checksum of the old one; such stale checksums are deleted before a query starts. (The
default manager keeps no checksums at all.) Source: ``docs/decisions/local-checkpoint-files.md``.

:func:`keep_warm` prepares a take-over: what a first worker and a first query take longest for is done while a standby
waits. The executors' Python processes import the modules of the tasks, and Java loads and compiles what a streaming
query needs. Source: ``docs/reliability.md#a-standby-driver``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import uuid
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from wallaroo_spark.errors import one_line
from wallaroo_spark.runtime.spark_checks import classic_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


D = TypeVar("D", bound="DataSource")

_TAKEN = "DATA_SOURCE_ALREADY_EXISTS"


_registering = threading.Lock()
_values: defaultdict[type, dict[str, Any]] = defaultdict(dict)
"""For each source the values of its users. Of two users with one key, the last one's counts."""
_last: dict[type, tuple[weakref.ref[SparkSession], Any, str]] = {}
"""For each source what was registered last: the session, the values, and the name there."""


@contextlib.contextmanager
def registered(spark: SparkSession, source: type[DataSource], key: str, value: Any) -> Iterator[str]:
    """Register a source for a block that is given its name in this session; nothing else is registered meanwhile.

    The source has ``value`` under ``key`` in its attribute ``values``. Spark warns of each replacement, so nothing is
    registered when the last registration had this session and equal values.
    """
    with _registering:
        _values[source][key] = value
        known, last = dict(_values[source]), _last.get(source)
        if last is None or last[0]() is not spark or last[1] != known:
            name = _register(spark, source.name(), lambda named: with_values(source, known, named))
            last = _last[source] = weakref.ref(spark), known, name
        yield last[2]


def with_values(source: type[D], values: Mapping[str, Any], format_name: str) -> type[D]:
    """A source that has these values. It is in no module, and only such a class is pickled by value."""
    return type(source.__name__, (source,), {"values": values, "name": classmethod(lambda _: format_name)})


def _register(spark: SparkSession, name: str, source_named: Callable[[str], type[DataSource]]) -> str:
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source_named(name))
    except AnalysisException as error:
        if error.getCondition() != _TAKEN:
            raise
        # The name is taken in a session that was derived from another, such as a notebook's, and cannot be replaced.
        name = f"{name}_{uuid.uuid4().hex[:8]}"
        spark.dataSource.register(source_named(name))
    return name


log = one_line("wallaroo_spark.runtime")

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
PACKAGES = (
    "org.apache.spark.sql.execution.streaming.checkpointing",
    "org.apache.spark.sql.execution.streaming",
)
MANAGER = "FileSystemBasedCheckpointFileManager"
_STATE = "state"
_starting = threading.Lock()


@contextlib.contextmanager
def quick_on_local_disk(spark: Any, folder: str | None) -> Iterator[None]:
    """Select the manager that starts no processes for the queries that are started within the block.

    ``folder`` is the path of the checkpoint on this machine's disk; None when the checkpoint is on another file system.
    Nothing is selected then, in a session whose user has set a manager, and in a session without a JVM gateway.
    """
    if folder is None:
        yield
        return
    # Also when the user has set the manager: a stale checksum makes the query fail.
    forget_stale_checksums(folder)
    # Receivers of one session start their queries one after another: otherwise one of them would take the setting of
    # another for the user's.
    with _starting:
        manager = _manager(spark) if spark.conf.get(SETTING, None) is None else None
        if manager is not None:
            spark.conf.set(SETTING, manager)
        try:
            yield
        finally:
            # Spark has copied the session's settings for the query.
            if manager is not None:
                spark.conf.unset(SETTING)


def _manager(spark: Any) -> str | None:
    """The full name of the manager's class in this Spark; None when Spark has no such class or there is no gateway."""
    context = classic_context(spark)
    if context is None:
        return None
    loader = context._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for package in PACKAGES:
        name = f"{package}.{MANAGER}"
        if loader.getResource(f"{name.replace('.', '/')}.class") is not None:
            return name
    return None


def forget_stale_checksums(folder: str) -> None:
    """Delete each checksum of a state file that is older than the file itself.

    Raises no error: a checksum that cannot be read stays, and Spark reports it if it does not match.
    """
    for path, _, names in os.walk(os.path.join(folder, _STATE)):
        for name in names:
            if not name.startswith(".") or not name.endswith(".crc"):
                continue
            checksum, file = os.path.join(path, name), os.path.join(path, name[1:-4])
            with contextlib.suppress(OSError):
                if os.stat(checksum).st_mtime_ns < os.stat(file).st_mtime_ns:
                    os.unlink(checksum)
                    log.info("deleted the stale checksum %s: its file has been replaced since", checksum)


AGAIN_SECONDS = 30.0
"""Pause between two imports in the executors. Spark ends a Python process that was idle for a minute."""
BATCH_SECONDS = 120.0
"""How long the first batch of the query may take. A choice: it only bounds a query that cannot run."""
_LOOK_SECONDS = 0.2


def keep_warm(
    spark: Any, tasks: int, modules: Sequence[str], rehearsal: Callable[[Any], Any], over: threading.Event
) -> None:
    """Prepare Spark again and again until ``over`` is set; ``tasks`` processes import ``modules``.

    ``rehearsal`` makes the writer of a streaming query for a session. It runs until it has committed a batch, once.
    Raises nothing: what cannot be prepared is done at the take-over. Does nothing for a client of Spark Connect.
    """
    if classic_context(spark) is None:
        return
    first = True
    while first or not over.wait(AGAIN_SECONDS):
        try:
            spark.range(0, tasks, 1, tasks).mapInPandas(_importing(modules), "id bigint").collect()
            if first:
                rehearse(rehearsal(spark), over)
        except Exception as error:
            log.debug("a standby could not prepare Spark: %s", error)
        first = False


def _importing(modules: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        for module in modules:
            importlib.import_module(module)
        yield from batches

    return rows


def stateless_query(spark: Any) -> Any:
    """The writer of a query whose rows pass a Python process, as those of a receiver do; it writes nothing."""
    rows = spark.readStream.format("rate").load().mapInPandas(_importing(()), "timestamp timestamp, value bigint")
    return rows.writeStream.format("noop")


def rehearse(writer: Any, over: threading.Event) -> bool:
    """Run a streaming query without a checkpoint of its own until it has committed a batch with rows.

    Returns whether it has; False when ``over`` is set before or it takes too long. Raises the query's error.
    """
    query = writer.queryName("wallaroo standby").start()
    try:
        for _ in range(int(BATCH_SECONDS / _LOOK_SECONDS)):
            if any(batch.numInputRows for batch in query.recentProgress):
                return True
            if not query.isActive:
                raise query.exception()
            if over.wait(_LOOK_SECONDS):
                break
        return False
    finally:
        query.stop()
