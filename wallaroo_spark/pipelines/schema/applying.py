"""Applies documents to the schema of an application: all of them or none; and the differences between two versions.

Source: ``docs/pipelines/schema.md#apply`` and ``docs/pipelines/schema.md#changes-of-a-living-application``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wallaroo_spark.errors import ConfigurationError, PipelineError
from wallaroo_spark.pipelines.schema.declarations import (
    KINDS,
    Declaration,
    PipelineDeclaration,
    StreamDeclaration,
    TokenDeclaration,
)
from wallaroo_spark.pipelines.schema.documents import PlacedDeclaration, Problems, read_files, to_document
from wallaroo_spark.pipelines.schema.names import ObjectKey, name_problem
from wallaroo_spark.pipelines.schema.validation import Schema, distinct, known_zones, validate

if TYPE_CHECKING:
    from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema

CREATED, CHANGED, UNCHANGED, DELETED = "created", "changed", "unchanged", "deleted"
_ABSENT = object()


@dataclass(frozen=True)
class FieldChange:
    """One field of an object, before and after."""

    path: str
    """The field: ``partitions``, ``stages[ship].after``."""
    before: Any
    """The plain value before; None when there was none."""
    after: Any
    """The plain value after; None when there is none."""


@dataclass(frozen=True)
class ObjectChange:
    """One object in two versions of a schema."""

    key: ObjectKey
    action: str
    """``created``, ``changed``, ``unchanged`` or ``deleted``."""
    fields: tuple[FieldChange, ...] = ()
    """The fields that differ; all fields of a created or a deleted object."""

    def to_json(self) -> dict[str, Any]:
        """The change as plain values."""
        fields = [{"field": one.path, "before": one.before, "after": one.after} for one in self.fields]
        return {**self.key._asdict(), "action": self.action, "fields": fields}


def compare(before: Schema, after: Schema, keys: Iterable[ObjectKey]) -> list[ObjectChange]:
    """Return the change of each of the objects ``keys``."""
    return [_change(key, before, after) for key in dict.fromkeys(keys)]


def refusals(before: Schema, after: Schema) -> Iterator[tuple[ObjectKey, str, str]]:
    """The changes that a living object cannot take: the object, the field, and the reason with the remedy."""
    for key, old in before.items():
        new = after.get(key)
        if isinstance(old, StreamDeclaration) and isinstance(new, StreamDeclaration):
            if new.partitions < old.partitions:
                yield (
                    key,
                    "partitions",
                    f"partitions of {key} would go from {old.partitions} to {new.partitions}, and the records of the "
                    f"removed partitions would be lost; leave {old.partitions} or more, or declare a new stream",
                )
        elif isinstance(old, PipelineDeclaration) and isinstance(new, PipelineDeclaration):
            before_key, after_key = old.input_key, new.input_key
            if before_key != after_key:
                text = (
                    f"inputStream of {key} would go from {before_key.path} to {after_key.path}, and instances are "
                    "numbered by its offsets; declare a pipeline of another name"
                )
                yield key, "inputStream", text


def has_tokens(schema: Schema) -> bool:
    """Whether clients need a token: they do as soon as one Token is declared."""
    return any(key.kind == TokenDeclaration.kind for key in schema)


def access_note(before: Schema, after: Schema) -> str:
    """What a new version changes for all clients: a clause on the first or the last Token; empty for other changes."""
    if has_tokens(before) == has_tokens(after):
        return ""
    if has_tokens(before):
        return "it has no Token any more: everybody who reaches a gateway may do everything"
    return (
        "it has the first Token: gateways refuse every client without a token from now on, those that are connected "
        "too; wallaroo-spark token create makes one"
    )


def _change(key: ObjectKey, before: Schema, after: Schema) -> ObjectChange:
    # The fields with their defaults are of interest only where both versions have the object.
    both = key in before and key in after
    old, new = (to_document(one[key], defaults=both) if key in one else {} for one in (before, after))
    fields = tuple(_fields("", old, new))
    if both:
        return ObjectChange(key, CHANGED if fields else UNCHANGED, fields)
    return ObjectChange(key, CREATED if new else DELETED, fields)


def _fields(path: str, old: Any, new: Any) -> Iterator[FieldChange]:
    """The differences of two plain values; entries with a name are compared by it, other lists as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            inner = f"{path}.{name}" if path else name
            yield from _fields(inner, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif _named(old) and _named(new):
        olds, news = ({entry["name"]: entry for entry in entries} for entries in (old, new))
        for name in dict.fromkeys([*olds, *news]):
            yield from _fields(f"{path}[{name}]", olds.get(name, _ABSENT), news.get(name, _ABSENT))
    elif old != new:
        yield FieldChange(path, *(None if value is _ABSENT else value for value in (old, new)))


def _named(entries: Any) -> bool:
    """Whether a value is a list of mappings with distinct names, as stages are."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "access" not in entry for entry in entries):
        return False
    names = [entry.get("name") for entry in entries]
    return None not in names and len(set(names)) == len(names)


@dataclass(frozen=True)
class Branch:
    """The name and the time of a set of documents, by which an older set is not applied over a newer one."""

    name: str
    """The branch, such as ``main``."""
    timestamp: float
    """The time of the documents, in seconds since 1970 UTC, such as that of their commit."""

    def __post_init__(self) -> None:
        if problem := name_problem(self.name):
            raise ConfigurationError(f"branch: {problem}", code="schema-invalid", field="branch")


@dataclass(frozen=True)
class ApplyResult:
    """The outcome of an application of documents."""

    version: int
    """The version of the schema afterwards; with a dry run, the version that would have been written."""
    written: bool
    """Whether a new version was written."""
    changes: tuple[ObjectChange, ...]
    """The given objects, with the fields that differ."""
    note: str
    """A sentence on the outcome."""

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain values."""
        return {**vars(self), "changes": [change.to_json() for change in self.changes]}


def apply_files(
    store: SchemaStore,
    paths: Sequence[str],
    now: float,
    *,
    branch: Branch | None = None,
    dry_run: bool = False,
) -> ApplyResult:
    """Apply the documents of YAML files. ``now`` is the time in seconds since 1970 UTC.

    With a ``branch`` whose timestamp is not newer than its last, nothing is changed. Raises
    :class:`ConfigurationError` with all problems of the documents, and :class:`PipelineError` when another process has
    changed the schema meanwhile.
    """
    problems = Problems()
    documents = distinct(read_files(paths, problems), problems)
    known_zones(documents, problems)
    stored = store.newest()
    if (note := _old(stored, branch)) and not problems.found:
        return ApplyResult(stored.version, False, (), note)
    objects = {**stored.objects, **{key: placed.declaration for key, placed in documents.items()}}
    check_objects(stored, objects, documents, problems)
    problems.refuse()
    changes = compare(stored.objects, objects, documents)
    if branch is None and all(change.action == UNCHANGED for change in changes):
        note = f"nothing to change; the schema stays at version {stored.version}"
        return ApplyResult(stored.version, False, tuple(changes), note)
    return _write(store, stored, objects, changes, now, branch, dry_run)


def delete_objects(
    store: SchemaStore,
    keys: Sequence[ObjectKey],
    now: float,
    *,
    dry_run: bool = False,
    may_open: bool = False,
) -> ApplyResult:
    """Delete objects, all of them or none. Raises as :func:`apply_files`.

    An object that another one needs is not deleted, and the last Token only with ``may_open``, because without Tokens
    everybody may do everything.
    """
    stored = store.newest()
    problems = Problems()
    for key in keys:
        if key not in stored.objects:
            problems.add(str(key), "it is not declared, so it cannot be deleted; get lists the objects")
    problems.refuse()
    objects = {key: one for key, one in stored.objects.items() if key not in keys}
    check_objects(stored, objects, {}, problems)
    problems.refuse()
    if not (may_open or dry_run) and has_tokens(stored.objects) and not has_tokens(objects):
        raise ConfigurationError(
            "this would delete the last Token, and then everybody who reaches a gateway may publish, consume and work "
            "on stages without a token; nothing was deleted. Declare another Token first, or repeat it with --yes",
            code="last-token",
        )
    changes = compare(stored.objects, objects, keys)
    return _write(store, stored, objects, changes, now, None, dry_run)


def find(stored: StoredSchema, kind: str, name: str = "") -> list[Declaration]:
    """Return the objects of a kind, sorted by key; ``name`` (``orders`` or ``shop/orders``) chooses among them."""
    namespace, slash, last = name.rpartition("/")
    return [
        one
        for key, one in sorted(stored.objects.items())
        if key.kind == kind and (not name or (key.name == last and (not slash or key.namespace == namespace)))
    ]


def kind_of(text: str) -> str:
    """Return the kind that a person names: ``stream``, ``Streams``. Raises :class:`ConfigurationError`."""
    lower = text.lower()
    for kind in KINDS:
        if lower in (kind.lower(), f"{kind.lower()}s"):
            return kind
    raise ConfigurationError(
        f"kind {text!r} is not known; there are {', '.join(KINDS).lower()}", code="schema-invalid", kind=text
    )


def _old(stored: StoredSchema, branch: Branch | None) -> str:
    """Why a branch is not newer than what was applied; empty when it is, and without a branch."""
    last = None if branch is None else stored.branches.get(branch.name)
    if branch is None or last is None or branch.timestamp > last:
        return ""
    return (
        f"branch {branch.name!r} was applied with timestamp {last:.15g}, and {branch.timestamp:.15g} is not newer; "
        f"nothing was changed, and the schema stays at version {stored.version}"
    )


def check_objects(
    stored: StoredSchema,
    objects: dict[ObjectKey, Declaration],
    documents: dict[ObjectKey, PlacedDeclaration],
    problems: Problems,
) -> None:
    """Check a whole schema that is to follow ``stored``, and add its problems. ``documents`` have the places."""
    if None in problems.unread:
        # A document that does not tell its object would be a missing one to the others.
        return
    validate(objects, documents, problems)
    for key, field, reason in refusals(stored.objects, objects):
        placed = documents.get(key)
        problems.add(str(key) if placed is None else placed.source.at(field), reason)


def _write(
    store: SchemaStore,
    stored: StoredSchema,
    objects: dict[ObjectKey, Declaration],
    changes: Iterable[ObjectChange],
    now: float,
    branch: Branch | None,
    dry_run: bool,
) -> ApplyResult:
    version = stored.version + 1
    branches = {**stored.branches, **({} if branch is None else {branch.name: branch.timestamp})}
    access = access_note(stored.objects, objects)
    if dry_run:
        note = f"a dry run: version {version} would be written, and nothing was changed"
        note += f"; of that version: {access}" if access else ""
        return ApplyResult(version, False, tuple(changes), note)
    if not store.write(replace(stored, version=version, objects=objects, branches=branches, applied_at=now)):
        raise PipelineError(
            f"the schema in {store.identity} was changed by another process while this one checked its documents: "
            f"version {version} is there; nothing of these documents was applied, so run it again",
            code="schema-changed-meanwhile",
            version=version,
        )
    note = f"version {version} is written" + (f"; {access}" if access else "")
    if not store.exclusive:
        note += "; this file system cannot tell whether another process wrote it at the same time, so look with get"
    return ApplyResult(version, True, tuple(changes), note)
