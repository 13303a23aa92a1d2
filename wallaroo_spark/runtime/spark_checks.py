"""Checks of Spark before anything starts: its packages, Java and Python, its machines and its task slots.

The functions that check raise :class:`ConfigurationError`, with one sentence that also names the remedy.

Source: ``docs/spark.md#tasks-and-jobs``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit

from wallaroo_spark.errors import ConfigurationError, one_line

log = one_line("wallaroo_spark.runtime")

JAVA_NEEDED = 17
VFORK = "-Djdk.lang.Process.launchMechanism=VFORK"
"""The option by which Java starts processes without its helper program. Spark's batches start some six processes each,
for the permissions of files. Source: ``docs/decisions/price-of-a-batch.md``."""
JAVA_WITH_VFORK = range(17, 26)
"""Java 26 warns of the option, and a Java without it starts no process at all."""
PYSPARK_NEEDED = (4, 2)
_PYTHON_CHECK_SECONDS = 30
"""How long another Python may take to import this package. A choice: it bounds the start with a broken interpreter."""
_NO_EXECUTOR = (
    "the cluster has started no executor: stop other applications that have all of its cores, and see on the page of "
    "its master whether its machines have the memory of spark.executor.memory"
)
EXECUTORS_SECONDS = 60.0
"""How long a cluster's executors may take to register before the number of task slots is final.

A choice, not a measurement: a start on a cluster that is too small is refused this late.
"""


def classic_context(spark: Any) -> Any:
    """The SparkContext of a session; None on Spark Connect, which has no SparkContext."""
    try:
        return spark.sparkContext
    except Exception:
        return None


def master_of(spark: Any) -> str:
    """Spark's master URL, also on Spark Connect; empty where the server does not tell it."""
    context = classic_context(spark)
    if context is not None:
        return str(context.master)
    try:
        return str(spark.conf.get("spark.master", ""))
    except Exception:
        return ""


def on_one_machine(master: str) -> bool:
    """Whether a master URL is local mode, or a cluster on the loopback interface."""
    return master.startswith("local") or urlsplit(master).hostname in ("127.0.0.1", "localhost", "::1")


def environment(spark: Any) -> None:
    """Check the installed packages, the versions of Spark and Java, and in local mode the Python of Spark's tasks.

    The log has the advice of :func:`slow_processes`.
    """
    packages()
    context = classic_context(spark)
    if context is not None:
        java(java_property(context, "java.version"))
        if advice := slow_processes(context):
            log.info("%s", advice)
    tasks_python(spark)


def tasks_python(spark: Any) -> None:
    """In local mode, refuse a Python of Spark's tasks that does not have this package."""
    context = classic_context(spark)
    if context is not None and context.master.startswith("local"):
        workers_python(context.pythonExec)


def packages(version: Any = metadata.version) -> None:
    """Refuse versions of PySpark, pandas, pyarrow and cryptography (for the inner port) that do not work.

    ``version`` is a function that returns the installed version of a distribution.
    """
    needs: dict[str, tuple[Callable[[tuple[int, ...]], bool], str, str]] = {
        "pyspark": (lambda v: v >= PYSPARK_NEEDED, "4.2 or newer", "pyspark>=4.2"),
        "pandas": (lambda v: v < (3,), "below 3, which PySpark needs", "pandas<3"),
        "pyarrow": (lambda v: v >= (15,), "15 or newer", "pyarrow>=15"),
        "cryptography": (lambda v: v >= (42,), "42 or newer", "cryptography>=42"),
    }
    for name, (fits, wanted, requirement) in needs.items():
        try:
            installed = version(name)
        except metadata.PackageNotFoundError:
            if name == "pyspark":
                # Databricks and spark-submit provide a PySpark that was not installed as a distribution.
                continue
            raise ConfigurationError(
                f"{name} is not installed; run: pip install '{requirement}'", code="package-missing"
            ) from None
        numbers = tuple(int(part) for part in re.findall(r"\d+", installed)[:3])
        if not fits(numbers):
            raise ConfigurationError(
                f"{name} is {installed}, and must be {wanted}; run: pip install '{requirement}'", code="package-missing"
            )


def java_property(context: Any, name: str) -> str:
    """A system property of the driver's JVM; empty: it has no such property."""
    return str(context._jvm.java.lang.System.getProperty(name) or "")


def slow_processes(context: Any) -> str:
    """The advice for a driver whose Java starts each process by way of its helper program; empty for any other."""
    name, _, value = VFORK.removeprefix("-D").partition("=")
    quick = java_property(context, name) == value or java_property(context, "os.name") != "Linux"
    if quick or _major(java_property(context, "java.version")) not in JAVA_WITH_VFORK:
        return ""
    return (
        "the driver's Java starts a helper program for each process, and Spark starts some six processes a batch; "
        f"batches are quicker with spark.driver.extraJavaOptions={VFORK}"
    )


