"""Properties of a query before it starts: from Java's DataStreamWriter, or from the message of Spark Connect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from wallaroo_spark.errors import one_line
from wallaroo_spark.source import WallarooDataSource

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

T = TypeVar("T")


def option(writer: Any, name: str) -> str | None:
    """An option that a DataStreamWriter carries, whatever its case; None where there is none, or it cannot be seen."""

    def of_message(message: Any) -> str | None:
        options = {given.lower(): str(value) for given, value in message.options.items()}
        return options.get(name.lower())

    def of_java(java_writer: Any) -> str | None:
        found = _field(java_writer, "extraOptions").get(name.lower())
        return str(found.get()) if found.isDefined() else None

    return _seen("options", writer, of_message, of_java)


def runs_once(writer: Any) -> bool:
    """Whether the query has the trigger ``Once``."""

    def of_java(java_writer: Any) -> bool:
        return str(_field(java_writer, "trigger").toString()) == "OneTimeTrigger"

    return bool(_seen("trigger", writer, lambda message: bool(message.once), of_java))


def receivers_of(writer: Any) -> set[str] | None:
    """The names of the receivers that the query reads; None where that cannot be seen."""

    def of_message(message: Any) -> set[str]:
        return {
            value
            for source in _data_sources(message.input)
            if WallarooDataSource.is_named(source.format)
            for name, value in source.options.items()
            if name.lower() == "receiver"
        }

    def of_java(java_writer: Any) -> set[str]:
        leaves = _field(java_writer, "ds").queryExecution().analyzed().collectLeaves()
        found = (leaves.apply(number) for number in range(leaves.size()))
        streams = (leaf for leaf in found if leaf.getClass().getSimpleName() == "StreamingRelationV2")
        return {
            str(leaf.extraOptions().get("receiver"))
            for leaf in streams
            if WallarooDataSource.is_named(str(leaf.sourceName())) and leaf.extraOptions().get("receiver")
        }

    return _seen("sources", writer, of_message, of_java)


def _seen(what: str, writer: Any, of_message: Callable[[Any], T], of_java: Callable[[Any], T]) -> T | None:
    """Neither way is an interface that Spark promises, so what cannot be seen is no error."""
    try:
        if hasattr(writer, "_write_proto"):
            return of_message(writer._write_proto)
        return of_java(writer._jwrite)
    except Exception as error:
        log.debug("the writer's %s cannot be seen: %s", what, error)
        return None


def _field(java_object: Any, name: str) -> Any:
    field = java_object.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java_object)


def _data_sources(message: Any) -> Iterator[Any]:
    """The streaming data sources in a relation of Spark Connect, at whatever depth."""
    if message.DESCRIPTOR.name == "Read" and message.is_streaming:
        yield message.data_source
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if isinstance(value, list) or hasattr(value, "__len__") else [value]:
            yield from _data_sources(part)
