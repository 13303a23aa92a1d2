"""Parts that several verbs share: the flag ``--debug``, logging, what is printed, and the options of a receiver."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wallaroo_spark.errors import WallarooError, printable
from wallaroo_spark.transport import parse_address

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from wallaroo_spark.inner.client import Trust
    from wallaroo_spark.observe.collect import RegistryCollector

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]
"""Heading → the text of a row's cell."""

DEBUG = "wallaroo_spark.debug"
"""The key of the flag ``--debug`` in the root context's ``meta``."""

INTERRUPTED = 130
"""The exit status after SIGINT, by the convention of shells: 128 and the signal's number."""
TERMINATED = 143
"""The exit status after SIGTERM."""
REPEAT_SECONDS = 60.0
"""Shortest time in seconds between two equal warnings. A choice: once a minute is enough for a person."""
WIDE = 1000
"""Columns of output that goes to no terminal: nothing is wrapped there."""
_REMEMBERED = 1000
"""Maximum number of warnings whose time is remembered. A choice that bounds memory; beyond it, warnings may repeat
earlier."""


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    meta = ctx.find_root().meta
    meta[DEBUG] = meta.get(DEBUG, False) or value or os.environ.get("WALLAROO_DEBUG", "") not in ("", "0")


def debug_option(command: F) -> F:
    """Add the flag ``--debug`` to a command."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_debug,
        help="Log in detail and show tracebacks; status shows each worker's last events (also WALLAROO_DEBUG=1).",
    )(command)


def debugging() -> bool:
    """Whether ``--debug`` was given to the group or the verb that runs."""
    context = click.get_current_context(silent=True)
    return bool(context and context.find_root().meta.get(DEBUG))


def set_up_logging(handler: logging.Handler | None = None) -> None:
    """Show the package's warnings, or everything when debugging, on standard error or with ``handler``."""
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    if not debugging():
        handler.addFilter(_Fresh())
    logger = logging.getLogger("wallaroo_spark")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debugging() else logging.WARNING)


@contextlib.contextmanager
def logs_above(console: Console) -> Iterator[None]:
    """Within the block, the package's log is printed above what a terminal shows live; behind it, not at all."""
    from rich.logging import RichHandler

    set_up_logging(RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S"))
    try:
        yield
    finally:
        logging.getLogger("wallaroo_spark").handlers.clear()


class _Fresh(logging.Filter):
    """Drops messages that were shown within the last minute, and errors that a verb raises and shows itself."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show a record."""
        if record.name == "wallaroo_spark.connector" and record.levelno >= logging.ERROR:
            return False
        message = record.getMessage()
        fresh = record.created - self._shown.get(message, -REPEAT_SECONDS) >= REPEAT_SECONDS
        if fresh:
            self._shown = {**self._shown, message: record.created} if len(self._shown) < _REMEMBERED else {}
        return fresh


class RecentRate:
    """Things a second over the last ``window`` seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: list[tuple[float, int]] = []

    def add(self, at: float, number: int) -> float:
        """Add the number of things until a time in seconds; return the rate."""
        self._seen = [*(one for one in self._seen[:-1] if at - one[0] <= self._window), *self._seen[-1:], (at, number)]
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        return (now - before) / (last - first) if last > first else 0.0


def listen_address(text: str) -> tuple[str, int]:
    """Parse the address of a listener: as other addresses, and port 0 for any free port."""
    host, _, port = text.rpartition(":")
    return (parse_address(f"{host}:1")[0], 0) if port == "0" else parse_address(text)


def printable_bytes(data: bytes) -> str:
    """A key or a payload as text for a terminal: what is no text, or cannot be printed, is written as its escape."""
    return printable(bytes(data).decode("utf-8", "backslashreplace"))


def console() -> Console:
    """Where tables are printed. Output to a program or a file is not wrapped at the width of a terminal."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    return found if found.is_terminal else Console(highlight=False, markup=False, emoji=False, width=WIDE)


def reason_of(error: Exception) -> str:
    """An error in one line: one of this package as it is, another one with its type."""
    if isinstance(error, WallarooError):
        return str(error)
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def exit_unless(sound: bool, problem: str = "") -> None:
    """End the program with status 1 unless all is sound, with the problem on standard error if there is one to name."""
    if not sound:
        if problem:
            click.echo(problem, err=True)
        raise click.exceptions.Exit(1)


def print_result(as_json: bool, values: Any, shown: Any) -> None:
    """Print values as one line of JSON, or what a person is shown: a text, or a table or a group of rich."""
    if as_json or isinstance(shown, str):
        click.echo(json.dumps(values) if as_json else shown)
    else:
        console().print(shown)


def print_rows(as_json: bool, values: Any, columns: Columns[T], rows: Collection[T], nothing: str) -> None:
    """Print values as one line of JSON, or rows as a table; the sentence ``nothing`` in place of an empty one."""
    print_result(as_json, values, table_of(columns, rows) if rows and not as_json else nothing)


def table_of(columns: Columns[T], rows: Collection[T]) -> Table:
    """A table; a text that is too long for its column takes several lines."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    for title in columns:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(printable(cell(row)) for cell in columns.values()))
    return table


ATTEMPTS = 2
"""Attempts to reach the registry: few, because a person waits for the answer."""


@dataclass(frozen=True)
class RegistryOptions:
    """A registry, and how the workers in it are verified.

    Options:
        --registry URL: The Redis of receivers and topics; also env:NAME or file:PATH.
        --tls: The workers use TLS; verify them with the authorities that this system trusts.
        --tls-ca FILE: PEM file of the authority of the workers' certificates.
    """

    registry: str = ""
    tls: bool = False
    tls_ca: str = ""

    @property
    def trust(self) -> Trust | None:
        """How workers are verified; None: without TLS."""
        from wallaroo_spark.inner.client import Trust
        from wallaroo_spark.transport import read_authority

        return Trust(read_authority(self.tls_ca) if self.tls_ca else b"") if self.tls or self.tls_ca else None

    @contextlib.contextmanager
    def collector_of(self, receiver: str) -> Iterator[RegistryCollector]:
        """The collector of a receiver's status."""
        from wallaroo_spark.observe.collect import RegistryCollector
        from wallaroo_spark.registry import Registry

        with (
            Registry(self.registry, receiver, attempts=ATTEMPTS) as found,
            RegistryCollector(found, receiver, self.trust) as made,
        ):
            yield made


@dataclass(frozen=True)
class ReceiverOptions(RegistryOptions):
    """A receiver in a registry.

    Options:
        --receiver NAME: The receiver's name.
    """

    receiver: str = ""

    def collector(self) -> contextlib.AbstractContextManager[RegistryCollector]:
        """The collector of its status. Raises click.UsageError without a registry or a receiver."""
        if not self.registry or not self.receiver:
            raise click.UsageError(
                "give --registry URL and --receiver NAME, or set WALLAROO_REGISTRY and WALLAROO_RECEIVER, "
                "or use --context"
            )
        return self.collector_of(self.receiver)
