"""The schema as a gateway needs it: objects by their paths. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from wallaroo_spark.gateway.limits import unknown
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.declarations import Declaration, StreamDeclaration, TokenDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey, object_key, stream_key
from wallaroo_spark.pipelines.schema.store import StoredSchema

D = TypeVar("D", bound=Declaration)


@dataclass(frozen=True)
class SchemaView:
    """One version of the schema. Every request looks into it, so nothing here looks through all objects twice."""

    version: int = 0
    objects: Mapping[ObjectKey, Declaration] = field(default_factory=dict)
    """The declared objects."""
    applied_at: int = 0
    """When this version was applied, in milliseconds since 1970 UTC."""

    @classmethod
    def of(cls, stored: StoredSchema) -> SchemaView:
        """The view of a stored version."""
        return cls(stored.version, stored.objects, round(stored.applied_at * 1000))

    def find(self, kind: type[D], path: str) -> D:
        """The object of a kind and a path ``namespace/name``. Raises :class:`Refused` without one."""
        found = self.objects.get(object_key(kind.kind, path, ""))
        if not isinstance(found, kind):
            raise unknown(kind.kind, path)
        return found

    def partitions(self, path: str) -> int:
        """The number of partitions of a stream; 0 when there is no such stream."""
        found = self.objects.get(stream_key(path, ""))
        return found.partitions if isinstance(found, StreamDeclaration) else 0

    @cached_property
    def tokens(self) -> dict[str, TokenDeclaration]:
        """The declared Tokens, by name."""
        return {one.name: one for one in self.objects.values() if isinstance(one, TokenDeclaration)}

    @cached_property
    def keys(self) -> list[PartitionKey]:
        """Every partition of every stream."""
        streams = (one for one in self.objects.values() if isinstance(one, StreamDeclaration))
        return [PartitionKey(one.key.path, partition) for one in streams for partition in range(one.partitions)]
