"""The parts of ``support``: configuration, registry, receivers, topics, checkpoint and application of a deployment.

Of this machine: versions, variables, and the user's log files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from wallaroo_spark import __version__
from wallaroo_spark.cli.common import ATTEMPTS, ReceiverOptions
from wallaroo_spark.cli.receive.config import read
from wallaroo_spark.cli.support.archive import Cleaner
from wallaroo_spark.errors import CheckpointError, ConfigurationError, RegistryError, WallarooError
from wallaroo_spark.options import table

MOST_KEYS = 2_000
"""The most keys of the registry that are listed. A choice; it bounds memory and the archive."""
MOST_FILES = 20_000
"""The most files of a checkpoint that are listed. A choice; it bounds memory and the archive."""
MOST_RECEIVERS = 20
"""The most receivers whose status is asked for. A choice: each may take some seconds."""
Miss = Callable[[str, str], None]
"""Notes the name of a part that was not reached, and the reason."""
_SECRET_OPTIONS = {row.name.lower() for row in table() if row.secret}
_SIZES = {"string": "strlen", "hash": "hlen", "set": "scard", "zset": "zcard", "list": "llen", "stream": "xlen"}
"""Type of a key → the command for its size."""


@dataclasses.dataclass(frozen=True)
class Deployment(ReceiverOptions):
    """Where the deployment is; what is empty is not known, and without a receiver it is all of the registry.

    Options:
        --checkpoint PATH: The query's checkpoint; its files are only listed.
        --app FOLDER: The folder of an application of durable streams; its files are only listed.
    """

    checkpoint: str = ""
    app: str = ""


def document(path: str, cleaner: Cleaner) -> dict[str, Any]:
    """The names and values of a YAML file, whose secrets the cleaner learns.

    Raises :class:`ConfigurationError` without the text of the file, because a broken line may hold a secret.
    """
    try:
        values = dict(read(path).values)
    except ConfigurationError as error:
        line = error.fields.get("line")
        where = f", line {line}" if line else ""
        raise ConfigurationError(
            f"{path}{where} cannot be read, and its secrets are not known: wallaroo-spark validate says why; a reason "
            "here might contain a part of the file",
            code=error.code or "config-invalid",
        ) from None
    for name, value in values.items():
        if str(name).lower() in _SECRET_OPTIONS and str(value) not in ("", "embedded"):
            cleaner.learn(str(value), whole=str(name).lower() != "registry")
    cleaner.learn_named(values)
    return values


def completed(place: Deployment, values: dict[str, Any]) -> Deployment:
    """The place with what a configuration adds to it; the command line comes first."""
    given = {str(name).lower(): value for name, value in values.items()}
    tls = given.get("tls") if isinstance(given.get("tls"), dict) else {}
    certificate = (tls or {}).get("certificate") or given.get("tls.certificate")
    authority = (tls or {}).get("workersCa") or given.get("tls.workersca")
    return dataclasses.replace(
        place,
        registry=place.registry or str(given.get("registry") or ""),
        receiver=place.receiver or str(given.get("receiver") or ""),
        checkpoint=place.checkpoint or str(given.get("checkpoint") or ""),
        tls=place.tls or bool(certificate),
        tls_ca=place.tls_ca or str(authority or ""),
    )


def options(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a configuration, and the default of each option that it does not give."""
    given = {str(name).lower() for name in values}
    defaults = {row.name: row.default for row in table() if not row.secret and row.name.lower() not in given}
    return {"given": values, "defaults": defaults}


def statuses(place: Deployment, miss: Miss) -> dict[str, dict[str, Any]]:
    """The status of each receiver by its name, with each worker's last events.

    Each part of a status that was not reached is given to ``miss``.
    """
    from wallaroo_spark.cli.status_views import as_json_values, look
    from wallaroo_spark.registry.client import receiver_names

    answers: dict[str, dict[str, Any]] = {}
    names = [place.receiver] if place.receiver else receiver_names(place.registry, ATTEMPTS)
    for name in names[MOST_RECEIVERS:]:
        miss(f"status of {name}", f"only the first {MOST_RECEIVERS} receivers are asked; name this one with --receiver")
    for name in names[:MOST_RECEIVERS]:
        with place.collector_of(name) as collector:
            found = look(collector, story=True)
        reasons = [f"slot {slot.slot}: {slot.error}" for slot in found.slots if slot.error]
        if found.registry_error:
            reasons.insert(0, found.registry_error)
        elif not found.running:
            reasons.append(f"receiver {name!r} does not run: no driver and no worker holds a lease in this registry")
        for reason in reasons:
            miss(f"status of {name}", reason)
        answers[name] = as_json_values(found)
    return answers


