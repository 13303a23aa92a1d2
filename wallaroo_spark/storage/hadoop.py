"""Spark's own Hadoop file systems behind the interface of ``pyarrow.fs``.

So the driver can read every location that Spark can write, with the same settings. Each call goes to the JVM and takes
some milliseconds, and only works in a process with a JVM gateway, such as the driver.
Source: ``docs/decisions/checkpoint-through-hadoop.md``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import fs

from wallaroo_spark.errors import one_line

log = one_line(logging.getLogger(__name__))

_CHUNK_BYTES = 1 << 20
"""The most bytes of one call to the JVM. A choice that bounds the memory of a call."""
_NOT_FOUND = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")
_EXISTS = ("org.apache.hadoop.fs.FileAlreadyExistsException", "java.nio.file.FileAlreadyExistsException")
_HDFS_SETTINGS = (
    r"^dfs\.(nameservices|internal\.nameservices|ha\.|namenode\.rpc-address|client\.failover|client\.use\.datanode)",
    r"^dfs\.(data\.transfer\.protection|encrypt\.data\.transfer|namenode\.kerberos\.principal)",
    r"^hadoop\.(security\.authentication|rpc\.protection)",
)
# The setting that names Hadoop's stores of secrets; s3a has a setting for further stores.
_SECRETS = "hadoop.security.credential.provider.path"
_GENERAL_ENDPOINT = "s3.amazonaws.com"
_REGION_OF_ENDPOINT = re.compile(
    r"(?:^|\.)s3(?:-fips)?[.-](?:dualstack\.)?([a-z]+(?:-[a-z]+)+-\d)\.(?:vpce\.)?amazonaws\.com"
)
_UNKNOWN = "org.apache.hadoop.fs.UnsupportedFileSystemException"


class Hadoop:
    """Hadoop in the JVM of a Spark session, with the settings of the session's queries. Methods raise OSError."""

    def __init__(self, spark: Any) -> None:
        self.jvm = spark._jvm
        self.gateway = spark.sparkContext._gateway
        self.conf = spark._jsparkSession.sessionState().newHadoopConf()

    @classmethod
    def of(cls, spark: Any) -> Hadoop | None:
        """Return the Hadoop of a session; None without a JVM gateway, as on Spark Connect and in tasks."""
        if spark is None:
            return None
        try:
            return cls(spark)
        except Exception as error:
            # A session of Spark Connect has no such attributes, and some platforms forbid access to the JVM.
            log.debug("Spark's Hadoop cannot be used here: %s", error)
            return None

    def qualified(self, location: str) -> str:
        """Return the whole URI of a location, as Spark resolves a query's checkpoint location. Raises OSError."""
        with translated(location):
            path = self.path(location)
            uri: str = path.getFileSystem(self.conf).makeQualified(path).toString()
            return uri

    def file_system(self, uri: str) -> Any:
        """Return the file system of a URI, for ``pyarrow.fs``; its paths are whole URIs. Raises OSError."""
        with translated(uri):
            return fs.PyFileSystem(HadoopHandler(self, self.path(uri).getFileSystem(self.conf)))

    def resolved(self, uri: str) -> str:
        """Return the target of a URI of a mount table (``viewfs:``), after creating its folder; other URIs as they are.

        Raises OSError.
        """
        with translated(uri):
            path = self.path(uri)
            filesystem = path.getFileSystem(self.conf)
            if not uri.startswith("viewfs:"):
                return uri
            filesystem.mkdirs(path)
            target: str = filesystem.resolvePath(path).toString()
            return target

    def s3_settings(self, bucket: str) -> dict[str, Any]:
        """Return the arguments of ``pyarrow.fs.S3FileSystem`` for a bucket, from s3a's settings. Raises OSError."""

        def secret(name: str) -> str | None:
            for key in (f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}"):
                value = conf.getPassword(key)
                if value is not None:
                    return "".join(value) or None
            return None

        def plain(name: str) -> str:
            value = self.conf.getTrimmed(f"fs.s3a.bucket.{bucket}.{name}") or self.conf.getTrimmed(f"fs.s3a.{name}")
            return value or ""

        with translated(bucket):
            conf = self.jvm.org.apache.hadoop.conf.Configuration(self.conf)
            stores = (plain("security.credential.provider.path"), conf.getTrimmed(_SECRETS) or "")
            conf.set(_SECRETS, ",".join(filter(None, stores)))
            endpoint = plain("endpoint")
            scheme = "https" if plain("connection.ssl.enabled").lower() != "false" else "http"
            if "://" in endpoint:
                scheme, _, endpoint = endpoint.partition("://")
            endpoint = endpoint.rstrip("/")
            # With Amazon's general endpoint, the client finds the bucket's own endpoint.
            endpoint = "" if endpoint == _GENERAL_ENDPOINT else endpoint
            own = _REGION_OF_ENDPOINT.search(endpoint)
            styled = endpoint and plain("path.style.access").lower() != "true"
            settings = {
                "region": plain("endpoint.region") or (own.group(1) if own else None),
                "endpoint_override": endpoint or None,
                "scheme": scheme,
                "force_virtual_addressing": True if styled else None,
                **_s3_credentials(
                    plain("aws.credentials.provider"),
                    {name: secret(name.replace("_", ".")) for name in ("access_key", "secret_key", "session_token")},
                ),
            }
        return {name: value for name, value in settings.items() if value is not None}

    def hdfs_settings(self) -> dict[str, Any]:
        """Return the settings by which a client of HDFS finds the name nodes and authenticates. Raises OSError."""
        with translated("hdfs"):
            settings = {
                str(entry.getKey()): str(entry.getValue())
                for prefix in _HDFS_SETTINGS
                for entry in self.conf.getValByRegex(prefix).entrySet()
            }
        return settings

    def path(self, text: str) -> Any:
        """Return a Hadoop ``Path``."""
        return self.jvm.org.apache.hadoop.fs.Path(text)


