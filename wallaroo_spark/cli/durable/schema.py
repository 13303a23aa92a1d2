"""``wallaroo-spark apply``, ``delete``, ``get`` and ``describe``: the schema of an application; ``token``: its tokens.

The option that names an application, and the functions that several verbs of its schema share.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark.cli.common import Columns, exit_unless, print_result, print_rows
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import ConfigurationError, printable
from wallaroo_spark.pipelines.schema.applying import (
    ApplyResult,
    Branch,
    ObjectChange,
    apply_files,
    delete_objects,
    find,
    kind_of,
)
from wallaroo_spark.pipelines.schema.declarations import KINDS, Declaration, PipelineDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.documents import to_document
from wallaroo_spark.texts import count, day_and_clock, hint

if TYPE_CHECKING:
    from wallaroo_spark.gateway.tokens import KeptToken, TokenStore
    from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema


_SIGNS = {"created": ("+", "green"), "changed": ("~", "yellow"), "deleted": ("-", "red"), "unchanged": ("=", None)}


@dataclass(frozen=True)
class AppOptions:
    """The application.

    Options:
        --app FOLDER: The application's folder: a path or a URI, as of a checkpoint.
    """

    app: str = ""

    def need(self) -> str:
        """The application's folder. Raises click.UsageError without one."""
        if not self.app:
            raise click.UsageError("give --app FOLDER, or set WALLAROO_APP, or use --context")
        return self.app

    def existing(self) -> str:
        """The folder, for a verb that only reads it. Raises :class:`ConfigurationError` where none is.

        Only a path of this machine is looked for.
        """
        folder = self.need()
        if "://" not in folder and not os.path.isdir(folder):
            raise ConfigurationError(
                f"there is no folder {folder}, so there is no application; check --app, or make one with "
                f"wallaroo-spark apply FILE --app {folder}",
                code="application-missing",
                folder=folder,
            )
        return folder

    def stored(self, version: int = 0) -> StoredSchema:
        """A version of the schema; 0: the newest."""
        store = _store(self.existing())
        return store.version(version) if version else store.newest()


def _store(app: str) -> SchemaStore:
    from wallaroo_spark.pipelines.schema.store import SchemaStore

    return SchemaStore(app)


COLUMNS: dict[str, Columns[Any]] = {
    "Stream": {
        "partitions": lambda one: count(one.partitions),
        "kept": lambda one: shown_seconds(one.ttl, "for ever"),
    },
    "Pipeline": {
        "input": lambda one: one.input_key.path,
        "triggers": lambda one: ", ".join(one.triggers) or "every record",
        "stages": lambda one: count(len(one.stages)),
        "max parallel": lambda one: count(one.max_parallel),
    },
    "Endpoint": {"input": lambda one: one.input, "output": lambda one: one.output},
    "Schedule": {"target": lambda one: str(one.target_key), "times": lambda one: f"{one.cron} {one.time_zone}"},
    "Token": {
        "permissions": lambda one: count(len(one.permissions)),
        "valid": lambda one: shown_seconds(one.ttl, "until revoked"),
    },
}
"""The columns of each kind's table, beside those of all kinds."""


def one_object(stored: StoredSchema, kind: str, name: str) -> Declaration:
    """Return the object of a kind and a name. Raises :class:`ConfigurationError` unless there is exactly one."""
    found = find(stored, kind, name)
    if not found:
        remedy = hint(name, (one.key.path for one in find(stored, kind)), "there are", f"no {kind} is declared")
        raise ConfigurationError(f"{kind} {name!r} is not declared; {remedy}", code="schema-invalid", name=name)
    if len(found) > 1:
        paths = ", ".join(one.key.path for one in found)
        raise ConfigurationError(
            f"{kind} {name!r} is declared in several namespaces; give one of {paths}", code="schema-invalid", name=name
        )
    return found[0]


def show_changes(changes: Iterable[ObjectChange]) -> None:
    """Print objects with the fields that differ."""
    for change in changes:
        sign, colour = _SIGNS[change.action]
        click.secho(f"{sign} {change.key} ({change.action})", fg=colour)
        for field in change.fields:
            if field.path in ("kind", "name", "namespace"):
                continue
            only = _shown(field.after if field.before is None else field.before)
            both = f"{_shown(field.before)} → {_shown(field.after)}"
            click.echo(printable(f"    {field.path}: {both if change.action == 'changed' else only}"))


def shown_seconds(seconds: float | None, without: str) -> str:
    """A duration in the largest unit that divides it, such as ``7d``; ``without`` in place of None."""
    if seconds is None:
        return without
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


def _shown(value: Any) -> str:
    # The numbers with a fraction of a schema are durations, and the others are counts.
    return shown_seconds(value, "none") if isinstance(value, float) else "none" if value is None else str(value)


