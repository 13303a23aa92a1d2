"""Tables of settings: one row for each setting, with its name, default, type, limits and help.

A table is a frozen dataclass with keyword-only fields. :func:`setting` makes a row with a default, and the docstring
behind the field is its help. A row without a default is ``field(metadata=row(…))``, or
``field(kw_only=False, metadata=row(…))`` if callers may pass it by position. No setting is listed anywhere else:
:func:`takes_settings` gives a constructor its parameters, their types and its docstring; :func:`check` refuses values
outside the limits; pages and command lines are made from :func:`rows`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack

from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError
from wallaroo_spark.texts import nearest

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Kind(Enum):
    """The type of a setting. The enum's value describes how a value of that type is written as text."""

    TEXT = "text"
    NAMES = "comma-separated names"
    COUNT = "a whole number"
    BYTES = "bytes, or with a unit: 64k, 256m, 1g"
    SECONDS = "seconds, or with a unit: 500ms, 10s, 2m"
    FLAG = "true or false"
    JSON = "a JSON object"
    NUMBER = "a number"
    OBJECT = "a Python object"
    NAME = "a name"
    STREAM = "the name of a stream, or namespace/name"
    EXCHANGE = "the name of an exchange, or namespace/name"
    PATTERN = "a pattern over event types"
    FUNCTION = "a function, as module:function"
    CRON = "minute, hour, day of the month, month, day of the week"
    ZONE = "a time zone, such as Europe/Berlin"
    SECTION = "fields of its own"
    STREAMS = "a list of streams"
    PATTERNS = "a list of patterns over event types"
    SECTIONS = "a list of entries with fields of their own"


_TYPES: dict[Kind, tuple[Any, str, str]] = {
    Kind.TEXT: (str, "a str", ""),
    Kind.NAMES: ((str, list, tuple), "a str or a list of str", ""),
    Kind.COUNT: (Integral, "an int", "a whole number without quotes"),
    Kind.BYTES: (Integral, "an int (bytes)", "the number of bytes, such as 64 << 20 for 64 MiB"),
    Kind.SECONDS: (Real, "a number (seconds)", "the number of seconds, such as 1.5"),
    Kind.FLAG: (bool, "a bool", ""),
    Kind.NUMBER: (Real, "a number", "a number without quotes"),
}
"""The type of a kind, its name, and of a number how it is written."""
_ANY_TYPE: tuple[Any, str, str] = (object, "any object", "")
_NUMBERS = [kind for kind, (_, _, written) in _TYPES.items() if written]
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True)
class Row:
    """One row of a table: everything that pages, command lines and checks need to know about a setting."""

    attribute: str
    """Its name in Python: the name of the dataclass field."""
    name: str
    """Its name for users: the same as ``attribute``, except for options, whose names are in camelCase."""
    kind: Kind
    """Its type."""
    default: Any
    """The value when the user gives none; ``dataclasses.MISSING`` if the setting is required."""
    help: str
    """One or more sentences for the user: the meaning, and the meaning of the default where that needs saying."""
    choices: tuple[str, ...] = ()
    """The permitted values; empty: all values of the type."""
    secret: bool = False
    """Whether the value must never be shown."""
    minimum: float | None = None
    """The least permitted value, in the unit of ``kind``; None: no limit."""
    maximum: float | None = None
    """The greatest permitted value, in the unit of ``kind``; None: no limit."""
    of: tuple[Any, str] | None = None
    """The class of the value, and what the message for another one names, with the remedy; None: that of ``kind``."""
    annotation: str = ""
    """The field's type annotation, as in the source code."""

    @property
    def required(self) -> bool:
        """Whether the user must give a value."""
        return self.default is dataclasses.MISSING

    @property
    def optional(self) -> bool:
        """Whether None is a permitted value."""
        return self.default is None or "None" in self.annotation


