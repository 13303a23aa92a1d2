"""The checks of ``check``, one function each: they take a configuration and yield findings."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.cli.common import ATTEMPTS
from wallaroo_spark.cli.receive.config import ReceiveConfig
from wallaroo_spark.cli.sessions import refusal
from wallaroo_spark.cli.support import findings
from wallaroo_spark.cli.support.findings import Finding, note, ok, problem
from wallaroo_spark.errors import TransportError, WallarooError
from wallaroo_spark.extras import command
from wallaroo_spark.inner.client import Trust
from wallaroo_spark.observe.collect import Question, RegistryCollector
from wallaroo_spark.options import Options, resolve_secret
from wallaroo_spark.protocol import DRAFT_BE
from wallaroo_spark.protocol.channels import HEADER
from wallaroo_spark.receiver import checks
from wallaroo_spark.registry import Registry
from wallaroo_spark.runtime import spark_checks
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.task_access import FOLDER, require_reach
from wallaroo_spark.storage.locations import open_location
from wallaroo_spark.texts import count
from wallaroo_spark.transport import format_address, tls
from wallaroo_spark.transport.binding import bind

LOCK_SECONDS = 10.0
"""How long the lock of the check lasts if the check dies."""
CLOCK_SECONDS = 1.0
"""Seconds of difference from which a clock is reported. A choice; leases do not depend on it, because Redis measures
them."""
QUERY_SECONDS = 120.0
"""How long the query of the check may take. A choice: it reads nothing; the time is for starting Python and Java."""
REACH_SECONDS = 3.0
"""The longest wait for a connection to a door. A choice: a person waits."""
EXPIRES_DAYS = 30
"""A certificate that expires within this time is reported."""


def installed() -> Iterator[Finding]:
    """The packages of this Python."""
    spark_checks.packages()
    yield ok("packages", f"Python {'.'.join(map(str, sys.version_info[:3]))} has all packages of a driver")


def registry(options: Options, url: str) -> Iterator[Finding]:
    """Whether the registry answers, and grants the rights that a driver and its workers need."""
    with Registry(url, options.receiver, attempts=ATTEMPTS) as found:
        found.ping()
        owner = f"check/{uuid.uuid4().hex[:8]}"
        # These calls use the same Redis commands as the driver and the workers.
        if not found.lock("check", owner, LOCK_SECONDS):
            yield note("Redis", "another check of this receiver runs now")
        found.unlock("check", owner)
        found.leases()
        found.fleet()
        yield ok("Redis", f"{found} answers, and grants reading, writing and scripts for receiver {options.receiver!r}")
        driver = found.locked_by("receiver")
        if driver is not None:
            yield note("receiver", f"receiver {options.receiver!r} runs already, by the driver {driver}")
    with Registry(url, "checkpoints", attempts=ATTEMPTS) as found:
        if found.lock("check", owner, LOCK_SECONDS):
            found.unlock("check", owner)
        yield ok("Redis", "it grants the locks of checkpoints")


def ports(options: Options, *, running: bool) -> Iterator[Finding]:
    """Whether the fixed ports of this machine are free; ``running``: the receiver itself may hold them."""
    taken = []
    ranges = checks.port_ranges(options).items()
    wanted = [(name, first + number) for name, (first, count) in ranges if first for number in range(count)]
    for name, port in wanted:
        try:
            for bound in asyncio.run(bind(options.host or "127.0.0.1", port, 1)):
                bound.close()
        except TransportError as error:
            taken.append(f"option {name}: {error.message}")
    for text in taken:
        yield note("ports", f"{text} (the receiver runs already)") if running else problem("ports", text)
    if not taken:
        yield ok("ports", f"{count(len(wanted), 'fixed port')} can be bound" if wanted else "any free ports are taken")


def doors(options: Options) -> Iterator[Finding]:
    """The secret and the packages that the doors of the options need here."""
    checks.doors(options, options.host or "127.0.0.1")
    for door in checks.asked_doors(options):
        yield ok("doors", f"the {door.name} door has what it needs here")


def reach(options: Options, url: str) -> Iterator[Finding]:
    """Whether the doors of the running workers are reached from here, at the host and the ports that clients are
    told."""
    with (
        Registry(url, options.receiver, attempts=ATTEMPTS) as found,
        RegistryCollector(found, options.receiver, Trust.of(options)) as collector,
    ):
        opened = collector.status(Question(most=0)).doors
    for door in opened:
        name = f"{door.door} of slot {door.slot}"
        host = urlsplit(door.address if "//" in door.address else f"//{door.address}").hostname or ""
        away = [(port, why) for port in door.ports if (why := _unreached(host, port))]
        for port, why in away:
            place = format_address(host, port)
            yield problem(
                "doors",
                f"{name} is not reached from here at {place}, where its clients are sent: {why}; check the option "
                "advertise and the firewall",
            )
        if not away:
            yield ok("doors", f"{name} is reached from here at {host}, {count(len(door.ports), 'port')}")


def quic(options: Options, url: str) -> Iterator[Finding]:
    """What QUIC needs here, and, where ``url`` is given, whether the running workers are reached over it from here."""
    checks.quic(options)
    if not options.quic:
        return
    yield ok("QUIC", "the certificate and the packages for it are there")
    if not url:
        return
    with Registry(url, options.receiver, attempts=ATTEMPTS) as found:
        addresses = {slot: lease.connect for slot, lease in found.leases().items() if lease.connect}
    for slot, address in sorted(addresses.items()):
        try:
            asyncio.run(_quic_answers(address, options.tls_workers_ca))
        except WallarooError as error:
            yield problem("QUIC", f"slot {slot} is not reached from here: {error.message}")
        else:
            yield ok("QUIC", f"slot {slot} is reached from here at {address}, so UDP is let through")


async def _quic_answers(address: str, ca: str) -> None:
    """Connect to a worker over QUIC, and close again. Raises :class:`TransportError`."""
    from wallaroo_spark import aqueduct

    async with aqueduct.connect(address, headers=[(HEADER, DRAFT_BE.name.encode())], ca=ca) as connection:
        await connection.headers()


def _unreached(host: str, port: int) -> str:
    """Why no connection can be made; empty when one can."""
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except OSError as error:
        return str(error)
    return ""


def certificates(options: Options) -> Iterator[Finding]:
    """The certificate, its key and the authorities; when the certificate expires, and for which names it is."""
    if not options.tls_certificate:
        yield ok("TLS", "not used" if not options.tls_ca else "an authority is given, and no certificate")
        return
    tls.server_context(options.tls_certificate, options.tls_key, options.tls_ca)
    if options.tls_workers_ca:
        tls.read_authority(options.tls_workers_ca)
    from cryptography import x509

    pair = tls.read_pair(options.tls_certificate, options.tls_key)
    certificate = x509.load_pem_x509_certificate(pair[0])
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    until = certificate.not_valid_after_utc.strftime("%Y-%m-%d")
    if left.total_seconds() <= 0:
        yield problem("TLS", f"certificate {options.tls_certificate} has expired on {until}; issue a new one")
        return
    with contextlib.suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = ", ".join(str(name.value) for name in names)
        yield ok("TLS", f"the certificate is for {shown}; connectors must reach the workers by one of these names")
    verdict = note if left < datetime.timedelta(EXPIRES_DAYS) else ok
    yield verdict("TLS", f"certificate and key belong together, and the certificate expires on {until}")


def session(spark: Any, options: Options) -> Iterator[Finding]:
    """Spark, Java, the Python of Spark's tasks, and the number of task slots."""
    spark_checks.environment(spark)
    context = spark_checks.classic_context(spark)
    java = f", Java {spark_checks.java_property(context, 'java.version')}" if context is not None else ""
    master = context.master if context is not None else "Spark Connect"
    yield ok("Spark", f"version {spark.version}{java}, at {master}")
    if context is not None and (advice := spark_checks.slow_processes(context)):
        yield note("Java", advice)
    spark_checks.registry_reach(options.registry, context.master if context is not None else "connect")
    spark_checks.task_slots(spark, options.workers)
    if context is not None and spark.conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        slots = spark_checks.count_task_slots(context)
        yield ok("task slots", f"{slots}; {count(options.workers, 'worker')} and the query need {options.workers + 1}")
        if advice := spark_checks.together(context, options.workers):
            yield note("task slots", advice)
    else:
        yield note("task slots", f"they cannot be counted here; {options.workers + 1} are needed at the same time")


