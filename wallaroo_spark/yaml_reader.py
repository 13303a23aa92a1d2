"""Reads YAML documents, with the line and the column of every value, for errors that say where to look.

Every YAML file of this package is read here. The documents have plain values only: no tag creates an object.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from wallaroo_spark.errors import ConfigurationError

STANDARD_INPUT = "-"
"""The path that stands for standard input."""
MOST_BYTES = 16 << 20
"""The largest file that is read. A choice: a file that people write is far below it."""


class FilePosition(NamedTuple):
    """The place of a value in a file."""

    file: str
    """The file, as it was given."""
    line: int
    """The line, from 1."""
    column: int
    """The column, from 1."""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, column {self.column}"


@dataclass(eq=False)
class YamlValue:
    """One value of a document, with its place. A value may stand in itself, because YAML has aliases."""

    value: Any
    """The value as Python has it: a text, a number, a truth value, a date, None, a list or a dict."""
    place: FilePosition
    """Where the value begins."""
    fields: dict[str, YamlValue] | None = None
    """The values of a mapping by their names; None for other values."""
    names: dict[str, FilePosition] = field(default_factory=dict)
    """Where each name of a mapping stands."""
    entries: list[YamlValue] | None = None
    """The values of a list; None for other values."""

    def at(self, *path: str | int) -> FilePosition:
        """The place of the value that a path of names and numbers leads to, or of the last value on the way to it."""
        here = self
        for step in path:
            found: YamlValue | None = None
            if isinstance(step, str):
                found = (here.fields or {}).get(step)
            elif step < len(here.entries or ()):
                found = (here.entries or [])[step]
            if found is None:
                break
            here = found
        return here.place


def shown_path(path: str) -> str:
    """The name of a file in messages."""
    return "standard input" if path == STANDARD_INPUT else path


def read_documents(path: str, hint: str) -> list[YamlValue]:
    """Return the documents of the YAML file at ``path``, in their order; an empty document is left out.

    ``hint`` is the way out for a file that cannot be read. Raises :class:`ConfigurationError` for a file that cannot be
    read or is not YAML, and for a name that is given twice.
    """
    shown = shown_path(path)
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else Path(path).open("rb") as file:
            # One byte more tells a file of the permitted length from a longer one.
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(
            f"{shown} cannot be read: {error.strerror}; {hint}", code="file-unreadable", path=path
        ) from error
    if len(content) > MOST_BYTES:
        raise _invalid(f"{shown} has more than {MOST_BYTES >> 20} MiB, and no more are read; divide it", path)
    try:
        return documents_of(content.decode("utf-8"), shown)
    except UnicodeDecodeError as error:
        raise _invalid(f"{shown} is not YAML: it is not UTF-8 text; save it as UTF-8", path) from error


def documents_of(text: str, file: str) -> list[YamlValue]:
    """Return the documents in a text; ``file`` names it in errors. Raises as :func:`read_documents`."""
    import yaml

    try:
        # The safe loader makes plain values only. The same loader reads the nodes, which have the lines.
        loader = yaml.SafeLoader(text)
        try:
            return list(_documents(loader, file))
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise _invalid(f"{file} is not YAML{where}: {problem}; correct that line", file, mark) from error
    except (RecursionError, ValueError) as error:
        # A date such as 2026-02-31 has the form of a date, and is none.
        problem = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise _invalid(f"{file} is not YAML: {problem}; correct that value", file) from error


def _invalid(text: str, path: str, mark: Any = None, **more: Any) -> ConfigurationError:
    """The error for a file; ``mark`` is the place that the parser names."""
    place = {"line": mark.line + 1, "column": mark.column + 1} if mark else {}
    return ConfigurationError(text, code="config-invalid", path=path, **place, **more)


def _documents(loader: Any, file: str) -> Iterator[YamlValue]:
    while loader.check_node():
        node = loader.get_node()
        _refuse_twice(node, "", file, set())
        # This also replaces each merge key by the names that it stands for.
        value = loader.construct_document(node)
        if value is not None:
            yield _tree(loader, node, value, file, {})


def _tree(loader: Any, node: Any, value: Any, file: str, known: dict[int, YamlValue]) -> YamlValue:
    import yaml

    if id(node) in known:
        return known[id(node)]
    made = known[id(node)] = YamlValue(value, _place(file, node))
    if isinstance(node, yaml.MappingNode) and isinstance(value, dict):
        made.fields = {}
        # A merge key puts its names first, so that a name of the mapping's own replaces them.
        for key, inner in node.value:
            name = str(key.value)
            _require_utf8(name, _place(file, key))
            made.fields[name] = _tree(loader, inner, value.get(loader.construct_object(key)), file, known)
            made.names[name] = _place(file, key)
    elif isinstance(node, yaml.SequenceNode) and isinstance(value, list):
        pairs = zip(node.value, value, strict=True)
        made.entries = [_tree(loader, inner, entry, file, known) for inner, entry in pairs]
    elif isinstance(value, str):
        _require_utf8(value, made.place)
    return made


def _require_utf8(text: str, place: FilePosition) -> None:
    """Refuse a lone surrogate, which an escape makes: nothing that goes over a network has bytes for it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = f"the text {text[:60]!r} has a lone surrogate, which UTF-8 has no bytes for; remove the escape"
        raise _invalid(f"{place}: {problem}", place.file, line=place.line, column=place.column) from None


def _refuse_twice(node: Any, above: str, file: str, seen: set[int]) -> None:
    """Raise :class:`ConfigurationError` for a mapping that has a name twice."""
    import yaml

    # An alias may name a value that it stands in.
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for place, inner in enumerate(node.value):
            _refuse_twice(inner, f"{above}{place}.", file, seen)
        return
    lines: dict[Any, Any] = {}
    for key, value in node.value:
        name = f"{above}{key.value}"
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in lines:
                mark, first = key.start_mark, lines[key.tag, key.value]
                where = f"{file}, line {mark.line + 1}"
                text = f"{where}: {name} is given twice, first in line {first.line + 1}; remove one of them"
                raise _invalid(text, file, mark, option=name)
            lines[key.tag, key.value] = key.start_mark
        _refuse_twice(value, f"{name}.", file, seen)


def _place(file: str, node: Any) -> FilePosition:
    return FilePosition(file, node.start_mark.line + 1, node.start_mark.column + 1)
