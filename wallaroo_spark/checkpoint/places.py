"""Where a location is: the same place that Spark means by it, and the file system that it is on."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow
from pyarrow import fs

from wallaroo_spark.checkpoint.hadoop import Hadoop, UnknownSchemeError
from wallaroo_spark.errors import ConfigurationError

SCHEMES = ("file", "hdfs", "viewfs", "s3", "s3a", "gs", "abfs", "abfss", "dbfs")
"""Schemes that are known to work, some of them only with what they need installed and configured."""

# Hadoop's names for the same stores.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_DATABRICKS_MOUNT = "/dbfs"


class Opened(NamedTuple):
    """A file system of ``pyarrow.fs``, the path in it, and a name of the place that says nothing secret."""

    filesystem: Any
    root: str
    identity: str


def open_location(location: str, spark: Any = None) -> Opened:
    """Open the place that a location names, as Spark would where ``spark`` is a session with a JVM gateway.

    Then a location without a scheme is on the session's default file system, and what is not on the local disk is read
    through Spark's own Hadoop. Without a gateway a location without a scheme is local, and ``pyarrow.fs`` opens it.
    Raises :class:`ConfigurationError` when there is no file system for it.
    """
    if not location.strip():
        raise ConfigurationError("the checkpoint has no location; give a directory or a URI", location=location)
    hadoop = Hadoop.of(spark)
    if hadoop is not None:
        try:
            return _open_by_hadoop(hadoop, location)
        except UnknownSchemeError:
            # Spark will say so itself when it is to write there.
            pass
        except OSError as error:
            shown = _split(location)[3]
            raise ConfigurationError(
                f"checkpoint {shown}: Spark's own file system for it cannot be opened: {_without(location, error)}; "
                "check Spark's settings spark.hadoop.fs.… and that their jars are there",
                location=shown,
            ) from None
    scheme, rest = _scheme(location)
    if scheme in ("", "file"):
        return _open_local(re.sub(r"^//[^/]*", "", rest) if scheme else rest)
    if scheme == "dbfs":
        return _open_local(f"{_DATABRICKS_MOUNT}/{rest.lstrip('/')}")
    return _open_uri(location)


def _open_by_hadoop(hadoop: Hadoop, location: str) -> Opened:
    uri = hadoop.qualified(location)
    scheme, rest = _scheme(uri)
    if scheme == "file":
        return _open_local(re.sub(r"^//[^/]*", "", rest))
    return Opened(hadoop.file_system(uri), uri.rstrip("/"), _split(uri)[3])


def _open_local(path: str) -> Opened:
    # The way there may lead over symbolic links, and two ways to one place are one place.
    real = os.path.realpath(path)
    return Opened(fs.LocalFileSystem(), real, f"file://{real}")


def _open_uri(location: str) -> Opened:
    scheme, authority, rest, identity = _split(location)
    path, mark, query = rest.partition("?")
    try:
        filesystem, root = fs.FileSystem.from_uri(f"{scheme}://{authority}{quote(path)}{mark}{query}")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        # Neither the text nor the cause may carry the credentials of the URI, and Arrow repeats the URI.
        raise _not_opened(identity, scheme, error) from None
    return Opened(filesystem, root.rstrip("/"), identity)


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
    # What stands before the last @ is a user and a password; in Azure it is a container, and a password at most.
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
        hint = "set JAVA_HOME, HADOOP_HOME and CLASSPATH" if scheme in ("hdfs", "viewfs") else "check its configuration"
        problem = f"the file system of {scheme} cannot be opened on the driver: {reason}; {hint}"
    return ConfigurationError(f"checkpoint {identity}: {problem}", location=identity)
