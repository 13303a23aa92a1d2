"""Checks before anything starts: each mistake is refused in one sentence with the way out.

Source: ``docs/spark.md``.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from importlib import metadata
from typing import Any

from wallaroo_spark.checkpoint import PlannedBatch
from wallaroo_spark.errors import CheckpointError, ConfigurationError, one_line
from wallaroo_spark.options import Options
from wallaroo_spark.receiver import writers
from wallaroo_spark.slots.spark_checks import classic_context
from wallaroo_spark.transport import advertised

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

JAVA_NEEDED = 17
PYSPARK_NEEDED = (4, 2)
_ASYNC_OPTION = "asyncProgressTrackingEnabled"
_PYTHON_CHECK_SECONDS = 30
_GREATEST_PORT = 65_535


def environment(spark: Any) -> None:
    """Check this Python's packages, Spark's and Java's versions. Raises :class:`ConfigurationError`."""
    packages()
    context = classic_context(spark)
    if context is not None:
        java(str(context._jvm.java.lang.System.getProperty("java.version")))
        if context.master.startswith("local"):
            workers_python(context.pythonExec)


def packages(version: Any = metadata.version) -> None:
    """PySpark 4.2 or newer, pandas below 3, Arrow, and what makes the certificates of the inner port."""
    needs: dict[str, tuple[Callable[[tuple[int, ...]], bool], str, str]] = {
        "pyspark": (lambda v: v >= PYSPARK_NEEDED, "4.2 or newer", "pyspark>=4.2"),
        "pandas": (lambda v: v < (3,), "below 3, which PySpark needs", "pandas<3"),
        "pyarrow": (lambda v: v >= (15,), "15 or newer", "pyarrow>=15"),
        "cryptography": (lambda v: v >= (42,), "42 or newer", "cryptography>=42"),
    }
    for name, (fits, wanted, requirement) in needs.items():
        try:
            found = version(name)
        except metadata.PackageNotFoundError:
            if name == "pyspark":
                # Databricks and spark-submit bring a PySpark of their own that no installer knows of.
                continue
            raise ConfigurationError(f"{name} is not installed; run: pip install '{requirement}'") from None
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
        if not fits(numbers):
            raise ConfigurationError(f"{name} is {found}, and must be {wanted}; run: pip install '{requirement}'")


def java(version: str) -> None:
    """Java 17 or newer; ``version`` is the JVM's own, ``17.0.15`` or ``1.8.0_392``."""
    parts = [int(part) for part in re.findall(r"\d+", version)]
    major = parts[1] if parts[:1] == [1] and len(parts) > 1 else parts[0]
    if major < JAVA_NEEDED:
        raise ConfigurationError(
            f"Spark runs on Java {version}, and needs {JAVA_NEEDED} or newer; install "
            f"openjdk-{JAVA_NEEDED}-jre-headless or set JAVA_HOME to a newer one"
        )


