"""Locations as Spark resolves them, and the file systems that they are on."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow
from pyarrow import fs

from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.storage.hadoop import Hadoop, UnknownSchemeError
from wallaroo_spark.storage.native_hdfs import native_hdfs

log = one_line(logging.getLogger(__name__))

SCHEMES = ("file", "hdfs", "viewfs", "s3", "s3a", "gs", "abfs", "abfss", "dbfs")
"""Schemes that are known to work, some of them only with what they need installed and configured."""

# Hadoop's names for the same stores.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_DATABRICKS_MOUNT = "/dbfs"
_DATABRICKS_VOLUMES = "/Volumes/"
_OBJECTS = re.compile(r"s3|gcs|py::hadoop\+(s3[an]?|gs|gcs)://.*")


@dataclass(frozen=True)
class PortableLocation:
    """A location for processes without a JVM gateway: a whole URI, and how to open it, which may be secret."""

    uri: str
    settings: dict[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return _split(self.uri)[3]


Location = str | PortableLocation


class Opened(NamedTuple):
    """A file system of ``pyarrow.fs``, the path in it, and a name of the place that says nothing secret."""

    filesystem: Any
    root: str
    identity: str

    @property
    def local(self) -> bool:
        """Whether it is this machine's own, or looks like that."""
        return is_local(self.filesystem)

    @property
    def objects(self) -> bool:
        """Whether files are objects: there once they are whole, replaced at once, and renamed by copying them."""
        return _OBJECTS.fullmatch(self.filesystem.type_name) is not None


def is_local(filesystem: Any) -> bool:
    """Whether a file system of ``pyarrow.fs`` is this machine's own, or a mount that looks like it."""
    return isinstance(filesystem, fs.LocalFileSystem)


class JvmSession:
    """The parts of a Spark session with a JVM gateway that are used here, under PySpark's names."""

    def __init__(self, context: Any, java: Any) -> None:
        self.sparkContext, self._jvm, self._jsparkSession = context, context._jvm, java


