"""A YAML document of names and values, with the line of each name for error messages.

The YAML file of ``wallaroo-spark receive``, checked before anything starts.

It contains the options of ``docs/options.md`` by their public names, and ``checkpoint``, ``sink``, ``trigger``,
``spark`` and ``select``. The case of option names is ignored. All problems of a file are found at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import Options, read_value, resolve_secret, table
from wallaroo_spark.settings import Kind, Row, check, row, rows, setting
from wallaroo_spark.sinks.settings import DeltaSettings, StreamSettings
from wallaroo_spark.texts import hint
from wallaroo_spark.yaml_reader import YamlValue, read_documents

SAMPLE_HINT = "wallaroo-spark receive --sample prints a sample"


@dataclass(frozen=True)
class Document:
    """The names and values of a YAML file, after the overrides of the command line."""

    path: str
    """The path of the file, for errors."""
    values: Mapping[str, Any]
    """The values by name; a section is a mapping of its own."""
    places: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    """The place of each name, such as ``r.yaml, line 12``, and the line in the file; None for an override.

    The names of a section are joined by dots.
    """

    def problem(self, name: str, text: str) -> ConfigurationError:
        """The error for the value of a name, with its place in front of the text.

        That of a missing name is the place of its section, and without a section the file.
        """
        there = name
        while there and there not in self.places:
            there = there.rpartition(".")[0]
        place, _ = self.places.get(there, (self.path, None))
        _, line = self.places.get(name, (self.path, None))
        return ConfigurationError(f"{place}: {text}", code="config-invalid", option=name, line=line)


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
    places: dict[str, tuple[str, int | None]] = {}
    for found, line in _names(documents[0], ""):
        places[found] = f"{path}, line {line}", line
    document = {str(name): value for name, value in documents[0].value.items()}
    for override in overrides:
        for name in _override(document, override):
            places[name] = f"--set {override.partition('=')[0]}", None
    return Document(path, document, places)


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


SECTIONS = ("checkpoint", "sink", "trigger", "spark", "select")
STREAM = "stream"
"""The format of a sink that is a durable stream: its path is an application's folder, its options are settings of
``sinks.stream``."""
DELTA = "deltalake"
"""The format of a sink that is a Delta table which ``sinks.delta`` writes: its options are settings of that sink. The
format ``delta`` is Spark's, and needs a jar."""
FILE_FORMATS = ("parquet", "json", "csv", "orc", "text", "avro", "xml")


@dataclass(frozen=True)
class SinkConfig:
    """The sink of the rows, as a DataStreamWriter takes it."""

    format: str = field(metadata=row(Kind.TEXT))
    """Name of the format, such as `parquet`."""
    path: str = setting("", Kind.TEXT)
    """Path of the files; empty for formats without one."""
    mode: str = setting("append", Kind.TEXT, choices=("append", "update", "complete"))
    """Output mode."""
    options: Mapping[str, str] = field(default_factory=dict, metadata=row(Kind.SECTION))
    """Further options of the format."""


@dataclass(frozen=True)
class TriggerConfig:
    """The trigger of the query: one of these, as ``DataStreamWriter.trigger`` takes it."""

    processingTime: str | None = setting(None, Kind.TEXT)
    """Interval of the batches, as Spark takes it."""
    availableNow: bool = setting(False, Kind.FLAG)
    """Whether the query ends once everything that is there was read."""


_SINK = {row.name: row for row in rows(SinkConfig)}
_OF_WRITERS = {STREAM: StreamSettings, DELTA: DeltaSettings}
_GIVEN_ELSEWHERE = ("application", "path", "checkpoint")
_TRIGGER = {row.name: row for row in rows(TriggerConfig)}


@dataclass(frozen=True)
class ReceiveConfig:
    """The configuration of one receiver and its query."""

    receiver: str
    checkpoint: str
    """The query's checkpoint location."""
    sink: SinkConfig
    """The query's sink."""
    given: Mapping[str, Any]
    """The options as they stand in the file, by public name, without the receiver's name."""
    options: Options
    """The parsed options."""
    trigger: Mapping[str, Any] = field(default_factory=dict)
    """The keyword argument of ``DataStreamWriter.trigger``; empty: Spark's default trigger."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session, by full name."""
    select: tuple[str, ...] = ()
    """SQL expressions for ``selectExpr``; empty: all columns."""