def workers_python(executable: str) -> None:
    """In local mode Spark starts Python by itself; it must be one that has this package."""
    found = shutil.which(executable)
    if found is not None and os.path.realpath(found) == os.path.realpath(sys.executable):
        return
    program = [found or executable, "-c", "import wallaroo_spark, pyarrow, redis"]
    try:
        subprocess.run(program, check=True, capture_output=True, timeout=_PYTHON_CHECK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        raise ConfigurationError(
            f"Spark would run its workers with {executable!r}, which lacks this package; "
            f"set PYSPARK_PYTHON={sys.executable} before the session is made"
        ) from None


def combinations(options: Options) -> None:
    """Options that only make sense together. Raises :class:`ConfigurationError`."""
    needs = {
        "tls.bindInstances": (options.tls_bind_instances, "tls.ca", options.tls_ca),
        "tls.ca": (options.tls_ca, "tls.certificate", options.tls_certificate),
        "tls.workersCa": (options.tls_workers_ca, "tls.certificate", options.tls_certificate),
        "tls.certificate": (options.tls_certificate, "tls.key", options.tls_key),
        "tls.key": (options.tls_key, "tls.certificate", options.tls_certificate),
    }
    for name, (given, other, there) in needs.items():
        if given and not there:
            raise ConfigurationError(f"option {name} needs {other} too; give both, or neither", option=name)


def addresses(options: Options) -> None:
    """Check the addresses that workers listen at and advertise. Raises :class:`ConfigurationError`."""
    for name, template in (("advertise", options.advertise), ("innerAdvertise", options.inner_advertise)):
        try:
            for slot in range(options.workers if template else 0):
                advertised(template, slot, 1)
        except ConfigurationError as error:
            raise ConfigurationError(f"option {name}: {error.message}", option=name) from None
    for name, first in (("port", options.port), ("innerPort", options.inner_port)):
        if first and first + options.workers - 1 > _GREATEST_PORT:
            raise ConfigurationError(
                f"option {name}: {first} and {options.workers} slots go beyond port {_GREATEST_PORT}; begin lower",
                option=name,
            )
    if options.port and options.inner_port and abs(options.port - options.inner_port) < options.workers:
        raise ConfigurationError(
            f"options port and innerPort: from {options.port} and {options.inner_port} on, {options.workers} slots "
            "share ports; have them at least as far apart as there are slots",
            option="innerPort",
        )


def synchronous(writer: Any, holes: tuple[int, ...], checkpoint: str) -> None:
    """Refuse asynchronous progress tracking, under which a planned range may change."""
    if (writers.option(writer, _ASYNC_OPTION) or "false").lower() == "true":
        raise ConfigurationError(
            "asyncProgressTrackingEnabled lets a planned range change, so messages could be lost; leave it out"
        )
    if holes:
        raise CheckpointError(
            f"checkpoint {checkpoint} lacks batches {', '.join(map(str, holes[:5]))} within its logs, as asynchronous "
            "progress tracking leaves them; use another checkpoint",
            holes=holes,
        )


def trigger(writer: Any) -> None:
    """Refuse ``Trigger.Once``, under which Spark plans one batch at once, before any connector is let in."""
    if writers.runs_once(writer):
        raise ConfigurationError(
            "the trigger Once plans its batch before a connector has sent anything, so it would read nothing; "
            "use .trigger(availableNow=True), which waits until the connectors are quiet"
        )


def receivers(name: str, read: Collection[str], running: Collection[str]) -> None:
    """Refuse a query that does not read the receiver ``name``, or reads others than those that are ``running``."""
    if name not in read:
        reads = f"it reads {_names(sorted(read))}" if read else "it reads none"
        raise ConfigurationError(
            f"the query does not read receiver {name!r}, {reads}; build it on what stream() of this receiver returns, "
            "or start it by the receiver that it reads"
        )
    missing = sorted({*read} - {*running, name})
    if missing:
        raise ConfigurationError(
            f"the query also reads receiver {_names(missing)}, which this program does not run; start it here before "
            "the query, or leave its stream out"
        )


def same_receivers(checkpoint: str, found: Collection[str], read: Collection[str]) -> None:
    """Refuse a checkpoint that follows the streams of receivers which the query does not read."""
    others = sorted(set(found) - set(read))
    if others:
        raise CheckpointError(
            f"checkpoint {checkpoint} is of receiver {_names(others)}, and this query reads {_names(sorted(read))}: "
            "it would wait for ever, for the references there are of other streams; give the receiver the name that "
            "it had, or use another checkpoint",
            checkpoint=checkpoint,
            found=sorted(found),
        )


def decided(checkpoint: str, committed: PlannedBatch | None) -> None:
    """Refuse a checkpoint in which two sources of one receiver stand apart where references have no order."""
    if committed is not None and committed.undecided:
        streams = ", ".join(f"{stream} of {scope!r}" for scope, stream in committed.undecided[:5])
        raise CheckpointError(
            f"checkpoint {checkpoint} has several references in batch {committed.batch} for stream {streams}, of "
            "sources of one receiver, and with opaque ids nobody can tell which comes first; use another checkpoint",
            checkpoint=checkpoint,
            batch=committed.batch,
        )


def _names(receivers: Collection[str]) -> str:
    return " and ".join(repr(name) for name in receivers)
