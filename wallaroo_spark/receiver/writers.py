"""Properties of a query before it starts, read from its DataStreamWriter.

On classic Spark they are private fields of Java's DataStreamWriter, on Spark Connect fields of a protobuf message.
Neither is a documented interface of Spark, so every function returns None (or False) when the property cannot be read.
Source: ``docs/spark.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from wallaroo_spark.errors import one_line
from wallaroo_spark.receiver.running import sources_in
from wallaroo_spark.source import WallarooDataSource

log = one_line("wallaroo_spark.receiver")

T = TypeVar("T")


def option(writer: Any, name: str) -> str | None:
    """Return an option of a DataStreamWriter, the case of its name ignored; None if it is not set or not readable."""

    def of_message(message: Any) -> str | None:
        options = {given.lower(): str(value) for given, value in message.options.items()}
        return options.get(name.lower())

    def of_java(java_writer: Any) -> str | None:
        value = _field(java_writer, "extraOptions").get(name.lower())
        return str(value.get()) if value.isDefined() else None

    return _read("options", writer, of_message, of_java)


def runs_once(writer: Any) -> bool:
    """Whether the query has the trigger ``Once``; False when the trigger cannot be read."""

    def of_java(java_writer: Any) -> bool:
        return str(_field(java_writer, "trigger").toString()) == ONCE

    return bool(_read("trigger", writer, lambda message: bool(message.once), of_java))


def trigger(writer: Any) -> str:
    """The trigger of the query in words: ``every 1 s``, ``available now``, …; empty when it cannot be read."""

    def of_message(message: Any) -> str:
        kind = message.WhichOneof("trigger")
        return str(message.processing_time_interval) if kind == "processing_time_interval" else str(kind or "")

    def of_java(java_writer: Any) -> str:
        return str(_field(java_writer, "trigger").toString())

    return in_words(_read("trigger", writer, of_message, of_java) or "")


ONCE = "OneTimeTrigger"
"""The trigger ``Once``, as Java shows it."""
_TRIGGERS = {
    "ProcessingTimeTrigger(0)": "as soon as possible",
    ONCE: "once",
    "once": "once",
    "AvailableNowTrigger": "available now",
    "available_now": "available now",
}


def in_words(text: str) -> str:
    """A trigger in words, from the text that Java or Spark Connect has of it."""
    interval = re.fullmatch(r"ProcessingTimeTrigger\((\d+)\)", text)
    if interval and int(interval[1]):
        return f"every {int(interval[1]) / 1000:g} s"
    return _TRIGGERS.get(text, text)


_UNIT_SECONDS = {"s": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def interval_seconds(words: str) -> float:
    """The interval of a trigger in words; 0 for a trigger without one."""
    parts = re.findall(r"([\d.]+) (s|second|minute|hour|day)s?\b", words)
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def receivers_of(writer: Any) -> set[str] | None:
    """Return the names of the receivers that the query reads; None when its sources cannot be read."""

    def of_message(message: Any) -> set[str]:
        return {
            value
            for source in _data_sources(message.input)
            if WallarooDataSource.is_named(source.format)
            for name, value in source.options.items()
            if name.lower() == "receiver"
        }

    def of_java(java_writer: Any) -> set[str]:
        plan = _field(java_writer, "ds").queryExecution().analyzed()
        return {source["receiver"] for source in sources_in(plan)}

    return _read("sources", writer, of_message, of_java)


def _read(name: str, writer: Any, of_message: Callable[[Any], T], of_java: Callable[[Any], T]) -> T | None:
    """Read a property with the function for Connect's message or for Java's writer; None when that fails.

    The log tells ``name``, the name of the property.
    """
    try:
        if hasattr(writer, "_write_proto"):
            return of_message(writer._write_proto)
        return of_java(writer._jwrite)
    except Exception as error:
        log.debug("the %s of the DataStreamWriter cannot be read: %s", name, error)
        return None


def _field(java_object: Any, name: str) -> Any:
    field = java_object.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java_object)


def _data_sources(message: Any) -> Iterator[Any]:
    """Iterate over the streaming data sources in a relation of Spark Connect, at any depth of its tree."""
    if message.DESCRIPTOR.name == "Read" and message.is_streaming:
        yield message.data_source
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if isinstance(value, list) or hasattr(value, "__len__") else [value]:
            yield from _data_sources(part)
