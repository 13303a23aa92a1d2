"""The façade: start the fleet, read its stream, start the query, look at it, stop it all.

Source: ``README.md#ten-lines-on-each-side``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
import secrets
import socket
import threading
import uuid
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from pyspark.sql import DataFrame

from wallaroo_spark.checkpoint import CheckpointFiles, CheckpointWatcher, QueryProgress
from wallaroo_spark.errors import (
    CheckpointError,
    ConfigurationError,
    RegistryError,
    TransportError,
    WallarooError,
    one_line,
)
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.inner.trust import fleet_keys, status_token
from wallaroo_spark.options import Options, public_name, resolve_secret
from wallaroo_spark.receiver import checks, writers
from wallaroo_spark.receiver.announcer import Announcer, LastCommit
from wallaroo_spark.receiver.file_manager import quick_on_local_disk
from wallaroo_spark.receiver.fleet import Fleet
from wallaroo_spark.receiver.ownership import require_own
from wallaroo_spark.receiver.slots import slots
from wallaroo_spark.receiver.waker import Waker
from wallaroo_spark.registry import NO_QUERY, QUERY_STARTS, EmbeddedRedis, Registry
from wallaroo_spark.slots import spark_checks
from wallaroo_spark.slots.patience import Patience
from wallaroo_spark.source import Secrets, load, register
from wallaroo_spark.worker import ports
from wallaroo_spark.worker.service import WorkerSetup

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

_running: weakref.WeakSet[Receiver] = weakref.WeakSet()
"""The receivers of this program that are started, for queries that read several."""

WORKERS_SECONDS = 120.0
"""How long the workers may take to come up: a cluster may first have to start their executors."""
STOP_SECONDS = 15.0


class Receiver:
    """A fleet of workers inside Spark, and the one streaming query that they feed.

    ``options`` are those of the options page, in camelCase or in snake_case. One receiver feeds one query, and one
    query has one checkpoint. As a context manager it starts on entry and stops on exit. Its methods may be called from
    several threads; :meth:`stop` ends a :meth:`start` that is under way.
    """

    def __init__(self, spark: Any, name: str, **options: Any) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
            raise ConfigurationError(
                f"receiver name {name!r}: use 1 to 100 letters, digits, dots, dashes and underscores", name=name
            )
        attributes = {field.name for field in dataclasses.fields(Options)}
        given = {key: value for key, value in options.items() if value is not None}
        texts = {public_name(key) if key in attributes else key: value for key, value in given.items()}
        self.name = name
        self.options = Options.parse({**texts, "receiver": name})
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._spark = spark
        self._embedded: EmbeddedRedis | None = None
        self._registry: Registry | None = None
        self._checkpoints: Registry | None = None
        self._fleet: Fleet | None = None
        self._announcer: Announcer | None = None
        self._stream: DataFrame | None = None
        self._query: Any = None
        self._files: CheckpointFiles | None = None
        self._watcher: CheckpointWatcher | None = None
        self._listener: Waker | None = None
        self._token = ""
        self._query_starts = False
        self._checkpoint_owner = self.owner
        self._publishing = threading.Lock()
        self._warnings: list[str] = []
        self._lifecycle = threading.RLock()
        self._patience = Patience(f"receiver {name!r}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def registry_url(self) -> str:
        """The registry's URL, for connectors on the same machine when it is embedded. It may hold a password."""
        return self._embedded.url if self._embedded else resolve_secret(self.options.registry)

    @property
    def addresses(self) -> list[str]:
        """Where connectors connect, ``host:port``, a worker each in the order of their slots; empty when not started.

        It is what ``Connector(workers=…)`` takes. A worker that takes another's place may have another port, unless the
        option ``port`` fixes it.
        """
        announcer = self._announcer
        found = announcer.workers() if announcer else {}
        return [lease.connect for _, (lease, _) in sorted(found.items())]

    @overload
    def start(self) -> Self: ...

    @overload
    def start(self, writer: Any, *, checkpoint: str = "") -> StreamingQuery: ...

    def start(self, writer: Any = None, *, checkpoint: str = "") -> Self | StreamingQuery:
        """Start the workers, wait for them, and return the receiver itself. Does nothing when they run already.

        With a ``writer`` it is :meth:`start_query`. Raises :class:`ConfigurationError`, :class:`RegistryError` or
        :class:`TransportError`; then nothing is left running.
        """
        if writer is not None:
            return self.start_query(writer, checkpoint=checkpoint)
        with self._lifecycle:
            if self._fleet is None:
                self._patience.stopping.clear()
                try:
                    self._start_fleet()
                except BaseException:
                    self._shut_down()
                    raise
                _running.add(self)
            return self

    def start_query(self, writer: Any, *, checkpoint: str) -> StreamingQuery:
        """Start the query of a ``DataStreamWriter`` on a checkpoint, and acknowledge what it commits.

        The workers must be running (:meth:`start`). Raises :class:`ConfigurationError`, :class:`RegistryError` or
        :class:`CheckpointError`; then no query is left running, and nothing was acknowledged.
        """
        with self._lifecycle:
            return self._start_query(writer, checkpoint)

    def stream(self) -> DataFrame:
        """The streaming DataFrame of the rows that connectors send; the same one at each call."""
        if self._fleet is None:
            raise ConfigurationError("the receiver is not started; call start(), or use it in a with statement")
        if self._stream is None:
            self._stream = load(self._spark, self.name, self._secrets(), self.options.to_texts(secrets=False))
        return self._stream

    def _secrets(self) -> Secrets:
        return Secrets(self.registry_url, self._token)

    def status(self) -> dict[str, Any]:
        """The state of the workers and of the query, as JSON-ready values."""
        # Another thread may be starting or stopping the receiver: look at each part once.
        fleet, announcer, query = self._fleet, self._announcer, self._query
        files, watcher = self._files, self._watcher
        last_commit = announcer.last_commit if announcer else None
        return {
            "receiver": self.name,
            "warnings": self._warnings,
            "workers": slots(fleet.records, announcer, self._feeds()) if fleet else [],
            "query": {
                "active": bool(query is not None and query.isActive),
                "checkpoint": files.identity if files else None,
                "committed_batch": last_commit.batch if last_commit else None,
                "watcher_error": watcher.error if watcher else None,
            },
        }

    def stop(self) -> None:
        """Stop the query, acknowledge what it has committed, and end the workers. May be called again."""
        self._patience.stopping.set()
        with self._lifecycle:
            self._shut_down()

    def _shut_down(self) -> None:
        """Stop and close every part, even when another part fails to."""
        self._patience.stopping.set()
        _running.discard(self)
        for step in (self._stop_query, self._stop_workers, self._let_go_of_registry):
            try:
                step()
            except Exception as error:
                log.warning("receiver %s: stopping goes on after an error: %s", self.name, error)
        self._stream = None

    def _stop_workers(self) -> None:
        fleet, announcer = self._fleet, self._announcer
        if fleet:
            fleet.expect_end()
            fleet.join(STOP_SECONDS, self._dismiss)
        if announcer:
            announcer.stop()
        self._fleet = self._announcer = None

    def _dismiss(self) -> None:
        """Ask every worker that can be found to leave."""
        assert self._announcer is not None
        self._announcer.find_workers()
        for slot, (_, client) in self._announcer.workers().items():
            # One that stands still must not keep the others from being asked.
            threading.Thread(
                target=_ask_to_leave, args=(slot, client), name=f"wallaroo-stop-{slot}", daemon=True
            ).start()

    def _let_go_of_registry(self) -> None:
        registry, checkpoints, embedded = self._registry, self._checkpoints, self._embedded
        self._registry = self._checkpoints = self._embedded = None
        with contextlib.ExitStack() as last:
            if embedded:
                last.callback(embedded.stop)
            if checkpoints:
                last.callback(checkpoints.close)
            if registry:
                last.callback(registry.close)
                with contextlib.suppress(RegistryError):
                    registry.unlock("receiver", self.owner)

    def _start_fleet(self) -> None:
        checks.combinations(self.options)
        checks.addresses(self.options)
        trust = Trust.of(self.options)
        checks.environment(self._spark)
        context = spark_checks.classic_context(self._spark)
        master = context.master if context is not None else "connect"
        spark_checks.registry_reach(self.options.registry, master)
        spark_checks.task_slots(self._spark, self.options.workers)
        registry = self._open_registry()
        self._token = resolve_secret(self.options.token) or self._token or secrets.token_urlsafe(32)
        register(self._spark, self.name, self._secrets())
        host = self.options.host or ("127.0.0.1" if spark_checks.on_one_machine(master) else "0.0.0.0")
        # Executors may have neither the driver's environment nor its files, so secrets are resolved here.
        shipped = dataclasses.replace(
            self.options, host=host, registry=self.registry_url, cookie=resolve_secret(self.options.cookie)
        )
        self._warnings = ports.warnings(shipped)
        for warning in self._warnings:
            log.warning("%s", warning)
        seconds = self.options.lease_seconds
        self._patience.hold(lambda: registry.lock("receiver", self.owner, seconds), seconds, self._name_in_use)
        self._patience.ask(lambda: registry.forget_slots_from(self.options.workers))
        self._fleet = Fleet(self._spark, registry, WorkerSetup(shipped, 0, 0, self._token, fleet_keys(self._token)))
        connect = functools.partial(WorkerClient, trust=trust)
        self._announcer = Announcer(registry, self._token, self._renew, connect, self._fleet.leases_seen)
        self._patience.ask(self._renew)
        self._fleet.start()
        self._announcer.start()
        self._patience.await_served(
            "worker",
            self._fleet.records,
            lambda: {(slot, lease.submission) for slot, lease in registry.leases().items() if lease.flight},
            WORKERS_SECONDS,
        )
        self._announcer.find_workers()
        if trust is not None:
            self._verify_workers(self._announcer)

    def _verify_workers(self, announcer: Announcer) -> None:
        """End the start when a worker's certificate cannot be verified: a query would wait for that worker for ever."""
        for slot, (_, client) in announcer.workers().items():
            try:
                client.status()
            except TransportError as error:
                if error.fields.get("reason") == "tls":
                    raise ConfigurationError(f"slot {slot}: {error.message}", slot=slot) from None
                log.info("slot %d: %s", slot, error)

    def _open_registry(self) -> Registry:
        if self.options.registry == "embedded":
            self._embedded = EmbeddedRedis()
            self._embedded.start()
        seconds = self.options.lease_seconds
        self._registry = Registry(self.registry_url, self.name, lease_seconds=seconds)
        self._checkpoints = Registry(self.registry_url, "checkpoints", lease_seconds=seconds)
        self._registry.ping()
        self._checkpoints.ping()
        return self._registry

    def _name_in_use(self) -> WallarooError:
        assert self._registry is not None
        other = self._registry.locked_by("receiver")
        return ConfigurationError(
            f"receiver {self.name!r} is run by another driver ({other}); stop it, or give this one another name"
        )

    def _renew(self) -> None:
        """Write the driver's entries in the registry again, in each round: Redis may have been emptied."""
        registry, checkpoints, files = self._registry, self._checkpoints, self._files
        if registry is None or self._patience.stopping.is_set():
            return
        if self._embedded is not None and not self._embedded.running:
            self._embedded.start()
        if not registry.lock("receiver", self.owner, self.options.lease_seconds):
            # Two fleets that take the slots from each other would serve nobody; who was away too long gives in.
            if self._fleet is not None:
                self._fleet.expect_end()
            raise self._name_in_use()
        if files is not None and checkpoints is not None:
            checkpoints.lock(files.key, self._checkpoint_owner, self.options.lease_seconds)
        self._publish()

    def _publish(self) -> None:
        """Say what holds for the fleet: by ``query`` a source knows whether the query that it is of is ours."""
        registry = self._registry
        # A state that was read before a query began must not overwrite the record of that query.
        with self._publishing:
            if registry is not None:
                workers, token = str(self.options.workers), status_token(self._token)
                registry.publish_fleet({"status_token": token, "workers": workers, "query": self._feeds()})

    def _feeds(self) -> str:
        """The id of the query that is fed, or what stands for it while it starts, or while there is none."""
        query = self._query
        if query is None:
            return QUERY_STARTS if self._query_starts else NO_QUERY
        return str(query.id) if query.isActive else NO_QUERY

    def _start_query(self, writer: Any, checkpoint: str) -> StreamingQuery:
        if self._fleet is None or self._announcer is None or self._registry is None:
            raise ConfigurationError("the receiver is not started; call start(), or use it in a with statement")
        checks.trigger(writer)
        read = writers.receivers_of(writer)
        with contextlib.ExitStack() as held:
            together = [self, *(held.enter_context(other._held_still()) for other in self._read_beside(read))]
            for receiver in together:
                receiver._must_feed_none()
            for receiver in together:
                receiver._stop_query()
            files = CheckpointFiles(checkpoint, self._spark)
            checks.synchronous(writer, files.holes(), files.identity)
            checks.same_receivers(files.identity, files.receivers(), read or {self.name})
            try:
                for receiver in together:
                    receiver._hold_checkpoint(CheckpointFiles(checkpoint, self._spark), self.owner)
                    receiver._begin()
                with quick_on_local_disk(self._spark, files.local_folder):
                    query: StreamingQuery = writer.option("checkpointLocation", checkpoint).start()
                for receiver in together:
                    receiver._query = query
                require_own(self._spark, query, files, checkpoint, self._patience.stopping)
                for receiver in together:
                    receiver._follow()
            except BaseException:
                for receiver in together:
                    receiver._stop_query()
                raise
        return query

    def _read_beside(self, read: set[str] | None) -> list[Receiver]:
        """The other receivers that a query reads; their connectors are acknowledged by its commits too."""
        if read is None:
            return []
        running = {receiver.name: receiver for receiver in list(_running)}
        checks.receivers(self.name, read, running.keys())
        return [running[name] for name in sorted(read - {self.name})]

    @contextlib.contextmanager
    def _held_still(self) -> Iterator[Self]:
        """Within the block this receiver is neither started nor stopped."""
        if not self._lifecycle.acquire(timeout=STOP_SECONDS):
            raise ConfigurationError(f"receiver {self.name!r} is starting or stopping; start the query again then")
        try:
            if self._fleet is None:
                raise ConfigurationError(f"receiver {self.name!r} was stopped; start it before the query that reads it")
            yield self
        finally:
            self._lifecycle.release()

    def _must_feed_none(self) -> None:
        if self._query is not None and self._query.isActive:
            raise ConfigurationError(
                f"receiver {self.name!r} feeds a query already; stop it first, or use foreachBatch for several sinks"
            )

    def _follow(self) -> None:
        """The query has started: watch what it commits."""
        assert self._watcher is not None
        self._watcher.start()
        self._renew_at_leisure()

    def _begin(self) -> None:
        """Have the workers know where the query will go on, and the watcher follow it from there."""
        files = self._files
        assert self._announcer is not None
        assert self._registry is not None
        assert files is not None
        committed = files.progress(self.name).committed
        checks.decided(files.identity, committed)
        references = committed.references if committed else (self.options.starting_offsets or {})
        epoch = self._announcer.next_epoch(self._patience.ask(self._registry.next_submission))
        self._announcer.begin(LastCommit(epoch, committed.batch if committed else -1, references))
        self._query_starts = True
        self._patience.ask(self._renew)
        self._watcher = CheckpointWatcher(files, self.name, functools.partial(self._progressed, epoch))
        if files.stamp() is None:
            # PySpark asks Java for each value of a report, many times a batch, so this is for where nothing else tells.
            self._listener = Waker(self._watcher)
            self._spark.streams.addListener(self._listener)

    def _hold_checkpoint(self, files: CheckpointFiles, owner: str) -> None:
        """One query a checkpoint, whichever receivers feed it; ``owner`` is the one that starts it."""
        checkpoints = self._checkpoints
        assert checkpoints is not None

        def in_use() -> WallarooError:
            return CheckpointError(
                f"checkpoint {files.identity} is used by another query, of {checkpoints.locked_by(files.key)}; "
                "stop that one, or use another checkpoint",
                checkpoint=files.identity,
            )

        seconds = self.options.lease_seconds
        self._patience.hold(lambda: checkpoints.lock(files.key, owner, seconds), seconds, in_use)
        self._files, self._checkpoint_owner = files, owner

    def _progressed(self, epoch: int, progress: QueryProgress) -> None:
        announcer = self._announcer
        if progress.committed is not None and announcer is not None:
            committed = progress.committed
            announcer.commit(epoch, committed.batch, committed.references, committed.undecided)

    def _stop_query(self) -> None:
        """Stop the query; the watcher's last look then finds all that it has committed."""
        query, watcher, listener, files = self._query, self._watcher, self._listener, self._files
        self._query = self._listener = None
        self._query_starts = False
        with contextlib.ExitStack() as last:
            last.callback(self._let_go_of_checkpoint, files)
            last.callback(self._renew_at_leisure)
            if listener is not None:
                last.callback(self._spark.streams.removeListener, listener)
            if watcher is not None:
                last.callback(self._settle)
                last.callback(watcher.stop)
            if query is not None and query.isActive:
                query.stop()

    def _settle(self) -> None:
        """Have what the query committed last reach the workers before anything else is asked of them."""
        if self._announcer is not None:
            self._announcer.settle()

    def _renew_at_leisure(self) -> None:
        with contextlib.suppress(WallarooError):
            # Each round does it again, and says what goes wrong.
            self._renew()

    def _let_go_of_checkpoint(self, files: CheckpointFiles | None) -> None:
        self._watcher = self._files = None
        if files is not None and self._checkpoints is not None:
            with contextlib.suppress(RegistryError):
                self._checkpoints.unlock(files.key, self._checkpoint_owner)


def _ask_to_leave(slot: int, client: WorkerClient) -> None:
    try:
        client.stop("the receiver is stopping")
    except WallarooError as error:
        log.debug("slot %d: %s", slot, error)
