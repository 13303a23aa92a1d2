"""The parts of ``support`` that describe this machine: versions, variables, and the user's log files."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from wallaroo_spark import __version__
from wallaroo_spark.errors import ConfigurationError

JAVA_SECONDS = 20.0
"""The longest wait for ``java -version``. A choice: it takes well under a second on a machine that is not loaded."""
_VARIABLES = re.compile(
    r"(WALLAROO|SPARK|PYSPARK|PYTHON|JAVA|HADOOP|ARROW|GRPC|OTEL|LC)_\w+|JAVA_HOME|LANG|TZ|SHELL|VIRTUAL_ENV|PATH"
)
_EXTRA = re.compile(r"extra\s*==\s*[\"']([\w-]+)[\"']")
_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")


def versions() -> dict[str, Any]:
    """The versions of everything that this package runs on, and the packages of each extra."""
    return {
        "wallaroo-spark": __version__,
        "python": sys.version,
        "executable": sys.executable,
        "pyspark": _version("pyspark"),
        "java": java(),
        "system": platform.platform(),
        "distribution": _distribution(),
        "processors": os.cpu_count(),
        "memory_bytes": _memory(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "time_zone": time.tzname,
        "extras": extras(),
    }


def extras() -> dict[str, dict[str, str | None]]:
    """Each extra of this package with its packages: the installed version, None for one that is not installed."""
    found: dict[str, dict[str, str | None]] = {}
    for requirement in metadata.requires("wallaroo-spark") or ():
        package, extra = re.match(r"[\w.-]+", requirement), _EXTRA.search(requirement)
        if package is not None and extra is not None and extra[1] != "test":
            found.setdefault(extra[1], {})[package[0]] = _version(package[0])
    return found


def java() -> str:
    """The first lines of ``java -version``, or the reason why there are none."""
    home = os.environ.get("JAVA_HOME", "")
    program = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if program is None:
        return f"no java in JAVA_HOME={home}" if home else "no java in PATH, and JAVA_HOME is not set"
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_SECONDS, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{program} cannot be run: {error}"
    return "\n".join([program, *(done.stderr or done.stdout).splitlines()[:10]])


def variables() -> dict[str, str]:
    """The environment variables of this package, Spark, Java and Python; others are nobody's business."""
    return {name: os.environ[name] for name in sorted(os.environ) if _VARIABLES.fullmatch(name)}


def end_of_log(path: str, most: int) -> str:
    """The last ``most`` bytes of a log file, from the beginning of a line.

    Raises :class:`ConfigurationError` for a file that is no text, because secrets are not found in it.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - most)
            file.seek(0)
            head = file.read(8)
            file.seek(begin)
            data = file.read(most)
    except OSError as error:
        raise ConfigurationError(f"file {path} cannot be read: {error.strerror}", code="file-unreadable") from None
    if b"\0" in data or head.startswith(_PACKED):
        raise ConfigurationError(
            f"file {path} is no text, so secrets cannot be removed from it; unpack it first", code="file-unreadable"
        )
    if begin:
        # The rest of a line might end with a part of a secret, which is not found.
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
