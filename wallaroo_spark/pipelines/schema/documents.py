"""Documents as declarations, and declarations as documents.

A document is a mapping of names and values with a ``kind``; its other names are the fields of that kind's declaration.
The same code reads the files of a person and the stored schema. Source: ``docs/pipelines/schema.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import read_value
from wallaroo_spark.pipelines.schema.declarations import KINDS, Declaration
from wallaroo_spark.pipelines.schema.fields import ENTRY_KINDS, declared_rows, text_problem, value_problem
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.settings import Kind, Row
from wallaroo_spark.texts import count, hint
from wallaroo_spark.yaml_reader import FilePosition, YamlValue, read_documents, shown_path


class Problems:
    """The problems that are found while documents are read and validated."""

    def __init__(self) -> None:
        self.found: list[ConfigurationError] = []
        self.unread: list[ObjectKey | None] = []
        """The objects whose documents could not be read; None for a document that does not tell its object."""
        self.sketches: list[Any] = []
        """The good fields of such documents as placed declarations, whose references are checked all the same."""

    def add(self, place: FilePosition | str, text: str) -> None:
        """Add a problem. ``place`` is where the value stands, or a text that names an object that is in no file."""
        fields = place._asdict() if isinstance(place, FilePosition) else {"file": place, "line": None, "column": None}
        self.found.append(ConfigurationError(f"{place}: {text}", code="schema-invalid", **fields, problem=text))

    def include(self, error: ConfigurationError, file: str) -> None:
        """Add a problem that a reader has raised for a whole file."""
        line, column = error.fields.get("line"), error.fields.get("column")
        fields = {"file": file, "line": line, "column": column, "problem": error.message}
        self.found.append(ConfigurationError(error.message, code=error.code, **fields))

    def ordered(self) -> list[ConfigurationError]:
        """The problems by file, line and column; problems of the same place in the order in which they were found."""
        files = list(dict.fromkeys(error.fields["file"] for error in self.found))
        return sorted(
            self.found,
            key=lambda error: (
                files.index(error.fields["file"]),
                error.fields["line"] or 0,
                error.fields["column"] or 0,
            ),
        )

    def refuse(self) -> None:
        """Raise one :class:`ConfigurationError` with all problems, a line each, if there are any.

        Its field ``problems`` has them as dicts with ``file``, ``line``, ``column`` and ``problem``.
        """
        if not self.found:
            return
        ordered = self.ordered()
        lines = [error.message for error in ordered]
        raise ConfigurationError(
            "\n".join([*lines, f"{count(len(lines), 'problem')}; nothing was applied"]),
            code="schema-invalid",
            problems=[dict(error.fields) for error in ordered],
        )


HINT = "give a YAML file with a document for each object; docs/pipelines/schema.md has the fields"
MOST_OBJECTS = 100_000
"""The most objects of an application. A choice that bounds the work of a check."""


@dataclass(frozen=True)
class PlacedDeclaration:
    """A declaration of a file, with the values that it was read from."""

    declaration: Declaration
    source: YamlValue
    """The document, for the places of its values."""

    @property
    def key(self) -> ObjectKey:
        """The key of the declared object."""
        return self.declaration.key


def read_files(paths: Iterable[str], problems: Problems) -> list[PlacedDeclaration]:
    """Read the documents of YAML files; a document with a problem is left out, and the problem is added."""
    found: list[PlacedDeclaration] = []
    for path in dict.fromkeys(paths):
        try:
            documents = read_documents(path, HINT)
        except ConfigurationError as error:
            problems.include(error, shown_path(path))
            problems.unread.append(None)
            continue
        if not documents:
            problems.add(FilePosition(shown_path(path), 1, 1), f"there is no document; {HINT}")
        found += read_declarations(documents, problems)
    return found


def read_declarations(documents: Sequence[YamlValue], problems: Problems) -> list[PlacedDeclaration]:
    """Return the declarations of documents; a document with a problem is left out, and the problem is added."""
    found = (read_declaration(document, problems) for document in documents)
    return [placed for placed in found if placed is not None]


def read_declaration(document: YamlValue, problems: Problems) -> PlacedDeclaration | None:
    """Return the declaration of a document, or None after adding its problems."""
    found = _declaration(document, problems)
    if found is None:
        problems.unread.append(_named_key(document))
        if (sketch := _declaration(document, Problems(), lenient=True)) is not None:
            problems.sketches.append(sketch)
    return found


def _named_key(document: YamlValue) -> ObjectKey | None:
    """The key of an object whose document has a problem in another field."""
    fields = document.fields or {}
    kind, namespace, name = (
        given.value if (given := fields.get(field)) is not None else "" for field in ("kind", "namespace", "name")
    )
    if not (isinstance(kind, str) and isinstance(namespace, str) and isinstance(name, str)) or kind not in KINDS:
        return None
    return ObjectKey(kind, namespace, name) if name else None


def _declaration(document: YamlValue, problems: Problems, *, lenient: bool = False) -> PlacedDeclaration | None:
    kind = (document.fields or {}).get("kind")
    if document.fields is None:
        place, text = document.place, f"a document is {_shown(document)}, and has to have kind, name and other fields"
    elif kind is None or kind.value is None:
        place, text = document.place, f"kind is missing; it is one of {', '.join(KINDS)}"
    elif not isinstance(kind.value, str) or kind.value not in KINDS:
        place, text = kind.place, f"kind {_shown(kind)} is not known; {hint(str(kind.value), KINDS)}"
    else:
        made = _TableReading(problems, lenient).table(document, KINDS[kind.value], kind.value, ("kind",))
        return None if made is None else PlacedDeclaration(made, document)
    problems.add(place, text)
    return None


def to_document(declaration: Declaration, *, defaults: bool = False) -> dict[str, Any]:
    """Return a declaration as a document of plain values; fields that have their default only with ``defaults``."""
    return {"kind": declaration.kind, **_plain(declaration, defaults)}


def from_stored(document: Mapping[str, Any], where: str) -> Declaration:
    """Return the declaration of a stored document. ``where`` names its file.

    Raises :class:`ConfigurationError` for a document that this version cannot read.
    """
    problems = Problems()
    placed = read_declaration(_unplaced(document, FilePosition(where, 1, 1)), problems)
    if placed is None:
        raise problems.found[0]
    return placed.declaration


def nested_table(table: type, row: Row) -> type:
    """The table of a field with fields of its own, or of the entries of such a list."""
    declared = _hints(table)[row.attribute]
    found: type = get_args(declared)[0] if row.kind is Kind.SECTIONS else declared
    return found


@cache
def _hints(table: type) -> dict[str, Any]:
    return get_type_hints(table)


class _TableReading:
    """Reads values by the tables of declarations, and goes on after a problem to find the others.

    ``lenient``: a mapping with wrong fields becomes an object of the others, which nothing has checked as a whole.
    """

    def __init__(self, problems: Problems, lenient: bool) -> None:
        self._problems = problems
        self._lenient = lenient

    def table(self, given: YamlValue, table: type, title: str, besides: Sequence[str] = ()) -> Any:
        """The object of a table, or None after adding the problems of a mapping."""
        if given.fields is None:
            return self._refused(given.place, f"{title} is {_shown(given)}, and has to have fields of its own")
        before = len(self._problems.found)
        rows = {row.name: row for row in declared_rows(table)}
        for name in given.fields:
            if name not in rows and name not in besides:
                self._refused(given.names[name], f"{name} is not a field of {title}; {hint(name, rows)}")
        values: dict[str, Any] = {}
        for row in rows.values():
            found = given.fields.get(row.name)
            # A name without a value is as if it were not there.
            if found is not None and found.value is not None:
                if (value := self._value(found, table, row)) is not None:
                    values[row.attribute] = value
            elif row.default is MISSING:
                self._refused(given.place, f"{title} lacks {row.name}: {row.help}")
        if self._lenient:
            return _sketch(table, values)
        if len(self._problems.found) > before:
            return None
        try:
            return table(**values)
        except ConfigurationError as error:
            return self._refused(given.at(str(error.fields.get("field", ""))), error.message)

    def _value(self, given: YamlValue, table: type, row: Row) -> Any:
        """The value of a field, or None after adding its problems."""
        if row.kind is Kind.SECTION:
            return self.table(given, nested_table(table, row), row.name)
        inner = ENTRY_KINDS.get(row.kind)
        if inner is not None:
            return self._entries(given, table, row, inner)
        value = given.value
        if row.kind is Kind.SECONDS and not isinstance(value, bool):
            try:
                value = read_value(row, value)
            except ConfigurationError:
                return self._refused(
                    given.place, f"{row.name} is {_shown(given)}; write a number with a unit: 90s, 12h, 7d"
                )
        elif row.kind not in (Kind.COUNT, Kind.FLAG, Kind.SECONDS) and not isinstance(value, str):
            way_out = "write it in quotes" if given.fields is None and given.entries is None else "write a text"
            return self._refused(given.place, f"{row.name} is {_shown(given)}, which is not a text; {way_out}")
        problem = value_problem(row, value)
        return self._refused(given.place, f"{row.name}: {problem}") if problem else value

    def _entries(self, given: YamlValue, table: type, row: Row, inner: Kind) -> Any:
        if given.entries is None:
            return self._refused(given.place, f"{row.name} is {_shown(given)}, which is not a list; write [...]")
        before = len(self._problems.found)
        values: list[Any] = []
        for number, entry in enumerate(given.entries):
            if inner is Kind.SECTION:
                values.append(self.table(entry, nested_table(table, row), f"{row.name}[{number}]"))
            elif not isinstance(entry.value, str):
                self._refused(entry.place, f"{row.name} has {_shown(entry)}, which is not a text; write it in quotes")
            elif problem := text_problem(inner, entry.value):
                self._refused(entry.place, f"{row.name}: {problem}")
            elif entry.value in values:
                self._refused(entry.place, f"{row.name} has {entry.value!r} twice; remove one of them")
            else:
                values.append(entry.value)
        if len(self._problems.found) > before and (not self._lenient or None in values):
            return None
        problem = value_problem(row, tuple(values))
        return self._refused(given.place, f"{row.name}: {problem}") if problem else tuple(values)

    def _refused(self, place: FilePosition, text: str) -> None:
        self._problems.add(place, text)


def _sketch(table: type, values: dict[str, Any]) -> Any:
    """An object of the fields that could be read; None without its name."""
    made: Any = object.__new__(table)
    for row in declared_rows(table):
        value = values.get(row.attribute, row.default)
        if value is MISSING:
            if row.kind is Kind.NAME:
                return None
            value = () if row.kind is Kind.SECTIONS else ""
        object.__setattr__(made, row.attribute, value)
    return made


def _plain(made: Any, defaults: bool) -> dict[str, Any]:
    """The fields of a declaration, by their names in documents; those with their default only with ``defaults``."""
    found: dict[str, Any] = {}
    for row in declared_rows(type(made)):
        value = getattr(made, row.attribute)
        if value == row.default and not defaults:
            continue
        if row.kind is Kind.SECTION:
            value = _plain(value, defaults)
        elif row.kind is Kind.SECTIONS:
            value = [_plain(entry, defaults) for entry in value]
        elif isinstance(value, tuple):
            value = list(value)
        found[row.name] = value
    return found


def _unplaced(value: Any, place: FilePosition) -> YamlValue:
    """A plain value as one that was read, with the same place everywhere."""
    made = YamlValue(value, place)
    if isinstance(value, Mapping):
        made.fields = {str(name): _unplaced(inner, place) for name, inner in value.items()}
        made.names = dict.fromkeys(made.fields, place)
    elif isinstance(value, list):
        made.entries = [_unplaced(inner, place) for inner in value]
    return made


def _shown(given: YamlValue) -> str:
    if given.fields is not None:
        return "a mapping"
    if given.entries is not None:
        return "a list"
    text = repr(given.value) if isinstance(given.value, str) else str(given.value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


LONGEST_SHOWN = 60
"""The most characters of a value in a message. The rest of the sentence stays visible."""