@verb()
def apply(
    files: Annotated[tuple[str, ...], "FILE..."],
    *,
    app: AppOptions,
    dry_run: bool = False,
    branch: str = "",
    timestamp: str = "",
    as_json: Json = False,
) -> None:
    """Check the documents of FILE... as a whole and apply all of them, or none; - stands for standard input.

    All problems are shown at once, with file, line and column. Documents that change nothing write nothing, and a
    branch that is not newer than its last is not applied; both end with status 0. An application that runs takes
    the new version over within a second.

    Options:
        --dry-run: Check and show the difference; change nothing.
        --branch NAME: Name of the documents' branch; needs --timestamp.
        --timestamp TIME: Time of the documents, in seconds since 1970 or as 2026-01-31T12:00:00+00:00.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark apply shop.yaml --app ./shop --dry-run
        wallaroo-spark apply *.yaml --app ./shop --branch main --timestamp "$(git log -1 --format=%ct)"
    """
    if bool(branch) != bool(timestamp):
        raise click.UsageError("give --branch and --timestamp together")
    store = _store(app.need())
    chosen = Branch(branch, _seconds(timestamp)) if branch else None
    try:
        result = apply_files(store, files, time.time(), branch=chosen, dry_run=dry_run)
    except ConfigurationError as error:
        if not as_json or "problems" not in error.fields:
            raise
        click.echo(json.dumps({"written": False, "problems": error.fields["problems"]}))
        raise click.exceptions.Exit(1) from error
    _show(result, as_json)


@verb()
def delete(
    kind: str,
    names: Annotated[tuple[str, ...], "NAME..."],
    *,
    app: AppOptions,
    dry_run: bool = False,
    yes: bool = False,
    as_json: Json = False,
) -> None:
    """Delete the objects NAME... of a KIND (such as stream), all of them or none.

    A name may have its namespace in front: shop/orders. An object that another one needs is not deleted. The last
    Token is deleted only with --yes, because without one everybody may do everything.

    Options:
        --dry-run: Check and show the difference; change nothing.
        --yes: Delete the last Token, too: then clients need no token.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark delete stream shop/returns shop/refunds --app ./shop
    """
    store = _store(app.need())
    stored = store.newest()
    keys = [one_object(stored, kind_of(kind), name).key for name in dict.fromkeys(names)]
    result = delete_objects(store, list(dict.fromkeys(keys)), time.time(), dry_run=dry_run, may_open=yes)
    _show(result, as_json)


def _show(result: ApplyResult, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.to_json()))
        return
    show_changes(result.changes)
    click.echo(f"{result.note[0].upper()}{result.note[1:]}.")


def _seconds(text: str) -> float:
    """Return a time in seconds since 1970 UTC."""
    with contextlib.suppress(ValueError):
        return float(text)
    with contextlib.suppress(ValueError):
        if (found := datetime.fromisoformat(text)).tzinfo is not None:
            return found.timestamp()
    raise click.BadParameter(
        f"{text!r} is no time; give seconds since 1970, or a time with its zone as 2026-01-31T12:00:00+00:00",
        param_hint="--timestamp",
    )


@verb()
def get(
    kind: str,
    name: str = "",
    *,
    app: AppOptions,
    schema_version: Annotated[int, click.IntRange(0)] = 0,
    as_json: Json = False,
) -> None:
    """List the objects of a KIND (namespace, stream, pipeline, exchange, endpoint, schedule, token, or all).

    With NAME, only those of that name.

    The exit status is 0 also when there are none, and 1 when NAME is given and there is none.

    Options:
        --schema-version N: A former version of the schema.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark get all --app ./shop
        wallaroo-spark get pipelines --app ./shop --json
    """
    kinds = list(KINDS) if kind.lower() == "all" else [kind_of(kind)]
    stored = app.stored(schema_version)
    found = [one for chosen in kinds for one in find(stored, chosen, name)]
    kinds_found = {one.kind for one in found}
    columns: Columns[Any] = {
        "kind": lambda one: one.kind,
        "name": lambda one: one.key.path,
        **(COLUMNS.get(found[0].kind, {}) if len(kinds_found) == 1 else {}),
        "description": lambda one: one.description,
    }
    values = {"version": stored.version, "objects": [to_document(one, defaults=True) for one in found]}
    print_rows(as_json, values, columns, found, f"The schema has version {stored.version}, and no such object.")
    exit_unless(bool(found) or not name)