class RowLimits(TypedDict, total=False):
    """Further fields of a :class:`Row`, which have their defaults there."""

    choices: tuple[str, ...]
    secret: bool
    minimum: float | None
    maximum: float | None
    of: tuple[Any, str]


def row(kind: Kind, help: str = "", **limits: Unpack[RowLimits]) -> dict[str, Any]:
    """Return the metadata that makes a dataclass field a row of a table; the arguments are fields of :class:`Row`.

    ``help`` is for texts that are computed; otherwise it is the docstring behind the field.
    """
    return {"kind": kind, "help": help, **limits}


def setting(default: Any, kind: Kind, help: str = "", **limits: Unpack[RowLimits]) -> Any:
    """Return a dataclass field that is a row with a default; ``limits`` are the keyword arguments of :func:`row`."""
    return field(default=default, metadata=row(kind, help, **limits), repr=not limits.get("secret"))


def rows(table: Any) -> Iterator[Row]:
    """Iterate over the rows of a table (the class or a value of it), in the order of its fields."""
    for entry in dataclasses.fields(table):
        given = {**entry.metadata, "help": entry.metadata["help"] or docstring_of(table, entry.name)}
        yield Row(entry.name, entry.name, default=entry.default, annotation=str(entry.type), **given)


def docstring_of(record: Any, name: str) -> str:
    """The docstring behind a field of a class or of its bases, as one line; empty without one."""
    classes = (record if isinstance(record, type) else type(record)).__mro__
    found = (_docstrings(one.__module__).get((one.__name__, name)) for one in classes)
    return next(filter(None, found), "")


