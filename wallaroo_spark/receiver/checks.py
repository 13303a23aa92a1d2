"""Checks that run before anything starts. Each one refuses a mistake with one sentence that also names the remedy.

The functions raise :class:`ConfigurationError`, or :class:`CheckpointError` for a checkpoint that cannot be used.
Source: ``docs/spark.md``.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.checkpoint import PlannedBatch
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.extras import needed_by
from wallaroo_spark.observe.server.page_server import PageAddress
from wallaroo_spark.options import Options, resolve_secret
from wallaroo_spark.receiver import spark_queries
from wallaroo_spark.receiver.spark_queries import RunningQuery
from wallaroo_spark.transport import advertised
from wallaroo_spark.transport.reach import is_loopback

_ASYNC_OPTION = "asyncProgressTrackingEnabled"
_GREATEST_PORT = 65_535


def combinations(options: Options) -> None:
    """Refuse an option that is given without another option that it needs."""
    needs = {
        "tls.bindInstances": (options.tls_bind_instances, "tls.ca", options.tls_ca),
        "tls.ca": (options.tls_ca, "tls.certificate", options.tls_certificate),
        "tls.workersCa": (options.tls_workers_ca, "tls.certificate", options.tls_certificate),
        "tls.certificate": (options.tls_certificate, "tls.key", options.tls_key),
        "tls.key": (options.tls_key, "tls.certificate", options.tls_certificate),
    }
    for name, (given, other, other_given) in needs.items():
        if given and not other_given:
            raise ConfigurationError(
                f"option {name} needs {other} too; give both, or neither", code="options-conflict", option=name
            )


def quic(options: Options) -> None:
    """Refuse the option ``quic`` where it cannot work, and without its packages."""
    if not options.quic:
        return
    if not options.tls_certificate:
        raise ConfigurationError(
            "option quic needs tls.certificate and tls.key, because QUIC always uses TLS; give them, or leave quic out",
            code="options-conflict",
            option="quic",
        )
    if options.tls_ca:
        raise ConfigurationError(
            "option quic does not go with tls.ca: over QUIC a worker cannot verify the certificates of connectors, so "
            "they would get in without one; leave one of them out. Give a cookie, and tls.workersCa for the inner port",
            code="options-conflict",
            option="quic",
        )
    with needed_by("option quic", "quic"):
        importlib.import_module("aioquic")


def addresses(options: Options) -> None:
    """Refuse advertised addresses that cannot be parsed, and port ranges that overlap or end above port 65535."""
    for name, template in (("advertise", options.advertise), ("innerAdvertise", options.inner_advertise)):
        try:
            for slot in range(options.workers if template else 0):
                advertised(template, slot, 1)
        except ConfigurationError as error:
            raise ConfigurationError(f"option {name}: {error.message}", code=error.code, option=name) from None
    ports = port_ranges(options)
    for name, (first, count) in ports.items():
        if first and first + count - 1 > _GREATEST_PORT:
            raise ConfigurationError(
                f"option {name}: {first} and {options.workers} slots go beyond port {_GREATEST_PORT}; begin lower",
                code="option-out-of-range",
                option=name,
            )
    for (one, (first, before)), (other, (second, behind)) in itertools.combinations(ports.items(), 2):
        if first and second and first < second + behind and second < first + before:
            least = "the number of slots" if other != "kafka.port" else f"{before if first < second else behind}"
            raise ConfigurationError(
                f"options {one} and {other}: from {first} and {second} on, {options.workers} slots "
                f"share ports; make the difference between them at least {least}",
                code="options-conflict",
                option=other,
            )


def port_ranges(options: Options) -> dict[str, tuple[int, int]]:
    """The name of each option of ports → the first port, 0 for any free ones, and their number."""
    return {
        "port": (options.port, options.workers),
        "innerPort": (options.inner_port, options.workers),
        "http.port": (options.http_port or 0, options.workers),
        "kafka.port": (options.kafka_port or 0, options.workers * options.kafka_nodes),
        "otlp.port": (options.otlp_port or 0, options.workers),
    }


@dataclass(frozen=True)
class _Door:
    """A door, as the checks at the start see it."""

    option: str
    name: str
    secret: str
    """What the cookie is for its clients."""
    extra: str
    module: str
    package: str
    """The package that has the module."""


_DOORS = (
    _Door("http.port", "HTTP", "bearer token", "http", "httptools", "httptools"),
    _Door("kafka.port", "Kafka", "password", "kafka-door", "google_crc32c", "google-crc32c"),
    _Door("otlp.port", "OTLP", "bearer token", "otlp", "grpc", "grpcio"),
)


def asked_doors(options: Options) -> list[_Door]:
    """The doors whose port is given."""
    ports = {"http.port": options.http_port, "kafka.port": options.kafka_port, "otlp.port": options.otlp_port}
    return [door for door in _DOORS if ports[door.option] is not None]


def doors(options: Options, host: str) -> None:
    """Refuse a door that other machines reach without a secret, and one whose packages are not installed.

    ``host`` is what the workers bind.
    """
    for door in asked_doors(options):
        if not options.door_tokens and not resolve_secret(options.cookie) and not is_loopback(host):
            raise ConfigurationError(
                f"option {door.option}: the {door.name} door would listen at {host} and accept every request; set "
                f"cookie, which is its {door.secret}, or door.tokens, or listen on loopback (host=127.0.0.1)",
                code="option-missing",
                option=door.option,
            )
        with needed_by(f"option {door.option}", door.extra):
            importlib.import_module(door.module)


def status_page(options: Options) -> PageAddress | None:
    """Return where the status page listens, None when there is none.

    Refuses an address that cannot be read, and one that other machines reach without a token.
    """
    return PageAddress.parse(options.status_page, resolve_secret(options.status_page_token))


def synchronous(writer: Any, holes: tuple[int, ...], checkpoint: str) -> None:
    """Refuse asynchronous progress tracking, under which the planned range of a batch may change after a restart.

    ``holes`` are the batches that the checkpoint's logs lack (:meth:`CheckpointFiles.holes`): they show that an earlier
    run used asynchronous progress tracking.
    """
    if (spark_queries.option(writer, _ASYNC_OPTION) or "false").lower() == "true":
        raise _asynchronous()
    without_holes(holes, checkpoint)


def _asynchronous() -> ConfigurationError:
    return ConfigurationError(
        "with asyncProgressTrackingEnabled a planned range may change, so messages could be lost; remove the option",
        code="async-progress",
    )


def adoptable(query: RunningQuery, *, fsync: bool) -> None:
    """Refuse a running query that no receiver may follow; ``fsync`` is whether the option is set."""
    if query.asynchronous:
        raise _asynchronous()
    if query.trigger == spark_queries.ONCE:
        raise _once()
    if not query.batches:
        raise ConfigurationError(
            "it does not run in micro-batches, so it has no log of committed batches; leave .trigger(continuous=…) out",
            code="query-not-started",
        )
    if query.temporary:
        raise ConfigurationError(
            "it has no checkpoint of its own, and Spark deletes the temporary one when the query ends, so a query that "
            "is started again would not know what was acknowledged; give .option('checkpointLocation', …)",
            code="query-not-started",
        )
    if fsync:
        raise ConfigurationError(
            "with the option fsync the receiver has to check the files of the checkpoint before Spark reads them; "
            "start the query with receiver.start_query",
            code="query-not-started",
        )


def without_holes(holes: tuple[int, ...], checkpoint: str) -> None:
    """Refuse a checkpoint whose logs lack batches, as asynchronous progress tracking leaves them."""
    if holes:
        raise CheckpointError(
            f"checkpoint {checkpoint} lacks batches {', '.join(map(str, holes[:5]))} within its logs, as asynchronous "
            "progress tracking leaves them; use another checkpoint",
            code="async-progress",
            holes=holes,
        )


def trigger(writer: Any) -> None:
    """Refuse ``Trigger.Once``, under which Spark plans its only batch before any connector can connect."""
    if spark_queries.runs_once(writer):
        raise _once()


DOOR_TRIGGER_SECONDS = 5.0
"""The longest interval of a trigger that is not warned of where clients of doors give up soon: Kafka's wait 30 s for an
answer, some 10 s, and have a few requests under way; OpenTelemetry's exporters wait 10 s."""


