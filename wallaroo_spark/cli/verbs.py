"""Verbs from functions: a signature and its docstring are all that a verb declares of its command line.

A parameter in front of ``*`` is an argument, one behind it an option; its annotation is its type, its default is the
option's. ``Annotated`` adds a type of click (``Annotated[int, click.IntRange(1)]``), another name (``"--json"``), the
name of an argument in the help (``"FILE..."``), or a row of a table of settings (:func:`row_of`). A parameter whose
type is a dataclass stands for the options that are its fields. The docstring has the texts::

    Show the streams that wait longest.

    Options:
        --instance NAME: Only the streams of this connector instance.

    Examples:
        wallaroo-spark streams --context test
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple

import click

from wallaroo_spark.cli.common import debug_option, set_up_logging
from wallaroo_spark.settings import Kind, Row, rows

Json = Annotated[bool, "--json"]
"""The flag for output that programs read."""

_OPTION = re.compile(r"(--[\w-]+)(?: (\S+))?:(?: (.*))?")


class _Texts(NamedTuple):
    """The parts of a docstring."""

    help: str
    options: dict[str, tuple[str, str]]
    """Name of an option → its metavar and its help."""
    examples: str


class _VerbParameter(NamedTuple):
    """A parameter of a function, or a field of a dataclass."""

    name: str
    hint: Any
    default: Any
    """``inspect.Parameter.empty`` without one."""


def verb(group: click.Group | None = None, name: str = "") -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function, and adds it to ``group``.

    Each command has the flag ``--debug``, and sets up logging before it runs.
    """

    def declare(function: Callable[..., None]) -> click.Command:
        texts = _texts(function)
        hints = typing.get_type_hints(function, include_extras=True)
        parameters: list[click.Parameter] = []
        grouped: dict[str, Any] = {}
        for one in inspect.signature(function).parameters.values():
            declared = _VerbParameter(one.name, hints[one.name], one.default)
            if one.kind is one.VAR_KEYWORD:
                parameters += declared.hint.__metadata__[0]
            elif dataclasses.is_dataclass(declared.hint):
                grouped[one.name] = declared.hint
                parameters += _fields(declared.hint)
            elif one.kind is one.KEYWORD_ONLY:
                parameters.append(_option(declared, texts))
            else:
                parameters.append(_argument(declared))

        @functools.wraps(function)
        def run(**given: Any) -> None:
            set_up_logging()
            for parameter, table in grouped.items():
                given[parameter] = table(**{one.name: given.pop(one.name) for one in dataclasses.fields(table)})
            function(**given)

        command = click.Command(
            name or function.__name__.replace("_", "-"), None, run, parameters, texts.help, texts.examples
        )
        if group is not None:
            group.add_command(command)
        return debug_option(command)

    return declare


def row_of(table: type, attribute: str) -> Row:
    """The row of a setting, from which an option has its type, its default and its help."""
    return next(row for row in rows(table) if row.attribute == attribute)


def options_of(table: type, *without: str) -> list[click.Parameter]:
    """The options for all settings of a table, for ``**settings: Annotated[Any, options_of(…)]``."""
    return [
        _option(_VerbParameter(row.attribute, Annotated[Any, row], inspect.Parameter.empty), _Texts("", {}, ""))
        for row in rows(table)
        if row.attribute not in without
    ]


def _texts(declared: Any) -> _Texts:
    text, _, examples = (inspect.getdoc(declared) or "").partition("\n\nExamples:\n")
    text, _, listed = text.partition("\n\nOptions:\n")
    options: dict[str, tuple[str, str]] = {}
    flag = ""
    for line in inspect.cleandoc(listed).splitlines():
        if found := _OPTION.match(line):
            flag = found[1]
            options[flag] = (found[2] or "", found[3] or "")
        else:
            metavar, begun = options[flag]
            options[flag] = (metavar, f"{begun} {line.strip()}".strip())
    lines = [f"  {line}" for line in inspect.cleandoc(examples).splitlines()]
    return _Texts(text, options, "\n".join(["\b\nExamples:", *lines]))


def _fields(table: Any) -> Iterator[click.Parameter]:
    hints = typing.get_type_hints(table, include_extras=True)
    options = {flag: text for one in table.__mro__[:-1] for flag, text in _texts(one).options.items()}
    texts = _Texts("", options, "")
    for one in dataclasses.fields(table):
        default = inspect.Parameter.empty if one.default is dataclasses.MISSING else one.default
        yield _option(_VerbParameter(one.name, hints[one.name], default), texts)


def _option(declared: _VerbParameter, texts: _Texts) -> click.Option:
    kind, multiple, marks = _type(declared.hint)
    row = next((mark for mark in marks if isinstance(mark, Row)), None)
    flag = next((mark for mark in marks if isinstance(mark, str)), f"--{declared.name.replace('_', '-')}")
    metavar, help = texts.options.get(flag, ("", "")) if row else texts.options[flag]
    required, default = declared.default is inspect.Parameter.empty, declared.default
    if row:
        kind = kind if isinstance(kind, click.ParamType) else _type_of_row(row)
        help = help or row.help
        required, default = required and row.required, row.default if required else default
    attributes: dict[str, Any] = {"help": help, "metavar": metavar or None, "required": required}
    if kind is bool:
        return click.Option([flag, declared.name], is_flag=True, default=default, **attributes)
    if not required:
        attributes |= {"default": default, "show_default": default not in (None, "", ())}
    return click.Option([flag, declared.name], type=kind, multiple=multiple, **attributes)


def _argument(declared: _VerbParameter) -> click.Argument:
    kind, multiple, marks = _type(declared.hint)
    required = declared.default is inspect.Parameter.empty
    metavar = next((mark for mark in marks if isinstance(mark, str)), None)
    default = {} if required or multiple else {"default": declared.default}
    return click.Argument(
        [declared.name], required=required, type=kind, nargs=-1 if multiple else 1, metavar=metavar, **default
    )


def _type(hint: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """The type for click, whether there may be several values, and the marks of an annotation."""
    marks: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *more = typing.get_args(hint)
        marks = tuple(more)
    multiple = typing.get_origin(hint) is tuple
    if multiple or isinstance(hint, UnionType):
        hint = typing.get_args(hint)[0]
    own = next((mark for mark in marks if isinstance(mark, click.ParamType)), None)
    return own or (click.Path(path_type=Path) if hint is Path else hint), multiple, marks


def _type_of_row(row: Row) -> Any:
    if row.choices:
        return click.Choice(row.choices)
    if row.kind in (Kind.COUNT, Kind.BYTES):
        least, most = (None if limit is None else int(limit) for limit in (row.minimum, row.maximum))
        return click.IntRange(least, most)
    if row.kind in (Kind.SECONDS, Kind.NUMBER):
        return click.FloatRange(row.minimum, row.maximum)
    return bool if row.kind is Kind.FLAG else str
