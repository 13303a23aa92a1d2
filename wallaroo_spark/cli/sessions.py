"""The Spark sessions that the command line makes: they listen on loopback, without Spark's UI, and print errors alone.

The standard error of Spark's processes is without the lines that they print at each start.

Spark's UI has links that end jobs, and asks nobody for a token. So a session that is made here has no UI unless it is
asked for, and then it is on loopback where Spark runs on this machine. A session that somebody else has made, and one
under ``spark-submit``, keep their own settings.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.runtime.spark_checks import JAVA_NEEDED, JAVA_WITH_VFORK, VFORK, classic_context

NOISE = re.compile(
    rb"WARNING: (Using incubator modules"
    rb"|A (restricted|terminally deprecated) method|(java\.lang|sun\.misc)\.\S+ (has been|will be)"
    rb"|Use --enable-native-access|Restricted methods will|Please consider reporting)"
    rb"|Using Spark's default log4j profile"
    rb"|(Starting )?Streaming TransformWithState\w* Python worker"
)
"""The beginnings of lines that Java and PySpark print at each start, for which they have no setting."""
LAST_LINES_SECONDS = 1.0
"""Longest time that the end of the program waits for lines that Java has written. A choice."""


_END = b"\0\n"
"""What this process writes behind the last lines, so that it knows that they were passed on."""


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Processes that are started in the block write to this standard error, without the lines of :data:`NOISE`."""
    sys.stderr.flush()
    read, write = os.pipe()
    # This process itself writes to its own standard error again when the block has ended.
    own = os.dup(2)
    passed = threading.Event()

    def pass_on() -> None:
        # It reads for as long as anybody writes: a full pipe would stop Java.
        with os.fdopen(read, "rb") as lines:
            for line in without_noisy_lines(lines):
                with contextlib.suppress(OSError):
                    os.write(own, line.removesuffix(_END))
                if line.endswith(_END):
                    passed.set()

    def wait_for_the_last_lines() -> None:
        # They say why something has failed.
        if select.select([], [write], [], LAST_LINES_SECONDS)[1]:
            os.write(write, _END)
            passed.wait(LAST_LINES_SECONDS)

    threading.Thread(target=pass_on, name="standard error of Spark", daemon=True).start()
    atexit.register(wait_for_the_last_lines)
    os.dup2(write, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)


def without_noisy_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines without those of :data:`NOISE` and the empty line behind each."""
    dropped = False
    for line in lines:
        noise = NOISE.match(line) is not None
        if not noise and (line.strip() or not dropped):
            yield line
        dropped = noise


LOOPBACK = "127.0.0.1"
NO_UI = {"spark.ui.enabled": "false", "spark.ui.killEnabled": "false"}
"""Settings of every session that is made here."""
WITH_UI = {"spark.ui.enabled": "true"}
"""What ``--ui`` gives: a UI whose pages cannot end jobs, on loopback where Spark runs on this machine."""
QUIET = {"spark.ui.showConsoleProgress": "false"}
"""Settings of every session, also under spark-submit: a long job, such as a worker, would be a bar for ever."""
ON_LOOPBACK = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
"""Settings of a session on this machine alone."""
THIS_MACHINE = QUIET | NO_UI | ON_LOOPBACK
"""Settings of a session on this machine alone, for programs that make it themselves."""
DEEP_STACKS = "-Xss16m"
"""Java's option for the stacks of its threads.

When a query is stopped, Spark searches the error of the batch that it has interrupted with a pattern that takes a piece
of the stack for each character. With Java's 1 MB an error of 2,000 characters ended the query's thread with a
StackOverflowError, printed in 1,024 lines. 16 MB are enough for 16,000 (measured).
"""
LOG4J = Path(__file__).with_name("log4j2.properties")
"""The file for Log4j: without it Java prints warnings before Python can change the level."""

_JAVA_VERSION = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)

_JAVA_CLASS = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: ")
_LONGEST = 500


def session_for(name: str, settings: Mapping[str, str], slots: int, *, quiet: bool = True) -> tuple[Any, bool]:
    """A SparkSession with these Spark settings, and whether it was made here: an active one is used, and left running.

    Under spark-submit the session has the settings of that command. Otherwise it runs in local mode, with at least
    ``slots`` task slots. ``quiet`` leaves out the lines of :data:`NOISE` from the standard error of Spark's processes.
    Raises :class:`ConfigurationError` when Spark does not start.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        for key, value in settings.items():
            active.conf.set(key, value)
        return active, False
    silence = without_noise() if quiet else contextlib.nullcontext()
    with refusal("Spark did not start", "see Spark's own messages", code="spark-not-started"), silence:
        session = started(name, settings, slots)
    with contextlib.suppress(Exception):
        # Spark Connect has no context, and logs elsewhere.
        session.sparkContext.setLogLevel("ERROR")
    return session, True


