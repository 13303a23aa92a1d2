"""The YAML file of ``wallaroo-spark receive``, checked before anything starts.

It contains the options of ``docs/options.md`` by their public names, and ``checkpoint``, ``sink``, ``trigger``,
``spark`` and ``select``. The case of option names is ignored. All problems of a file are found at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.cli.receive.document import SAMPLE_HINT, Document, read
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import Options, resolve_secret, table

SECTIONS = ("checkpoint", "sink", "trigger", "spark", "select")
SINK_KEYS = ("format", "path", "mode", "options")
MODES = ("append", "update", "complete")
TRIGGERS = ("processingTime", "availableNow")
FILE_FORMATS = ("parquet", "json", "csv", "orc", "text", "avro", "xml")


@dataclass(frozen=True)
class SinkConfig:
    """The sink of the rows, as a DataStreamWriter takes it."""

    format: str
    """The name of the format, such as ``parquet``."""
    path: str = ""
    """The path of the files; empty for formats without one."""
    mode: str = "append"
    """The output mode: one of :data:`MODES`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the format."""


@dataclass(frozen=True)
class ReceiveConfig:
    """The configuration of one receiver and its query."""

    receiver: str
    """The receiver's name."""
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
        for check in (checks.combinations, checks.addresses, checks.status_page):
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
        sink = self._mapping(sections, "sink")
        self._known(sink, SINK_KEYS, "sink.")
        self._nothing_missing(sections, given, sink)
        options = self._options(given)
        found = self._sink(sink), self._trigger(self._mapping(sections, "trigger")), self._spark(sections)
        select = self._select(sections.get("select"))
        if self.problems or options is None:
            return None
        return ReceiveConfig(
            receiver=options.receiver,
            checkpoint=str(sections["checkpoint"]),
            sink=found[0],
            given={name: value for name, value in given.items() if name != "receiver"},
            options=options,
            trigger=found[1],
            spark=found[2],
            select=select,
        )

    def _problem(self, name: str, text: str) -> None:
        self.problems.append(self._document.problem(name, text))

    def _split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the document into its sections and its options, by public name."""
        names = {row.name.lower(): row.name for row in table()}
        flat: dict[str, Any] = {}
        for name, value in self._document.values.items():
            if name.lower() == "tls" and isinstance(value, dict):
                flat |= {f"tls.{key}": inner for key, inner in value.items()}
            else:
                flat[str(name)] = value
        sections: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for name, value in flat.items():
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

    def _options(self, given: Mapping[str, Any]) -> Options | None:
        """The options; None when one of them has a problem."""
        if given.get("receiver") is not None:
            given = {**given, "receiver": str(given["receiver"])}
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
        missing = []
        if not given.get("receiver"):
            missing.append("receiver (a name)")
        if not sections.get("checkpoint"):
            missing.append("checkpoint (a directory that belongs to this query alone)")
        if not sink.get("format"):
            missing.append("sink.format (such as parquet)")
        elif sink["format"] in FILE_FORMATS and not sink.get("path"):
            missing.append(f"sink.path (where the {sink['format']} files go)")
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

    def _known(self, given: Iterable[str], known: Sequence[str], prefix: str) -> None:
        for name in given:
            if name not in known:
                self._unknown(prefix + name, [prefix + other for other in known])

    def _unknown(self, name: str, known: Sequence[str]) -> None:
        lower = {other.lower(): other for other in known}
        near = difflib.get_close_matches(name.lower(), lower, n=1)
        hint = f"did you mean {lower[near[0]]}?" if near else f"there are {', '.join(known)}"
        self._problem(name, f"{name} is not known; {hint}")

    def _sink(self, given: Mapping[str, Any]) -> SinkConfig:
        mode = str(given.get("mode") or "append")
        if mode not in MODES:
            self._problem("sink.mode", f"sink.mode {mode!r} is not one of {', '.join(MODES)}")
        options = self._mapping(given, "options", "sink.")
        return SinkConfig(str(given.get("format")), str(given.get("path") or ""), mode, _texts(options))

    def _trigger(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self._known(given, TRIGGERS, "trigger.")
        if len(given) > 1:
            self._problem(
                "trigger", f"trigger has {' and '.join(given)}, and a query has one trigger; remove one of them"
            )
        if "availableNow" not in given:
            return {name: str(value) for name, value in given.items()}
        text = str(given["availableNow"]).lower()
        if text not in ("true", "false"):
            name = "trigger.availableNow"
            self._problem(name, f"{name} is {given['availableNow']!r}; it is true or false")
        return {"availableNow": True} if text == "true" else {}

    def _spark(self, sections: Mapping[str, Any]) -> dict[str, str]:
        given = self._mapping(sections, "spark")
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
    """Return the values as Spark writes them: true and false in lower case."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
