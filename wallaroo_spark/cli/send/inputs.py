"""The options of ``wallaroo-spark send``, and its inputs: files, topics and standard input, as sources for a connector.

The options by which it and ``replay`` connect to workers.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape, glob, has_magic
from pathlib import Path
from typing import Annotated, Any

import click

from wallaroo_spark import pubsub
from wallaroo_spark.cli.verbs import row_of
from wallaroo_spark.connector import Backoff, Connector, Framed, Lines, RotatedFramed, RotatedLines, Source, Stdin
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.connector.sources.files import TOO_LONG
from wallaroo_spark.connector.sources.rotated import is_rotated
from wallaroo_spark.protocol import HEAD_BYTES
from wallaroo_spark.transport import client_context

STDIN = "-"
TOPIC = "topic:"
"""Prefix of a topic's name, in place of a file."""

LONGEST_LINE = row_of(ConnectorSettings, "max_frame_bytes").default - HEAD_BYTES
"""Bytes of the longest line that fits a frame."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Cookie, TLS and attempts of a connector.

    Options:
        --cookie COOKIE:
        --tls: Use TLS, with the authorities that this system trusts.
        --tls-ca FILE:
        --tls-certificate FILE:
        --tls-key FILE:
        --give-up-after SECONDS:
    """

    cookie: Annotated[str, row_of(ConnectorSettings, "cookie")]
    tls: bool = False
    tls_ca: Annotated[str, row_of(ConnectorSettings, "ca")]
    tls_certificate: Annotated[str, row_of(ConnectorSettings, "certificate")]
    tls_key: Annotated[str, row_of(ConnectorSettings, "key")]
    give_up_after: Annotated[float, row_of(Backoff, "give_up_after")]

    def settings(self) -> dict[str, Any]:
        """The settings of a connector."""
        own = {"ca": self.tls_ca, "certificate": self.tls_certificate, "key": self.tls_key}
        tls = client_context() if self.tls and not any(own.values()) else None
        return {"cookie": self.cookie, "tls": tls, **own, "retry": Backoff(give_up_after=self.give_up_after)}


@dataclass(frozen=True, kw_only=True)
class TargetOptions(ConnectionOptions):
    """The receiver.

    Options:
        --workers HOST:PORT,…:
        --registry URL:
        --receiver NAME: The receiver's name; needed with --registry.
    """

    workers: Annotated[str, row_of(ConnectorSettings, "workers")]
    registry: Annotated[str, row_of(ConnectorSettings, "registry")] = ""
    receiver: str = ""
    version: Annotated[str, "--protocol-version", row_of(ConnectorSettings, "version")]
    revision: Annotated[str, row_of(ConnectorSettings, "revision")]

    def check_receiver(self) -> None:
        """Raise ``click.UsageError`` unless there is one way to the receiver."""
        if bool(self.workers) == bool(self.registry):
            raise click.UsageError("give either --workers host:port, or --registry URL and --receiver NAME")
        if self.registry and not self.receiver:
            raise click.UsageError("--registry needs --receiver NAME, because a registry may serve several receivers")

    def connector(self, instance: str) -> Connector:
        """A connector to the receiver."""
        return Connector(
            self.receiver or "wallaroo-spark",
            instance=instance,
            workers=self.workers,
            registry=self.registry or None,
            version=self.version,
            revision=self.revision,
            **self.settings(),
        )


@dataclass(frozen=True, kw_only=True)
class SendOptions(TargetOptions):
    """The receiver, and how records become messages.

    Options:
        --instance: Name under which the receiver knows this connector's streams; without it, this host's name. Keep
            it the same from run to run, and use it in one program at a time.
        --follow: Wait for more at the end of a file or topic, until interrupted; a file also across rotations.
        --stream NAME: Name of the stream of the one input; else the path as it is given.
        --long-lines: End with an error at a line that is longer than a frame (4 MiB), or leave it out, or cut it.
        --positions DIR: With --follow: folder of the small files that say where rotated files begin. [default:
            ~/.local/state/wallaroo-spark/positions]
        --framed: A record is a big-endian u32 length and that many bytes, and not a line.
        --topic-registry URL: Redis where topics are found; else --registry's.
        --topic-cookie COOKIE: The cookie of topics; env:NAME or file:PATH.
        --topic-tls-ca FILE: PEM file of the authority of topics' publishers.
        --topic-value: A message has a row as a JSON object, or some rows as an Arrow IPC stream.
    """

    instance: str = ""
    follow: bool = False
    stream: str = ""
    long_lines: Annotated[str, click.Choice(TOO_LONG)] = "error"
    positions: str = ""
    framed: bool = False
    topic_registry: str = ""
    topic_cookie: str = ""
    topic_tls_ca: str = ""
    topic_value: Annotated[str, click.Choice(["json", "arrow"])] = "json"

    @property
    def name(self) -> str:
        """The name of the connector."""
        return self.instance or socket.gethostname()