def _major(version: str) -> int:
    """The first number of a version of Java; ``version`` is as ``17.0.15`` or ``1.8.0_392``."""
    parts = [int(part) for part in re.findall(r"\d+", version)]
    return parts[1] if parts[:1] == [1] and len(parts) > 1 else parts[0]


def java(version: str) -> None:
    """Refuse a Java older than 17; ``version`` is the JVM's property ``java.version``."""
    if _major(version) < JAVA_NEEDED:
        raise ConfigurationError(
            f"Spark runs on Java {version}, and needs {JAVA_NEEDED} or newer; install "
            f"openjdk-{JAVA_NEEDED}-jre-headless or set JAVA_HOME to a newer one",
            code="java-too-old",
        )


def workers_python(executable: str) -> None:
    """Refuse a Python for Spark's tasks (``executable``) that does not have this package; for local mode."""
    path = shutil.which(executable)
    if path is not None and os.path.realpath(path) == os.path.realpath(sys.executable):
        return
    program = [path or executable, "-c", "import wallaroo_spark, pyarrow, redis"]
    try:
        subprocess.run(program, check=True, capture_output=True, timeout=_PYTHON_CHECK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        raise ConfigurationError(
            f"Spark would run its workers with {executable!r}, which lacks this package; "
            f"set PYSPARK_PYTHON={sys.executable} before the session is made",
            code="executor-python",
        ) from None


def registry_reach(registry: str, master: str) -> None:
    """Raise :class:`ConfigurationError` for an embedded Redis on a cluster, whose other machines cannot reach it.

    ``registry`` is the option, ``master`` Spark's master URL.
    """
    if registry == "embedded" and not on_one_machine(master):
        raise ConfigurationError(
            f"registry=embedded is for one machine, and {master} may have several; "
            "give the URL of a Redis that all machines reach: registry=redis://host:6379",
            code="registry-not-shared",
        )


def task_slots(spark: Any, jobs: int, *, kind: str = "workers") -> None:
    """Raise :class:`ConfigurationError` when the cluster has too few task slots for ``jobs`` more long jobs.

    Each long job occupies a task slot while it runs, and the query needs at least one more. Long jobs that this process
    already runs count too. On a cluster the function waits for executors to register. ``kind``
    names the jobs in messages. On Spark Connect and with dynamic allocation the slots cannot be counted: then nothing
    is checked, and the log says so.
    """
    context = classic_context(spark)
    # Not before: sessions are made without a registry, and the help of verbs is shown without Redis.
    from wallaroo_spark.runtime import long_jobs

    running = long_jobs.task_slots_taken()
    needed = jobs + running + 1
    if context is None or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        log.info("the cluster's task slots cannot be counted; %d %s need at least %d", jobs, kind, needed)
        return
    until = time.monotonic() + EXECUTORS_SECONDS
    while (slots := count_task_slots(context)) < needed:
        if context.master.startswith("local") or time.monotonic() > until:
            beside = f", {running} workers and publishers that run already" if running else ""
            few = slots - running - 1
            fewer = f"use {kind}={few}" if kind == "workers" and few > 0 else f"use fewer {kind}"
            remedy = f"{fewer}, or {_more_slots(context.master, needed)}" if slots else _NO_EXECUTOR
            raise ConfigurationError(
                f"{jobs} {kind}{beside} and the query need {needed} task slots, and {context.master} has {slots}: no "
                f"batch would ever run; {remedy}",
                code="too-few-task-slots",
                slots=slots,
                workers=jobs,
            )
        time.sleep(0.5)


def _more_slots(master: str, needed: int) -> str:
    return f"local[{needed}] or more" if master.startswith("local") else "more executor cores (spark.cores.max)"


def count_task_slots(context: Any) -> int:
    """The number of tasks that can run at the same time with the executors that are registered now."""
    local = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", context.master)
    if local:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    if context.master.startswith("local-cluster"):
        executors, cores = re.findall(r"\d+", context.master)[:2]
        return int(executors) * int(cores)
    return sum(_slots_of_executors(context))


def together(context: Any, workers: int) -> str:
    """The advice for a cluster of several executors of which one may get all workers; empty for any other.

    Spark starts a task in any executor with a free slot, and each worker is a job of one task.
    """
    slots = _slots_of_executors(context)
    if workers < 2 or len(slots) < 2 or max(slots) < workers:
        return ""
    return (
        f"an executor has {max(slots)} of them, so all {workers} workers may run in one, and its loss stops all of "
        f"them until others start; with spark.executor.cores below {workers} they are in two executors at least, and "
        "with 1 each has its own"
    )


def _slots_of_executors(context: Any) -> list[int]:
    per_task = int(context.getConf().get("spark.task.cpus", "1"))
    return [int(process.totalCores()) // per_task for process in _executors(context)]


def _executors(context: Any) -> list[Any]:
    """Spark's descriptions of the executors, without that of the driver."""
    store = context._jsc.sc().statusStore().executorList(True)
    processes = [store.apply(index) for index in range(store.size())]
    return [process for process in processes if process.id() != "driver"]
