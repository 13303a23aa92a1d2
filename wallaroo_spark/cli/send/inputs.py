"""The inputs of ``wallaroo-spark send``: files, topics and standard input, as sources for a connector."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from wallaroo_spark.connector import Source

STDIN = "-"
TOPIC = "topic:"
"""Prefix of a topic's name, in place of a file."""


@dataclass(frozen=True)
class SendInput:
    """One file, topic or standard input."""

    source: Source
    """The source of its records."""
    size: int | None
    """Bytes of the file when sending began; None for a topic and for standard input."""


class InputName(click.Path):
    """An existing file, ``-``, or ``topic:NAME``."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name of a topic is passed on; it is looked up when its input is opened."""
        return value if str(value).startswith(TOPIC) else super().convert(value, param, ctx)


def open_input(name: str, *, follow: bool, framed: bool, options: dict[str, Any]) -> SendInput:
    """The input of that name; ``options`` are those of the command; topics use some of them."""
    if name.startswith(TOPIC):
        return _topic(name.removeprefix(TOPIC), follow, options)
    from wallaroo_spark.connector import Framed, Lines, Stdin

    if name == STDIN:
        return SendInput(Stdin(), None)
    kind = Framed if framed else Lines
    return SendInput(kind(name, follow=follow), os.stat(name).st_size)


def standard_input_is_terminal() -> bool:
    """Whether a person types the lines; then no bars are drawn, because they would cover the typed text."""
    return sys.stdin is not None and sys.stdin.isatty()


def _topic(name: str, follow: bool, options: dict[str, Any]) -> SendInput:
    from wallaroo_spark.pubsub import TopicSource

    source = TopicSource(
        name,
        registry=options["topic_registry"] or options["registry"],
        cookie=options["topic_cookie"],
        value=options["topic_value"],
        tls_ca=options["topic_tls_ca"],
        name=options["instance"],
        reopen=follow,
        wait=options["give_up_after"] if follow else 0.0,
        lost_after=options["give_up_after"],
    )
    return SendInput(source, None)
