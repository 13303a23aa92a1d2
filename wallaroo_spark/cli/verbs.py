"""Verbs from functions: a signature and its docstring are all that a verb declares of its command line.

A parameter in front of ``*`` is an argument, one behind it an option; its annotation is its type, its default is the
option's. ``Annotated`` adds a type of click (``Annotated[int, click.IntRange(1)]``), another name (``"--json"``), the
name of an argument in the help (``"FILE..."``), or a row of a table of settings (:func:`row_of`). A parameter whose
type is a dataclass stands for the options that are its fields. The docstring has the texts::

    Show the streams that wait longest.

    Options:
        --instance NAME: Only the streams of this connector instance.

    Examples:
        wallaroo-spark --context test streams
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple

import click

from wallaroo_spark.cli.common import debug_option, set_up_logging
from wallaroo_spark.settings import Kind, Row, rows

Json = Annotated[bool, "--json"]
"""The flag for output that programs read."""

MOST = 1e9
"""The largest number of an option. A choice: thirty years; sleeps and sockets take nine times as many seconds."""


class Number(click.FloatRange):
    """A number of seconds, or a rate, within limits: no ``nan``, which is in every range of click, and no ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Fails as click does for a text that is none."""
        found: float = super().convert(value, param, ctx)
        if not abs(found) <= MOST:
            self.fail(f"{value} is not a number up to {MOST:,.0f}.", param, ctx)
        return found


_OPTION = re.compile(r"(--[\w-]+)(?: (\S+))?:(?: (.*))?")


_OptionTexts = dict[str, tuple[str, str]]
"""Name of an option → its metavar and its help."""


class _Texts(NamedTuple):
    """The parts of a docstring."""

    help: str
    options: _OptionTexts
    examples: str


def verb(group: click.Group | None = None, name: str = "") -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function, and adds it to ``group``.

    Each command has the flag ``--debug``, and sets up logging before it runs.
    """

    def declare(function: Callable[..., None]) -> click.Command:
        texts = _texts(function)
        parameters: list[click.Parameter] = []
        grouped: dict[str, Any] = {}
        for one in _parameters(function):
            if one.kind is one.VAR_KEYWORD:
                parameters += one.annotation.__metadata__[0]
            elif dataclasses.is_dataclass(one.annotation):
                grouped[one.name] = one.annotation
                parameters += _fields(one.annotation)
            elif one.kind is one.KEYWORD_ONLY:
                parameters.append(_option(one, texts.options))
            else:
                parameters.append(_argument(one))

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
    parameters = [
        inspect.Parameter(row.attribute, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Any, row])
        for row in rows(table)
        if row.attribute not in without
    ]
    return [_option(one, {}) for one in parameters]


def _texts(declared: Any) -> _Texts:
    text, _, examples = (inspect.getdoc(declared) or "").partition("\n\nExamples:\n")
    text, _, listed = text.partition("\n\nOptions:\n")
    options: _OptionTexts = {}
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


def _parameters(declared: Any) -> Iterable[inspect.Parameter]:
    """The parameters of a function, or the fields of a dataclass, with their types."""
    if not dataclasses.is_dataclass(declared):
        return inspect.signature(declared, eval_str=True).parameters.values()
    # The types of a base's fields are names of the base's module.
    types = typing.get_type_hints(declared, include_extras=True)
    parameters = inspect.signature(typing.cast("type", declared)).parameters.values()
    return [one.replace(annotation=types[one.name]) for one in parameters]


def _fields(table: Any) -> list[click.Parameter]:
    """The options for the fields of a dataclass; those of a table of settings are arguments where they may be given by
    position."""
    if all("kind" in one.metadata for one in dataclasses.fields(table)):
        arguments = [one for one in _parameters(table) if one.kind is not one.KEYWORD_ONLY]
        return [*map(_argument, arguments), *options_of(table, *(one.name for one in arguments))]
    texts = {flag: text for one in table.__mro__[:-1] for flag, text in _texts(one).options.items()}
    return [_option(one, texts) for one in _parameters(table)]


def _option(declared: inspect.Parameter, texts: _OptionTexts) -> click.Option:
    kind, multiple, marks = _type(declared.annotation)
    row = next((mark for mark in marks if isinstance(mark, Row)), None)
    flag = next((mark for mark in marks if isinstance(mark, str)), f"--{declared.name.replace('_', '-')}")
    metavar, help = texts.get(flag, ("", "")) if row else texts[flag]
    required, default = declared.default is inspect.Parameter.empty, declared.default
    if row:
        kind = kind if isinstance(kind, click.ParamType) else _type_of_row(row)
        help = help or row.help
        required, default = required and row.required, row.default if required else default
    elif kind is float:
        kind = Number(min=0)
    attributes: dict[str, Any] = {"help": help, "metavar": metavar or None, "required": required}
    if kind is bool:
        return click.Option([flag, declared.name], is_flag=True, default=default, **attributes)
    if not required:
        attributes |= {"default": default, "show_default": default not in (None, "", ())}
    return click.Option([flag, declared.name], type=kind, multiple=multiple, **attributes)


def _argument(declared: inspect.Parameter) -> click.Argument:
    kind, multiple, marks = _type(declared.annotation)
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
        return Number(row.minimum, row.maximum)
    return bool if row.kind is Kind.FLAG else str
