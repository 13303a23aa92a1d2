"""The option that names an application, and the functions that several verbs of its schema share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    from wallaroo_spark.pipelines.declarations import Declaration
    from wallaroo_spark.pipelines.schema.changes import ObjectChange
    from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema

F = TypeVar("F", bound=Callable[..., Any])

_SIGNS = {"created": ("+", "green"), "changed": ("~", "yellow"), "deleted": ("-", "red"), "unchanged": ("=", None)}


def app_option(command: F) -> F:
    """Add the option that names the application's folder."""
    shown = "The application's folder: a path or a URI, as of a checkpoint."
    return click.option("--app", default="", metavar="FOLDER", help=shown)(command)


def json_option(command: F) -> F:
    """Add the flag for output that programs read."""
    return click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")(command)


def dry_run_option(command: F) -> F:
    """Add the flag of a run that changes nothing."""
    return click.option("--dry-run", is_flag=True, help="Check and show the difference; change nothing.")(command)


def need(app: str) -> str:
    """Return the application's folder. Raises click.UsageError without one."""
    if not app:
        raise click.UsageError("give --app FOLDER, or set WALLAROO_APP, or use --context")
    return app


def schema_store(app: str) -> SchemaStore:
    """The versions of the schema of the application in a folder."""
    from wallaroo_spark.pipelines.schema.store import SchemaStore

    return SchemaStore(need(app))


def one_object(stored: StoredSchema, kind: str, name: str) -> Declaration:
    """Return the object of a kind and a name. Raises :class:`ConfigurationError` unless there is exactly one."""
    from wallaroo_spark.pipelines.schema.applying import find
    from wallaroo_spark.pipelines.schema.problems import nearest

    found = find(stored, kind, name)
    if not found:
        hint = nearest(name, (one.key.path for one in find(stored, kind)), "there are", f"no {kind} is declared")
        raise ConfigurationError(f"{kind} {name!r} is not declared; {hint}", code="schema-invalid", name=name)
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
            if change.action == "changed":
                click.echo(f"    {field.path}: {_shown(field.before)} → {_shown(field.after)}")
            else:
                click.echo(f"    {field.path}: {_shown(field.after if field.before is None else field.before)}")


def shown_time(timestamp: float) -> str:
    """A time as a person reads it."""
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown_seconds(seconds: float | None, without: str) -> str:
    """A duration in the largest unit that divides it, such as ``7d``; ``without`` in place of None."""
    if seconds is None:
        return without
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
