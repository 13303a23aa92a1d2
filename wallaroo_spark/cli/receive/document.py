"""A YAML document of names and values, with the line of each name for error messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.yaml_reader import YamlValue, read_documents

SAMPLE_HINT = "wallaroo-spark receive --sample prints a sample"


@dataclass(frozen=True)
class Document:
    """The names and values of a YAML file, after the overrides of the command line."""

    path: str
    """The path of the file, for errors."""
    values: Mapping[str, Any]
    """The values by name; a section is a mapping of its own."""
    places: Mapping[str, str] = field(default_factory=dict)
    """The place of each name, such as ``r.yaml, line 12``; the names of a section are joined by dots."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each name in the file, from 1."""

    def place(self, name: str) -> str:
        """The place of a name; for a missing name the place of its section, and without a section the file."""
        while name:
            if name in self.places:
                return self.places[name]
            name = name.rpartition(".")[0]
        return self.path

    def problem(self, name: str, text: str) -> ConfigurationError:
        """The error for the value of a name, with the place in front of the text."""
        return ConfigurationError(
            f"{self.place(name)}: {text}", code="config-invalid", option=name, line=self.lines.get(name)
        )


def read(path: str, overrides: Sequence[str] = ()) -> Document:
    """Read the file at ``path``, then apply ``overrides`` of the form ``name=value``.

    Raises :class:`ConfigurationError` for a file that cannot be read, is not YAML, holds no names and values or gives
    a name twice, and for an override of another form.
    """
    documents = read_documents(path, SAMPLE_HINT)
    if len(documents) > 1:
        second = documents[1].place
        raise ConfigurationError(
            f"{path}, line {second.line}: a second document begins; a receiver has one, so remove one of them",
            code="config-invalid",
            path=path,
            line=second.line,
        )
    if not documents or not isinstance(documents[0].value, dict):
        raise ConfigurationError(f"{path} holds no names and values; {SAMPLE_HINT}", code="config-invalid", path=path)
    root = documents[0]
    lines: dict[str, int] = {}
    for found, line in _names(root, ""):
        # A section and a name with a dot may be the same option.
        if found in lines:
            raise ConfigurationError(
                f"{path}, line {line}: {found} is given twice, first in line {lines[found]}; remove one of them",
                code="config-invalid",
                option=found,
                line=line,
            )
        lines[found] = line
    places = {name: f"{path}, line {line}" for name, line in lines.items()}
    document = {str(name): value for name, value in root.value.items()}
    for override in overrides:
        for name in _override(document, override):
            places[name] = f"--set {override.partition('=')[0]}"
            lines.pop(name, None)
    return Document(path, document, places, lines)


def _names(node: YamlValue, above: str, around: tuple[YamlValue, ...] = ()) -> Iterator[tuple[str, int]]:
    """Each name of a mapping and of the mappings in it, with its line. ``around`` are the mappings around it."""
    # An alias may refer to a mapping that contains the alias.
    if node.fields is None or node in around:
        return
    for key, value in node.fields.items():
        yield f"{above}{key}", node.names[key].line
        yield from _names(value, f"{above}{key}.", (*around, node))


def _override(document: dict[str, Any], override: str) -> list[str]:
    """Apply one override; returns the names that it has set."""
    name, equals, value = override.partition("=")
    if not equals or not name:
        raise ConfigurationError(
            f"--set {override!r} is not of the form name=value, for example --set workers=4", code="option-unreadable"
        )
    section, _, rest = name.partition(".")
    if section == "spark" and rest:
        document["spark"] = {**_section(document, "spark"), name: value}
        return [f"spark.{name}"]
    if section in ("sink", "trigger") and rest:
        # A query has one trigger, so this one replaces the file's.
        inner = {} if section == "trigger" else _section(document, section)
        key, _, option = rest.partition(".")
        inner[key] = {**(inner.get(key) or {}), option: value} if option else value
        document[section] = inner
        return [section, name] if section == "trigger" else [name]
    for same in [known for known in document if known.lower() == name.lower()]:
        del document[same]
    document[name] = value
    return [name]


def _section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return dict(found) if isinstance(found, dict) else {}