def slow_trigger(words: str, options: Options) -> str:
    """The warning of a trigger, in words, that is too slow for clients of the doors; empty for none."""
    ports = {"kafka.port": options.kafka_port, "otlp.port": options.otlp_port}
    given = " and ".join(name for name, port in ports.items() if port is not None)
    if not given or spark_queries.interval_seconds(words) <= DOOR_TRIGGER_SECONDS:
        return ""
    return (
        f"the query of receiver {options.receiver!r} has the trigger {words!r}, and {given} is given: a client of that "
        "door waits for the commit of its requests, for some seconds and with only some of them under way, so it will "
        f"be slow or give up; use a trigger of at most {DOOR_TRIGGER_SECONDS:g} s"
    )


def _once() -> ConfigurationError:
    return ConfigurationError(
        "the trigger Once plans its batch before a connector has sent anything, so it would read nothing; "
        "use .trigger(availableNow=True), which waits until the connectors are quiet",
        code="trigger-once",
    )


def receivers(name: str, read: Collection[str], running: Collection[str]) -> None:
    """Refuse a query that does not read the receiver ``name``, or that also reads a receiver that is not running.

    ``read`` are the names of the receivers that the query reads, ``running`` those that this program runs.
    """
    if name not in read:
        reads = f"it reads {_names(sorted(read))}" if read else "it reads none"
        raise ConfigurationError(
            f"the query does not read receiver {name!r}, {reads}; build it on the DataFrame that stream() of this "
            "receiver returns, or start it with the receiver that it reads",
            code="query-of-other-receiver",
        )
    missing = sorted({*read} - {*running, name})
    if missing:
        raise ConfigurationError(
            f"the query also reads receiver {_names(missing)}, which this program does not run; start that receiver in "
            "this program before the query, or remove its stream from the query",
            code="query-of-other-receiver",
        )


