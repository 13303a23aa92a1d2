"""Resolves locations (paths and URIs) as Spark does, and opens their file systems.

HDFS is read without Java where the package hdfs-native is installed. Linux's table of mounts says whether a lock on a
local path excludes other machines too. Source: ``docs/decisions/checkpoint-through-hadoop.md``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow
from pyarrow import fs

from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.storage.hadoop import Hadoop, UnknownSchemeError

TABLE = "/proc/self/mountinfo"
_LOCKS_OF_ONE_MACHINE = re.compile(r"fuse(\..*)?|9p|virtiofs|vboxsf|prl_fs|vmhgfs")
"""File systems that show the files of another machine and grant a lock to each machine: most FUSE programs, among them
those that mount buckets and sshfs, and folders of a host in its virtual machines and containers."""
_LOCKS_OF_ALL = re.compile(
    r"fuse\.(glusterfs|ceph|ceph-fuse|juicefs|moosefs|lxcfs|fuse-overlayfs|mergerfs|encfs|gocryptfs)"
)
"""FUSE programs with locks of their own server, or over a disk of this machine."""
_NETWORK = {"nfs": ("nolock", "local_lock=flock", "local_lock=all"), "nfs4": (), "cifs": ("nobrl",), "smb3": ("nobrl",)}
"""Network file systems that send locks to the server, with the options that switch that off."""


class Mount(NamedTuple):
    """A mounted file system."""

    folder: str
    """Where it is mounted."""
    kind: str
    """Its type, such as ``ext4`` or ``fuse.s3fs``."""
    options: tuple[str, ...]

    @property
    def locks_are_local(self) -> bool:
        """Whether it grants a lock to each machine that mounts it."""
        if self.kind in _NETWORK:
            return not set(self.options).isdisjoint(_NETWORK[self.kind])
        return bool(_LOCKS_OF_ONE_MACHINE.fullmatch(self.kind)) and not _LOCKS_OF_ALL.fullmatch(self.kind)


def mount_in(table: str, path: str) -> Mount | None:
    """The mount of an absolute path without symbolic links, by the text of a table; None if the table has none."""
    found: Mount | None = None
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields, more = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(more) < 3:
            continue
        folder = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        # Of two mounts at one place the later one is seen.
        if is_within(path, folder) and (found is None or len(folder) >= len(found.folder)):
            found = Mount(folder, more[0], (*fields[5].split(","), *more[2].split(",")))
    return found


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def locks_are_local(path: str) -> bool:
    """Whether a lock on a file of a folder is known to exclude programs of this machine only."""
    try:
        with open(TABLE, encoding="utf-8", errors="surrogateescape") as file:
            mount = mount_in(file.read(), os.path.realpath(path))
    except OSError:
        return False
    return mount is not None and mount.locks_are_local


def native_hdfs(host: str, port: int | None, settings: dict[str, Any]) -> Any:
    """Return a file system of ``pyarrow.fs`` for HDFS; None if the package hdfs-native is not installed.

    ``host`` is a name node, or a name service that ``settings`` (Hadoop's own names and values) define. Errors of the
    name node are raised as OSError.
    """
    try:
        from hdfs_native.fsspec import HdfsFileSystem
    except ImportError:
        return None
    filesystem: Any = HdfsFileSystem(host, port, **settings)
    filesystem.client = Translated(filesystem.client)
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem))


class Translated:
    """A wrapper of an object of hdfs-native that raises its RuntimeErrors as OSErrors, as other file systems do."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        return functools.partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Any, *values: Any, **named: Any) -> Any:
        try:
            answer = method(*values, **named)
            if name == "list_status":
                return list(answer)
        except RuntimeError as error:
            # The text contains Java's stack trace, with line breaks or with "\n" as two characters.
            raise OSError(str(error).partition("\n")[0].partition("\\n")[0]) from error
        return Translated(answer) if name in ("read", "create") and hasattr(answer, "close") else answer


log = one_line(logging.getLogger(__name__))

SCHEMES = ("file", "hdfs", "viewfs", "s3", "s3a", "gs", "abfs", "abfss", "dbfs")
"""Schemes that work; some of them need a package or configuration."""

# Hadoop's schemes, and the schemes of pyarrow for the same stores.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_DATABRICKS_MOUNT = "/dbfs"
_DATABRICKS_VOLUMES = "/Volumes/"
_MOUNTS = (f"{_DATABRICKS_MOUNT}/", _DATABRICKS_VOLUMES)
"""Folders in which object stores are mounted."""
_OBJECTS = re.compile(r"s3|gcs|py::hadoop\+(s3[an]?|gs|gcs)://.*")


@dataclass(frozen=True)
class PortableLocation:
    """A location for processes without a JVM gateway, such as Spark's tasks."""

    uri: str
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    """Arguments with which the file system is opened; they may contain secrets."""

    def __str__(self) -> str:
        return _split(self.uri)[3]


Location = str | PortableLocation


class Opened(NamedTuple):
    """An opened location."""

    filesystem: Any
    """A file system of ``pyarrow.fs``."""
    root: str
    """The location's path on the file system."""
    identity: str
    """The location's URI without credentials, for messages and as the name of a lock."""

    @property
    def local(self) -> bool:
        """Whether the file system is this machine's own, or a mount that looks like it."""
        return is_local(self.filesystem)

    @property
    def objects(self) -> bool:
        """Whether it is an object store: files appear when they are complete, and renaming a file copies it."""
        return _OBJECTS.fullmatch(self.filesystem.type_name) is not None


def is_local(filesystem: Any) -> bool:
    """Whether a file system of ``pyarrow.fs`` is this machine's own, or a mount that looks like it. Checks its type."""
    return isinstance(filesystem, fs.LocalFileSystem)


def is_mounted(path: str) -> bool:
    """Whether a local path is in an object store that is mounted as a folder."""
    return path.startswith(_MOUNTS)


class JvmSession:
    """A stand-in for a classic Spark session, with the attributes that :class:`Hadoop` reads."""

    def __init__(self, context: Any, java: Any) -> None:
        self.sparkContext, self._jvm, self._jsparkSession = context, context._jvm, java


def session() -> Any:
    """Return the Spark session of this thread, or of this process; None in tasks, on Connect and without Spark.

    The session comes from the JVM, because PySpark's own active session may be another one, as in ``foreachBatch``.
    """
    context = getattr(getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return None
    try:
        sessions = context._jvm.org.apache.spark.sql.classic.SparkSession
        for candidate in (sessions.getActiveSession(), sessions.getDefaultSession()):
            if candidate.isDefined():
                return JvmSession(context, candidate.get())
    except Exception as error:
        log.debug("the active Spark session is not known: %s", error)
    return None


def open_location(location: Location, spark: Any = None) -> Opened:
    """Open the file system of a location.

    When ``spark`` is a session with a JVM gateway, the location is resolved as Spark does: a location without a scheme
    is on the session's default file system, and every file system except the local disk is read through Spark's own
    Hadoop. Otherwise a location without a scheme is local, and ``pyarrow.fs`` opens the others. Raises
    :class:`ConfigurationError` when the location is empty or its file system cannot be opened.
    """
    settings = location.settings if isinstance(location, PortableLocation) else {}
    location = location.uri if isinstance(location, PortableLocation) else location
    if not location.strip():
        raise ConfigurationError(
            "the checkpoint has no location; give a directory or a URI", code="checkpoint-location", location=location
        )
    hadoop = Hadoop.of(spark)
    uri = None if hadoop is None else _qualified(hadoop, location)
    if hadoop is not None and uri is not None:
        if _scheme(uri)[0] != "file":
            with _by_hadoop(uri):
                return Opened(hadoop.file_system(uri), uri.rstrip("/"), _split(uri)[3])
        location = uri
    scheme, rest = _scheme(location)
    if scheme in ("", "file"):
        return _open_local(re.sub(r"^//[^/]*", "", rest) if scheme else rest)
    if scheme == "dbfs":
        path = f"/{rest.lstrip('/')}"
        return _open_local(path if path.startswith(_DATABRICKS_VOLUMES) else _DATABRICKS_MOUNT + path)
    return _open_uri(location, settings)


def for_tasks(location: Location, spark: Any) -> Location:
    """Return the location for processes without a JVM gateway, such as tasks, with the session's settings for it.

    A location in a mount table is replaced by its target. Without a gateway in this process, ``location`` is returned.
    Raises :class:`ConfigurationError` when Spark cannot open its file system.
    """
    hadoop = Hadoop.of(spark)
    if hadoop is None or isinstance(location, PortableLocation):
        return location
    uri = _qualified(hadoop, location)
    if uri is None:
        return location
    with _by_hadoop(location):
        uri = hadoop.resolved(uri)
        scheme, authority, _, _ = _split(uri)
        settings = hadoop.s3_settings(authority) if scheme == "s3" else {}
        return PortableLocation(uri, hadoop.hdfs_settings() if scheme == "hdfs" else settings)


def within(location: Location, *names: str) -> Location:
    """Return the location of a folder below a location; ``names`` are single parts of its path."""
    if isinstance(location, PortableLocation):
        return dataclasses.replace(location, uri=str(within(location.uri, *names)))
    path, mark, query = location.partition("?") if _scheme(location)[0] else (location, "", "")
    return "/".join((path.rstrip("/"), *names)) + mark + query


def _qualified(hadoop: Hadoop, location: str) -> str | None:
    """Return the whole URI of a location; None when Spark has no file system for it, which its first write reports."""
    with _by_hadoop(location):
        try:
            return hadoop.qualified(location)
        except UnknownSchemeError:
            return None


@contextlib.contextmanager
def _by_hadoop(location: str) -> Iterator[None]:
    """Raise an error of Hadoop in the block as one of the configuration."""
    try:
        yield
    except OSError as error:
        shown = _split(location)[3]
        raise ConfigurationError(
            f"checkpoint {shown}: Spark's own file system for it cannot be opened: "
            f"{_without_credentials(location, error)}; check Spark's settings spark.hadoop.fs.… and that the jars of "
            "that file system are installed",
            code="checkpoint-location",
            location=shown,
        ) from None


def _open_local(path: str) -> Opened:
    # Symbolic links are resolved, so that two paths to one folder have one identity.
    real = os.path.realpath(path)
    return Opened(fs.LocalFileSystem(), real, f"file://{real}")


def _open_uri(location: str, settings: dict[str, Any]) -> Opened:
    scheme, authority, rest, identity = _split(location)
    path, mark, query = rest.partition("?")
    try:
        if scheme == "s3" and settings:
            return Opened(_open_s3(authority, settings), f"{authority}{path}", identity)
        if scheme == "hdfs":
            host, _, port = authority.rpartition("@")[2].partition(":")
            native = native_hdfs(host, int(port) if port else None, settings)
            if native is not None:
                return Opened(native, path, identity)
        filesystem, root = fs.FileSystem.from_uri(f"{scheme}://{authority}{quote(path)}{mark}{query}")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        # Arrow repeats the URI in its message, so neither that text nor the cause is shown: it may have credentials.
        raise _not_opened(identity, scheme, error) from None
    return Opened(filesystem, root.rstrip("/"), identity)


def _open_s3(bucket: str, settings: dict[str, Any]) -> Any:
    if settings.keys().isdisjoint(("region", "endpoint_override")):
        # Spark finds the region of a bucket at Amazon without a setting; pyarrow must ask for it.
        with contextlib.suppress(OSError):
            settings = settings | {"region": fs.resolve_s3_region(bucket)}
    return fs.S3FileSystem(**settings)


def _scheme(location: str) -> tuple[str, str]:
    """Split a location into its scheme (empty when it has none) and the rest."""
    scheme, colon, rest = location.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme):
        return "", location
    return scheme.lower(), rest


def _split(location: str) -> tuple[str, str, str, str]:
    """Split a location into scheme, authority, path with parameters, and its identity, which has no credentials."""
    scheme, rest = _scheme(location)
    scheme = _ALIASES.get(scheme, scheme)
    path, mark, query = rest.partition("?")
    authority = ""
    if path.startswith("//"):
        authority, slash, path = path[2:].partition("/")
        path = slash + path
    path = re.sub(r"/+", "/", path).rstrip("/")
    # The text before the last @ is a user and a password. On Azure it is a container, perhaps with a password.
    before, at, host = authority.rpartition("@")
    shown = before.partition(":")[0] + at + host if scheme.startswith("abfs") else host
    return scheme, authority, f"{path}{mark}{query}", f"{scheme}://{shown}{path}" if scheme else path


def _without_credentials(location: str, error: Exception) -> str:
    """Return an error's text without the credentials that the location may contain."""
    authority = _split(location)[1]
    text = str(error)
    return text.replace(authority, authority.rpartition("@")[2]) if "@" in authority else text


def _not_opened(identity: str, scheme: str, error: Exception) -> ConfigurationError:
    if scheme not in SCHEMES:
        problem = f"there is no file system for this scheme; use a path or one of the schemes {', '.join(SCHEMES)}"
    elif isinstance(error, ValueError):
        problem = f"the file system of {scheme} does not accept the URI; check its host or bucket and its parameters"
    else:
        # libhdfs adds a line for each folder in which it searched a JVM.
        reason = str(error).partition("\n")[0]
        hint = {
            "hdfs": "install the package hdfs-native, or Hadoop with JAVA_HOME, HADOOP_HOME and CLASSPATH set",
            "viewfs": "set JAVA_HOME, HADOOP_HOME and CLASSPATH",
        }.get(scheme, "check its configuration")
        problem = f"the file system of {scheme} cannot be opened in this process: {reason}; {hint}"
    return ConfigurationError(f"checkpoint {identity}: {problem}", code="checkpoint-location", location=identity)
