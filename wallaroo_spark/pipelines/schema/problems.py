"""Problems of documents, each with its place, gathered so that all are shown at once."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.texts import count
from wallaroo_spark.yaml_reader import FilePosition


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
