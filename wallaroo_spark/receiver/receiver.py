"""The façade: start the fleet, read its stream, start the query, look at it, stop it all.

Source: ``design.md``, How it is used.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import secrets
import socket
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener

from wallaroo_spark.checkpoint import CheckpointFiles, CheckpointWatcher, Progress
from wallaroo_spark.errors import CheckpointError, ConfigurationError, RegistryError, WallarooError
from wallaroo_spark.options import Options, public_name, resolve_secret
from wallaroo_spark.receiver import checks
from wallaroo_spark.receiver.announcer import Announcer, Standing
from wallaroo_spark.receiver.fleet import Fleet
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.source import WallarooDataSource, register
from wallaroo_spark.worker.service import WorkerSetup

log = logging.getLogger("wallaroo_spark.receiver")

WORKERS_SECONDS = 120.0
"""How long the workers may take to come up: a cluster may first have to start their executors."""
STOP_SECONDS = 15.0


class Receiver:
    """A fleet of workers inside Spark, and the one streaming query that they feed.

    ``options`` are those of the options page, in camelCase or in snake_case. One receiver feeds one query, and one
    query has one checkpoint. As a context manager it starts on entry and stops on exit.
    """

    def __init__(self, spark: Any, name: str, **options: Any) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
            raise ConfigurationError(
                f"receiver name {name!r}: use 1 to 100 letters, digits, dots, dashes and underscores", name=name
            )
        attributes = {field.name for field in dataclasses.fields(Options)}
        texts = {public_name(key) if key in attributes else key: value for key, value in options.items()}
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
        self._listener: _Waker | None = None
        self._token = ""
        self._stopped = threading.Event()

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
        return resolve_secret(self.options.registry)

    def start(self, writer: Any = None, *, checkpoint: str = "") -> Any:
        """Without a writer: start the workers and wait for them; returns the receiver itself.

        With a ``DataStreamWriter`` and the ``checkpoint`` it is to use: start the query; returns the StreamingQuery.
        Raises :class:`ConfigurationError`, :class:`RegistryError` or :class:`CheckpointError` before anything is lost.
        """
        if writer is not None:
            return self._start_query(writer, checkpoint)
        if self._fleet is None:
            try:
                self._start_fleet()
            except BaseException:
                self.stop()
                raise
        return self

    def stream(self) -> DataFrame:
        """The streaming DataFrame of the rows that connectors send; the same one at each call."""
        if self._fleet is None:
            raise ConfigurationError("the receiver is not started; call start(), or use it in a with statement")
        if self._stream is None:
            register(self._spark)
            shown = dataclasses.replace(self.options, cookie="", token="")
            texts = {**shown.to_texts(), "receiver": self.name, "registry": self.options.registry}
            self._stream = self._spark.readStream.format(WallarooDataSource.name()).options(**texts).load()
        return self._stream

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as JSON-ready values."""
        standing = self._announcer.standing if self._announcer else None
        return {
            "receiver": self.name,
            "workers": [self._slot_status(record) for record in self._fleet.records] if self._fleet else [],
            "query": {
                "active": bool(self._query is not None and self._query.isActive),
                "checkpoint": self._files.identity if self._files else None,
                "committed_batch": standing.batch if standing else None,
                "watcher_error": self._watcher.error if self._watcher else None,
            },
        }

    def stop(self) -> None:
        """Stop the query, acknowledge what it has committed, and let the workers go. May be called again."""
        self._stop_query()
        if self._fleet:
            self._fleet.expect_end()
        if self._announcer:
            for slot, (_, client) in self._announcer.workers().items():
                try:
                    client.stop("the receiver is stopping")
                except WallarooError as error:
                    log.debug("slot %d: %s", slot, error)
        if self._fleet:
            self._fleet.join(STOP_SECONDS)
        if self._announcer:
            self._announcer.stop()
        if self._registry:
            try:
                self._registry.unlock("receiver", self.owner)
            except RegistryError as error:
                log.debug("%s", error)
            self._registry.close()
        if self._checkpoints:
            self._checkpoints.close()
        if self._embedded:
            self._embedded.stop()
        self._fleet = self._announcer = self._registry = self._checkpoints = self._embedded = self._stream = None
        self._stopped.set()

    def _start_fleet(self) -> None:
        checks.environment(self._spark)
        context = checks.classic_context(self._spark)
        master = context.master if context is not None else "connect"
        checks.registry_reach(self.options, master)
        checks.task_slots(self._spark, self.options.workers)
        registry = self._open_registry()
        self._token = resolve_secret(self.options.token) or secrets.token_urlsafe(32)
        host = self.options.host or ("127.0.0.1" if checks.on_one_machine(master) else "0.0.0.0")
        # Executors may have neither the driver's environment nor its files, so secrets are resolved here.
        shipped = dataclasses.replace(
            self.options, host=host, registry=self.registry_url, cookie=resolve_secret(self.options.cookie)
        )
        self._hold_name(registry)
        registry.forget_slots_from(self.options.workers)
        self._fleet = Fleet(self._spark, registry, WorkerSetup(shipped, 0, 0, self._token))
        self._announcer = Announcer(registry, self._token, self._renew)
        self._renew()
        self._fleet.start()
        self._announcer.start()
        self._await_workers(registry)
        self._announcer.round()

    def _open_registry(self) -> Registry:
        if self.options.registry == "embedded":
            self._embedded = EmbeddedRedis()
            self.options = dataclasses.replace(self.options, registry=self._embedded.start())
        seconds = self.options.lease_seconds
        self._registry = Registry(self.registry_url, self.name, lease_seconds=seconds)
        self._checkpoints = Registry(self.registry_url, "checkpoints", lease_seconds=seconds)
        self._registry.ping()
        return self._registry

    def _hold_name(self, registry: Registry) -> None:
        """One driver a receiver. One that was killed holds the name until its lock runs out, so that is waited for."""
        until = time.monotonic() + self.options.lease_seconds + 1
        while not registry.lock("receiver", self.owner, self.options.lease_seconds):
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"receiver {self.name!r} is run by another driver ({registry.locked_by('receiver')}); stop it, or "
                    "give this one another name"
                )
            time.sleep(0.2)

    def _await_workers(self, registry: Registry) -> None:
        assert self._fleet is not None
        until = time.monotonic() + WORKERS_SECONDS
        while True:
            serving = {slot for slot, lease in registry.leases().items() if lease.flight}
            missing = [record for record in self._fleet.records if record.slot not in serving]
            if not missing:
                return
            if time.monotonic() > until:
                why = "; ".join(f"slot {record.slot}: {record.last_error or 'no error'}" for record in missing)
                raise ConfigurationError(f"workers did not come up within {WORKERS_SECONDS:g} seconds: {why}")
            time.sleep(0.05)

    def _renew(self) -> None:
        """What the driver holds in the registry, written again each round: Redis may have been emptied."""
        assert self._registry is not None
        if self._embedded is not None and not self._embedded.running:
            self._embedded.start()
        self._registry.lock("receiver", self.owner, self.options.lease_seconds)
        self._registry.publish_fleet({"token": self._token, "workers": str(self.options.workers)})
        if self._files is not None and self._checkpoints is not None:
            self._checkpoints.lock(self._files.identity, self.owner, self.options.lease_seconds)

    def _start_query(self, writer: Any, checkpoint: str) -> Any:
        if self._fleet is None or self._announcer is None or self._registry is None:
            raise ConfigurationError("the receiver is not started; call start(), or use it in a with statement")
        if self._query is not None and self._query.isActive:
            raise ConfigurationError(
                f"receiver {self.name!r} feeds a query already; stop it first, or use foreachBatch for several sinks"
            )
        self._stop_query()
        files = CheckpointFiles(checkpoint)
        checks.synchronous(writer, files.holes(), files.identity)
        self._hold_checkpoint(files)
        committed = files.progress(self.name).committed
        references = committed.references if committed else (self.options.starting_offsets or {})
        epoch = self._registry.next_submission()
        self._announcer.begin(Standing(epoch, committed.batch if committed else -1, references))
        self._watcher = CheckpointWatcher(files, self.name, self._progressed)
        self._listener = _Waker(self._watcher)
        self._spark.streams.addListener(self._listener)
        try:
            self._query = writer.option("checkpointLocation", checkpoint).start()
        except BaseException:
            self._stop_query()
            raise
        self._watcher.start()
        return self._query

    def _hold_checkpoint(self, files: CheckpointFiles) -> None:
        """One query a checkpoint, whichever receiver feeds it."""
        assert self._checkpoints is not None
        until = time.monotonic() + self.options.lease_seconds + 1
        while not self._checkpoints.lock(files.identity, self.owner, self.options.lease_seconds):
            if time.monotonic() > until:
                other = self._checkpoints.locked_by(files.identity)
                raise CheckpointError(
                    f"checkpoint {files.identity} is used by another query, of {other}; "
                    "stop that one, or use another checkpoint",
                    checkpoint=files.identity,
                )
            time.sleep(0.2)
        self._files = files

    def _progressed(self, progress: Progress) -> None:
        if progress.committed is not None and self._announcer is not None:
            self._announcer.commit(progress.committed.batch, progress.committed.references)

    def _stop_query(self) -> None:
        if self._query is not None and self._query.isActive:
            self._query.stop()
        if self._watcher is not None:
            self._watcher.stop()
        if self._listener is not None:
            self._spark.streams.removeListener(self._listener)
        if self._files is not None and self._checkpoints is not None:
            try:
                self._checkpoints.unlock(self._files.identity, self.owner)
            except RegistryError as error:
                log.debug("%s", error)
        self._query = self._watcher = self._listener = self._files = None

    def _slot_status(self, record: Any) -> dict[str, Any]:
        assert self._announcer is not None
        answer = self._announcer.status(record.slot)
        return {
            "slot": record.slot,
            "state": "serving" if answer else ("starting" if record.running else "down"),
            "submissions": record.submissions,
            "last_error": record.last_error,
            **({"worker": answer} if answer else {}),
        }


class _Waker(StreamingQueryListener):
    """Has the watcher look when Spark reports progress, which it does after it has written ``commits/N``."""

    def __init__(self, watcher: CheckpointWatcher) -> None:
        self._watcher = watcher

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to see yet."""

    def onQueryProgress(self, event: Any) -> None:
        """A batch has been committed."""
        self._watcher.wake()

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: Any) -> None:
        """The last batch may have been committed since."""
        self._watcher.wake()
