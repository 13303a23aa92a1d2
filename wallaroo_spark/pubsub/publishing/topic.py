"""The driver's handle of a topic: it runs the publishers and publishes the DataFrames of a query's batches.

Source: ``docs/pubsub.md``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.errors import ConfigurationError, PubSubError, RegistryError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.pubsub.publishing.publisher import ENDED, PublisherSetup, TopicSettings, run_publisher
from wallaroo_spark.pubsub.publishing.staging import EpochArgument, stage
from wallaroo_spark.pubsub.publishing.topic_log import TopicLog
from wallaroo_spark.pubsub.topic_catalog import (
    PublisherProgress,
    ServedPartition,
    TopicCatalog,
    TopicRecord,
    leases_of,
)
from wallaroo_spark.registry import Registry
from wallaroo_spark.runtime import spark_checks
from wallaroo_spark.runtime.handle import DriverHandle
from wallaroo_spark.runtime.long_jobs import JobRecord
from wallaroo_spark.settings import takes_settings
from wallaroo_spark.sidecar.task_access import require_reach
from wallaroo_spark.storage.locations import for_tasks
from wallaroo_spark.transport import open_access_warning

log = one_line("wallaroo_spark.pubsub")


class Topic(DriverHandle):
    """A topic and its publishers, which run inside Spark, one for each partition.

    As a context manager it starts on entry and stops on exit; it stops ``for_good`` unless an exception ends the block.
    Raises :class:`ConfigurationError` for settings that cannot work, before anything starts.
    """

    KIND, TASK, LOCK = "topic", "publisher", "topic"

    @takes_settings(TopicSettings)
    def __init__(self, settings: TopicSettings) -> None:
        super().__init__(settings.name, settings.spark, settings.registry, settings.lease_seconds)
        self.pairs = settings.pairs
        self._settings = settings
        self._files = CheckpointFiles(settings.checkpoint, settings.spark)
        self._topic_log = TopicLog(settings.checkpoint, settings.name, settings.spark)
        self._topics: TopicCatalog | None = None
        self._identity = ""
        self._schema: Any = None
        self._published: dict[int, str] = {}
        self._warning = ""
        self._for_good = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(for_good=kind is None)

    def start(self) -> None:
        """Start the publishers and wait until all of them serve. Does nothing when the topic runs already.

        Raises :class:`ConfigurationError` when another driver runs a topic of this name, there are too few task slots,
        or the publishers do not start in time; :class:`RegistryError`; :class:`CheckpointError`.
        """
        super().start()
        _running[self.name] = self

    def stop(self, *, for_good: bool = True) -> None:
        """Stop the publishers; may be called again. Stop the query first, because its next :meth:`publish` fails.

        Subscribers receive all committed batches. With ``for_good`` they are then notified that the topic has ended.
        Otherwise they wait for a driver that starts the topic again on the same checkpoint.
        """
        self._waits.stopping.set()
        with self._lifecycle:
            if _running.get(self.name) is self:
                del _running[self.name]
            self._for_good = for_good
            self._shut_down()

    def publish(self, df: DataFrame, epoch: EpochArgument = None) -> None:
        """Publish the rows of a batch, to be sent after the batch's commit. Call it inside ``foreachBatch``.

        ``epoch`` determines the times of the rows. None: the running batch. An integer: this batch. A column's name, or
        an (integer, column's name): pairs of the batch and the column's value, an integer from 0, on a topic with
        ``pairs``. The DataFrame is computed once more for it unless it is persisted. Partition i of the DataFrame
        belongs to publisher i % partitions. A batch that runs again replaces its earlier rows, which no subscriber has
        received.

        Raises :class:`PubSubError` when the batch is unknown, already committed or already published, when the columns
        differ from those of earlier batches, or when the epoch column has a value that is not an integer from 0.
        """
        if self._jobs is None:
            raise PubSubError(
                f"topic {self.name!r} does not run; start it, or use it in a with statement",
                code="receiver-not-started",
            )
        staged = stage(df, epoch, self._files, self._topic_log, pairs=self.pairs)
        if self._published.get(staged.manifest.batch) == staged.run:
            raise PubSubError(
                f"batch {staged.manifest.batch} was published on topic {self.name!r} already; publish it once, as the "
                "union of its DataFrames",
                code="batch-published-already",
                topic=self.name,
                batch=staged.manifest.batch,
            )
        self._remember_schema(staged.schema)
        self._topic_log.seal(staged.manifest)
        self._published = {staged.manifest.batch: staged.run} if staged.run else {}
        self._topic_log.keep_from(staged.manifest.batch - self._settings.retain)

    def status(self) -> dict[str, Any]:
        """The state of the topic and its publishers, as JSON-serializable values."""
        jobs, topics = self._jobs, self._topics
        served: dict[int, ServedPartition] = {}
        if topics is not None:
            with contextlib.suppress(RegistryError):
                served = topics.served(self.name)
        records = jobs.records if jobs else []
        return {
            "topic": self.name,
            "identity": self._identity,
            "error": self._rounds.error,
            "warnings": [self._warning] if self._warning else [],
            "partitions": [_partition_status(record, served.get(record.slot)) for record in records],
        }

    def _begin(self) -> None:
        settings, self._for_good = self._settings, False
        if self.name in _running:
            raise ConfigurationError(
                f"topic {self.name!r} runs in this program already, and publish finds topics by name; call stop() "
                "of that one first, or give this one another name",
                code="name-in-use",
                name=self.name,
            )
        spark_checks.environment(self._spark)
        context = spark_checks.classic_context(self._spark)
        master = context.master if context is not None else "connect"
        spark_checks.registry_reach(settings.registry, master)
        spark_checks.task_slots(self._spark, settings.partitions, kind="publishers")
        require_reach(self._spark, settings.checkpoint, f"topic {self.name!r}")
        if self._embedded is not None:
            self._embedded.start()
        self._topics = TopicCatalog(self.registry_url, lease_seconds=settings.lease_seconds)
        leases = self._take_name(lambda url: leases_of(url, self.name, settings.lease_seconds), settings.partitions)
        self._identity = self._topic_log.identity(settings.partitions, self.pairs)
        self._waits.ask(lambda: leases.publish_fleet({ENDED: ""}))
        setup = self._setup(settings.host or ("127.0.0.1" if spark_checks.on_one_machine(master) else "0.0.0.0"))
        self._warning = open_access_warning(
            f"topic {self.name!r}: its publishers", setup.settings.host, setup.settings.cookie, settings.tls_ca
        )
        if self._warning:
            log.warning("%s", self._warning)
        jobs = self._make_jobs(settings.partitions, lambda *numbers: partial(run_publisher, setup.of(*numbers)))
        self._waits.ask(self._round)
        jobs.start()
        self._rounds.start(self._round)
        self._await_jobs()

    def _setup(self, host: str) -> PublisherSetup:
        """The setup of all publishers, which bind ``host``."""
        settings = self._settings
        # Executors may have neither the driver's environment nor its files, so secrets are resolved here.
        shipped = dataclasses.replace(
            settings, spark=None, registry=self.registry_url, cookie=resolve_secret(settings.cookie), host=host
        )
        return PublisherSetup(shipped, self._identity, for_tasks(settings.checkpoint, self._spark))

    def _elsewhere(self) -> str:
        assert self._topics is not None
        record, ours = self._topics.find(self.name), self._topic_log.known()
        same = record is None or (ours is not None and record.identity == ours.identity)
        return "" if same else ", with another checkpoint"

    def _round(self) -> None:
        """Write the driver's entries to the registry again, because Redis may have been emptied."""
        leases, topics = self._renew(), self._topics
        assert topics is not None
        schema = b"" if self._schema is None else self._schema.serialize().to_pybytes()
        partitions = self._settings.partitions
        topics.announce(TopicRecord(self.name, partitions, self._identity, self.pairs, schema, self.owner))
        if self._jobs is not None:
            self._jobs.leases_seen(leases.leases())

    def _remember_schema(self, schema: Any) -> None:
        if schema is None:
            return
        if self._schema is None:
            self._schema = schema
            with contextlib.suppress(RegistryError):
                self._round()
        if (self._schema.names, self._schema.types) != (schema.names, schema.types):
            raise PubSubError(
                f"topic {self.name!r} has the columns {_columns(self._schema)}, and this batch has {_columns(schema)}; "
                "select the same ones in every batch, or publish on another topic",
                code="topic-columns",
                topic=self.name,
            )

    def _ends(self) -> Sequence[Callable[[], Any]]:
        return (self._end_jobs, self._withdraw)

    def _revoke(self, leases: Registry) -> None:
        leases.publish_fleet({ENDED: "yes" if self._for_good else ""})
        super()._revoke(leases)

    def _withdraw(self) -> None:
        """Remove the topic from the catalog, if it is still this driver's."""
        leases, topics, self._topics = self._leases, self._topics, None
        if topics is None:
            return
        with contextlib.closing(topics), contextlib.suppress(RegistryError):
            if leases is not None and leases.locked_by(self.LOCK) == self.owner:
                topics.withdraw(self.name)


_running: dict[str, Topic] = {}


def publish(df: DataFrame, topic: Topic | str, *, epoch: EpochArgument = None) -> None:
    """Publish the rows of a batch on a topic of this driver, given as a handle or by name; see :meth:`Topic.publish`.

    Raises :class:`PubSubError` as that method does, and when no topic of this name runs in this driver.
    """
    handle = _running.get(topic) if isinstance(topic, str) else topic
    if handle is None:
        running = ", ".join(sorted(_running)) or "none"
        raise PubSubError(
            f"no topic {topic!r} runs in this driver ({running} do); start it with Topic(spark, {topic!r}, …)",
            code="topic-not-found",
            topic=topic,
        )
    handle.publish(df, epoch)


def _partition_status(record: JobRecord, served: ServedPartition | None) -> dict[str, Any]:
    progress = served.progress if served else PublisherProgress()
    return {
        "partition": record.slot,
        "state": "serving" if served else ("starting" if record.running else "down"),
        "submissions": record.submissions,
        "last_error": record.last_error,
        "address": served.address if served else None,
        "newest": progress.newest,
        "subscribers": progress.subscribers,
    }


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