class HadoopHandler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no type information
    """Implements the handler interface of ``pyarrow.fs`` with a Hadoop file system. Paths are whole URIs.

    Unlike in ``pyarrow.fs``, :meth:`move` does not replace an existing file. Methods raise OSError and its subclasses.
    """

    def __init__(self, hadoop: Hadoop, filesystem: Any) -> None:
        self._hadoop = hadoop
        self._filesystem = filesystem

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HadoopHandler) and self.get_type_name() == other.get_type_name()

    def __hash__(self) -> int:
        return hash(self.get_type_name())

    def get_type_name(self) -> str:
        """Return ``hadoop+`` and the URI of the file system."""
        return f"hadoop+{self._filesystem.getUri().toString()}"

    def normalize_path(self, path: str) -> str:
        """Return the path unchanged."""
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        """Return the file information of each path."""
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        """Return the file information of everything in a folder, recursively if the selector says so."""
        try:
            with translated(selector.base_dir):
                entries = [
                    _file_info(f"{selector.base_dir}/{status.getPath().getName()}", status)
                    for status in self._filesystem.listStatus(self._path(selector.base_dir))
                ]
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        folders = [info for info in entries if selector.recursive and info.type == fs.FileType.Directory]
        for folder in folders:
            entries += self.get_file_info_selector(fs.FileSelector(folder.path, allow_not_found=True, recursive=True))
        return entries

    def create_dir(self, path: str, recursive: bool) -> None:
        """Create a folder and the folders above it."""
        with translated(path):
            self._require(self._filesystem.mkdirs(self._path(path)), path, "create the folder")

    def delete_dir(self, path: str) -> None:
        """Delete a folder and its content."""
        self._delete(path, True)

    def delete_file(self, path: str) -> None:
        """Delete a file."""
        self._delete(path, False)

    def move(self, src: str, dest: str) -> None:
        """Rename a file or folder. Raises FileExistsError when the new name exists."""
        with translated(src):
            moved = self._filesystem.rename(self._path(src), self._path(dest))
        if not moved:
            if self._info(dest).type != fs.FileType.NotFound:
                raise FileExistsError(f"{dest} exists already")
            self._require(self._info(src).type != fs.FileType.NotFound, src, "rename a file that does not exist")
            raise OSError(f"Hadoop does not rename {src} to {dest}")

    def replace(self, src: str, dest: str) -> None:
        """Rename a file, replacing an existing file of the new name; atomically if the file system supports that.

        If Hadoop has no ``AbstractFileSystem`` for the scheme (Spark needs none), the existing file is deleted first.
        """
        jvm = self._hadoop.jvm.org.apache.hadoop.fs
        kind = getattr(jvm, "Options$Rename")
        options = self._hadoop.gateway.new_array(kind, 1)
        options[0] = kind.OVERWRITE
        try:
            with translated(src):
                context = jvm.FileContext.getFileContext(self._path(dest).toUri(), self._hadoop.conf)
                context.rename(self._path(src), self._path(dest), options)
        except UnknownSchemeError:
            with contextlib.suppress(FileNotFoundError):
                self.delete_file(dest)
            self.move(src, dest)

    def open_input_stream(self, path: str) -> Any:
        """Open a file for reading from its beginning."""
        with translated(path):
            stream = self._filesystem.open(self._path(path))
        return pa.PythonFile(io.BufferedReader(_Input(stream, path), _CHUNK_BYTES), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        """Open a file for writing, replacing an existing file; folders above it are created."""
        with translated(path):
            stream = self._filesystem.create(self._path(path), True)
        return pa.PythonFile(io.BufferedWriter(_Output(stream, path), _CHUNK_BYTES), mode="w")

    def _unsupported(self, *_: object) -> Any:
        raise NotImplementedError("files are not copied, appended to or read at random, and folders are not emptied")

    delete_dir_contents = delete_root_dir_contents = copy_file = open_input_file = open_append_stream = _unsupported

    def _delete(self, path: str, recursive: bool) -> None:
        with translated(path):
            deleted = self._filesystem.delete(self._path(path), recursive)
        if not deleted:
            raise FileNotFoundError(f"{path} does not exist")

    def _info(self, path: str) -> Any:
        try:
            with translated(path):
                return _file_info(path, self._filesystem.getFileStatus(self._path(path)))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def _path(self, text: str) -> Any:
        return self._hadoop.path(text)

    def _require(self, succeeded: bool, path: str, action: str) -> None:
        if not succeeded:
            raise OSError(f"{path}: Hadoop could not {action}, and reports no reason")


class _JavaStream(io.RawIOBase):
    """A Java stream as a Python raw stream."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream, self._path = stream, path

    def close(self) -> None:
        if not self.closed:
            super().close()
            with translated(self._path):
                self._stream.close()


class _Input(_JavaStream):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with translated(self._path):
            data: bytes = self._stream.readNBytes(min(len(buffer), _CHUNK_BYTES))
        buffer[: len(data)] = data
        return len(data)


class _Output(_JavaStream):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data[:_CHUNK_BYTES])
        with translated(self._path):
            self._stream.write(piece)
        return len(piece)


def _s3_credentials(providers: str, keys: dict[str, str | None]) -> dict[str, Any]:
    """Return the credentials of the first s3a provider that has some in Hadoop's settings.

    Empty when the machine's own credentials are to be used.
    """
    for number, provider in enumerate(providers.split(",")):
        name = provider.strip().rpartition(".")[2]
        if name == "TemporaryAWSCredentialsProvider" and all(keys.values()):
            return keys
        if name == "SimpleAWSCredentialsProvider" and keys["access_key"] and keys["secret_key"]:
            return keys | {"session_token": None}
        if name.startswith("AnonymousAWSCredentials") and number == 0:
            return {"anonymous": True}
    return {}


def _file_info(path: str, status: Any) -> Any:
    kind = fs.FileType.File if status.isFile() else fs.FileType.Directory
    size = status.getLen() if kind == fs.FileType.File else None
    return fs.FileInfo(path, kind, size=size, mtime_ns=status.getModificationTime() * 1_000_000)


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise Java's exceptions in the block, and the loss of the gateway, as the matching kind of OSError.

    ``path`` names the file in the message when the gateway is lost.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        if java is None:
            raise OSError(f"{path}: Spark's JVM does not answer: {type(error).__name__}: {error}") from error
        name, message = str(java.getClass().getName()), str(java.getMessage())
        kind = FileNotFoundError if name in _NOT_FOUND else FileExistsError if name in _EXISTS else OSError
        if name == _UNKNOWN:
            kind = UnknownSchemeError
        raise kind(f"{name.rpartition('.')[2]}: {message}") from None


class UnknownSchemeError(OSError):
    """Spark's Hadoop has no file system for the scheme."""