def load(path: str, overrides: Sequence[str] = ()) -> ReceiveConfig:
    """Read the file at ``path``, then ``overrides`` of the form ``name=value``.

    A name is an option, ``checkpoint``, ``sink.path``, ``sink.options.…``, ``trigger.…`` or ``spark.…``. Raises
    :class:`ConfigurationError` for a file that cannot be read, an unknown or missing value, and a secret whose
    variable or file does not exist. The error names the line; of several problems it names the first.
    """
    return _config(read(path, overrides))


def parse(values: Mapping[str, Any], where: str) -> ReceiveConfig:
    """Return the configuration in the values of a document; ``where`` names it in errors. Raises as :func:`load`."""
    return _config(Document(where, values))


def problems(path: str, overrides: Sequence[str] = ()) -> tuple[ReceiveConfig | None, list[ConfigurationError]]:
    """Return all problems of a file, in the order of their lines, and the configuration when there is none.

    These are the problems that are visible without Spark, Redis or another machine.
    """
    from wallaroo_spark.receiver import checks

    try:
        document = read(path, overrides)
    except ConfigurationError as error:
        return None, [error]
    reading = _DocumentReading(document)
    config = reading.config()
    if config is not None:
        for check in (checks.receiver_name, checks.combinations, checks.addresses, checks.status_page):
            try:
                check(config.options)
            except ConfigurationError as error:
                reading.problems.append(document.problem(error.fields.get("option", ""), error.message))
    return config if not reading.problems else None, sorted(
        reading.problems, key=lambda error: error.fields.get("line") or 0
    )


def _config(document: Document) -> ReceiveConfig:
    reading = _DocumentReading(document)
    config = reading.config()
    if config is None:
        raise reading.problems[0]
    return config


