"""The YAML file of ``wallaroo-spark receive``, checked before anything starts.

It contains the options of ``docs/options.md`` by their public names, and ``checkpoint``, ``sink``, ``trigger``,
``spark`` and ``select``. The case of option names is ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    variable or file does not exist.
    """
    document = _read(path)
    for override in overrides:
        _override(document, override)
    return parse(document, path)


def parse(document: Mapping[str, Any], where: str) -> ReceiveConfig:
    """Return the configuration in a YAML document; ``where`` names the document in errors. Raises as :func:`load`."""
    sections, given = _split(document, where)
    sink = _mapping(sections, "sink", where)
    _known(sink, SINK_KEYS, "sink.", where)
    _nothing_missing(sections, given, sink, where)
    given = {**given, "receiver": str(given["receiver"])}
    options = Options.parse(given)
    for secret in (options.registry, options.cookie, options.token, options.status_page_token):
        resolve_secret(secret)
    return ReceiveConfig(
        receiver=options.receiver,
        checkpoint=str(sections["checkpoint"]),
        sink=_sink(sink, where),
        given={name: value for name, value in given.items() if name != "receiver"},
        options=options,
        trigger=_trigger(_mapping(sections, "trigger", where), where),
        spark=_spark(_mapping(sections, "spark", where), where),
        select=_select(sections.get("select"), where),
    )


def _read(path: str) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}; conf/receive.yaml is a sample to copy", path=path
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it is not UTF-8 text"
        raise ConfigurationError(f"{path} is not YAML{line}: {problem}; correct that line", path=path) from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} holds no names and values; conf/receive.yaml is a sample to copy", path=path)
    return {str(name): value for name, value in document.items()}


def _override(document: dict[str, Any], override: str) -> None:
    name, equals, value = override.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"--set {override!r} is not of the form name=value, for example --set workers=4")
    section, _, rest = name.partition(".")
    if section == "spark" and rest:
        document["spark"] = {**(document.get("spark") or {}), name: value}
    elif section in ("sink", "trigger") and rest:
        inner = dict(document.get(section) or {})
        key, _, option = rest.partition(".")
        if section == "trigger":
            # A query has one trigger, so this one replaces the file's.
            inner = {}
        inner[key] = {**(inner.get(key) or {}), option: value} if option else value
        document[section] = inner
    else:
        for same in [known for known in document if known.lower() == name.lower()]:
            del document[same]
        document[name] = value


def _split(document: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a document into its sections and its options, by public name."""
    names = {row.name.lower(): row.name for row in table()}
    flat: dict[str, Any] = {}
    for name, value in document.items():
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
            raise _unknown(name, [*names.values(), *SECTIONS], where)
        if public in given:
            raise ConfigurationError(f"{where}: {public} is given twice; leave one", option=public)
        if value is not None:
            given[public] = value
    return sections, given


def _nothing_missing(
    sections: Mapping[str, Any], given: Mapping[str, Any], sink: Mapping[str, Any], where: str
) -> None:
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
        raise ConfigurationError(f"{where} lacks {', '.join(missing)}; conf/receive.yaml is a sample to copy")


def _mapping(sections: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = sections.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where}: {name} is {value!r}, and must hold names and values of its own")
    return {str(key): inner for key, inner in value.items()}


def _known(given: Iterable[str], known: Sequence[str], prefix: str, where: str) -> None:
    for name in given:
        if name not in known:
            raise _unknown(prefix + name, [prefix + other for other in known], where)


def _unknown(name: str, known: Sequence[str], where: str) -> ConfigurationError:
    lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"did you mean {lower[near[0]]}?" if near else f"there are {', '.join(known)}"
    return ConfigurationError(f"{where}: {name} is not known; {hint}", option=name)


def _sink(given: Mapping[str, Any], where: str) -> SinkConfig:
    mode = str(given.get("mode") or "append")
    if mode not in MODES:
        raise ConfigurationError(f"{where}: sink.mode {mode!r} is not one of {', '.join(MODES)}")
    options = _mapping(given, "options", where)
    return SinkConfig(str(given["format"]), str(given.get("path") or ""), mode, _texts(options))


def _trigger(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    _known(given, TRIGGERS, "trigger.", where)
    if len(given) > 1:
        raise ConfigurationError(f"{where}: trigger holds {' and '.join(given)}, and a query has one; leave one")
    if "availableNow" not in given:
        return {name: str(value) for name, value in given.items()}
    if str(given["availableNow"]).lower() not in ("true", "false"):
        raise ConfigurationError(f"{where}: trigger.availableNow is {given['availableNow']!r}; it is true or false")
    return {"availableNow": True} if str(given["availableNow"]).lower() == "true" else {}


def _spark(given: Mapping[str, Any], where: str) -> dict[str, str]:
    for name in given:
        if not name.startswith("spark."):
            raise ConfigurationError(f"{where}: spark: {name} is no setting of Spark's; their names start with spark.")
    return _texts(given)


def _select(given: Any, where: str) -> tuple[str, ...]:
    if given is None:
        return ()
    expressions = [given] if isinstance(given, str) else given
    if not isinstance(expressions, list) or not all(isinstance(text, str) and text for text in expressions):
        raise ConfigurationError(f"{where}: select is a list of SQL expressions, such as CAST(value AS STRING) AS text")
    return tuple(expressions)


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as Spark writes them: true and false in lower case."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