@dataclass(frozen=True)
class SendInput:
    """One file, topic or standard input."""

    source: Source
    """The source of its records."""
    size: int | None
    """Bytes of the file when sending began; None for a topic and for standard input."""


class InputName(click.Path):
    """A file or folder, ``-``, ``topic:NAME``, or a pattern; whether there is one is checked by :func:`expand`."""

    def __init__(self) -> None:
        super().__init__(exists=False, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name of a topic is passed on; it is looked up when its input is opened."""
        return value if str(value).startswith(TOPIC) else super().convert(value, param, ctx)


def is_pattern(name: str) -> bool:
    """Whether a name stands for any number of files."""
    return name != STDIN and not name.startswith(TOPIC) and has_magic(name) and not os.path.exists(name)


def as_pattern(name: str) -> str:
    """A folder as the pattern of the files in it; any other name as it is."""
    return os.path.join(escape(name), "*") if os.path.isdir(name) else name


def expand(names: Sequence[str], given: SendOptions) -> list[str]:
    """The names, with the files of each pattern in its place. A file that is followed need not be there yet.

    Raises ``click.UsageError`` for a file that is not there, for a pattern without a file, and for names and options
    that do not go together.
    """
    found: list[str] = []
    for name in names:
        if is_pattern(name):
            matching = files_of(name)
            if not matching and not given.follow:
                raise click.UsageError(f"no file matches {name}; with --follow it would be waited for")
            found += [one for one in matching if one not in found]
            continue
        if name != STDIN and not name.startswith(TOPIC) and not given.follow and not os.path.exists(name):
            raise click.UsageError(f"there is no file {name}; check the path, or wait for it with --follow")
        found.append(name)
    _check(names, found, given)
    return found


def _check(names: Sequence[str], files: Sequence[str], given: SendOptions) -> None:
    given.check_receiver()
    twice = next((file for file in files if files.count(file) > 1), None)
    if twice is not None:
        raise click.UsageError(f"{twice} is given twice, but one input is one stream; give it once")
    if given.stream and (len(names) != 1 or is_pattern(names[0]) or names[0].startswith(TOPIC)):
        raise click.UsageError("--stream names the stream of one file or of standard input; give exactly one")
    if STDIN in files and (given.framed or given.follow):
        raise click.UsageError("standard input is read as lines, to its end; use --framed and --follow with files only")
    if any(file.startswith(TOPIC) for file in files) and not (given.topic_registry or given.registry):
        raise click.UsageError("topics are found in a registry; give --topic-registry URL")


def files_of(pattern: str) -> list[str]:
    """The files that match a pattern now, without those that a rotation has renamed or compressed."""
    names = sorted(one for one in glob(pattern, recursive=True) if os.path.isfile(one))
    return [name for name in names if not any(name != one and is_rotated(name, one) for one in names)]


def positions_of(name: str, given: SendOptions) -> Path:
    """The file of positions of a followed file: one for each receiver, instance, stream and path."""
    folder = Path(given.positions or _state_folder()).expanduser()
    parts = [given.receiver, given.name, given.stream, os.path.abspath(name)]
    return folder / f"{hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()}.json"


def open_input(name: str, given: SendOptions, *, new: bool = False) -> SendInput:
    """The input of that name. ``new``: it was found by a pattern."""
    if name.startswith(TOPIC):
        return _topic(name.removeprefix(TOPIC), given)
    if name == STDIN:
        return SendInput(Stdin(name=given.stream or "stdin"), None)
    longest: dict[str, Any] = {} if given.framed else {"longest": LONGEST_LINE, "too_long": given.long_lines}
    source: Source
    if given.follow:
        rotated: dict[str, Any] = {"positions": positions_of(name, given), "until_deleted": new, **longest}
        source = (RotatedFramed if given.framed else RotatedLines)(name, name=given.stream, **rotated)
    else:
        source = (Framed if given.framed else Lines)(name, name=given.stream, **longest)
    return SendInput(source, os.stat(name).st_size if os.path.exists(name) else 0)


def _state_folder() -> str:
    return os.path.join(os.environ.get("XDG_STATE_HOME", "") or "~/.local/state", "wallaroo-spark", "positions")


def standard_input_is_terminal() -> bool:
    """Whether a person types the lines; then no bars are drawn, because they would cover the typed text."""
    return sys.stdin is not None and sys.stdin.isatty()


def _topic(name: str, given: SendOptions) -> SendInput:
    source = pubsub.TopicSource(
        name,
        registry=given.topic_registry or given.registry,
        cookie=given.topic_cookie,
        value=given.topic_value,
        tls_ca=given.topic_tls_ca,
        name=given.name,
        reopen=given.follow,
        wait=given.give_up_after if given.follow else 0.0,
        lost_after=given.give_up_after,
    )
    return SendInput(source, None)