def tasks(spark: Any, options: Options, url: str) -> Iterator[Finding]:
    """The packages and the clock of Spark's executors, and whether they reach the registry."""
    began = time.time()
    extras = {door.package: door.extra for door in checks.asked_doors(options)}
    if options.quic:
        extras["aioquic"] = "quic"
    answers = findings.ask(spark, options.workers + 1, url, options.receiver, (*findings.PACKAGES, *extras))
    ended = time.time()
    hosts = ", ".join(sorted({str(one["host"]) for one in answers}))
    here = findings.look("", "")
    found = 0
    for one in answers:
        for text in _wrong(one, here, extras):
            found += 1
            yield problem("executors", f"{one['host']}: {text}")
        off = max(began - one["time"], one["time"] - ended)
        if off > CLOCK_SECONDS:
            yield note("clock", f"the clock of {one['host']} differs by {off:.1f} s from this one; run a time service")
    if not found:
        reach = ", and reach the registry" if url else ""
        yield ok(
            "executors", f"{count(len(answers), 'process', 'processes')} on {hosts} have all packages of workers{reach}"
        )


def own_redis() -> Iterator[Finding]:
    """Whether there is a server for ``registry="embedded"``. Raises :class:`ConfigurationError`."""
    from wallaroo_spark.registry.embedded import find_server

    yield ok("Redis", f"the receiver starts one of its own, on this machine: {find_server()}")