class _DocumentReading:
    """Reads one document, and goes on after a problem to find the others."""

    def __init__(self, document: Document) -> None:
        self.problems: list[ConfigurationError] = []
        self._document = document
        self._written: dict[str, str] = {}
        """The name of each option as it is written in the document, by public name."""

    def config(self) -> ReceiveConfig | None:
        """The configuration; None when there are problems."""
        sections, given = self._split()
        given_sink = self._mapping(sections, "sink")
        self._nothing_missing(sections, given, given_sink)
        options = self._options(given)
        sink = self._sink(given_sink)
        trigger = self._trigger(self._mapping(sections, "trigger"))
        spark = self._spark(self._mapping(sections, "spark"))
        select = self._select(sections.get("select"))
        if self.problems or options is None:
            return None
        given.pop("receiver")
        checkpoint = str(sections["checkpoint"])
        return ReceiveConfig(options.receiver, checkpoint, sink, given, options, trigger, spark, select)

    def _problem(self, name: str, text: str) -> None:
        self.problems.append(self._document.problem(name, text))

    def _split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the document into its sections and its options, by public name."""
        names = {row.name.lower(): row.name for row in table()}
        sections: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for name, value in self._flat():
            if name in SECTIONS:
                sections[name] = value
                continue
            public = names.get(name.lower())
            if public is None:
                self._unknown(name, [*names.values(), *SECTIONS])
            elif public in given:
                self._problem(name, f"{public} is given twice; remove one of them")
            elif value is not None:
                given[public] = value
                self._written[public] = name
        return sections, given

    def _flat(self) -> Iterator[tuple[str, Any]]:
        """The names and values, with those of the section ``tls``; it and a name with a dot may be the same option."""
        for name, value in self._document.values.items():
            if name.lower() == "tls" and isinstance(value, dict):
                yield from ((f"tls.{key}", inner) for key, inner in value.items())
            else:
                yield name, value

    def _options(self, given: Mapping[str, Any]) -> Options | None:
        """The options; None when one of them has a problem."""
        before = len(self.problems)
        for name, value in given.items():
            try:
                options = Options.parse({"receiver": "any", name: value})
                for secret in (options.registry, options.cookie, options.token, options.status_page_token):
                    resolve_secret(secret)
            except ConfigurationError as error:
                self._problem(self._written[name], error.message)
        if len(self.problems) > before or not given.get("receiver"):
            return None
        return Options.parse(given)

    def _nothing_missing(self, sections: Mapping[str, Any], given: Mapping[str, Any], sink: Mapping[str, Any]) -> None:
        form, options = sink.get("format"), sink.get("options")
        needed = {
            "receiver (a name)": given.get("receiver"),
            "checkpoint (a directory that belongs to this query alone)": sections.get("checkpoint"),
            "sink.format (such as parquet)": form,
        }
        if form in (*FILE_FORMATS, DELTA):
            needed[f"sink.path (where the {form} files go)"] = sink.get("path")
        elif form == STREAM:
            stream = options.get("stream") if isinstance(options, dict) else None
            needed["sink.path (the folder of the application)"] = sink.get("path")
            needed["sink.options.stream (the stream that takes the rows, as namespace/name)"] = stream
        missing = [text for text, value in needed.items() if not value]
        if missing:
            text = f"{self._document.path} lacks {', '.join(missing)}; {SAMPLE_HINT}"
            self.problems.append(ConfigurationError(text, code="config-invalid"))

    def _mapping(self, sections: Mapping[str, Any], name: str, above: str = "") -> dict[str, Any]:
        value = sections.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._problem(f"{above}{name}", f"{above}{name} is {value!r}, and must contain names and values")
            return {}
        return {str(key): inner for key, inner in value.items()}

    def _unknown(self, name: str, known: Sequence[str]) -> None:
        self._problem(name, f"{name} is not known; {hint(name, known)}")

    def _read(self, table: Mapping[str, Row], given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        """Read the values of a section by its table; those of sections in it stay as they are."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            name = f"{prefix}{key}"
            if key not in table:
                self._unknown(name, [prefix + other for other in table])
            elif table[key].kind is not Kind.SECTION and value is not None:
                row = dataclasses.replace(table[key], name=name)
                try:
                    found[key] = read_value(row, value)
                    check(row, found[key], f"option {name}")
                except ConfigurationError as error:
                    self._problem(name, error.message)
        return found

    def _sink(self, given: Mapping[str, Any]) -> SinkConfig:
        options = self._mapping(given, "options", "sink.")
        if (form := given.get("format")) in _OF_WRITERS:
            known = {row.name: row for row in rows(_OF_WRITERS[form]) if row.name not in _GIVEN_ELSEWHERE}
            self._read(known, options, "sink.options.")
        return SinkConfig(**{"format": "", **self._read(_SINK, given, "sink.")}, options=_texts(options))

    def _trigger(self, given: dict[str, Any]) -> dict[str, Any]:
        if "once" in given:
            del given["once"]
            text = "trigger.once is refused, because Spark would ignore the limits of a batch; write availableNow: true"
            self._problem("trigger.once", text)
        if len(given) > 1:
            self._problem(
                "trigger", f"trigger has {' and '.join(given)}, and a query has one trigger; remove one of them"
            )
        return {name: value for name, value in self._read(_TRIGGER, given, "trigger.").items() if value is not False}

    def _spark(self, given: Mapping[str, Any]) -> dict[str, str]:
        for name in given:
            if not name.startswith("spark."):
                self._problem(f"spark.{name}", f"spark: {name} is no setting of Spark's; their names start with spark.")
        return _texts(given)

    def _select(self, given: Any) -> tuple[str, ...]:
        if given is None:
            return ()
        expressions = [given] if isinstance(given, str) else given
        if not isinstance(expressions, list) or not all(isinstance(text, str) and text for text in expressions):
            self._problem("select", "select is a list of SQL expressions, such as CAST(value AS STRING) AS text")
            return ()
        return tuple(expressions)


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as Spark writes them: true and false in lower case, and a list with commas."""
    return {name: _text(value) for name, value in given.items()}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
