"""The versions of an application's schema, as files in the application's folder.

Each version is one file, ``<folder>/_wallaroo/schema/<version>.json``, with the whole schema. It is created completely
or not at all, and never changed: of several processes that write the same version exactly one succeeds. The newest
version is the schema. Source: ``docs/pipelines/schema.md#the-folder-of-an-application``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from wallaroo_spark.errors import ConfigurationError, PipelineError
from wallaroo_spark.pipelines.schema.declarations import Declaration
from wallaroo_spark.pipelines.schema.documents import from_stored, to_document
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.sidecar.batch_log import FolderListing
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.steps import SchemaStep, passed
from wallaroo_spark.storage.locations import Location

FOLDER = "schema"
_FORMAT = 1
_FILE = re.compile(r"([1-9][0-9]*)\.json")


@dataclass(frozen=True)
class StoredSchema:
    """One version of a schema."""

    version: int = 0
    """The version, from 1; 0 before anything was applied."""
    objects: Mapping[ObjectKey, Declaration] = field(default_factory=lambda: MappingProxyType({}))
    """The objects, by their keys."""
    branches: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """The newest timestamp with which each branch was applied, in seconds since 1970 UTC."""
    applied_at: float = 0.0
    """When this version was written, in seconds since 1970 UTC."""


class SchemaStore:
    """The versions of the schema of the application at ``location``, resolved by the Spark session ``spark``.

    Methods raise :class:`wallaroo_spark.errors.CheckpointError` when a file cannot be read or written, and
    :class:`PipelineError` for a file that this version cannot read.
    """

    def __init__(self, location: Location, spark: Any = None) -> None:
        self._folder = SidecarFolder(location, FOLDER, spark=spark)
        self._listing = FolderListing(self._folder)

    @property
    def identity(self) -> str:
        """The folder of the versions, for messages."""
        return self._folder.identity

    @property
    def exclusive(self) -> bool:
        """Whether of several processes that write the same version exactly one succeeds."""
        return self._folder.exclusive

    def newest(self) -> StoredSchema:
        """Return the newest version."""
        number = self.newest_version()
        return self.version(number) if number else StoredSchema()

    def newest_version(self) -> int:
        """Return the number of the newest version without reading it; 0 before anything was applied."""
        return max(_versions(self._folder.names()), default=0)

    def seen_version(self, *, fresh: bool = False) -> int:
        """As :meth:`newest_version`, by a look that is cheap to repeat. Not for several threads at once.

        On a file system that is not local the answer is up to a quarter of a second old, unless ``fresh``.
        """
        return max(_versions(self._listing.names(fresh=fresh)), default=0)

    def version(self, number: int) -> StoredSchema:
        """Return one version. Raises :class:`PipelineError` if there is none of this number."""
        content = self._folder.read(_name(number))
        where = f"{self.identity}/{_name(number)}"
        if content is None:
            raise PipelineError(
                f"there is no version {number} in {self.identity}; take one of those",
                code="schema-unreadable",
                version=number,
            )
        try:
            stored = json.loads(content)
            if stored["format"] != _FORMAT or stored["version"] != number:
                raise ValueError(f"its format is {stored['format']!r} and its version {stored['version']!r}")
            declared = [from_stored(document, where) for document in stored["objects"]]
            branches = {str(name): float(timestamp) for name, timestamp in stored["branches"].items()}
            return StoredSchema(number, {one.key: one for one in declared}, branches, float(stored["applied_at"]))
        except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError) as error:
            raise PipelineError(
                f"{where} is not a schema as this version writes it ({error}); use the version of wallaroo-spark that "
                "wrote it, or restore the file",
                code="schema-unreadable",
                location=where,
            ) from error

    def write(self, schema: StoredSchema) -> bool:
        """Write a version; False if another process has written this version, and nothing was changed.

        On an object store two concurrent calls may both return True, and the later file stays.
        """
        content = {
            "format": _FORMAT,
            "version": schema.version,
            "applied_at": schema.applied_at,
            "branches": dict(schema.branches),
            "objects": [to_document(declaration) for declaration in schema.objects.values()],
        }
        passed(SchemaStep.CHECKED)
        created = self._folder.create(_name(schema.version), json.dumps(content, indent=1).encode())
        passed(SchemaStep.WRITTEN)
        return created


def _versions(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for name in names if (found := _FILE.fullmatch(name))]


def _name(number: int) -> str:
    return f"{number}.json"