def session() -> Any:
    """The Spark session of this thread, or of this process; None in tasks, on Connect, and where there is no Spark.

    The JVM is asked, for PySpark may take another for the active one, as in ``foreachBatch``.
    """
    context = getattr(getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return None
    try:
        sessions = context._jvm.org.apache.spark.sql.classic.SparkSession
        for found in (sessions.getActiveSession(), sessions.getDefaultSession()):
            if found.isDefined():
                return JvmSession(context, found.get())
    except Exception as error:
        log.debug("the active Spark session is not known: %s", error)
    return None


def open_location(location: Location, spark: Any = None) -> Opened:
    """Open the place that a location names, as Spark would where ``spark`` is a session with a JVM gateway.

    Then a location without a scheme is on the session's default file system, and what is not on the local disk is read
    through Spark's own Hadoop. Without a gateway a location without a scheme is local, and ``pyarrow.fs`` opens it.
    Raises :class:`ConfigurationError` when there is no file system for it.
    """
    settings = location.settings if isinstance(location, PortableLocation) else {}
    location = location.uri if isinstance(location, PortableLocation) else location
    if not location.strip():
        raise ConfigurationError("the checkpoint has no location; give a directory or a URI", location=location)
    hadoop = Hadoop.of(spark)
    uri = None if hadoop is None else _qualified(hadoop, location)
    if hadoop is not None and uri is not None:
        if _scheme(uri)[0] != "file":
            return Opened(_by_hadoop(hadoop, uri), uri.rstrip("/"), _split(uri)[3])
        location = uri
    scheme, rest = _scheme(location)
    if scheme in ("", "file"):
        return _open_local(re.sub(r"^//[^/]*", "", rest) if scheme else rest)
    if scheme == "dbfs":
        path = f"/{rest.lstrip('/')}"
        return _open_local(path if path.startswith(_DATABRICKS_VOLUMES) else _DATABRICKS_MOUNT + path)
    return _open_uri(location, settings)


def for_tasks(location: Location, spark: Any) -> Location:
    """The same place for processes that have no JVM gateway, as tasks, with the session's settings for it.

    A location in a mount table is replaced by its target.
    """
    hadoop = Hadoop.of(spark)
    if hadoop is None or isinstance(location, PortableLocation):
        return location
    uri = _qualified(hadoop, location)
    if uri is None:
        return location
    try:
        uri = hadoop.resolved(uri)
        scheme, authority, _, _ = _split(uri)
        settings = hadoop.s3_settings(authority) if scheme == "s3" else {}
        return PortableLocation(uri, hadoop.hdfs_settings() if scheme == "hdfs" else settings)
    except OSError as error:
        raise _not_by_hadoop(location, error) from None


def _qualified(hadoop: Hadoop, location: str) -> str | None:
    """The whole URI of a location; None when Spark has no file system for it, and will say so when it is to write."""
    try:
        return hadoop.qualified(location)
    except UnknownSchemeError:
        return None
    except OSError as error:
        raise _not_by_hadoop(location, error) from None


def _by_hadoop(hadoop: Hadoop, uri: str) -> Any:
    try:
        return hadoop.file_system(uri)
    except OSError as error:
        raise _not_by_hadoop(uri, error) from None


def _not_by_hadoop(location: str, error: OSError) -> ConfigurationError:
    shown = _split(location)[3]
    return ConfigurationError(
        f"checkpoint {shown}: Spark's own file system for it cannot be opened: {_without(location, error)}; "
        "check Spark's settings spark.hadoop.fs.… and that their jars are there",
        location=shown,
    )


def _open_local(path: str) -> Opened:
    # The way there may lead over symbolic links, and two ways to one place are one place.
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
        # Neither the text nor the cause may carry the credentials of the URI, and Arrow repeats the URI.
        raise _not_opened(identity, scheme, error) from None
    return Opened(filesystem, root.rstrip("/"), identity)


def _open_s3(bucket: str, settings: dict[str, Any]) -> Any:
    if settings.keys().isdisjoint(("region", "endpoint_override")):
        # Spark finds the region of a bucket at Amazon by itself.
        with contextlib.suppress(OSError):
            settings = settings | {"region": fs.resolve_s3_region(bucket)}
    return fs.S3FileSystem(**settings)


def _scheme(location: str) -> tuple[str, str]:
    """The scheme of a location, empty when it has none, and what follows."""
    scheme, colon, rest = location.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme):
        return "", location
    return scheme.lower(), rest


def _split(location: str) -> tuple[str, str, str, str]:
    """A URI's scheme, authority, and path with its parameters; and its identity, which says nothing secret."""
    scheme, rest = _scheme(location)
    scheme = _ALIASES.get(scheme, scheme)
    path, mark, query = rest.partition("?")
    authority = ""
    if path.startswith("//"):
        authority, slash, path = path[2:].partition("/")
        path = slash + path
    path = re.sub(r"/+", "/", path).rstrip("/")
    # The text before the last @ is a user and a password; in Azure it is a container, and a password at most.
    before, at, host = authority.rpartition("@")
    shown = before.partition(":")[0] + at + host if scheme.startswith("abfs") else host
    return scheme, authority, f"{path}{mark}{query}", f"{scheme}://{shown}{path}" if scheme else path


def _without(location: str, error: Exception) -> str:
    """An error's text, less the location, which may carry credentials."""
    authority = _split(location)[1]
    text = str(error)
    return text.replace(authority, authority.rpartition("@")[2]) if "@" in authority else text


def _not_opened(identity: str, scheme: str, error: Exception) -> ConfigurationError:
    if scheme not in SCHEMES:
        problem = f"no file system is known for it; use a path or one of the schemes {', '.join(SCHEMES)}"
    elif isinstance(error, ValueError):
        problem = f"the file system of {scheme} does not accept the URI; check its host or bucket and its parameters"
    else:
        # libhdfs lists every place in which it looked for a JVM, a line each.
        reason = str(error).partition("\n")[0]
        hint = {
            "hdfs": "install the package hdfs-native, or Hadoop with JAVA_HOME, HADOOP_HOME and CLASSPATH set",
            "viewfs": "set JAVA_HOME, HADOOP_HOME and CLASSPATH",
        }.get(scheme, "check its configuration")
        problem = f"the file system of {scheme} cannot be opened in this process: {reason}; {hint}"
    return ConfigurationError(f"checkpoint {identity}: {problem}", location=identity)