def started(name: str, settings: Mapping[str, str], slots: int) -> Any:
    """Start a session with these settings and the defaults beside them."""
    from pyspark.sql import SparkSession

    made = SparkSession.builder.appName(name)
    for key, value in {**defaults(settings, slots), **settings}.items():
        made = made.config(key, value)
    others = _children()
    try:
        return made.getOrCreate()
    except KeyboardInterrupt:
        # PySpark forgets a Java that has not told its port yet, and that one would run for ever.
        for process in _children() - others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        raise


def _children() -> set[int]:
    """The processes that this one has started; none where the system has no ``/proc``."""
    found = set[int]()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, file.read_text().split()))
    return found


def defaults(settings: Mapping[str, str], slots: int) -> dict[str, str]:
    """The settings of a session beside the given ones. For Spark on this machine it also sets environment variables.

    Raises :class:`ConfigurationError` where Spark would find no Java.
    """
    environment = os.environ
    if "PYSPARK_GATEWAY_PORT" in environment or "SPARK_REMOTE" in environment or "spark.remote" in settings:
        return dict(QUIET)
    if _java() is None:
        named = f"JAVA_HOME is {environment['JAVA_HOME']!r}" if environment.get("JAVA_HOME") else "JAVA_HOME is not set"
        raise ConfigurationError(
            f"Spark needs Java {JAVA_NEEDED} or newer, and there is none: {named}, and there is no program "
            f"{_java_program()}; install openjdk-{JAVA_NEEDED}-jre-headless, or set JAVA_HOME to the folder of a Java",
            code="spark-not-started",
        )
    if "MASTER" in environment or not settings.get("spark.master", "local").startswith("local"):
        return QUIET | NO_UI | _own_log(settings)
    # Spark's default is the first python3 on the PATH, which may lack this package.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    # Where a UI is asked for, it binds this address.
    environment.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    master = {"spark.master": f"local[{max(slots, os.cpu_count() or 1)}]"}
    return THIS_MACHINE | master | _own_log(settings)


def log_to(file: Path) -> dict[str, str]:
    """The setting that makes Java use a file of settings for Log4j; it has :data:`DEEP_STACKS` and
    :func:`quick_processes`, too."""
    options = f'{DEEP_STACKS} -Dlog4j2.configurationFile="{file.as_uri()}" {quick_processes()}'
    return {"spark.driver.extraJavaOptions": options.strip()}


def quick_processes() -> str:
    """:data:`VFORK`; empty for a Java that may not have it."""
    java = _java()
    if java is None or sys.platform != "linux":
        return ""
    try:
        release = Path(os.path.realpath(java)).parents[1].joinpath("release").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    found = _JAVA_VERSION.search(release)
    return VFORK if found and int(found[1]) in JAVA_WITH_VFORK else ""


def _java_program() -> str:
    """The program that Spark's launcher starts: JAVA_HOME comes before the PATH."""
    home = os.environ.get("JAVA_HOME", "")
    return os.path.join(home, "bin", "java") if home else "java"


def _java() -> str | None:
    """The path of Java; None where there is none."""
    return shutil.which(_java_program())


def ui_address(session: Any) -> str:
    """The address of Spark's UI; empty: there is none."""
    context = classic_context(session)
    return "" if context is None else str(context.uiWebUrl or "")


def _own_log(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings for Log4j, unless somebody has configured this Spark."""
    theirs = "SPARK_HOME" in os.environ or "SPARK_CONF_DIR" in os.environ
    return {} if theirs or "spark.driver.extraJavaOptions" in settings else log_to(LOG4J)


@contextlib.contextmanager
def refusal(problem: str, remedy: str, *, code: str, **fields: Any) -> Iterator[None]:
    """Within the block, an error of Spark is raised as a :class:`ConfigurationError`, with Spark's reason in it."""
    from pyspark.errors import PySparkException

    try:
        yield
    except Exception as error:
        # PySpark has no class of its own for some errors of Java.
        if not isinstance(error, PySparkException) and type(error).__name__ != "Py4JJavaError":
            raise
        raise ConfigurationError(f"{problem}: {_in_short(error)}; {remedy}", code=code, **fields) from error


def _in_short(error: Exception) -> str:
    """The first line of an error of Spark that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = [_JAVA_CLASS.sub("", lines[1])]
    text = lines[0] if lines else type(error).__name__
    return text[:_LONGEST].rstrip(".;")


@contextlib.contextmanager
def standard_error_to(path: str | Path) -> Iterator[None]:
    """Redirect the standard error of this process and of those that it starts to a file; empty: do nothing."""
    if not path:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with Path(path).open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@contextlib.contextmanager
def ended_with(session: Any, ours: bool) -> Iterator[None]:
    """At the end of the block, stop a session that was made here."""
    try:
        yield
    finally:
        if ours:
            with contextlib.suppress(Exception):
                session.stop()