def _wrong(one: Mapping[str, Any], here: Mapping[str, Any], extras: Mapping[str, str]) -> Iterator[str]:
    """The missing parts of a process, as sentences. ``extras`` has those of packages that doors need."""
    for name, version in one["packages"].items():
        if not version:
            extra = extras.get(name, "worker")
            yield f"{name} is not installed for Python {one['python']}; run there: {command([extra])}"
        elif name == "wallaroo-spark" and len({version, here["packages"][name]} - {findings.PRESENT}) > 1:
            yield f"{name} is {version}, and this driver has {here['packages'][name]}; install the same version"
    if one["registry"]:
        yield f"it does not reach the registry: {one['registry']}"


def checkpoint(spark: Any, config: ReceiveConfig, url: str) -> Iterator[Finding]:
    """Whether driver and tasks use the checkpoint's file system, and which query the checkpoint belongs to."""
    files = CheckpointFiles(config.checkpoint, spark)
    recorded = files.receivers()
    checks.same_receivers(files.identity, recorded, {config.receiver})
    checks.without_holes(files.holes(), files.identity)
    if url and files.exists():
        with Registry(url, "checkpoints", attempts=ATTEMPTS) as found:
            user = found.locked_by(files.key)
        if user is not None:
            yield note("checkpoint", f"{files.identity} is used by a running query of {user}")
    yield from _writable(spark, config.checkpoint)
    state = "is continued" if recorded else "is new"
    yield ok("checkpoint", f"{files.identity} can be read, and {state}")
    require_reach(spark, config.checkpoint, "the check")
    yield from _written_by_spark(spark, config.checkpoint)


def _writable(spark: Any, location: str) -> Iterator[Finding]:
    """Whether an existing checkpoint is a folder in which this process may write."""
    filesystem, root, identity = open_location(location, spark)
    kind = filesystem.get_file_info(root).type
    if kind == fs.FileType.File:
        yield problem("checkpoint", f"{identity} is a file; name a folder that belongs to this query alone")
    elif kind == fs.FileType.Directory:
        folder = SidecarFolder(location, FOLDER, spark=spark)
        name = f"{uuid.uuid4().hex}.check"
        folder.write(name, b"check")
        folder.delete(name)


def _written_by_spark(spark: Any, location: str) -> Iterator[Finding]:
    """Whether this process reads the files where Spark writes them: with a query that reads nothing."""
    scratch = f"{location.rstrip('/')}-check-{uuid.uuid4().hex[:8]}"
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    writer = rows.writeStream.format("noop").trigger(availableNow=True).option("checkpointLocation", scratch)
    failure = f"Spark cannot write {scratch}, a folder beside the checkpoint that this check makes and deletes"
    remedy = "name a checkpoint in a folder where the user of Spark may write"
    try:
        with refusal(failure, remedy, code="checkpoint-unwritable"):
            query = writer.start()
            ended = query.awaitTermination(QUERY_SECONDS)
        if not ended:
            query.stop()
            yield problem("checkpoint", f"a query wrote no batch into {scratch} within {QUERY_SECONDS:g} s")
            return
        if CheckpointFiles(scratch, spark).query_id() != str(query.id):
            yield problem(
                "checkpoint",
                f"Spark writes {location} to a place that this process does not read; give the checkpoint as a whole "
                "URI (hdfs://…, s3a://…, file:///…)",
            )
            return
        yield ok("checkpoint", "Spark writes it where this process reads it")
    finally:
        filesystem, root, _ = open_location(scratch, spark)
        with contextlib.suppress(OSError):
            filesystem.delete_dir(root)


def resolved_registry(options: Options) -> str:
    """The registry's URL; empty for the embedded one, which the receiver starts itself."""
    return "" if options.registry == "embedded" else resolve_secret(options.registry)