def receiver_name(options: Options) -> None:
    """Refuse a name that cannot be a part of keys in Redis and of the names of threads."""
    name = options.receiver
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
        raise ConfigurationError(
            f"receiver name {name!r}: use 1 to 100 letters, digits, dots, dashes and underscores",
            code="name-invalid",
            name=name,
            option="receiver",
        )


def name_is_free(name: str, running: Collection[str]) -> None:
    """Refuse a second receiver of a name in one program. ``running`` are the names of those that run.

    A query shows only the name of a receiver that it reads, and connectors address a receiver by its name.
    """
    if name in running:
        raise ConfigurationError(
            f"receiver {name!r} runs in this program already; call stop() of that one first, or give this one another "
            "name",
            code="name-in-use",
            name=name,
        )


def same_receivers(checkpoint: str, recorded: Collection[str], read: Collection[str]) -> None:
    """Refuse a checkpoint that has references of receivers which the query does not read.

    ``recorded`` are the names of the receivers in the checkpoint's newest planned batch.
    """
    others = sorted(set(recorded) - set(read))
    if others:
        raise CheckpointError(
            f"checkpoint {checkpoint} is of receiver {_names(others)}, but this query reads {_names(sorted(read))}: "
            "the query would wait forever, because the references in the checkpoint are of other streams; give the "
            "receiver its former name, or use another checkpoint",
            code="checkpoint-of-other-receiver",
            checkpoint=checkpoint,
            found=sorted(recorded),
        )


def decided(checkpoint: str, committed: PlannedBatch | None) -> None:
    """Refuse a checkpoint in which two sources of one receiver have different references that cannot be ordered.

    ``committed`` is the plan of the newest committed batch; None before the first commit.
    """
    if committed is not None and committed.undecided:
        streams = ", ".join(f"{stream} of {scope!r}" for scope, stream in committed.undecided[:5])
        raise CheckpointError(
            f"checkpoint {checkpoint} has several references in batch {committed.batch} for stream {streams}, because "
            "several sources read one receiver; opaque ids have no order, so the earliest one is not known; use "
            "another checkpoint",
            code="checkpoint-ambiguous",
            checkpoint=checkpoint,
            batch=committed.batch,
        )


def _names(receivers: Collection[str]) -> str:
    return " and ".join(repr(name) for name in receivers)