@functools.cache
def _docstrings(module: str) -> Mapping[tuple[str, str], str]:
    """The docstrings behind the fields of the classes of a module, each as one line, by class and field."""
    try:
        statements = ast.parse(inspect.getsource(sys.modules[module])).body
    except (OSError, TypeError):
        # A program may be shipped without its source, and needs no help texts.
        return {}
    return {
        (one.name, ast.unparse(field.target)): " ".join(str(text.value.value).split())
        for one in statements
        if isinstance(one, ast.ClassDef)
        for field, text in itertools.pairwise(one.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def check(row: Row, value: Any, label: str) -> None:
    """Raise :class:`ArgumentTypeError` for a value that is not of the row's type, :class:`ArgumentValueError` for one
    outside the row's limits. Both are a :class:`ConfigurationError`.

    ``label`` names the setting in the message, such as ``option workers``.
    """
    if value is None and row.optional:
        return

    def outside(limit: str) -> ArgumentValueError:
        return ArgumentValueError(f"{label}: {limit}", code="option-out-of-range", option=row.name)

    def wrong_type(problem: str) -> ArgumentTypeError:
        return ArgumentTypeError(f"{label}: {problem}", code="argument-type", option=row.name)

    if row.choices and value not in row.choices:
        raise outside(f"{value!r} is not one of {', '.join(row.choices)}")
    expected, described = row.of or _TYPES.get(row.kind, _ANY_TYPE)[:2]
    # In Python a bool is an int, and True as a number of something is a mistake.
    if not isinstance(value, expected) or (isinstance(value, bool) and row.kind in _NUMBERS):
        shown = f"a value of type {type(value).__name__}" if row.secret else repr(value)
        raise wrong_type(f"{shown} is not {described}{_way_out(row, value)}")
    if row.kind is Kind.NAMES and not isinstance(value, str):
        wrong = next((one for one in value if not isinstance(one, str)), None)
        if wrong is not None:
            raise wrong_type(f"{wrong!r} in {value!r} is not a str")
    if row.minimum is not None and not value >= row.minimum:
        raise outside(f"{value} is not {plain(row.minimum)} or more")
    if row.maximum is not None and value > row.maximum:
        raise outside(f"{value} is above {plain(row.maximum)}")


def _way_out(row: Row, value: Any) -> str:
    """How to write a value of another type, where that can be said; the secret ones are not repeated."""
    if row.kind in (Kind.TEXT, Kind.NAMES):
        if isinstance(value, bytes | bytearray):
            return "; decode it, for example with .decode()"
        known = isinstance(value, int | float) and not row.secret and row.kind is Kind.TEXT
        return f"; write {str(value)!r}" if known else ""
    if isinstance(value, timedelta) and row.kind is Kind.SECONDS:
        return f"; write {value.total_seconds():g}"
    if isinstance(value, float) and value.is_integer():
        return f"; write {value:.0f}"
    if isinstance(value, str) and row.kind in _NUMBERS:
        return f"; write {value} without quotes" if _NUMBER.fullmatch(value) else f"; write {_TYPES[row.kind][2]}"
    return ""


def plain(number: float) -> str:
    """Write a number without an exponent: ``1048576``, not ``1.04858e+06``."""
    return str(int(number)) if number == number // 1 else format(Decimal(repr(number)), "f")


def check_all(values: Any, prefix: str = "setting ") -> None:
    """:func:`check` every value of a table; in messages, ``prefix`` stands before the name of the setting."""
    for row in rows(values):
        check(row, getattr(values, row.attribute), f"{prefix}{row.name}")


def takes_settings(table: Callable[P, T]) -> Callable[[Callable[[S, T], None]], Callable[Concatenate[S, P], None]]:
    """Decorate an ``__init__`` whose only argument is a table, so that callers pass the settings as arguments.

    The signature, which mypy checks, and the docstring of the result come from the table. The result raises TypeError
    for an unknown setting, with the nearest known name.
    """

    def decorate(init: Callable[[S, T], None]) -> Callable[Concatenate[S, P], None]:
        def __init__(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, _built(table, type(self).__name__, args, kwargs))

        _describe(__init__, table, init, [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)])
        return __init__

    return decorate


def function_takes_settings(table: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Decorate a function whose only argument is a table; otherwise the same as :func:`takes_settings`."""

    def decorate(function: Callable[[T], R]) -> Callable[P, R]:
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(_built(table, function.__name__, args, kwargs))

        _describe(wrapper, table, function, [])
        return wrapper

    return decorate


def described(table: Any) -> str:
    """Return the rows as a list for a docstring: name, default and help text of each."""
    return "\n".join(f"- ``{row.name}``{_default_shown(row)}: {row.help}" for row in rows(table))


def _built(table: Callable[..., T], name: str, args: Any, kwargs: Any) -> T:
    known = [row.name for row in rows(table)]
    for given in kwargs:
        if given not in known:
            near = nearest(given, known)
            raise TypeError(f"{name}() has no setting {given!r}{near and f'; {near}'}")
    try:
        inspect.signature(table).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}; {_how_to_call(table)}") from None
    return table(*args, **kwargs)


def _how_to_call(table: Any) -> str:
    parameters = inspect.signature(table).parameters.values()
    first = [one.name for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    needed = [row for row in rows(table) if row.required]
    named = [f"{row.name}=… ({row.help.split('. ')[0].rstrip('.')})" for row in needed if row.name not in first]
    by_position = f"{', '.join(first)} may be given by position, and all other settings by name" if first else ""
    return "; ".join(filter(None, [f"it needs {', '.join(named)}" if named else "", by_position]))


def _describe(made: Any, table: Any, written: Any, before: list[inspect.Parameter]) -> None:
    made.__name__, made.__qualname__, made.__module__ = written.__name__, written.__qualname__, written.__module__
    own = list(inspect.signature(table).parameters.values())
    result = inspect.signature(written).return_annotation
    made.__signature__ = inspect.Signature([*before, *own], return_annotation=result)
    made.__doc__ = f"{inspect.getdoc(written) or 'Settings:'}\n\n{described(table)}"


def _default_shown(row: Row) -> str:
    return "" if row.required else f" (default ``{row.default!r}``)"