def topics(registry: str) -> list[Any]:
    """The running topics of a registry."""
    from wallaroo_spark.observe.faces.records import record_to_json
    from wallaroo_spark.observe.surroundings import topics_in

    return [record_to_json(one) for one in topics_in(registry, ATTEMPTS)]


def sinks(checkpoint: str) -> list[Any]:
    """The transactional sinks of the query with this checkpoint."""
    from wallaroo_spark.observe.faces.records import record_to_json
    from wallaroo_spark.observe.surroundings import sinks_in

    return [record_to_json(one) for one in sinks_in(checkpoint)]


def registry_keys(place: Deployment, cleaner: Cleaner, miss: Miss) -> dict[str, Any]:
    """The leases, and the keys of the receiver, of topics and of checkpoints: name, type, size and time to live.

    The values of other keys are not read. A user of Redis that may not list keys gets the leases alone.
    """
    from wallaroo_spark.registry import Registry
    from wallaroo_spark.registry.connection import RedisConnection

    answer: dict[str, Any] = {}
    if place.receiver:
        with Registry(place.registry, place.receiver, attempts=ATTEMPTS) as registry:
            fleet = registry.fleet()
            cleaner.learn_named(fleet)
            leases = registry.known_leases().values()
            answer = {"fleet": fleet, "leases": [{**dataclasses.asdict(lease), "live": live} for lease, live in leases]}
    front = f"{place.receiver}}}:" if place.receiver else ""
    connection = RedisConnection(place.registry, attempts=ATTEMPTS, timeout=5.0)
    with contextlib.closing(connection):
        answer["redis"] = _redis(connection)
        try:
            listed = connection.names_between("list the keys", "wallaroo:{", "")
        except RegistryError as error:
            miss("keys of the registry", error.message)
            return answer
        names = [name for name in listed if name.startswith((front, "topic:", "checkpoints}:"))]
        keys = [_key(connection, f"wallaroo:{{{name}") for name in names[:MOST_KEYS]]
    return {**answer, "keys": keys, "keys_in_all": len(names)}


def _key(connection: Any, name: str) -> dict[str, Any]:
    try:
        kind = str(connection.call("read the type of a key", lambda: connection.client.type(name)))
        size = connection.call("read the size of a key", lambda: getattr(connection.client, _SIZES[kind])(name))
        left = connection.call("read the time of a key", lambda: connection.client.pttl(name))
    except (RegistryError, KeyError) as error:
        # A user of Redis may have the right to list keys, and not to read these.
        return {"name": name, "unread": error.message if isinstance(error, WallarooError) else "it ended meanwhile"}
    return {"name": name, "type": kind, "size": size, "milliseconds_left": left if left >= 0 else None}


def _redis(connection: Any) -> dict[str, Any]:
    try:
        told = connection.call("read the version", lambda: connection.client.info("server"))
    except RegistryError as error:
        return {"endpoint": connection.endpoint, "unread": error.message}
    return {"endpoint": connection.endpoint, "version": told.get("redis_version"), "mode": told.get("redis_mode")}


def files_of(location: str) -> dict[str, Any]:
    """The files of a checkpoint or of an application: name, bytes and time of the last write, without their content."""
    from pyarrow import fs

    from wallaroo_spark.storage.locations import open_location

    opened = open_location(location)
    try:
        if opened.filesystem.get_file_info(opened.root).type != fs.FileType.Directory:
            raise CheckpointError(f"checkpoint {opened.identity} is not a folder", code="checkpoint-unreadable")
        found = opened.filesystem.get_file_info(fs.FileSelector(opened.root, recursive=True))
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {opened.identity} cannot be listed: {error}", code="checkpoint-unreadable"
        ) from error
    files = sorted((one for one in found if one.type == fs.FileType.File), key=lambda one: str(one.path))
    return {
        "location": opened.identity,
        "files_in_all": len(files),
        "files": [
            {
                "name": str(one.path).removeprefix(opened.root).lstrip("/"),
                "bytes": one.size,
                "written": one.mtime.isoformat() if one.mtime else None,
            }
            for one in files[-MOST_FILES:]
        ],
    }


def application(app: str) -> dict[str, Any]:
    """The newest snapshot of an application, as ``status --app --json`` shows it: no record and no token is in it."""
    from wallaroo_spark.observe.published import in_folder, to_json

    return to_json(in_folder(app))


def application_files(app: str) -> dict[str, Any]:
    """The files of an application's folder, without their content and without the names of tokens."""
    from wallaroo_spark.streams.places import TOKENS

    found = files_of(app)
    tokens = f"_wallaroo/{TOKENS}/"
    files = [one for one in found["files"] if not one["name"].startswith(tokens)]
    return {**found, "files": files, "tokens": len(found["files"]) - len(files)}


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