@verb()
def describe(
    kind: str,
    name: str,
    *,
    app: AppOptions,
    schema_version: Annotated[int, click.IntRange(0)] = 0,
    as_json: Json = False,
) -> None:
    """Show the object NAME of a KIND with all its fields, and what follows from them.

    The output is a YAML document, which apply takes; the facts stand in comments.

    Options:
        --schema-version N: A former version of the schema.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark describe pipeline shop/fulfil --app ./shop
    """
    import yaml

    stored = app.stored(schema_version)
    found = one_object(stored, kind_of(kind), name)
    facts = facts_of(found, stored)
    document = to_document(found, defaults=True)
    head = f"version {stored.version} of the schema, applied {day_and_clock(stored.applied_at)}"
    text = yaml.safe_dump(_without_none(document), sort_keys=False, allow_unicode=True).removesuffix("\n")
    comments = [f"# {fact}" for fact in (head, *facts)]
    values = {"version": stored.version, "object": document, "facts": facts}
    print_result(as_json, values, "\n".join([*comments, text]))


def facts_of(one: Declaration, stored: StoredSchema) -> list[str]:
    """Sentences on an object that follow from its fields and from the other objects."""
    pipelines = [other for other in stored.objects.values() if isinstance(other, PipelineDeclaration)]
    if isinstance(one, StreamDeclaration):
        readers = [other.key.path for other in pipelines if other.input_key == one.key]
        writers = [
            f"{other.key.path} ({stage.name})"
            for other in pipelines
            for stage in other.stages
            if one.key in other.stream_output_keys(stage)
        ]
        return [
            f"read by the pipelines {', '.join(readers)}" if readers else "read by no pipeline",
            f"written by the stages {', '.join(writers)}" if writers else "written by no stage",
        ]
    if not isinstance(one, PipelineDeclaration):
        return []
    stream = stored.objects.get(one.input_key)
    partitions = stream.partitions if isinstance(stream, StreamDeclaration) else 0
    required = [stage.name for stage in one.stages if one.output_required(stage)]
    return [
        f"at most {one.max_parallel * partitions:,} active instances: {one.max_parallel:,} for each of "
        f"{count(partitions, 'partition')} of {one.input_key.path}",
        f"runs in this order: {' → '.join(', '.join(tier) for tier in tiers(one.stages))}",
        f"an ack needs an output from: {', '.join(required) or 'no stage'}",
    ]


def tiers(stages: Sequence[Any]) -> list[list[str]]:
    """The names of stages by their distance from the entry of a pipeline; the stages have no cycle."""
    done: set[str] = set()
    found: list[list[str]] = []
    while tier := [one.name for one in stages if one.name not in done and one.predecessors <= done]:
        found.append(tier)
        done |= set(tier)
    return found


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


@click.group()
def token() -> None:
    """Create, list and revoke the tokens of an application."""


@verb(token)
def create(name: str, *, app: AppOptions, as_json: Json = False) -> None:
    """Create a token with the permissions and the time to live of the Token NAME of the schema, and print it.

    It is shown once and kept as a hash. Gateways accept it within the length of a lease.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark token create shop-web --app ./shop
    """
    declared: Any = one_object(app.stored(), "Token", name)
    text, kept = _tokens(app).create(declared, time.time())
    print_result(as_json, {**_token_values(kept), "token": text}, text)
    if not as_json:
        until = "it does not expire" if kept.expires_at is None else f"valid until {day_and_clock(kept.expires_at)}"
        click.echo(f"Token {kept.id} of {kept.name}, {until}. It is shown only here.", err=True)


@verb(token, "list")
def list_tokens(*, app: AppOptions, as_json: Json = False) -> None:
    """List the tokens of the application, the oldest first, without their secrets.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark token list --app ./shop
    """
    now = time.time()
    found = list(_tokens(app).list().values())
    columns: Columns[KeptToken] = {
        "id": lambda one: one.id,
        "name": lambda one: one.name,
        "state": lambda one: _token_state(one, now),
        "created": lambda one: day_and_clock(one.created_at),
        "expires": lambda one: "never" if one.expires_at is None else day_and_clock(one.expires_at),
    }
    values = {"tokens": [{**_token_values(one), "state": _token_state(one, now)} for one in found]}
    print_rows(as_json, values, columns, found, "There are no tokens.")


@verb(token)
def revoke(id_: Annotated[str, "ID"], *, app: AppOptions, as_json: Json = False) -> None:
    """Revoke the token with this ID, for ever. Gateways refuse it within the length of a lease.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark token revoke 0123456789abcdef --app ./shop
    """
    kept = _tokens(app).revoke(id_)
    print_result(as_json, {**_token_values(kept), "state": "revoked"}, f"Token {kept.id} of {kept.name} is revoked.")


def _tokens(app: AppOptions) -> TokenStore:
    from wallaroo_spark.gateway.tokens import TokenStore

    return TokenStore(app.existing())


def _token_values(one: KeptToken) -> dict[str, object]:
    return {"id": one.id, "name": one.name, "createdAt": one.created_at, "expiresAt": one.expires_at}


def _token_state(one: KeptToken, now: float) -> str:
    if one.revoked:
        return "revoked"
    return "expired" if one.expires_at is not None and now >= one.expires_at else "valid"
