"""Tables of settings: one row for each setting, with its name, default, type, limits and help.

A table is a frozen dataclass with keyword-only fields. :func:`setting` makes a row with a default; a row without one is
``field(metadata=row(…))``, and ``field(kw_only=False, metadata=row(…))`` if it may be given by position. The table is
the only list of these settings: :func:`takes_settings` gives a constructor its parameters, their types and its
docstring, :func:`check` refuses values outside the limits, and :func:`rows` feeds pages and command lines.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral, Real
from typing import Any, Concatenate, ParamSpec, TypeVar

from wallaroo_spark.errors import ConfigurationError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Kind(Enum):
    """The type of a setting. The value says how it is written as text."""

    TEXT = "text"
    NAMES = "comma-separated names"
    COUNT = "a whole number"
    BYTES = "bytes, or with a unit: 64k, 256m, 1g"
    SECONDS = "seconds, or with a unit: 500ms, 10s, 2m"
    FLAG = "true or false"
    JSON = "a JSON object"
    NUMBER = "a number"
    OBJECT = "a Python object"


_TYPES: dict[Kind, tuple[Any, str]] = {
    Kind.TEXT: (str, "a str"),
    Kind.COUNT: (Integral, "an int"),
    Kind.BYTES: (Integral, "an int (bytes)"),
    Kind.SECONDS: (Real, "a number (seconds)"),
    Kind.FLAG: (bool, "a bool"),
    Kind.NUMBER: (Real, "a number"),
}


@dataclass(frozen=True)
class Row:
    """One row of a table, for documentation and command lines."""

    attribute: str
    """Its name in Python: the field of the table."""
    name: str
    """Its name for users; the same, except for options."""
    kind: Kind
    default: Any
    """``dataclasses.MISSING`` if the setting is required."""
    help: str
    """One or more sentences."""
    choices: tuple[str, ...]
    """The values allowed; empty: any."""
    secret: bool
    """Whether the value must never be shown."""
    minimum: float | None
    maximum: float | None
    annotation: str = ""
    """The type as the source code has it."""

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def optional(self) -> bool:
        """Whether None is a value."""
        return self.default is None or "None" in self.annotation


def row(
    kind: Kind,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
) -> dict[str, Any]:
    """The metadata of a dataclass field that is a row of a table."""
    return {
        "kind": kind,
        "help": help,
        "choices": choices,
        "secret": secret,
        "minimum": minimum,
        "maximum": maximum,
    }


def setting(default: Any, kind: Kind, help: str, **limits: Any) -> Any:
    """A row with a default; ``limits`` are the keyword arguments of :func:`row`."""
    return field(default=default, metadata=row(kind, help, **limits), repr=not limits.get("secret"))


def rows(table: Any) -> Iterator[Row]:
    """The rows of a table, in the order in which they are documented."""
    for entry in dataclasses.fields(table):
        yield Row(entry.name, entry.name, default=entry.default, annotation=str(entry.type), **entry.metadata)


def check(row: Row, value: Any, label: str) -> None:
    """Raise :class:`ConfigurationError` for a value outside the limits of its row; ``label`` names the setting."""
    if value is None and row.optional:
        return
    if row.choices and value not in row.choices:
        raise ConfigurationError(f"{label}: {value!r} is not one of {', '.join(row.choices)}", option=row.name)
    expected, described = _TYPES.get(row.kind, (object, "any object"))
    if not isinstance(value, expected):
        shown = f"a value of type {type(value).__name__}" if row.secret else repr(value)
        raise ConfigurationError(f"{label}: {shown} is not {described}", option=row.name)
    if row.minimum is not None and not value >= row.minimum:
        raise ConfigurationError(f"{label}: {value} is not {row.minimum:g} or more", option=row.name)
    if row.maximum is not None and value > row.maximum:
        raise ConfigurationError(f"{label}: {value} is above {row.maximum:g}", option=row.name)


def check_all(values: Any, prefix: str = "setting ") -> None:
    """:func:`check` every value of a table; ``prefix`` is put before each name in messages."""
    for one in rows(values):
        check(one, getattr(values, one.attribute), f"{prefix}{one.name}")


def takes_settings(table: Callable[P, T]) -> Callable[[Callable[[S, T], None]], Callable[Concatenate[S, P], None]]:
    """Decorate an ``__init__`` that takes a table: callers give it the rows as arguments, checked by mypy.

    Its signature and docstring are made from the table.
    """

    def decorate(init: Callable[[S, T], None]) -> Callable[Concatenate[S, P], None]:
        def __init__(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, _built(table, type(self).__name__, args, kwargs))

        _describe(__init__, table, init, [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)])
        return __init__

    return decorate


def function_takes_settings(table: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Decorate a function that takes a table; the same as :func:`takes_settings` for a constructor."""

    def decorate(function: Callable[[T], R]) -> Callable[P, R]:
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(_built(table, function.__name__, args, kwargs))

        _describe(wrapper, table, function, [])
        return wrapper

    return decorate


def described(table: Any) -> str:
    """The rows as the text of a docstring."""
    return "\n".join(f"- ``{one.name}``{_default_shown(one)}: {one.help}" for one in rows(table))


def _built(table: Callable[..., T], name: str, args: Any, kwargs: Any) -> T:
    known = [one.name for one in rows(table)]
    for given in kwargs:
        if given not in known:
            near = difflib.get_close_matches(given, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{name}() has no setting {given!r}{hint}")
    return table(*args, **kwargs)


def _describe(made: Any, table: Any, written: Any, before: list[inspect.Parameter]) -> None:
    made.__name__, made.__qualname__, made.__module__ = written.__name__, written.__qualname__, written.__module__
    own = list(inspect.signature(table).parameters.values())
    result = inspect.signature(written).return_annotation
    made.__signature__ = inspect.Signature([*before, *own], return_annotation=result)
    made.__doc__ = f"{inspect.getdoc(written) or 'Settings:'}\n\n{described(table)}"


def _default_shown(row: Row) -> str:
    return "" if row.required else f" (default ``{row.default!r}``)"
